"""What a packed run of gradients is, and what error feedback makes of what is left out."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from elastrain.trainers.exchange.compression import Codec, Half, Int8, LargestOfEach, Residue, codec
from elastrain.trainers.spec import parse_spec


class Kept:
    """A residue, as if it were a codec."""

    feedback = None

    def __init__(self, bits: int, step: int = 7) -> None:
        self.kind, self.step, self.size = Residue(bits), step, Residue(bits).size

    def encode(self, values: Tensor) -> Tensor:
        return self.kind.encode(values, self.step)

    def decode(self, data: Tensor, elements: int) -> Tensor:
        end = elements // self.kind.per
        return self.kind.decode(data[:end], data[end:].view(torch.float32))


CODECS: list[Codec] = [
    Half(torch.bfloat16),
    Half(torch.float16),
    Int8(),
    Kept(8),
    Kept(4),
    Kept(2),
    LargestOfEach(0.01, 64),
    LargestOfEach(0.05, 256),
]


def drawn(elements: int, seed: int = 0) -> Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("packing", CODECS, ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("elements", [64, 256, 1024 + 192])
def test_a_run_comes_back_in_as_many_bytes_as_were_announced(packing: Codec, elements: int) -> None:
    data = packing.encode(drawn(elements))
    assert data.dtype == torch.uint8
    assert data.numel() == packing.size(elements) < 4 * elements
    assert packing.size(elements) % 4 == 0, "the next one in a message begins where its floats may"
    assert packing.decode(data, elements).shape == (elements,)


@pytest.mark.parametrize("packing", CODECS, ids=lambda c: type(c).__name__)
def test_wherever_a_bucket_is_cut_an_element_is_packed_alike(packing: Codec) -> None:
    values, whole = drawn(1024), packing
    at_once = whole.decode(whole.encode(values), 1024)
    parts = [whole.decode(whole.encode(values[a : a + 256].clone()), 256) for a in range(0, 1024, 256)]
    assert torch.equal(at_once, torch.cat(parts))


@pytest.mark.parametrize("packing", CODECS, ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_stays_so(packing: Codec, bad: float) -> None:
    values = drawn(256)
    values[70] = bad
    came = packing.decode(packing.encode(values), 256)
    assert not bool(came.isfinite().all()), "the step is to be skipped, as without compression"


def test_int8_is_off_by_half_a_step_of_its_group_at_most() -> None:
    values = drawn(1024) * torch.logspace(-8, 3, 16).repeat_interleave(64)
    came = Int8().decode(Int8().encode(values), 1024)
    step = values.view(-1, 64).abs().amax(1, keepdim=True) / 127
    assert bool(((values - came).view(-1, 64).abs() <= step * 0.5001).all())
    assert torch.equal(came.view(-1, 64).abs().amax(1), values.view(-1, 64).abs().amax(1))


def test_int8_of_zeros_and_of_what_is_too_small_for_a_scale_is_zero() -> None:
    for value in (0.0, 1e-45):
        assert not bool(Int8().decode(Int8().encode(torch.full((64,), value)), 64).any())


@pytest.mark.parametrize("fraction", [0.001, 0.01, 0.05, 0.25, 1.0])
def test_topk_sends_the_largest_of_each_block_and_no_other(fraction: float) -> None:
    values, block = drawn(1024 + 64), 256
    packing = LargestOfEach(fraction, block)
    came = packing.decode(packing.encode(values), values.numel())
    for start, length in [(0, 256), (256, 256), (512, 256), (768, 256), (1024, 64)]:
        mine, sent = values[start : start + length], came[start : start + length]
        kept = max(1, math.ceil(fraction * length))
        assert int(sent.count_nonzero()) == kept
        assert torch.equal(sent[sent != 0], mine[sent != 0]), "as they are"
        assert mine[sent != 0].abs().min() >= mine[sent == 0].abs().amax() if kept < length else True


def test_topk_finds_its_way_in_the_largest_block_that_there_is() -> None:
    values = torch.zeros(65536)
    values[0], values[65535] = 1.0, -2.0
    packing = LargestOfEach(2 / 65536, 65536)
    assert packing.size(65536) == 12
    assert torch.equal(packing.decode(packing.encode(values), 65536), values)


@pytest.mark.parametrize("packing", [Int8(), LargestOfEach(0.02, 128)], ids=["int8", "topk"])
def test_with_feedback_what_was_left_out_stays_bounded_however_long_it_goes_on(packing: Codec) -> None:
    """The sum of what came is the sum of what was meant, but for an error that does not grow."""
    gradient = drawn(256) * torch.logspace(-3, 0, 256)
    meant, came, left = torch.zeros(256), torch.zeros(256), torch.zeros(256)
    errors = []
    for step in range(600):
        values = gradient + left
        sent = packing.decode(packing.encode(values), 256)
        assert packing.feedback is not None
        kept = Kept(packing.feedback.bits, step)
        left = kept.decode(kept.encode(values - sent), 256)
        meant, came = meant + gradient, came + sent
        errors.append(float((meant - came).norm()))
    assert max(errors[300:]) < 1.5 * max(errors[:300])
    relative = float((meant - came).norm() / meant.norm())
    assert relative < (0.001 if isinstance(packing, Int8) else 0.15)


def test_without_feedback_topk_would_never_send_the_smaller_ones() -> None:
    """Why there are residuals at all."""
    packing, gradient = LargestOfEach(0.02, 128), drawn(256)
    assert float((gradient - packing.decode(packing.encode(gradient), 256)).norm()) > 0.8 * float(
        gradient.norm()
    )


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_what_is_small_beside_its_neighbours_is_kept_on_average(bits: int) -> None:
    """A residual is packed anew in each step. To the nearest, a thousandth of the largest would be lost."""
    values = torch.full((64,), 0.001)
    values[0] = 1.0
    total = torch.zeros(64)
    for step in range(2000):
        total += Kept(bits, step).decode(Kept(bits, step).encode(values), 64)
    torch.testing.assert_close(total / 2000, values, atol=5e-4, rtol=0.0)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_a_code_of_zero_is_nothing_whatever_the_scale(bits: int) -> None:
    """As in a residual that begins, and between two parameters after a checkpoint was loaded."""
    kind = Residue(bits)
    codes = torch.zeros(128 // kind.per, dtype=torch.uint8)
    assert not bool(kind.decode(codes, torch.ones(2)).any())
    assert not bool(kind.encode(torch.zeros(128), 3)[: codes.numel()].any())


@pytest.mark.parametrize(
    ("compression", "elements", "size"),
    [("bf16", 1 << 20, 2 << 20), ("fp16", 1 << 20, 2 << 20), ("int8", 1 << 20, 17 << 16)],
)
def test_the_name_in_the_spec_picks_the_packing(compression: Any, elements: int, size: int) -> None:
    spec = parse_spec({"name": "x", "task": "a.b:C", "epochs": 1, "compression": compression})
    found = codec(spec.compression, 65536)
    assert found is not None and found.size(elements) == size
