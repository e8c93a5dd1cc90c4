"""What a spec may say about training that goes wrong by itself: NaN, spikes of the loss, odd gradients."""

from typing import Annotated, Any, Literal

from pydantic import Field

from elastrain.trainers.spec.fields import Amount, Count, Number, Positive, Section


class NonFinite(Section):
    """What happens to a step whose loss or gradient is not finite."""

    policy: Literal["skip", "fail", "rollback"] = Field(
        default="skip",
        description="Skip the step; or fail the job; or skip, and past max go back to the newest good "
        "checkpoint with a lower rate.",
    )
    max: Count = Field(
        default=10, description="How many in a row are skipped; one more fails the job, or rolls it back."
    )
    lr_factor: Annotated[Number, Field(gt=0, le=1)] = Field(
        default=0.5, description="What each rollback multiplies the learning rate with, to the end."
    )
    rollbacks: Amount = Field(default=3, description="How many rollbacks; one more fails the job.")


class LossSpike(Section):
    """When the loss of a step lies far above what the last ones were, and what follows from it."""

    policy: Literal["off", "report", "rollback"] = Field(
        default="report",
        description="off; or an event; or also a rollback, as under non_finite, past max.",
    )
    window: Annotated[int, Field(ge=8, le=1024)] = Field(
        default=32, description="Compare with the losses of so many steps; begin once there are half as many."
    )
    threshold: Positive = Field(
        default=5.0,
        description="A spike lies so many spreads above the median; a spread is the upper decile minus the "
        "median, at least 5 % of it.",
    )
    max: Count = Field(default=3, description="Under rollback: how many spikes in a row are endured.")


class Watch(Section):
    """Norms on request, beside the gradient's global norm, which is always there."""

    norms: Literal["none", "global", "layers"] = Field(
        default="none",
        description="Norms of parameters and updates, and their ratio: of the whole model, or of each layer.",
    )
    every_steps: Amount = Field(default=10, description="Measure every so many steps.")


def decisive(clip_value: float | None, non_finite: NonFinite, loss_spike: LossSpike) -> dict[str, Any]:
    """What of all this decides the result. What a spec does not use is left out: specs that were written
    before there was such a field keep their digest."""
    kept: dict[str, Any] = {"non_finite": non_finite.model_dump(mode="json", include={"policy", "max"})}
    rolls_back = "rollback" in (non_finite.policy, loss_spike.policy)
    kept["non_finite"] |= non_finite.model_dump(mode="json") if rolls_back else {}
    kept |= {"loss_spike": loss_spike.model_dump(mode="json")} if loss_spike.policy == "rollback" else {}
    return kept | ({"clip_value": clip_value} if clip_value is not None else {})
