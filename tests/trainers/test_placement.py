"""Which node a group goes to when nodes are full, alike, lost, or of the wrong kind."""

from __future__ import annotations

from elastrain.trainers.launching.placement import Need, Node, choose_node

SMALL = Node("small", {"CPU": 2.0})
LARGE = Node("large", {"CPU": 8.0})
GPU = Node("gpu", {"CPU": 8.0, "GPU": 1.0}, {"zone": "b"})


def test_groups_spread_over_nodes_before_they_share_one() -> None:
    placed: list[tuple[str, dict[str, float]]] = []
    for expected in ("large", "small", "large", "small", "large"):
        node = choose_node(Need({"CPU": 1.0}, 1), [SMALL, LARGE], placed)
        assert node == expected
        placed.append((node, {"CPU": 1.0}))


def test_a_group_that_does_not_fit_whole_waits() -> None:
    need = Need({"CPU": 1.0}, 2)
    assert choose_node(need, [SMALL], []) == "small"
    assert choose_node(need, [SMALL], [("small", {"CPU": 1.0})]) is None
    assert choose_node(need, [], []) is None
    assert choose_node(Need({"GPU": 1.0}, 1), [SMALL, LARGE], []) is None


def test_fractions_of_a_core_add_up() -> None:
    placed = [("small", {"CPU": 0.1})] * 19
    assert choose_node(Need({"CPU": 0.1}, 1), [SMALL], placed) == "small"
    assert choose_node(Need({"CPU": 0.1}, 1), [SMALL], [*placed, ("small", {"CPU": 0.1})]) is None


def test_the_node_where_a_group_was_lost_is_the_last_choice() -> None:
    need = Need({"CPU": 1.0}, 1)
    assert choose_node(need, [SMALL, LARGE], [], avoid=["large"]) == "small"
    assert choose_node(need, [LARGE], [], avoid=["large"]) == "large"


def test_a_node_that_another_job_fills_is_the_last_choice_and_one_that_is_avoided_better() -> None:
    need = Need({"CPU": 2.0}, 1)
    filled = Node("large", {"CPU": 8.0}, free={"CPU": 1.0, "memory": 1.0})
    assert choose_node(need, [SMALL, LARGE], []) == "large"
    assert choose_node(need, [SMALL, filled], []) == "small"
    assert choose_node(need, [SMALL, filled], [], avoid=["small"]) == "small"
    assert choose_node(need, [filled], []) == "large"
    assert choose_node(need, [Node("large", {"CPU": 8.0}, free={"CPU": 2.0})], []) == "large"


def test_what_is_placed_on_a_node_that_is_gone_counts_nowhere() -> None:
    assert choose_node(Need({"CPU": 2.0}, 1), [SMALL], [("gone", {"CPU": 2.0})]) == "small"


def test_labels_pick_the_node_and_the_need_can_be_read() -> None:
    need = Need({"CPU": 2.0}, 2, {"zone": "b"})
    assert choose_node(need, [LARGE, GPU], []) == "gpu"
    assert str(need) == "CPU 4, label zone=b"
