"""How gradients become an update: what a spec may say of it."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from elastrain.trainers.spec_fields import Amount, Count, Json, Section


class AllReduce(Section):
    """Gradients are summed over all workers in each step."""

    name: Literal["all_reduce"] = Field(default="all_reduce", description="Which strategy.")


class ParameterServer(Section):
    """Servers own the parameters; workers push gradients and pull."""

    name: Literal["parameter_server"] = Field(default="parameter_server", description="Which strategy.")
    staleness: Count | None = Field(default=0, description="Versions a gradient may be behind; null: any.")


class LocalSGD(Section):
    """Workers train by themselves for some steps, then average."""

    name: Literal["local_sgd"] = Field(default="local_sgd", description="Which strategy.")
    local_steps: Amount = Field(default=1, description="Steps between two averages.")
    outer: dict[str, Json] = Field(default_factory=dict, description="The outer optimizer.")


class Gossip(Section):
    """Workers average with their neighbours in a graph."""

    name: Literal["gossip"] = Field(default="gossip", description="Which strategy.")
    graph: Literal["ring", "torus", "exponential"] = Field(default="ring", description="Who talks to whom.")


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


Strategy = Annotated[
    AllReduce | ParameterServer | LocalSGD | Gossip, Field(discriminator="name"), BeforeValidator(_named)
]
