"""The job spec: every field that a user may write, its default, its limits, and what goes together.

`parse_spec` is the door: it takes what YAML or JSON gave, and returns a frozen JobSpec or raises SpecError
with everything that is wrong. Free of torch and numpy, so that the service and the command line can import
it.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from elastrain.trainers.numerics.tree import unit_size
from elastrain.trainers.spec.errors import FieldError, SpecError, translate
from elastrain.trainers.spec.fields import (
    Amount,
    Argument,
    Count,
    EnvName,
    EnvValue,
    Json,
    LabelKey,
    LabelValue,
    Name,
    NotNegative,
    PackageDigest,
    Positive,
    Section,
    Seed,
    TaskPath,
)
from elastrain.trainers.spec.optimizers import (
    AdamSpec,
    Optimizer,
)
from elastrain.trainers.spec.resources import Resources
from elastrain.trainers.spec.size import too_much
from elastrain.trainers.spec.stability import LossSpike, NonFinite, Watch, decisive
from elastrain.trainers.spec.strategies import AllReduce, Compression, Strategy, Uncompressed
from elastrain.trainers.spec.support import contradictions, in_wire_nodes, unsupported, worker_range
from elastrain.trainers.spec.workers import Workers


class Schedule(Section):
    """How the learning rate changes with the number of applied updates."""

    warmup_steps: Count = Field(default=0, description="Updates over which the rate rises linearly to lr.")
    decay: Literal["constant", "linear", "cosine"] = Field(
        default="constant", description="How the rate falls after warmup, until the end of the job."
    )
    min_lr: NotNegative = Field(default=0.0, description="Where linear and cosine decay end.")


class Batch(Section):
    """How many samples make a step. Fixed for the job's life, whatever the workers do."""

    size: Amount = Field(default=256, description="Samples in the global batch of a step.")
    microbatch: Amount = Field(
        default=32, description="Samples in a microbatch, the unit of work; divides size."
    )


class Best(Section):
    """The checkpoint to keep by a metric."""

    metric: str = Field(description="Name of the metric, for example val_accuracy.")
    mode: Literal["max", "min"] = Field(default="max", description="Whether more or less is better.")


class Checkpoint(Section):
    """When to save, and how much to keep. The end of a job is always saved."""

    every_steps: Amount | None = Field(
        default=100, description="Save each so many steps; null: never by steps."
    )
    every_s: Positive | None = Field(
        default=None, description="Save each so many seconds; null: never by the clock."
    )
    keep: Amount = Field(default=3, description="How many of the newest checkpoints stay.")
    best: Best | None = Field(default=None, description="Also keep the best by a metric.")


class Evaluate(Section):
    """When to evaluate on the val split."""

    every_steps: Amount | None = Field(
        default=None, description="Evaluate each so many steps; null: not on the way."
    )
    at_end: bool = Field(default=True, description="Evaluate at the end of the job.")


class JobSpec(Section):
    """What a user submits."""

    kind: Literal["train"] = Field(default="train", description="train: a Task, trained by elastrain.")
    name: Name = Field(description="The job's name; need not be unique.")
    project: Name = Field(default="default", description="The project that it belongs to.")
    task: TaskPath = Field(description="What to train, as module:Class of a Task.")
    task_args: dict[Argument, Json] = Field(
        default_factory=dict, description="Keyword arguments of the Task."
    )
    code: PackageDigest | None = Field(
        default=None, description="sha256 of the uploaded code package; --working-dir fills it in."
    )
    strategy: Strategy = Field(default_factory=AllReduce, description="How gradients become an update.")
    aggregate: Literal["gradients", "moments"] = Field(
        default="gradients", description="What is summed: gradients, or (adam, adamw) their squares as well."
    )
    optimizer: Optimizer = Field(default_factory=AdamSpec, description="The update rule.")
    schedule: Schedule = Field(default_factory=Schedule, description="The learning rate over time.")
    clip_norm: Positive | None = Field(default=None, description="Limit of the gradient's global norm.")
    clip_value: Positive | None = Field(default=None, description="Limit of each element of the gradient.")
    compression: Compression = Field(
        default_factory=Uncompressed, description="How gradients are compressed on the wire."
    )
    compression_down: Literal["none", "bf16", "int8"] = Field(
        default="none",
        description="How updates travel from the owners of chunks to everybody: as fp32 parameters, or "
        "packed with error feedback.",
    )
    wire_nodes: Amount | None = Field(
        default=None,
        description="Into how many parts the sum of a step is cut, each computed by one worker; kept for the "
        "job's life, filled in at the submit where it decides the result.",
    )
    precision: Literal["fp32", "bf16"] = Field(
        default="fp32", description="What forward and backward compute in; parameters stay fp32."
    )
    batch: Batch = Field(default_factory=Batch, description="Samples per step.")
    epochs: Amount | None = Field(default=None, description="Passes over the data. Give this or steps.")
    steps: Amount | None = Field(default=None, description="Steps. Give this or epochs.")
    seed: Seed = Field(default=0, description="Seed of initial parameters, order and random draws.")
    workers: Workers = Field(default_factory=Workers, description="How many workers.")
    resources: Resources = Field(default_factory=Resources, description="CPU and more, per worker.")
    checkpoint: Checkpoint = Field(default_factory=Checkpoint, description="When to save, what to keep.")
    evaluate: Evaluate = Field(default_factory=Evaluate, description="When to evaluate.")
    non_finite: NonFinite = Field(default_factory=NonFinite, description="What a non-finite step does.")
    loss_spike: LossSpike = Field(default_factory=LossSpike, description="What a spike of the loss does.")
    watch: Watch = Field(default_factory=Watch, description="Norms to measure on request.")
    shuffle: bool = Field(default=True, description="Whether each epoch has an order of its own.")
    requirements: list[str] = Field(default_factory=list, description="pip requirements of the code.")
    image: str | None = Field(default=None, description="Container image for the workers.")
    retries: Count = Field(
        default=3, description="Lost attempts in a row, without a new checkpoint, that are tried again."
    )
    priority: Annotated[int, Field(ge=-(10**6), le=10**6)] = Field(
        default=0, description="Jobs of a higher one go first."
    )
    env: dict[EnvName, EnvValue] = Field(
        default_factory=dict, description="Environment variables of the workers; not for secrets."
    )
    secrets: list[EnvName] = Field(default_factory=list, description="Names of stored secrets to give.")
    resume_from: str | None = Field(
        default=None,
        description="Job id, or job id@step, to begin from; only its model, where a step is another place in "
        "the data.",
    )
    labels: Annotated[dict[LabelKey, LabelValue], Field(max_length=64)] = Field(
        default_factory=dict, description="Your own names and values, to find jobs by."
    )
    timeout_s: Positive | None = Field(
        default=None,
        description="Fail the job after so many seconds in starting and running, over all attempts.",
    )

    @property
    def microbatches(self) -> int:
        """Microbatches in a full global batch."""
        return self.batch.size // self.batch.microbatch

    @property
    def threads(self) -> int:
        """Threads that each process of a worker computes with."""
        return max(1, int(self.resources.cpu / self.workers.processes))


def parse_spec(data: Mapping[str, Any]) -> JobSpec:
    """The checked spec. Raises SpecError that names every fault which can be known here."""
    if not isinstance(data, Mapping):
        raise SpecError([{"pointer": "", "detail": "a job spec is a mapping of fields"}])
    if (fault := too_much(data)) is not None:
        raise SpecError([fault])
    if data.get("kind") == "ray_train":
        raise SpecError([{"pointer": "/kind", "detail": "ray_train is not supported yet: use train"}])
    try:
        spec = JobSpec.model_validate(dict(data))
    except ValidationError as error:
        raise SpecError(_everything_wrong(data, error)) from None
    faults = contradictions(spec) + unsupported(spec)
    if faults:
        raise SpecError([fault.error for fault in faults])
    return _completed(spec)


def _completed(spec: JobSpec) -> JobSpec:
    """With what follows from workers.max as it is now, and stays when that is changed later."""
    if spec.wire_nodes is not None or not in_wire_nodes(spec):
        return spec
    unit = unit_size(spec.microbatches, spec.workers.max)
    return spec.model_copy(update={"wire_nodes": -(-spec.microbatches // unit)})


def amended(spec: JobSpec, changes: Mapping[str, Any]) -> JobSpec:
    """The spec with fields of a running job changed, checked like a submit. Raises SpecError.

    changes: as in PATCH, for example {"workers": {"min": 2, "max": 6}}; a section keeps the fields that are
    not named.
    """
    data = spec.model_dump(mode="json")
    for field, value in changes.items():
        old = data.get(field)
        if field == "workers" and isinstance(old, dict) and isinstance(value, Mapping):
            data[field] = {**old, **value}
        else:
            data[field] = value
    return parse_spec(data)


def spec_digest(spec: JobSpec) -> str:
    """sha256 over what decides the result: equal digests promise equal bits on the same kind of device."""
    dumped = spec.model_dump(mode="json")
    kept = {field: dumped[field] for field in _DECIDES_THE_RESULT}
    servers = ("servers", "server_cpu")  # they give the same bits, however many
    kept["strategy"] = {field: value for field, value in dumped["strategy"].items() if field not in servers}
    kept |= decisive(spec.clip_value, spec.non_finite, spec.loss_spike)
    kept |= {"compression_down": spec.compression_down} if spec.compression_down != "none" else {}
    kept |= {"resume_from": spec.resume_from} if spec.resume_from else {}
    kept |= {"wire_nodes": spec.wire_nodes} if spec.wire_nodes else {}
    if spec.workers.processes > 1:
        kept |= {"processes": spec.workers.processes, "split": spec.workers.split}
    kept["resources"] = {field: dumped["resources"][field] for field in ("cpu", "gpu")}
    return hashlib.sha256(json.dumps(kept, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


_DECIDES_THE_RESULT = (
    "task",
    "task_args",
    "code",
    "strategy",
    "aggregate",
    "optimizer",
    "schedule",
    "clip_norm",
    "compression",
    "precision",
    "batch",
    "epochs",
    "steps",
    "seed",
    "shuffle",
)


def _everything_wrong(data: Mapping[str, Any], error: ValidationError) -> list[FieldError]:
    """The faults of single fields, and those between the fields that are sound: the user sees all at once."""
    errors = translate(error, JobSpec)
    bad = {str(found["loc"][0]) for found in error.errors()}
    stand_ins: dict[str, Any] = {
        "name": "x",
        "task": "x:X",
        "epochs": 1 if bad & {"epochs", "steps"} else None,
    }
    sound = {field: value for field, value in data.items() if str(field) not in bad}
    spec = JobSpec.model_validate(stand_ins | sound)
    if "batch" not in bad:
        errors = [worker_range(error, spec) for error in errors]
    faults = contradictions(spec) + unsupported(spec)
    return errors + [fault.error for fault in faults if bad.isdisjoint(fault.fields)]
