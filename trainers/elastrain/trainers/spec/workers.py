"""The workers of a job spec, and what does not go with a model that is split among their processes."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from elastrain.trainers.spec.fields import Crew, Section, Spares

if TYPE_CHECKING:
    from elastrain.trainers.spec import JobSpec


class Workers(Section):
    """How many workers, and what fails together."""

    min: Crew = Field(default=1, description="With fewer workers than this the job waits.")
    max: Crew = Field(default=4, description="The job takes up to so many workers.")
    per_group: Crew = Field(default=1, description="Workers that start and fail together.")
    spares: Spares = Field(default=0, description="Workers that stand by, warm: in groups of per_group.")
    processes: Annotated[int, Field(ge=1, le=64)] = Field(
        default=1,
        description="Processes of each worker, among which its model is split; they share its resources.",
    )
    split: Literal["fully_shard", "tensor", "pipeline"] = Field(
        default="fully_shard",
        description="How: parameters by rows, samples shared; layers, by the Task's tensor_plan; or runs of "
        "layers as stages, of the Task's pipeline.",
    )

    @property
    def divided(self) -> tuple[int, str]:
        """Into how many processes each worker is, and how its model is split among them."""
        return self.processes, self.split


def split_faults(spec: "JobSpec") -> list[tuple[str, list[str]]]:
    """What is wrong, and the top-level fields that it comes from."""
    processes, faults = spec.workers.processes, list[tuple[str, list[str]]]()
    if processes == 1:
        return faults
    if spec.workers.split == "fully_shard" and processes > spec.batch.microbatch:
        detail = (
            f"{processes} processes are more than the {spec.batch.microbatch} samples of a microbatch, which "
            "they share: use at most that, or a larger batch.microbatch"
        )
        faults.append((detail, ["workers", "batch"]))
    for field, value, goes in (
        ("strategy", spec.strategy.name, "all_reduce"),
        ("aggregate", spec.aggregate, "gradients"),
        ("compression", spec.compression.name, "none"),
        ("compression_down", spec.compression_down, "none"),
        ("watch", spec.watch.norms, "none"),
    ):
        if value != goes:
            detail = (
                f"{processes} processes go with {field} {goes} only so far, got {value}: use 1, or {goes}"
            )
            faults.append((detail, ["workers", field]))
    return faults
