"""What a spec may say about the optimizer: torch.optim's arguments and defaults, each only its own."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from elastrain.trainers.spec.fields import Betas, Fraction, NotNegative, Section


class _Optimizer(Section):
    """`slots`: the state that it keeps for each element, by the names that checkpoints have."""

    lr: NotNegative = Field(default=1e-3, description="Learning rate, before warmup and decay.")
    maximize: bool = Field(default=False, description="Go up the gradient instead of down.")
    weight_decay: NotNegative = Field(default=0.0, description="Weight decay.")
    weight_decay_1d: bool = Field(
        default=True,
        description="Whether parameters of one dimension or none (biases, norms) are decayed too.",
    )


class SGDSpec(_Optimizer):
    """Distributed gradient descent."""

    name: Literal["sgd"] = Field(default="sgd", description="Which optimizer.")
    momentum: NotNegative = Field(default=0.0, description="Momentum factor.")
    dampening: NotNegative = Field(default=0.0, description="Dampening of the momentum.")
    nesterov: bool = Field(default=False, description="Nesterov momentum.")

    @property
    def slots(self) -> tuple[str, ...]:
        return ("momentum_buffer",) if self.momentum else ()


def _adam_slots(spec: "AdamSpec | AdamWSpec") -> tuple[str, ...]:
    return ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if spec.amsgrad else ()))


class AdamSpec(_Optimizer):
    """Distributed Adam."""

    name: Literal["adam"] = Field(default="adam", description="Which optimizer.")
    betas: Betas = Field(default=(0.9, 0.999), description="Decay of the two running averages.")
    eps: NotNegative = Field(default=1e-8, description="Added to the denominator.")
    amsgrad: bool = Field(default=False, description="Keep the largest second moment (AMSGrad).")

    slots = property(_adam_slots)


class AdamWSpec(_Optimizer):
    """Distributed Adam with decoupled weight decay."""

    name: Literal["adamw"] = Field(default="adamw", description="Which optimizer.")
    betas: Betas = Field(default=(0.9, 0.999), description="Decay of the two running averages.")
    eps: NotNegative = Field(default=1e-8, description="Added to the denominator.")
    weight_decay: NotNegative = Field(default=1e-2, description="Weight decay, apart from the gradient.")
    amsgrad: bool = Field(default=False, description="Keep the largest second moment (AMSGrad).")

    slots = property(_adam_slots)


class RMSpropSpec(_Optimizer):
    """RMSprop."""

    name: Literal["rmsprop"] = Field(default="rmsprop", description="Which optimizer.")
    lr: NotNegative = Field(default=1e-2, description="Learning rate, before warmup and decay.")
    alpha: Fraction = Field(default=0.99, description="Decay of the running average of squares.")
    eps: NotNegative = Field(default=1e-8, description="Added to the denominator.")
    momentum: NotNegative = Field(default=0.0, description="Momentum factor.")
    centered: bool = Field(default=False, description="Divide by the standard deviation (centred).")

    @property
    def slots(self) -> tuple[str, ...]:
        more = (("momentum_buffer", self.momentum), ("grad_avg", self.centered))
        return ("square_avg", *(name for name, kept in more if kept))


class AdagradSpec(_Optimizer):
    """Adagrad."""

    name: Literal["adagrad"] = Field(default="adagrad", description="Which optimizer.")
    lr: NotNegative = Field(default=1e-2, description="Learning rate, before warmup and decay.")
    lr_decay: NotNegative = Field(default=0.0, description="Decay of the learning rate per update.")
    eps: NotNegative = Field(default=1e-10, description="Added to the denominator.")
    initial_accumulator_value: NotNegative = Field(
        default=0.0, description="Where the sum of squares begins."
    )

    @property
    def slots(self) -> tuple[str, ...]:
        return ("sum",)


def _named(value: Any) -> Any:
    """A bare name stands for that optimizer with its defaults; fields without a name are adam's."""
    if isinstance(value, str):
        return {"name": value}
    if isinstance(value, dict) and "name" not in value:
        return {**value, "name": "adam"}
    return value


OptimizerSpec = SGDSpec | AdamSpec | AdamWSpec | RMSpropSpec | AdagradSpec
Optimizer = Annotated[OptimizerSpec, Field(discriminator="name"), BeforeValidator(_named)]
