"""What a spec may say and had better not: told with the job, as its warnings."""

from typing import TYPE_CHECKING

from elastrain.trainers.split.pieces import pieces_of

if TYPE_CHECKING:
    from elastrain.trainers.spec import JobSpec


def warnings(spec: "JobSpec") -> list[str]:
    """Sentences for people, each with the value and what to do."""
    return [*_compression(spec), *_down(spec), *_pipeline(spec)]


def _compression(spec: "JobSpec") -> list[str]:
    name, found = spec.compression.name, []
    if name == "none":
        return []
    if spec.workers.max == 1:
        found.append(
            f"compression {name} with workers.max 1: nothing travels, so it changes the result and saves "
            "nothing; use none"
        )
    if name == "topk" and spec.optimizer.name in ("adam", "adamw", "rmsprop", "adagrad"):
        found.append(
            f"compression topk with {spec.optimizer.name}: gradients come in bursts, which its squares take "
            "for noise; watch the loss, or use sgd, or int8"
        )
    return found


def _down(spec: "JobSpec") -> list[str]:
    name, most = spec.compression_down, spec.workers.max
    if name == "none" or most > 2 or spec.strategy.name != "all_reduce":
        return []
    return [
        f"compression_down {name} with workers.max {most}: up to two workers send nothing down, so it "
        "changes the result and saves nothing; use none"
    ]


def _pipeline(spec: "JobSpec") -> list[str]:
    samples, stages = spec.batch.microbatch, spec.workers.processes
    pieces = pieces_of(samples, stages)
    if spec.workers.split != "pipeline" or pieces >= stages:
        return []
    return [
        f"workers.split pipeline with batch.microbatch {samples}: its samples go through the {stages} stages "
        f"in {pieces} equal piece{'s' if pieces > 1 else ''}, so most stages wait most of the time; use a "
        f"multiple of {stages}"
    ]
