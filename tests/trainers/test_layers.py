"""Norms by layer: exact whoever owned what, cheap to carry, and what is odd in them is told once."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from elastrain.trainers.membership.messages import Json
from elastrain.trainers.numerics.chunks import Domain, Ownership
from elastrain.trainers.numerics.cursor import merge
from elastrain.trainers.numerics.flat import FlatModel
from elastrain.trainers.numerics.layers import Layer, Watcher, due, exact_parts, layer_of, metrics
from elastrain.trainers.spec import parse_spec
from elastrain.trainers.task import Task
from elastrain.trainers.training.replica import Replica
from elastrain.trainers.training.soundness import finite, unsound
from elastrain.trainers.training.watch import measure

numbers = st.floats(-1e30, 1e30)


@given(st.lists(st.lists(numbers, max_size=12), max_size=5))
def test_sums_that_were_made_in_groups_are_exactly_the_sum_of_all(groups: list[list[float]]) -> None:
    parts = [part for group in groups for part in exact_parts(group)]
    assert math.fsum(parts) == math.fsum(v for group in groups for v in group)


@given(st.lists(st.floats(0, 1e6), min_size=50, max_size=200))
def test_a_group_of_any_size_is_a_few_numbers(values: list[float]) -> None:
    assert len(exact_parts(values)) <= 40


def test_what_is_not_finite_stays_so() -> None:
    assert math.isnan(exact_parts([1.0, math.nan])[0]) and exact_parts([math.inf, 1.0]) == [math.inf]


def test_a_layer_is_the_module_that_a_parameter_belongs_to() -> None:
    assert [layer_of(n) for n in ("a.b.weight", "a.b.bias", "w")] == ["a.b", "a.b", "w"]
    layers = Layer.all([("a.weight", 6), ("a.bias", 2), ("w", 5)])
    assert layers == [Layer("a", 8, 0b011), Layer("w", 5, 0b100)]


def test_the_steps_whose_number_people_see_as_a_multiple_are_measured() -> None:
    assert [step + 1 for step in range(12) if due(5, step)] == [5, 10]


# ---- measured ----------------------------------------------------------------------------------


class Three(Task):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(40, 300), nn.Linear(300, 30), nn.Linear(30, 2))


def replica(norms: str = "layers") -> Replica:
    spec = parse_spec(
        {
            "name": "x",
            "task": "a:B",
            "batch": {"size": 4, "microbatch": 1},
            "steps": 9,
            "clip_norm": 0.5,
            "clip_value": 0.01,
            "watch": {"norms": norms},
        }
    )
    torch.manual_seed(3)
    return Replica(spec, Three(), FlatModel(Three().model()), 100, 0)


def entries(held: Replica, world: int, gradient: torch.Tensor) -> list[Json]:
    own = Ownership.of(held.model.space, [Domain(f"w{r}", f"g{r}", f"n{r}") for r in range(world)])
    norm = float(gradient.double().square().sum())
    base = {"step": 0, "log": 0, "used": "3f", "norms": [norm]}
    rows = [[j, 1.0, 1.0, 0.1, "i", ""] for j in range(4)]
    record = merge([{**base, "microbatches": rows}], ["w0"])
    found = []
    for rank in range(world):
        held.begin(own, rank)
        held.reduced = {c: gradient[None, held.model.space.elements(c)].clone() for c in own.held(rank)}
        layers = measure(held, own, rank, record)
        found.append({**base, "norms": [norm / world], "microbatches": rows[rank::world], "layers": layers})
    return found


def test_the_norms_are_the_same_bits_whoever_owned_what_and_the_trial_leaves_no_trace() -> None:
    held = replica()
    gradient = torch.randn(held.model.space.size, generator=torch.Generator().manual_seed(5))
    params = held.model.params.clone()
    said = [merge(entries(held, world, gradient), [f"w{r}" for r in range(world)]) for world in (1, 2, 3, 7)]
    assert [s["layers"] for s in said[1:]] == [said[0]["layers"]] * 3
    assert torch.equal(held.model.params, params)
    assert all(not t.any() for state in held.states.pieces.values() for t in state.values())
    assert all(torch.equal(t[0], gradient[held.model.space.elements(c)]) for c, t in held.reduced.items())


def test_the_norms_are_those_of_the_update_that_is_made() -> None:
    held = replica()
    gradient = torch.randn(held.model.space.size, generator=torch.Generator().manual_seed(5))
    record = merge(entries(held, 1, gradient), ["w0"])
    before = {n: v.double().clone() for n, v in held.model.values()}
    held.apply(record)
    for at, layer in enumerate(["0", "1", "2"]):
        after = {n: v.double() for n, v in held.model.values() if n.startswith(f"{layer}.")}
        weight = sum(float(v.square().sum()) for v in after.values())
        update = sum(float((v - before[n]).square().sum()) for n, v in after.items())
        assert math.isclose(record["layers"][at][1], weight, rel_tol=1e-6)
        assert math.isclose(record["layers"][at][2], update, rel_tol=1e-4)


def test_of_the_whole_model_there_is_one_row() -> None:
    held = replica("global")
    gradient = torch.ones(held.model.space.size)
    record = merge(entries(held, 2, gradient), ["w0", "w1"])
    shown = metrics(record["layers"], [], 1.0, True)
    assert set(shown) == {"weight_norm", "update_norm", "update_ratio"}
    assert math.isclose(shown["update_ratio"], shown["update_norm"] / shown["weight_norm"])


def test_names_of_metrics_do_not_depend_on_what_is_measured() -> None:
    shown = metrics([[4.0, 9.0, 0.09], [1.0, 0.0, 0.0]], ["a", "b"], 0.5, True)
    assert shown["grad_norm/a"] == 1.0 and shown["weight_norm/a"] == 3.0
    assert math.isclose(shown["update_ratio/a"], 0.1)
    assert "update_ratio/b" not in shown, "there is nothing to compare with"
    assert set(metrics([[4.0, 0.0, 0.0]], ["a"], 0.5, False)) == {"grad_norm/a"}, "a skipped step"


# ---- odd ---------------------------------------------------------------------------------------

LAYERS = [Layer(name, 100, 1 << bit) for bit, name in enumerate(["first", "middle", "last"])]


def look(watcher: Watcher, step: int, *norms: float, used: int = 0b111) -> list[tuple[str, str]]:
    return [(odd.type, odd.data["layer"]) for odd in watcher.look(step, norms, used)]


def test_a_gradient_that_shrinks_on_its_way_back_is_called_vanishing_once_by_its_layer() -> None:
    watcher = Watcher(LAYERS)
    assert look(watcher, 10, 1e-7, 1e-3, 1.0) == [("gradient.vanishing", "first")]
    assert look(watcher, 20, 1e-7, 1e-3, 1.0) == []
    assert look(watcher, 30, 1e-2, 1e-1, 1.0) == []
    assert look(watcher, 40, 0.0, 1e-3, 1.0) == [("gradient.vanishing", "first")]


def test_a_gradient_that_grows_on_its_way_back_is_called_exploding() -> None:
    assert look(Watcher(LAYERS), 10, 1e5, 1e2, 1.0) == [("gradient.exploding", "first")]


def test_a_layer_that_is_suddenly_far_above_itself_explodes_also_if_all_do() -> None:
    watcher = Watcher(LAYERS)
    for step in range(8):
        assert look(watcher, step, 1.0, 1.0, 1.0) == []
    assert look(watcher, 9, 500.0, 500.0, 500.0) == [
        ("gradient.exploding", n) for n in ("first", "middle", "last")
    ]


def test_where_a_gradient_is_not_finite_the_layer_is_named() -> None:
    assert look(Watcher(LAYERS), 1, 1.0, math.inf, 1.0) == [("gradient.exploding", "middle")]
    assert ("gradient.exploding", "last") in look(Watcher(LAYERS), 1, 1.0, 1.0, math.nan)


def test_a_layer_that_the_step_did_not_use_is_not_odd() -> None:
    assert look(Watcher(LAYERS), 1, 0.0, 1.0, 1.0, used=0b110) == []
    assert look(Watcher(LAYERS), 1, 1.0, 1.0, 0.0, used=0b011) == [], "and nobody is compared with it"


def test_a_converged_model_whose_gradients_are_all_small_has_none_that_vanishes() -> None:
    assert look(Watcher(LAYERS), 1, 1e-12, 1e-12, 1e-12) == []


# ---- sound -------------------------------------------------------------------------------------


def test_one_nan_or_infinity_anywhere_is_found_and_named() -> None:
    held = replica()
    own = Ownership.of(held.model.space, [Domain("w0", "g", "n"), Domain("w1", "h", "o")])
    for rank in (0, 1):
        held.begin(own, rank)
        assert unsound(held, own, rank) == []
    piece = held.model.space.pieces[0]
    held.model.params[piece.stop - 1] = math.nan
    named = []
    for rank in (0, 1):
        held.begin(own, rank)
        named += unsound(held, own, rank)
    assert named == [piece.name], "by its owner"


def test_state_that_overflowed_is_found_too() -> None:
    held = replica()
    own = Ownership.of(held.model.space, [Domain("w0", "g", "n")])
    held.begin(own, 0)
    chunk = own.held(0)[0]
    held.states.read(chunk)["exp_avg_sq"][held.model.space.pieces[1].start] = math.inf
    assert unsound(held, own, 0) == [held.model.space.pieces[1].name]


def test_a_mask_of_minus_infinity_among_the_buffers_is_sound_and_nan_is_not() -> None:
    held = replica()
    own = Ownership.of(held.model.space, [Domain("w0", "g", "n")])
    held.begin(own, 0)
    held.model.buffers.floats.append("mask")
    held.model.buffers.base["mask"] = torch.tensor([0.0, -math.inf])
    assert unsound(held, own, 0) == []
    held.model.buffers.base["mask"] = torch.tensor([0.0, math.nan])
    assert unsound(held, own, 0) == ["mask"]


def test_an_extreme_is_finite_and_nothing_is_finite() -> None:
    assert finite(torch.tensor([3e38, -3e38])) and finite(torch.empty(0))
    assert not finite(torch.tensor([1.0, math.nan, 2.0])) and not finite(torch.tensor([-math.inf]))
