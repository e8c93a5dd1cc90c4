"""Curves in text."""

from elastrain.api.cli.plot import chart, sparkline


def test_a_sparkline_goes_from_the_highest_to_the_lowest() -> None:
    assert sparkline([3.0, 2.0, 1.0]) == "█▅▁"


def test_infinite_values_do_not_flatten_the_rest() -> None:
    assert sparkline([2.0, "NaN", "Infinity", 1.0]) == "█▁"


def test_a_constant_and_an_empty_curve_are_drawn_too() -> None:
    assert sparkline([1.0, 1.0]) == "▁▁"
    assert sparkline([]) == ""


def test_a_long_curve_fits_the_width() -> None:
    assert len(sparkline(list(range(1000)), 40)) == 40


def test_a_chart_names_both_ranges() -> None:
    lines = chart("loss", [(step, 1.0 / (step + 1)) for step in range(100)], width=50, height=5)
    assert lines[0] == "loss"
    assert lines[1].strip().startswith("0.75")
    assert lines[-1].endswith("step 0 to 99")
    assert max(len(line) for line in lines) <= 60
