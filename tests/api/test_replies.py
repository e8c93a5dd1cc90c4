"""JSON that every parser takes, whatever a user reports."""

import json

from elastrain.api.replies import Reply, dumps


def test_numbers_that_json_lacks_are_text_and_their_neighbours_stay() -> None:
    text = dumps(
        {"loss": [[0, float("nan")], [1, float("inf")], [2, -1e400], [3, -0.0], [4, 2**63], [5, 0.1]]}
    )

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    values = [value for _, value in json.loads(text, parse_constant=refuse)["loss"]]
    assert values == ["NaN", "Infinity", "-Infinity", 0.0, 2**63, 0.1]


def test_half_a_surrogate_pair_in_a_name_is_replaced_and_not_a_fault() -> None:
    assert json.loads(Reply({"\ud800": "ü"}).body) == {"?": "ü"}
