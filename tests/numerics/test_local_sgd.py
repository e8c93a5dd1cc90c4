"""local_sgd against plain torch in one process: replicas one after the other, averaged, the same bits."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from elastrain.trainers.exchange.collectives import Group
from elastrain.trainers.exchange.reduction import Reduction
from elastrain.trainers.numerics.chunks import Domain, Ownership
from elastrain.trainers.numerics.cursor import Verdict
from elastrain.trainers.numerics.flat import FlatModel
from elastrain.trainers.numerics.rounds import Rounds
from elastrain.trainers.spec import JobSpec, parse_spec
from elastrain.trainers.spec.strategies import LocalSGD
from elastrain.trainers.strategies import local_sgd
from elastrain.trainers.training.replica import Replica, make_module
from elastrain.trainers.training.samples import SampleReader, seed_everything
from elastrain.trainers.training.step import Exchange
from engine.tasks.toy import Toy

ROUNDS = 4  # of 128 samples, in epochs of 300: the third is short
MOMENTUM = {"name": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As many as a worker has by default; more of them wait for each other on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def spec_of(**fields: Any) -> JobSpec:
    strategy = {"name": "local_sgd", "local_steps": 2, **fields.pop("strategy", {})}
    return parse_spec(
        {
            "name": "toy",
            "task": "engine.tasks.toy:Toy",
            "steps": ROUNDS,
            "batch": {"size": 64, "microbatch": 8},
            "optimizer": MOMENTUM,
            "strategy": strategy,
            "workers": {"max": 1},
            **fields,
        }
    )


# ---- the engine, with one worker in this process -----------------------------------------------------


class Alone:
    """A worker by itself, round after round."""

    def __init__(self, spec: JobSpec) -> None:
        task = Toy()
        self.replica = Replica(spec, task, FlatModel(make_module(task, spec.seed)), 300, 0)
        self.reader = SampleReader(task, spec.seed)
        self.own = Ownership.of(self.replica.model.space, [Domain("w0", "w0", "n")])
        self.replica.begin(self.own, 0)
        self.begin()

    def begin(self) -> None:
        replica = self.replica
        count = replica.plan.count(replica.step)
        replica.at_hand()
        self.left = list(range(count))

    def inner_step(self) -> bool:
        """Of the next replica that is not done. False: the round has no more."""
        assert self.left
        if local_sgd.compute(self.replica, self.reader, self.replica.step, self.left[0]):
            self.left.pop(0)
        return bool(self.left)

    def commit(self) -> None:
        replica, group = self.replica, Group(0, 1)
        assert replica.partial is not None
        reduction = Reduction(replica, group, self.own, [sorted(replica.partial.rows)])
        reduction.finish()
        exchange = Exchange(replica, group, self.own, ["w0"])
        assert replica.apply(exchange.commit(0, reduction.norms)).applied
        exchange.gather()

    def train(self, rounds: int = ROUNDS) -> Replica:
        for _ in range(rounds):
            self.begin()
            while self.inner_step():
                pass
            self.commit()
        return self.replica


# ---- plain torch ------------------------------------------------------------------------------------


def tree(values: list[Tensor]) -> Tensor:
    """The sum in the order of a binary tree over the next power of two."""
    if len(values) == 1:
        return values[0]
    half = 1 << ((len(values) - 1).bit_length() - 1)
    return tree(values[:half]) + tree(values[half:])


class Plain:
    """Every replica is a copy of the model with an optimizer of its own."""

    def __init__(
        self, spec: JobSpec, optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    ) -> None:
        assert isinstance(spec.strategy, LocalSGD)
        self.spec, self.task, self.make = spec, Toy(), optimizer
        seed_everything(spec.seed, "model")
        self.model = self.task.model()
        outer = spec.strategy.outer
        self.outer = torch.optim.SGD(
            self.model.parameters(),
            lr=outer.lr,
            momentum=outer.momentum,
            nesterov=outer.nesterov,
            foreach=False,
        )
        self.inner: list[dict[str, Tensor]] = []  # by parameter
        self.plan = Rounds(300, spec, spec.strategy)
        self.reader = SampleReader(self.task, spec.seed)

    def train(self) -> list[Tensor]:
        for number in range(ROUNDS):
            self.round(number)
        return [p.detach() for p in self.model.parameters()]

    def round(self, number: int) -> None:
        start = list(self.model.parameters())
        scale = 2.0 ** -(self.plan.batch - 1).bit_length()
        went: list[list[Tensor]] = []  # by replica and parameter
        states: list[list[dict[str, Tensor]]] = []
        buffers, weights = [], []
        for replica in range(self.plan.count(number)):
            model, state, weight = self.run(number, replica)
            share = weight * scale
            went.append(
                [(a.detach() - b.detach()) * share for a, b in zip(start, model.parameters(), strict=True)]
            )
            states.append([{k: v * share for k, v in s.items()} for s in state])
            buffers.append([b.double() * weight for b in model.buffers()])
            weights.append(weight)
        factor = 1.0 / (scale * sum(weights))
        for at, parameter in enumerate(start):
            parameter.grad = tree([w[at] for w in went]).mul_(factor)
        self.inner = [
            {k: tree([s[at][k] for s in states]).mul_(factor) for k in states[0][at]}
            for at in range(len(start))
        ]
        self.outer.step()
        for at, buffer in enumerate(self.model.buffers()):
            mean = tree([b[at] for b in buffers]) / sum(weights)
            buffer.copy_(mean)

    def run(self, number: int, replica: int) -> tuple[nn.Module, list[dict[str, Tensor]], float]:
        model = copy.deepcopy(self.model)
        parameters = list(model.parameters())
        optimizer = self.make(parameters)
        for parameter, state in zip(parameters, self.inner, strict=False):
            optimizer.state[parameter] = {k: v.clone() for k, v in state.items()}
        weight = 0.0
        for inner, cut in enumerate(self.plan.cuts(number, replica)):
            weight += self.inner_step(model, cut, (number, replica, inner))
            optimizer.step()
        return model, [dict(optimizer.state[p]) for p in parameters], weight

    def inner_step(self, model: nn.Module, cut: list[Any], place: tuple[int, ...]) -> float:
        base = [b.clone() for b in model.buffers()]
        gradients, buffers, weights = [], [], []
        scale = 2.0 ** -(self.plan.inner_batch - 1).bit_length()
        for part, indices in enumerate(cut):
            for buffer, before in zip(model.buffers(), base, strict=True):
                buffer.copy_(before)
            batch = self.reader.read("train", self.plan.epoch(place[0]), indices)
            seed_everything(self.spec.seed, *place, part)
            model.train()
            loss = self.task.loss(model, batch)
            gradients.append(torch.autograd.grad(loss.sum * scale, list(model.parameters())))
            buffers.append([b.double() * loss.weight for b in model.buffers()])
            weights.append(loss.weight)
        factor = 1.0 / (scale * sum(weights))
        for at, parameter in enumerate(model.parameters()):
            parameter.grad = tree([g[at] for g in gradients]).mul_(factor)
        for at, buffer in enumerate(model.buffers()):
            buffer.copy_(tree([b[at] for b in buffers]) / sum(weights))
        return float(sum(weights))


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01, foreach=False)


DILOCO = {"outer": {"lr": 0.7, "momentum": 0.9, "nesterov": True}}


@pytest.mark.parametrize(
    "strategy", [{}, {"replicas": 4}, {"replicas": 1, "local_steps": 3}, DILOCO, {"replicas": 2, **DILOCO}]
)
def test_the_engine_gives_the_bits_of_replicas_that_train_by_themselves_and_are_averaged(
    strategy: dict[str, Any],
) -> None:
    spec = spec_of(strategy=strategy)
    plain, ours = Plain(spec, sgd), Alone(spec).train()
    expected = plain.train()
    for parameter, end in zip(ours.model.parameters, expected, strict=True):
        assert torch.equal(parameter.detach(), end)
    for (name, ours_), theirs in zip(ours.model.buffers.base.items(), plain.model.buffers(), strict=True):
        assert torch.equal(ours_, theirs), name
    space = ours.model.space
    for piece in space.pieces:
        momentum = ours.states.read((0, space.blocks))["momentum_buffer"][piece.start : piece.stop]
        assert torch.equal(momentum.view(piece.shape), plain.inner[piece.index]["momentum_buffer"]), (
            piece.name
        )


def test_one_replica_and_the_average_is_training_without_any_strategy() -> None:
    """As many updates on the same batches; a round only writes them down as a difference."""
    rounds = spec_of(
        strategy={"replicas": 1}, batch={"size": 8, "microbatch": 8}, workers={"max": 1}, shuffle=False
    )
    ours = Alone(rounds).train(4)
    task = Toy()
    seed_everything(0, "model")
    model = task.model()
    optimizer, reader = sgd(list(model.parameters())), SampleReader(task, 0)
    for update in range(8):
        batch = reader.read("train", 0, np.arange(8 * update, 8 * update + 8))
        seed_everything(0, update // 2, 0, update % 2, 0)
        loss = task.loss(model.train(), batch)
        optimizer.zero_grad()
        (loss.sum / loss.weight).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    for parameter, end in zip(ours.model.parameters, model.parameters(), strict=True):
        torch.testing.assert_close(parameter, end, rtol=1e-4, atol=1e-6)
    assert ours.cursor is not None and ours.cursor.counts.common == 8, "inner updates are counted"


def test_the_inner_gradient_is_clipped_by_its_own_norm() -> None:
    free, clipped = (
        Alone(spec_of(optimizer={"name": "sgd", "lr": 0.05})),
        Alone(spec_of(optimizer={"name": "sgd", "lr": 0.05}, clip_norm=1e-3)),
    )
    start = free.replica.model.params.clone()
    went = [float((worker.train(1).model.params - start).norm()) for worker in (free, clipped)]
    assert went[0] > 1e-2
    assert went[1] <= 2 * 0.05 * 1e-3 * 1.001, "two inner steps, each at most lr times the limit"


# ---- a run under way --------------------------------------------------------------------------------


def test_a_run_that_is_cut_short_goes_on_where_it_was_and_the_common_state_never_moved() -> None:
    worker = Alone(spec_of(optimizer={"name": "adam", "lr": 1e-2}))
    worker.train(1)
    worker.begin()
    replica, before = worker.replica, worker.replica.model.params.clone()
    worker.inner_step()
    assert replica.partial is not None and replica.report(1, "halted").done == (0,), "it is kept"
    assert torch.equal(replica.model.params, before)
    assert all(p.data_ptr() >= replica.model.params.data_ptr() for p in replica.model.parameters)
    while worker.inner_step():
        pass
    worker.commit()
    undisturbed = Alone(spec_of(optimizer={"name": "adam", "lr": 1e-2})).train(2)
    assert torch.equal(replica.model.params, undisturbed.model.params)
    assert all(torch.equal(v, undisturbed.gathered[s]) for s, v in replica.gathered.items())


def test_an_inner_step_that_raises_leaves_the_run_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Alone(spec_of(strategy={"replicas": 4}))
    worker.inner_step()
    read, calls = worker.reader.read, []

    def fails_once(*what: Any) -> Any:
        calls.append(what)
        if len(calls) == 2:  # the second microbatch of the inner step
            raise RuntimeError("too little memory, for now")
        return read(*what)

    monkeypatch.setattr(worker.reader, "read", fails_once)
    with pytest.raises(RuntimeError):
        worker.inner_step()
    while worker.inner_step():
        pass
    worker.commit()
    assert torch.equal(
        worker.replica.model.params, Alone(spec_of(strategy={"replicas": 4})).train(1).model.params
    )


def test_a_round_with_a_loss_that_is_not_finite_is_skipped_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Alone(spec_of())
    before = worker.replica.model.params.clone()
    worker.begin()
    inner = worker.reader.read
    monkeypatch.setattr(
        worker.reader, "read", lambda *what: [inner(*what)[0] * float("nan"), inner(*what)[1]]
    )
    worker.inner_step()
    monkeypatch.undo()
    verdict = rest_of_the_round(worker)
    assert not verdict.applied and torch.equal(worker.replica.model.params, before)
    assert torch.isfinite(next(iter(worker.replica.gathered.values()))).all()


@pytest.mark.parametrize("limits", [{}, {"clip_value": 0.1}, {"clip_norm": 0.1}])
def test_a_round_with_an_infinite_inner_gradient_is_skipped_whatever_clips_it(
    monkeypatch: pytest.MonkeyPatch, limits: dict[str, float]
) -> None:
    """Clipped element by element, infinity would be a number like any other."""
    worker = Alone(spec_of(**limits))
    before = worker.replica.model.params.clone()
    worker.begin()
    update = local_sgd.Run._update

    def spoilt(run: local_sgd.Run, gradient: Tensor, weight: float, used: int) -> None:
        gradient[0] = float("inf")
        update(run, gradient, weight, used)

    monkeypatch.setattr(local_sgd.Run, "_update", spoilt)
    worker.inner_step()
    monkeypatch.undo()
    verdict = rest_of_the_round(worker)
    assert not verdict.finite and torch.equal(worker.replica.model.params, before)


def rest_of_the_round(worker: Alone) -> Verdict:
    while worker.inner_step():
        pass
    replica, group = worker.replica, Group(0, 1)
    assert replica.partial is not None
    reduction = Reduction(replica, group, worker.own, [sorted(replica.partial.rows)])
    reduction.finish()
    return replica.apply(Exchange(replica, group, worker.own, ["w0"]).commit(0, reduction.norms))
