"""How a model is cut into stages, and what a Task is told that cannot be. No process is started here; what
comes of it is in tests/engine/test_pipeline.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from elastrain.trainers.numerics.flat import UnusableModel
from elastrain.trainers.split.pieces import cut, pieces_of
from elastrain.trainers.split.stage import shapes_of, tensors_of
from elastrain.trainers.split.stages import Stages, least_of
from elastrain.trainers.split.stand_ins import Answers, alike, asked, shape_of
from elastrain.trainers.task import Loss, Task
from elastrain.trainers.tasks.digits import Digits


@pytest.mark.parametrize(
    ("sizes", "count", "runs"),
    [
        ([1, 1, 1, 1], 2, [(0, 2), (2, 4)]),
        ([9, 1, 1, 1], 2, [(0, 1), (1, 4)]),
        ([1, 1, 1, 9], 3, [(0, 2), (2, 3), (3, 4)]),
        ([5, 0, 0, 5, 0], 2, [(0, 3), (3, 5)]),  # an activation stays with the layer before it
        ([100, 1, 1, 1, 1], 3, [(0, 1), (1, 3), (3, 5)]),
        ([3, 3, 3], 3, [(0, 1), (1, 2), (2, 3)]),
        ([7], 1, [(0, 1)]),
    ],
)
def test_stages_are_runs_of_parts_that_are_as_equal_as_can_be(
    sizes: Sequence[int], count: int, runs: list[tuple[int, int]]
) -> None:
    assert [(run.start, run.stop) for run in cut(sizes, count)] == runs


@pytest.mark.parametrize(("samples", "pieces"), [(32, 8), (12, 6), (3, 3), (1, 1), (14, 7), (31, 1), (22, 2)])
def test_a_microbatch_is_cut_into_equal_pieces_at_most_four_for_each_stage(samples: int, pieces: int) -> None:
    assert pieces_of(samples, 2) == pieces


@pytest.mark.parametrize(("samples", "pieces"), [(8, 4), (7, 1), (2, 1), (1, 1), (12, 6)])
def test_a_model_that_takes_variances_gets_no_piece_of_one_sample(samples: int, pieces: int) -> None:
    least = least_of(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    assert pieces_of(samples, 2, least) == pieces


class Model(nn.Module):
    """Its head is tied to its first layer; a table is shared by all, a mean is the tail's."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8, bias=False)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.head = nn.Linear(8, 8, bias=False)
        self.head.weight = self.first.weight
        self.register_buffer("table", torch.ones(8))
        self.register_buffer("nowhere", torch.ones(2))


class Layer(nn.Module):
    def __init__(self, model: Model, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.register_buffer("table", model.table)


def parts_of(model: Model) -> list[nn.Module]:
    return [Layer(model, inner) for inner in (model.first, *model.layers, model.head)]


def test_a_tied_parameter_is_in_every_stage_that_uses_it() -> None:
    model = Model()
    stages = Stages.of(model, parts_of(model), 3)
    assert [(run.start, run.stop) for run in stages.runs] == [(0, 2), (2, 4), (4, 6)]
    assert stages.users["first.weight"] == (0, 2) and "head.weight" not in stages.users
    assert stages.users["layers.2.bias"] == (1,)


def test_a_buffer_has_one_stage_whose_word_it_is() -> None:
    model = Model()
    stages = Stages.of(model, parts_of(model), 2)
    assert stages.holders == {"table": (0, 1), "nowhere": ()}
    assert stages.owner("table") == 0 and stages.owner("nowhere") == 0


def test_frozen_layers_do_not_count_when_a_model_is_cut() -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    model[0].requires_grad_(False)
    model[1].requires_grad_(False)
    runs = Stages.of(model, list(model), 2).runs
    assert [(run.start, run.stop) for run in runs] == [(0, 3), (3, 4)]


def test_too_few_parts_are_refused_with_how_many_there_are() -> None:
    model = Digits(layers=2).model()
    assert isinstance(model, nn.Sequential)
    with pytest.raises(UnusableModel, match="needs 4 parts with trainable parameters, and the model has 3"):
        Stages.of(model, list(model), 4)


def test_a_parameter_that_is_in_no_part_is_named() -> None:
    model = Model()
    with pytest.raises(UnusableModel, match=r"layers\.3\.bias is in none of the 5 parts"):
        Stages.of(model, [model.first, *list(model.layers)[:-1], model.head], 2)


def test_a_part_with_something_of_its_own_is_named() -> None:
    model = Model()
    with pytest.raises(UnusableModel, match="part 1 of pipeline, Linear, has weight, which the model"):
        Stages.of(model, [model.first, nn.Linear(8, 8), *model.layers], 2)


@pytest.mark.parametrize("parts", [None, [nn.Linear(2, 2), torch.relu]])
def test_what_are_no_modules_is_refused(parts: Any) -> None:
    with pytest.raises(UnusableModel, match="a list of modules"):
        Stages.of(nn.Linear(2, 2), parts, 2)


class Branched(Task):
    def loss(self, model: nn.Module, batch: Any) -> Loss:
        x, y = batch
        return Loss((model(x * 2, mask=None) - y).sum(), len(y))


def test_a_sequential_model_is_its_own_parts_and_any_other_task_is_told_what_it_lacks() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    assert Branched().pipeline(model) == list(model)
    model.__class__ = type("Skips", (nn.Sequential,), {"forward": lambda self, x: x + self[0](x)})
    with pytest.raises(NotImplementedError, match=r"Branched does not say"):
        Branched().pipeline(model)  # it calls its elements in a way of its own
    with pytest.raises(NotImplementedError, match=r"Branched does not say .* define pipeline\(self, model\)"):
        Branched().pipeline(Model())


def test_the_loss_is_asked_with_what_it_calls_the_model_and_told_what_came_of_it() -> None:
    x, y = torch.ones(3, 2), torch.zeros(3, 2)
    inputs = asked(lambda model: Branched().loss(model, (x, y)), True)
    assert alike(inputs[0], [x * 2]) and inputs[1] == {"mask": None}
    loss = Branched().loss(Answers(inputs, torch.full((3, 2), 7.0), True), (x, y))
    assert loss.sum == 42.0 and loss.weight == 3


def test_a_loss_that_does_not_call_the_model_is_told_so() -> None:
    with pytest.raises(ValueError, match="loss does not call the model"):
        asked(lambda model: None, True)


def test_a_loss_that_calls_the_model_twice_is_told_so() -> None:
    inputs = (torch.ones(1),), dict[str, Any]()
    twice = Answers(inputs, torch.ones(1), True)
    twice(*inputs[0])
    with pytest.raises(ValueError, match="calls the model twice"):
        twice(*inputs[0])


def test_metrics_may_call_the_model_again_with_the_same_inputs_only() -> None:
    given = torch.tensor([1.0, float("nan")])
    model = Answers(((given,), {}), "out", False)
    assert model(given.clone()) == "out" and model(given) == "out"
    with pytest.raises(ValueError, match="different inputs"):
        model(torch.tensor([2.0, float("nan")]))


def test_a_loss_that_looks_into_the_model_is_told_that_nobody_has_it() -> None:
    with pytest.raises(AttributeError, match=r"may only call it, but here they ask for model\.head"):
        asked(lambda model: model.head, True)


def test_only_tensors_travel_between_stages() -> None:
    with pytest.raises(ValueError, match="stage 1 hands on a dict"):
        tensors_of({"x": torch.ones(1)}, 1)
    x: Tensor = torch.ones(2, 3, requires_grad=True)
    handed = tensors_of((x.t(), torch.ones(2, dtype=torch.bool)), 0)
    assert handed[0].is_contiguous()
    assert shapes_of(handed, True) == [["torch.float32", True, 3, 2], ["torch.bool", False, 2]]
    assert shapes_of(handed, False)[0] == ["torch.float32", False, 3, 2]


def test_inputs_have_the_same_shape_whatever_is_in_them() -> None:
    assert shape_of(((torch.ones(2, 3), [None, 1]), {"a": 0.5})) == shape_of(
        ((torch.zeros(2, 3), [None, 1]), {"a": 0.7})
    )
    assert shape_of(torch.ones(2)) != shape_of(torch.ones(3))
