"""What a receipt says, from what agents and searches say."""

import pytest

from elastrain.service import receipts

FOUND = {
    "nodes": [
        {"node": "a" * 56, "pids": [41, 42], "left": [], "seconds": 0.25},
        {"node": "b" * 56, "pids": [], "left": [], "seconds": 0.5},
    ],
    "unsearched": [],
    "seconds": 0.75,
}


def test_everything_that_was_used_was_searched() -> None:
    receipt = receipts.searched(FOUND, {"a" * 56})
    assert receipt["proven"] and receipt["unsearched"] == []
    assert receipts.sentence(2, receipt) == (
        "Every process of attempt 2 is gone: 2 nodes searched, 2 processes left behind and ended (0.75 s)"
    )


def test_a_search_that_found_nothing_says_so() -> None:
    receipt = receipts.searched({**FOUND, "nodes": FOUND["nodes"][1:]}, ())  # type: ignore[index]
    assert receipt["message"] == "1 node searched, nothing was left behind"


def test_a_node_that_left_the_cluster_is_named_and_nothing_is_proven() -> None:
    receipt = receipts.searched(FOUND, {"a" * 56, "c" * 56})
    assert not receipt["proven"] and receipt["unsearched"] == ["c" * 56]
    assert receipts.sentence(1, receipt).startswith(
        "It is not proven that every process of attempt 1 is gone"
    )
    assert "not searched, since gone from the cluster: cccccccc" in receipt["message"]


def test_a_node_with_two_agents_in_turn_is_one_node() -> None:
    node = FOUND["nodes"][0]  # type: ignore[index]
    receipt = receipts.searched({**FOUND, "nodes": [node, {**node, "pids": [50]}]}, ())
    assert receipt["nodes"] == [{"node": "a" * 56, "pids": [41, 42, 50], "seconds": 0.5}]


def test_what_would_not_end_and_who_did_not_answer_are_open_points() -> None:
    assert receipts.open_points(FOUND) == ""
    node = {"node": "a" * 56, "pids": [], "left": [7], "seconds": 5.0}
    said = receipts.open_points({"nodes": [node], "unsearched": ["c" * 56], "seconds": 5.0})
    assert said == "node cccccccc did not answer; on node aaaaaaaa the system does not let go of process 7"


@pytest.mark.parametrize(
    "said",
    [
        None,
        "gone",
        {},
        {"nodes": 1, "unsearched": [], "seconds": 0},
        {"nodes": [{"node": "a"}], "unsearched": [], "seconds": 0},
        {"nodes": [{"node": "a", "pids": ["x"], "left": [], "seconds": 0}], "unsearched": [], "seconds": 0},
        {"nodes": [], "unsearched": [], "seconds": "soon"},
    ],
)
def test_what_is_no_receipt_vouches_for_nothing(said: object) -> None:
    assert receipts.read(said) is None
