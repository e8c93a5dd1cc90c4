"""CAPACITY_MAX: what the autoscaler could still add, beside what is there."""

import pytest

from elastrain.service.scheduling import Node
from elastrain.service.scheduling.ceiling import addable, parse_ceiling
from elastrain.service.settings import Settings, SettingsError

TWO_KINDS = '[{"resources": {"CPU": 8, "GPU": 1}, "max": 2}, {"resources": {"CPU": 8}, "max": 3}]'


def test_what_is_there_already_cannot_come_again() -> None:
    there = [Node("a", {"CPU": 8, "GPU": 1, "memory": 1e9}), Node("b", {"CPU": 8}), Node("head", {"CPU": 2})]
    coming = addable(parse_ceiling(TWO_KINDS), there)
    assert [dict(node.resources) for node in coming] == [{"CPU": 8, "GPU": 1}, {"CPU": 8}, {"CPU": 8}]
    assert all(node.new for node in coming) and len({node.id for node in coming}) == 3


def test_more_nodes_than_the_ceiling_are_no_fault() -> None:
    there = [Node(str(i), {"CPU": 8}) for i in range(9)]
    assert len(addable(parse_ceiling(TWO_KINDS), there)) == 2


@pytest.mark.parametrize(
    "text",
    [
        "4 nodes",
        "{}",
        '[{"resources": {}, "max": 1}]',
        '[{"resources": {"CPU": 0}, "max": 1}]',
        '[{"resources": {"CPU": "8"}, "max": 1}]',
        '[{"resources": {"CPU": 8}, "max": -1}]',
        '[{"resources": {"CPU": 8}, "max": 1, "min": 0}]',
        '[{"resources": {"CPU": NaN}, "max": 1}]',
    ],
)
def test_a_wrong_ceiling_stops_the_start_and_shows_a_right_one(text: str) -> None:
    with pytest.raises(SettingsError, match=r"ELASTRAIN_CAPACITY_MAX.*for example"):
        Settings.from_env({"ELASTRAIN_CAPACITY_MAX": text})
    assert Settings.from_env({"ELASTRAIN_CAPACITY_MAX": TWO_KINDS}).capacity_max[1].max == 3
    assert Settings.from_env({}).capacity_max == ()
