"""How gradients become an update: what a spec may say of it."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_serializer

from elastrain.trainers.spec.fields import Amount, Count, Fraction, NotNegative, Positive, Section

SERVER_CPU = 0.5


class AllReduce(Section):
    """Gradients are summed over all workers in each step."""

    name: Literal["all_reduce"] = Field(default="all_reduce", description="Which strategy.")


class ParameterServer(Section):
    """Servers keep parameters and optimizer state; workers pull, compute and push."""

    name: Literal["parameter_server"] = Field(default="parameter_server", description="Which strategy.")
    staleness: Count | None = Field(
        default=0, description="Versions a gradient may be behind; 0: all compute each step; null: any."
    )
    servers: Annotated[int, Field(ge=1, le=64)] = Field(
        default=2, description="Servers beside the workers; from two on, each is another's buddy."
    )
    server_cpu: NotNegative = Field(
        default=SERVER_CPU, description="CPU cores that each server is given on Ray; it mostly waits."
    )
    scale_by_staleness: bool = Field(
        default=True, description="Asynchronous: divide the rate of a push by its staleness, if above 1."
    )
    compensation: NotNegative = Field(
        default=0.0, description="Asynchronous: strength of delay compensation; 0: none."
    )
    replay: str | None = Field(
        default=None, description="Asynchronous: job id, or job id@step, whose order is repeated, so far."
    )


class Outer(Section):
    """What is done with the average of the replicas: gradient descent, with how far they went as gradient."""

    lr: Positive = Field(default=1.0, description="Outer learning rate; 1: the average itself.")
    momentum: Fraction = Field(default=0.0, description="Outer momentum factor.")
    nesterov: bool = Field(default=False, description="Nesterov momentum, as DiLoCo has it.")


def _preset(value: Any) -> Any:
    if value == "average":
        return {}
    return {"lr": 0.7, "momentum": 0.9, "nesterov": True} if value == "diloco" else value


class LocalSGD(Section):
    """Logical replicas train by themselves for some steps, then are averaged: one round is a step."""

    name: Literal["local_sgd"] = Field(default="local_sgd", description="Which strategy.")
    local_steps: Amount = Field(default=1, description="Inner steps of each replica between two averages.")
    replicas: Amount | None = Field(
        default=None, description="Replicas, however many workers; null: as many as microbatches in a batch."
    )
    outer: Annotated[Outer, BeforeValidator(_preset)] = Field(
        default_factory=Outer, description="The outer optimizer; average and diloco are short for one."
    )


class Gossip(Section):
    """Workers average with their neighbours in a graph."""

    name: Literal["gossip"] = Field(default="gossip", description="Which strategy.")
    graph: Literal["ring", "torus", "exponential"] = Field(default="ring", description="Who talks to whom.")


def asynchronous(strategy: Any) -> bool:
    """Do pushes count one by one, rather than summed up step by step?"""
    return isinstance(strategy, ParameterServer) and strategy.staleness != 0


def servers_of(strategy: Any) -> int:
    """How many servers a job of this strategy has."""
    return strategy.servers if isinstance(strategy, ParameterServer) else 0


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


Strategy = Annotated[
    AllReduce | ParameterServer | LocalSGD | Gossip, Field(discriminator="name"), BeforeValidator(_named)
]


class _Bare(Section):
    """A choice without arguments: shown as its bare name."""

    @model_serializer
    def _as_name(self) -> str:
        return str(getattr(self, "name"))  # noqa: B009


class Uncompressed(_Bare):
    """Gradients travel as fp32."""

    name: Literal["none"] = Field(default="none", description="Which scheme.")


class BF16(_Bare):
    """Gradients travel as bf16, two bytes each."""

    name: Literal["bf16"] = Field(default="bf16", description="Which scheme.")


class FP16(_Bare):
    """Gradients travel as fp16, two bytes each."""

    name: Literal["fp16"] = Field(default="fp16", description="Which scheme.")


class Int8Spec(_Bare):
    """Gradients travel as whole numbers of one byte with a scale for each 64, with error feedback."""

    name: Literal["int8"] = Field(default="int8", description="Which scheme.")


class TopK(Section):
    """Only the largest gradients of each block travel, with error feedback."""

    name: Literal["topk"] = Field(default="topk", description="Which scheme.")
    fraction: Annotated[Positive, Field(le=1)] = Field(
        default=0.01, description="Share of each block's elements that travels; at least one does."
    )


class PowerSGD(Section):
    """Of the gradient of each matrix two thin factors travel, with error feedback."""

    name: Literal["powersgd"] = Field(default="powersgd", description="Which scheme.")
    rank: Annotated[Amount, Field(le=256)] = Field(default=4, description="Columns of the factors.")


CompressionSpec = Uncompressed | BF16 | FP16 | Int8Spec | TopK | PowerSGD
Compression = Annotated[CompressionSpec, Field(discriminator="name"), BeforeValidator(_named)]
