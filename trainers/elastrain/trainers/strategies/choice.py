"""Which strategy a spec names."""

from elastrain.trainers.spec import JobSpec
from elastrain.trainers.spec import strategies as named
from elastrain.trainers.strategies.all_reduce import AllReduce
from elastrain.trainers.strategies.gossip import Gossip


def way_of(spec: JobSpec) -> AllReduce:
    """As far as the loop is concerned."""
    match spec.strategy:
        case named.Gossip(graph=graph):
            return Gossip(graph)
        case _:
            return AllReduce()
