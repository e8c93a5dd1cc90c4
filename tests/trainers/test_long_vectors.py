"""The memory of vectors as long as the model: used again, never while somebody still looks at it."""

from __future__ import annotations

import pytest
import torch

from elastrain.trainers.numerics.memory import LongVectors

SIZE = 1_000_003  # fp32 values; no whole number of pages


@pytest.fixture
def vectors() -> LongVectors:
    vectors = LongVectors()
    vectors.kept = True
    return vectors


def test_a_step_gets_the_memory_that_the_last_one_let_go(vectors: LongVectors) -> None:
    places = set()
    for step in range(5):
        first, second = vectors.take(SIZE), vectors.take(SIZE)
        places |= {first.data_ptr(), second.data_ptr()}
        first.fill_(step), second.fill_(-step)
        assert first.dtype == torch.float32 and len(first) == SIZE
        assert (first[0].item(), second[-1].item()) == (step, -step)
        del first, second
    assert len(places) == 2


def test_memory_is_nobody_elses_while_a_view_of_it_is_alive(vectors: LongVectors) -> None:
    vector = vectors.take(SIZE).fill_(1.0)
    part = vector[10:20].view(2, 5)
    del vector
    other = vectors.take(SIZE).fill_(2.0)
    assert part.eq(1.0).all() and other.eq(2.0).all()
    place = part.data_ptr() - 40
    del part
    assert vectors.take(SIZE).data_ptr() == place


def test_of_another_length_nothing_is_kept(vectors: LongVectors) -> None:
    vectors.take(SIZE).zero_()
    longer = vectors.take(2 * SIZE)
    assert len(longer) == 2 * SIZE and not vectors._idle


def test_nothing_is_kept_where_memory_goes_back_and_an_empty_model_needs_none(vectors: LongVectors) -> None:
    assert len(vectors.take(0)) == 0
    vectors.kept = False
    vectors.take(SIZE).zero_()
    assert not vectors._idle
