"""Training that goes wrong by itself, on real processes: the same whatever happens to the workers."""

from pathlib import Path
from typing import Any

import pytest

from engine.harness import Run, finish, kill, once_saved, probe, run, scale, toy

pytestmark = pytest.mark.engine
OF_THE_MACHINE = ("samples_per_s", "workers", "sent_bytes")


def metrics(run: Run) -> dict[str, dict[int, float]]:
    names = {name for f in run.of_kind("metric") for name in f["values"]}
    return {name: run.metric(name) for name in names if name not in OF_THE_MACHINE}


def everything_on() -> dict[str, Any]:
    return toy(
        clip_norm=0.5,
        clip_value=0.02,
        schedule={"warmup_steps": 5, "decay": "cosine"},
        non_finite={"policy": "rollback", "max": 1},
        loss_spike={"policy": "rollback", "window": 8},
        watch={"norms": "layers", "every_steps": 4},
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(tmp_path_factory.mktemp("one"), everything_on())


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_with_everything_watched_a_kill_in_the_middle_changes_no_metric_and_no_bit(
    tmp_path: Path, undisturbed: Run, workers: int
) -> None:
    killed = run(tmp_path, everything_on(), workers, (14, kill(0)), (27, kill(workers - 1)))
    assert killed.events("worker.lost")
    assert killed.digests == undisturbed.digests
    assert metrics(killed) == metrics(undisturbed)
    assert set(killed.metric("update_ratio/0")) == set(range(4, 41, 4))


def cliff(edge: float, steps: int = 15, **fields: Any) -> dict[str, Any]:
    """The gradient is 1 and the rate too: after step k the weight is -k."""
    args, saves = {"edge": edge, "sleep_s": 0.02}, {"every_steps": 5, "keep": 9}
    spec = probe([1.0] * 80, args=args, checkpoint=saves)
    spec |= {"task": "engine.tasks.cliff:Cliff", "batch": {"size": 4, "microbatch": 1}, "steps": steps}
    return spec | {"epochs": None, "workers": {"min": 1, "max": 4}, **fields}


BACK = {"policy": "rollback", "max": 1, "lr_factor": 0.5, "rollbacks": 2}


@pytest.mark.parametrize(
    ("workers", "faults"),
    [
        (1, ()),
        (2, ((10, once_saved(10, kill(0))),)),
        (3, ((5, once_saved(5, kill(1))), (10, once_saved(10, kill(0))))),
        (2, ((7, scale(1, 3)),)),
    ],
)
def test_past_the_budget_it_goes_back_with_half_the_rate_whatever_happens_to_the_workers(
    tmp_path: Path, workers: int, faults: Any
) -> None:
    back = run(tmp_path, cliff(-12.5, non_finite=BACK), workers, *faults)
    assert back.outcome is not None and back.outcome.outcome == "succeeded"
    assert float(back.tensors(15)["w"]) == -12.5
    assert [(e["data"]["from"], e["data"]["to"]) for e in back.events("rollback")] == [(15, 10)]
    assert [s for s in back.steps() if s > 10] == [11, 12, 13, 14, 15, 11, 12, 13, 14, 15]
    assert back.metric("lr")[15] == 0.5
    assert back.manifest()["cursor"]["rollbacks"] == 1


def test_what_was_saved_after_the_last_good_step_is_set_aside_and_saved_again(tmp_path: Path) -> None:
    spec = cliff(-9.5, non_finite=BACK, steps=14)  # the state of step 10 is where it goes wrong
    back = run(tmp_path, spec, 2)
    states = [(f["step"], f["state"]) for f in back.of_kind("checkpoint")]
    assert (10, "bad") in states and states.count((10, "saved")) == 2
    assert float(back.tensors(10)["w"]) == -7.5


def test_a_paused_job_goes_on_with_the_rate_that_it_was_lowered_to(tmp_path: Path) -> None:
    spec = cliff(-12.5, non_finite=BACK, steps=18)
    first = run(tmp_path, spec, 2, (15, lambda r: r.faults.append((11, finish("paused")))))
    assert first.outcome is not None and first.outcome.outcome == "paused"
    assert first.manifest()["cursor"]["rollbacks"] == 1
    second = run(tmp_path, spec, 1, number=2)
    assert second.metric("lr")[second.steps()[0]] == 0.5


def test_after_the_last_rollback_the_job_fails_and_what_is_good_stays(tmp_path: Path) -> None:
    failed = run(tmp_path, cliff(-10.2, steps=40, non_finite={**BACK, "rollbacks": 1}), 2)
    assert failed.outcome is not None and failed.outcome.failed_by == "user"
    assert "rolled back 1 times already" in (failed.outcome.message or "")
    assert failed.attempt.checkpoints.steps() == [5, 10]
    assert float(failed.tensors(10)["w"]) == -10.0


def test_a_run_that_ends_in_nan_has_failed_and_its_last_good_checkpoints_stay(tmp_path: Path) -> None:
    failed = run(tmp_path, cliff(-12.5), 2)
    assert failed.outcome is not None and failed.outcome.outcome == "failed"
    assert "not finite" in (failed.outcome.message or "")
    assert failed.attempt.checkpoints.steps() == [5, 10]


@pytest.mark.parametrize("workers", [1, 3])
def test_parameters_that_overflowed_though_the_gradient_did_not_are_never_saved(
    tmp_path: Path, workers: int
) -> None:
    spec = probe([1e30] * 40, optimizer={"name": "sgd", "lr": 1e10}, checkpoint={"every_steps": 1})
    spec |= {"batch": {"size": 4, "microbatch": 1}, "workers": {"min": 1, "max": 3}}
    failed = run(tmp_path, spec, workers)
    assert failed.outcome is not None and failed.outcome.outcome == "failed"
    assert "after step 1 w holds NaN or infinity" in (failed.outcome.message or "")
    assert failed.attempt.checkpoints.steps() == []


@pytest.mark.parametrize("workers", [1, 2])
def test_each_element_of_the_mean_gradient_is_clipped(tmp_path: Path, workers: int) -> None:
    spec = probe([[3.0, -4.0], [-2.0, -4.0]], args={"sizes": {"a": 1, "b": 1}}, clip_value=1.0)
    clipped = run(tmp_path, spec, workers)
    assert (float(clipped.tensors()["a"]), float(clipped.tensors()["b"])) == (-0.5, 1.0)
    assert clipped.metric("grad_norm")[1] == pytest.approx((0.5**2 + 4**2) ** 0.5), "before clipping"


@pytest.mark.parametrize(
    "choice",
    [
        {"strategy": {"name": "local_sgd", "local_steps": 2}},
        {"strategy": "parameter_server"},
        {"compression": "int8"},
        {"compression": {"name": "powersgd", "rank": 2}},
        {"aggregate": "moments"},
    ],
    ids=["local_sgd", "parameter_server", "int8", "powersgd", "moments"],
)
def test_whatever_is_chosen_to_be_watched_changes_no_bit(tmp_path: Path, choice: dict[str, Any]) -> None:
    spec = toy(steps=8, workers={"min": 1, "max": 2}, **choice)
    watched = run(tmp_path / "on", {**spec, "watch": {"norms": "layers", "every_steps": 2}}, 2)
    assert watched.digests == run(tmp_path / "off", spec, 2).digests
    assert set(watched.metric("update_ratio/0")) == {2, 4, 6, 8}
    assert all(ratio > 0 for ratio in watched.metric("update_ratio/0").values())


SERVED = {"name": "parameter_server", "servers": 2}
other_strategies = pytest.mark.parametrize(
    ("strategy", "workers"),
    [
        ("parameter_server", 2),
        ("gossip", 2),
        ({"name": "local_sgd", "local_steps": 1}, 2),
        ({**SERVED, "staleness": 1}, 1),
        ({**SERVED, "staleness": None}, 1),  # alone: who is behind has older, better losses to tell
    ],
    ids=["synchronous", "gossip", "local_sgd", "bounded", "asynchronous"],
)


@other_strategies
def test_the_way_back_is_the_same_under_another_strategy(tmp_path: Path, strategy: Any, workers: int) -> None:
    back = run(tmp_path, cliff(-12.5, non_finite=BACK, strategy=strategy), workers)
    assert back.outcome is not None and back.outcome.outcome == "succeeded", back.outcome
    assert [(e["data"]["from"], e["data"]["to"]) for e in back.events("rollback")] == [(15, 10)]
    assert float(back.tensors(15)["w"]) == -12.5


def test_a_round_of_many_inner_steps_goes_back_whole(tmp_path: Path) -> None:
    strategy = {"name": "local_sgd", "local_steps": 2, "replicas": 4}
    back = run(tmp_path, cliff(-25.5, non_finite=BACK, strategy=strategy), 2)
    assert back.outcome is not None and back.outcome.outcome == "succeeded", back.outcome
    assert [(e["data"]["from"], e["data"]["to"]) for e in back.events("rollback")] == [(15, 10)]
    assert float(back.tensors(15)["w"]) == -25.0


def peak(**fields: Any) -> dict[str, Any]:
    rule = {"policy": "rollback", "window": 8, "max": 1}
    spec = cliff(-12.5, loss_spike=rule, non_finite={**BACK, "policy": "skip"}, **fields)
    return {**spec, "task": "engine.tasks.cliff:Peak"}


def check_it_went_back_once(back: Run) -> None:
    assert back.outcome is not None and back.outcome.outcome == "succeeded", back.outcome
    assert [e["data"]["step"] for e in back.events("loss.spike")] == [14]
    assert [(e["data"]["from"], e["data"]["to"]) for e in back.events("rollback")] == [(15, 10)]
    assert float(back.tensors(15)["w"]) == -12.5 and back.metric("lr")[15] == 0.5


@pytest.mark.parametrize(("workers", "faults"), [(1, ()), (3, ((10, once_saved(10, kill(0))),))])
def test_past_the_budget_of_spikes_it_goes_back_and_each_row_of_them_is_told_once(
    tmp_path: Path, workers: int, faults: Any
) -> None:
    check_it_went_back_once(run(tmp_path, peak(), workers, *faults))


@other_strategies
def test_past_the_budget_of_spikes_it_goes_back_under_another_strategy_too(
    tmp_path: Path, strategy: Any, workers: int
) -> None:
    check_it_went_back_once(run(tmp_path, peak(strategy=strategy), workers))


@pytest.mark.parametrize("strategy", ["all_reduce", "parameter_server", {"name": "local_sgd"}])
def test_a_gradient_that_vanishes_or_explodes_is_named_with_its_layer_once(
    tmp_path: Path, strategy: Any
) -> None:
    rows = [[1e-9, 1.0]] * 12 + [[1e4, 1.0]] * 12  # of two microbatches: six steps each
    args, watch = {"sizes": {"first": 1, "last": 1}}, {"norms": "layers", "every_steps": 2}
    spec = probe(rows, args=args, watch=watch, strategy=strategy)
    odd = run(tmp_path, spec, 2, (3, kill(-1)))
    assert odd.outcome is not None and odd.outcome.outcome == "succeeded", odd.outcome
    assert odd.events("worker.lost") and not odd.events("rollback")
    for type_, step in (("gradient.vanishing", 2), ("gradient.exploding", 8)):
        assert [(e["data"]["layer"], e["data"]["step"]) for e in odd.events(type_)] == [("first", step)]
