"""`resume_from`: what is not there, not yours or does not fit is refused at the door."""

from typing import Any

import pytest

from elastrain.service.auth import Actor
from elastrain.service.errors import Invalid
from world import ADMIN, SPEC, World

VISION = Actor("t-member", "mia", "member", "vision")


@pytest.fixture
def source(world: World) -> str:
    id, driver = world.running()
    driver.saves(20)
    driver.saves(40)
    driver.post({"kind": "checkpoint", "step": 60, "state": "bad", "bytes": 10, "files": []})
    driver.ends("succeeded")
    world.round()
    return id


def test_the_newest_good_checkpoint_or_that_of_a_step_is_settled_at_the_submit(
    world: World, source: str
) -> None:
    for text, settled in ((source, 40), (source[2:], 40), (f"{source}@20", 20)):
        id = world.submit(resume_from=text)
        assert world.job(id)["spec"]["resume_from"] == f"{source}@{settled}"
    dry = world.control.dry_run({**SPEC, "resume_from": source}, actor=ADMIN)
    assert dry["spec"]["resume_from"] == f"{source}@40"


@pytest.mark.parametrize(
    ("text", "changes", "told"),
    [
        ("nope", {}, "no job"),
        ("../etc", {}, "neither a job id"),
        ("j-zzzzzzzzzz@20", {}, "no job"),
        ("{source}@30", {}, "it has 20, 40"),
        ("{source}@60", {}, "it has 20, 40"),
        ("{source}", {"steps": 40}, "nothing would be left"),
        ("{source}", {"optimizer": {"name": "sgd", "lr": 0.1}}, "the state of adam"),
        ("{source}", {"optimizer": {"name": "adam", "amsgrad": True}}, "no max_exp_avg_sq, which adam keeps"),
    ],
)
def test_a_checkpoint_that_does_not_exist_or_fit_is_an_error_and_not_a_start_from_scratch(
    world: World, source: str, text: str, changes: dict[str, Any], told: str
) -> None:
    before = len(world.control.list_jobs(actor=ADMIN)["items"])
    with pytest.raises(Invalid, match=told) as refused:
        world.submit(resume_from=text.format(source=source), **changes)
    assert refused.value.errors[0]["pointer"] == "/resume_from"
    assert len(world.control.list_jobs(actor=ADMIN)["items"]) == before


def test_a_job_without_a_checkpoint_a_deleted_one_and_another_projects_are_not_there(
    world: World, source: str
) -> None:
    empty = world.submit()
    with pytest.raises(Invalid, match="has no checkpoint"):
        world.submit(resume_from=empty)
    with pytest.raises(Invalid, match="no job"):
        world.control.submit({**SPEC, "project": "vision", "resume_from": source}, actor=VISION)
    world.control.delete(source, actor=ADMIN)
    with pytest.raises(Invalid, match="no job"):
        world.submit(resume_from=source)


def test_rounds_go_on_from_rounds_and_outer_momentum_from_outer_momentum(world: World) -> None:
    average = {"name": "local_sgd", "local_steps": 4}
    id, driver = world.running(strategy=average)
    driver.saves(20)
    driver.ends("succeeded")
    world.round()
    more = world.job(world.submit(resume_from=id, strategy=average))
    assert more["spec"]["resume_from"] == f"{id}@20" and more["warnings"] == []
    with pytest.raises(Invalid, match="no outer momentum"):
        world.submit(resume_from=id, strategy={**average, "outer": "diloco"})


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"seed": 7}, "seed is 7 and was 0"),
        ({"batch": {"size": 32, "microbatch": 16}}, "batch.size is 32 and was 64"),
        ({"batch": {"size": 64, "microbatch": 8}}, "batch.microbatch is 8 and was 16"),
        ({"strategy": {"name": "local_sgd", "local_steps": 4}}, "strategy.local_steps is 4 and was null"),
        # what is left behind does not have to fit
        ({"seed": 7, "steps": 30, "optimizer": {"name": "sgd", "lr": 0.1}}, "seed is 7 and was 0"),
    ],
)
def test_where_a_step_would_be_another_place_in_the_data_only_the_model_is_taken_and_the_job_says_so(
    world: World, source: str, changes: dict[str, Any], told: str
) -> None:
    dry = world.control.dry_run({**SPEC, "resume_from": source, **changes}, actor=ADMIN)
    job = world.job(world.submit(resume_from=source, **changes))
    assert job["spec"]["resume_from"] == f"{source}@40" and job["warnings"] == dry["warnings"]
    (said,) = job["warnings"]
    assert f"{source}@40: {told}" in said and "only the model is taken" in said


def test_what_a_driver_finds_out_is_one_of_the_jobs_warnings_once(world: World) -> None:
    id, driver = world.running()
    for message in ("the dataset is shorter", "the dataset is shorter", "a gradient is sparse"):
        driver.post({"kind": "warning", "message": message})
    assert world.job(id)["warnings"] == ["the dataset is shorter", "a gradient is sparse"]
    driver.post(*({"kind": "warning", "message": f"number {n}"} for n in range(60)))
    assert len(world.job(id)["warnings"]) == 50


# ---- strategy.replay ---------------------------------------------------------------------------

ASYNCHRONOUS = {"name": "parameter_server", "staleness": None}


@pytest.fixture
def recorded(world: World) -> str:
    id, driver = world.running(strategy=ASYNCHRONOUS)
    driver.saves(20)
    driver.saves(40)
    driver.ends("succeeded")
    world.round()
    return id


def repeats(text: str, **more: Any) -> dict[str, Any]:
    return {"strategy": {**ASYNCHRONOUS, **more, "replay": text}}


def test_the_order_to_repeat_is_settled_at_the_submit(world: World, recorded: str) -> None:
    for text, steps, settled in ((recorded, 40, 40), (recorded[2:], 40, 40), (f"{recorded}@20", 20, 20)):
        id = world.submit(**repeats(text), steps=steps)
        assert world.job(id)["spec"]["strategy"]["replay"] == f"{recorded}@{settled}"
    clone, _ = world.control.clone(id, {}, actor=ADMIN)
    assert clone["spec"]["strategy"]["replay"] == f"{recorded}@20"


@pytest.mark.parametrize(
    ("text", "changes", "told"),
    [
        ("nope", {}, "no job"),
        ("../etc", {}, "neither a job id"),
        ("{recorded}@30", {}, "it has 20, 40"),
        ("{recorded}", {"steps": 39}, "the order of 40 steps, and steps is 39: use 40 or more"),
        ("{synchronous}", {}, "no order to repeat"),
    ],
)
def test_an_order_that_is_not_there_or_does_not_fit_is_refused_at_the_door(
    world: World, recorded: str, source: str, text: str, changes: dict[str, Any], told: str
) -> None:
    before = len(world.control.list_jobs(actor=ADMIN)["items"])
    with pytest.raises(Invalid, match=told) as refused:
        named = text.format(recorded=recorded, synchronous=source)
        world.submit(**{"steps": 40, **repeats(named), **changes})
    assert refused.value.errors[0]["pointer"] == "/strategy/replay"
    assert len(world.control.list_jobs(actor=ADMIN)["items"]) == before


def test_the_order_of_another_projects_job_is_not_there(world: World, recorded: str) -> None:
    with pytest.raises(Invalid, match="no job"):
        world.control.submit({**SPEC, "project": "vision", **repeats(recorded)}, actor=VISION)


def test_steps_in_order_do_not_go_on_from_a_run_whose_steps_counted_out_of_order(
    world: World, recorded: str
) -> None:
    for strategy in ({"name": "all_reduce"}, {**ASYNCHRONOUS, "staleness": 0}):
        with pytest.raises(Invalid, match="out of order") as refused:
            world.submit(resume_from=recorded, strategy=strategy)
        assert refused.value.errors[0]["pointer"] == "/resume_from"
    assert world.submit(resume_from=recorded, strategy={**ASYNCHRONOUS, "staleness": 3})
