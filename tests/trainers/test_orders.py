"""An order that is to be repeated: taken over once from the checkpoint that is meant, refused if it does not
fit."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from elastrain.trainers.spec import JobSpec, Source, parse_spec
from elastrain.trainers.spec.source import NoSource
from elastrain.trainers.storage import NotFound, Storage, StorageError, open_storage
from elastrain.trainers.strategies.ledger import Task
from elastrain.trainers.strategies.orders import Repetition, own_copy, take_over

Rows = list[tuple[int, int]]
MINE = "mine"


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(tmp_path.as_uri(), {})


def repeats(replay: str | None = "j") -> JobSpec:
    strategy = {"name": "parameter_server", "staleness": None, "replay": replay}
    return parse_spec({"name": "x", "task": "a:B", "epochs": 1, "strategy": strategy})


def saved(storage: Storage, step: int, order: Rows | None, rotten: bool = False, **more: Any) -> None:
    folder = f"jobs/j/checkpoints/{step:010d}"
    data = save({"order": torch.tensor(order or [(0, 0)])})
    file = {"name": "order.safetensors", "sha256": hashlib.sha256(data).hexdigest()}
    manifest = {"step": step, "cursor": {}, "files": [file] if order is not None else [], **more}
    storage.put(f"{folder}/manifest.json", json.dumps(manifest).encode())
    if order is not None:
        storage.put(f"{folder}/order.safetensors", data[:-1] + b"\1" if rotten else data)


def delete_the_other_job(storage: Storage) -> None:
    for entry in storage.list("jobs/j"):
        storage.delete(entry.key)


def repetition(*order: tuple[int, int]) -> Repetition:
    return Repetition(Source("j", len(order)), [Task(*row) for row in order], known=False)


def test_the_newest_order_or_that_of_a_step_is_repeated(storage: Storage) -> None:
    saved(storage, 2, [(1, 0), (0, 0)])
    saved(storage, 3, [(1, 0), (0, 0), (2, 1)])
    newest, named = take_over(storage, MINE, repeats()), take_over(storage, "other", repeats("j@2"))
    assert newest == repetition((1, 0), (0, 0), (2, 1))
    assert named == repetition((1, 0), (0, 0))
    assert take_over(storage, "third", repeats(None)) is None and own_copy(storage, "third") is None


def test_the_job_that_is_repeated_was_deleted_or_went_on_and_the_repetition_did_not_notice(
    storage: Storage,
) -> None:
    """Each new server looked it up again: the job failed, or its servers went by different orders."""
    saved(storage, 2, [(1, 0), (0, 0)])
    first = take_over(storage, MINE, repeats())
    saved(storage, 3, [(1, 0), (0, 0), (2, 1)])
    assert own_copy(storage, MINE) == take_over(storage, MINE, repeats()) == first
    delete_the_other_job(storage)
    assert own_copy(storage, MINE) == take_over(storage, MINE, repeats()) == first


def test_two_attempts_take_over_at_once_and_go_by_the_same_order(storage: Storage) -> None:
    saved(storage, 2, [(1, 0), (0, 0)])

    class Beaten:
        """Its put comes second."""

        def __getattr__(self, verb: str) -> Any:
            return getattr(storage, verb)

        def put(self, key: str, data: bytes) -> None:
            saved(storage, 3, [(1, 0), (0, 0), (2, 1)])
            assert take_over(storage, MINE, repeats()) == repetition((1, 0), (0, 0), (2, 1))
            storage.put(key, data)

    beaten: Any = Beaten()
    assert take_over(beaten, MINE, repeats()) == repetition((1, 0), (0, 0), (2, 1))


def test_a_store_that_is_away_is_not_taken_for_a_job_without_an_order(storage: Storage) -> None:
    class Away:
        def get(self, key: str) -> bytes:
            raise StorageError("unavailable", "away")

    away: Any = Away()
    with pytest.raises(StorageError) as error:
        take_over(away, MINE, repeats())
    assert not isinstance(error.value, NotFound)


@pytest.mark.parametrize(
    ("order", "more", "told"),
    [
        (None, {}, "has no order"),
        ([(0, 0), (1, 1)], {"cursor": {"rollbacks": 1}}, "was rolled back 1 times"),
        ([(0, 0), (0, 1)], {}, "its order is damaged"),
        ([(0, 0), (1, 2)], {}, "its order is damaged"),
        ([(0, 0)], {}, "its order is damaged"),
        ([(0, 0), (1, 1)], {"place": {"seed": 7}}, "seed is 0 and was 7"),
    ],
    ids=["synchronous", "rolled back", "a step twice", "of later than itself", "cut off", "other data"],
)
def test_an_order_that_cannot_be_repeated_is_refused_before_anything_is_started(
    storage: Storage, order: Any, more: dict[str, Any], told: str
) -> None:
    saved(storage, 2, order, **more)
    for replay in ("j", "j@2"):
        with pytest.raises(NoSource, match=told) as refused:
            take_over(storage, MINE, repeats(replay))
        assert str(refused.value).startswith("strategy.replay j@2: ")
    assert own_copy(storage, MINE) is None


def test_a_bit_of_an_order_had_flipped_and_nothing_else_was_repeated_in_its_place(storage: Storage) -> None:
    saved(storage, 2, [(1, 0), (0, 0)], rotten=True)
    with pytest.raises(NoSource, match="its checksum differs"):
        take_over(storage, MINE, repeats())


def test_a_job_without_a_checkpoint_has_nothing_to_repeat(storage: Storage) -> None:
    with pytest.raises(NoSource, match=r"strategy\.replay j: that job has no checkpoint"):
        take_over(storage, MINE, repeats())
    with pytest.raises(NoSource, match=r"strategy\.replay j@7: that checkpoint is not there"):
        take_over(storage, MINE, repeats("j@7"))


@pytest.mark.parametrize(
    ("order", "total", "bound", "told"),
    [
        ([(0, 0), (1, 1)], 1, None, "has step 1, and this job has 1 steps"),
        ([(0, 0), (2, 0)], 2, None, "has step 2, and this job has 2 steps"),
        ([(0, 0), (1, 0), (2, 0)], 3, 1, "a push is 2 versions behind, and strategy.staleness is 1"),
    ],
    ids=["longer", "ahead of itself", "staler than allowed"],
)
def test_an_order_that_does_not_fit_is_refused_before_anybody_waits_for_its_end(
    order: Rows, total: int, bound: int | None, told: str
) -> None:
    with pytest.raises(NoSource, match=told):
        repetition(*order).must_fit(total, bound)
    repetition(*order).must_fit(3, 2)
    repetition(*order).must_fit(3, None)


LOADED = {"job": "x", "step": 3, "state_digest": "s", "params_digest": "p", "model_only": False}


@pytest.mark.parametrize(
    ("step", "before", "told"),
    [
        (2, [(0, 0), (2, 1)], "before it other pushes were applied than in that run"),
        (3, [(0, 0), (1, 0), (2, 1)], "from version 2, and resume_from begins at step 3"),
        (5, [(n, n) for n in range(5)], "nothing would be left to repeat"),
    ],
)
def test_a_repetition_that_cannot_begin_where_resume_from_says_is_refused(
    step: int, before: Rows, told: str
) -> None:
    """It began at the seed, and the coordinator believed that it was at the step of that checkpoint."""
    it = repetition((0, 0), (1, 0), (2, 1), (3, 2), (4, 3))
    with pytest.raises(NoSource, match=told):
        it.must_begin(LOADED, step, [Task(*row) for row in before])


def test_a_repetition_begins_where_the_run_began_that_it_repeats() -> None:
    it = repetition((0, 0), (1, 1), (2, 2), (3, 2))
    for step in (1, 2):
        it.must_begin(LOADED, step, it.order[:step])


@pytest.mark.parametrize(
    ("began", "ours", "told"),
    [
        (LOADED, None, "that run began with checkpoint 3 of job x: say so in resume_from"),
        (None, LOADED, "that run had no resume_from"),
        (LOADED, LOADED | {"state_digest": "t"}, "that run began with checkpoint 3 of job x"),
        (LOADED, LOADED | {"model_only": True}, "that run began with checkpoint 3 of job x"),
        (LOADED, LOADED | {"job": "a copy", "params_digest": None}, None),
        (None, None, None),
        (LOADED | {"model_only": True}, LOADED | {"model_only": True, "state_digest": "t", "step": 9}, None),
    ],
)
def test_a_repetition_that_would_begin_with_other_parameters_is_refused(
    began: Any, ours: Any, told: str | None
) -> None:
    """It succeeded, with another result than the run that it was to repeat."""
    order = [Task(n, n) for n in range(5)]
    it = Repetition(Source("j", 5), order, began)
    step = ours["step"] if ours is not None and not ours["model_only"] else 0
    if told is None:
        it.must_begin(ours, step, order[:step])
    else:
        with pytest.raises(NoSource, match=told):
            it.must_begin(ours, step, order[:step])
