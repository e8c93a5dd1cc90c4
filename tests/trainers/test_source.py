"""`resume_from` with another batch, seed or data set: its step is another place, only the model is taken."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
import torch
from safetensors.torch import save

from elastrain.trainers.checkpoints.manifests import Checkpoints
from elastrain.trainers.numerics.cursor import Cursor
from elastrain.trainers.numerics.rounds import plan_of
from elastrain.trainers.spec import JobSpec, parse_spec
from elastrain.trainers.spec.source import MODEL_ONLY, NoSource, model_only, moved, place
from elastrain.trainers.storage import Storage, open_storage
from elastrain.trainers.strategies.ledger import ORDER

SAMPLES = 300
ORDERED = torch.tensor([(n, n) for n in range(50)])
SERVED = {"name": "parameter_server", "staleness": None}
ROUNDS = {"name": "local_sgd", "local_steps": 2, "replicas": 4}


def job(**fields: Any) -> JobSpec:
    said = {"name": "x", "task": "a:B", "steps": 50, "workers": {"min": 1, "max": 4}}
    return parse_spec({**said, "batch": {"size": 32, "microbatch": 8}, **fields})


class Bucket:
    """What earlier jobs have left in it."""

    def __init__(self) -> None:
        self.storage: Storage = open_storage("memory://")

    def saved(self, name: str, step: int, spec: JobSpec, samples: int = SAMPLES, **more: Any) -> None:
        cursor = Cursor(step=step, updates=step, chain="of all before").to_json()
        files = [{"name": file, "bytes": 1} for file in more.pop("files", ["model.safetensors"])]
        manifest = {"format": 1, "job": name, "step": step, "cursor": cursor, "parts": ["one"]}
        manifest |= {"files": files, "place": place(spec, samples), **more}
        folder = f"jobs/{name}/checkpoints/{step:010d}"
        for file in files:
            data = save({"order": ORDERED[:step]}) if file["name"] == ORDER else b"x"
            file |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            self.storage.put(f"{folder}/{file['name']}", data, create_only=False)
        self.storage.put(f"{folder}/manifest.json", json.dumps(manifest).encode())

    def offers(self, spec: JobSpec, samples: int | None = SAMPLES) -> dict[str, Any] | None:
        """The manifest that the next job begins from. samples: None before a worker has said it."""
        found = Checkpoints(self.storage, "mine", 1, spec, lambda fact: None)
        found.plan = plan_of(spec, samples) if samples is not None else None
        newest = found.newest()
        return newest[1] if newest is not None else None


@pytest.fixture
def bucket() -> Bucket:
    found = Bucket()
    found.saved("first", 20, job())
    return found


def test_where_a_step_is_the_same_place_in_the_data_all_of_a_checkpoint_is_taken(bucket: Bucket) -> None:
    for samples in (SAMPLES, None):
        offered = bucket.offers(job(resume_from="first", workers={"max": 2}, steps=99), samples)
        assert offered is not None and offered["cursor"]["step"] == 20
        assert offered["parts"] == ["one"] and MODEL_ONLY not in offered


@pytest.mark.parametrize(
    ("fields", "samples", "told"),
    [
        ({"batch": {"size": 64, "microbatch": 8}}, SAMPLES, "batch.size is 64 and was 32"),
        ({"batch": {"size": 32, "microbatch": 4}}, SAMPLES, "batch.microbatch is 4 and was 8"),
        ({"seed": 1}, SAMPLES, "seed is 1 and was 0"),
        ({"shuffle": False}, SAMPLES, "shuffle is false and was true"),
        ({"strategy": ROUNDS}, SAMPLES, "strategy.local_steps is 2 and was null"),
        ({}, SAMPLES + 1, "dataset length is 301 and was 300"),
        ({"seed": 1}, 9, "dataset length is 9 and was 300, seed is 1 and was 0"),
        ({"seed": 1}, None, "seed is 1 and was 0"),
    ],
)
def test_where_a_step_is_another_place_only_the_model_is_taken_and_it_is_said_why(
    bucket: Bucket, fields: dict[str, Any], samples: int | None, told: str
) -> None:
    offered = bucket.offers(job(resume_from="first", **fields), samples)
    assert offered is not None and offered[MODEL_ONLY] == told
    assert Cursor.from_json(offered["cursor"]) == Cursor() and offered["parts"] == []
    assert offered["step"] == 20, "that of the checkpoint, by which it is named if it is damaged"
    assert told in model_only("first@20", told) and "only the model is taken" in model_only("first@20", told)


def test_a_checkpoint_that_does_not_say_its_place_is_not_gone_on_from(bucket: Bucket) -> None:
    bucket.saved("old", 20, job(), place={})
    offered = bucket.offers(job(resume_from="old"))
    assert offered is not None and "does not say" in offered[MODEL_ONLY]


def test_once_a_job_has_checkpoints_of_its_own_it_goes_on_from_them(bucket: Bucket) -> None:
    spec = job(resume_from="first", seed=1)
    bucket.saved("mine", 5, spec)
    offered = bucket.offers(spec)
    assert offered is not None and (offered["step"], offered["cursor"]["step"]) == (5, 5)
    assert MODEL_ONLY not in offered


def test_the_model_of_an_asynchronous_run_may_be_taken_where_its_steps_may_not(bucket: Bucket) -> None:
    bucket.saved("pushed", 20, job(strategy=SERVED), files=["model.safetensors", ORDER])
    with pytest.raises(NoSource, match="out of order"):
        bucket.offers(job(resume_from="pushed"))
    offered = bucket.offers(job(resume_from="pushed", seed=1))
    assert offered is not None and MODEL_ONLY in offered


def test_amid_an_order_that_is_repeated_a_job_goes_on_from_where_it_began_and_not_from_its_own_checkpoints(
    bucket: Bucket,
) -> None:
    bucket.saved("pushed", 40, job(strategy=SERVED), files=["model.safetensors", ORDER])
    bucket.saved("pushed", 10, job(strategy=SERVED), files=["model.safetensors", ORDER])
    bucket.saved("mine", 39, job())
    for replay in ("pushed@40", "pushed"):
        strategy = {**SERVED, "replay": replay}
        assert bucket.offers(job(strategy=strategy)) is None, "from the seed"
        offered = bucket.offers(job(strategy=strategy, resume_from="first"))
        assert offered is not None and offered["job"] == "first"
        offered = bucket.offers(job(strategy=strategy, resume_from="pushed@10"))
        assert offered is not None and offered["step"] == 10
        with pytest.raises(NoSource, match="nothing would be left to repeat"):
            bucket.offers(job(strategy=strategy, resume_from="pushed@40"))
    bucket.saved("mine", 40, job())
    offered = bucket.offers(job(strategy={**SERVED, "replay": "pushed"}))
    assert offered is not None and offered["step"] == 40, "past the order it is as any other job"


def test_the_job_to_begin_from_went_on_and_the_next_generation_began_where_the_first_had(
    bucket: Bucket,
) -> None:
    checkpoints = Checkpoints(bucket.storage, "mine", 1, job(resume_from="first"), lambda fact: None)
    first = checkpoints.newest()
    bucket.saved("first", 30, job())
    assert checkpoints.newest() == first and first is not None and first[1]["step"] == 20


def test_what_is_not_known_yet_makes_no_difference() -> None:
    assert moved(place(job(), SAMPLES), place(job(), None)) is None
    assert moved(place(job(), None), place(job(), None)) is None
