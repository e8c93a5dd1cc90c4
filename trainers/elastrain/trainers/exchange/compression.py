"""How a run of gradient sums is packed for the wire, and what that leaves out.

A run begins at a block border and has whole groups of 64 elements; wherever a bucket is cut into runs, an
element is packed alike. What is not finite stays so, and the step is skipped for it as without compression.

- bf16, fp16: rounded to the nearest.
- int8: x ~ s * q with q in -127..127 and one fp32 scale s = max|x| / 127 for each group of 64 elements.
- topk: of each block the share of elements that are largest in magnitude, as they are; the others are zero
  (Aji and Heafield, "Sparse Communication for Distributed Gradient Descent", 2017, by block).
- nothing: for powersgd, which sends its factors beside (powersgd.py).

The last three leave something out that would be missed for ever. So it is added to what the same place of the
tree sends next (error feedback: Seide et al., "1-Bit Stochastic Gradient Descent", 2014; Karimireddy et al.,
"Error Feedback Fixes SignSGD", 2019).
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from elastrain.trainers.spec.strategies import CompressionSpec, TopK

GROUP = 64  # elements with a scale of their own; divides every run
LARGEST = 127.0  # code


class Residue:
    """How what is left out is kept and sent: whole numbers of 8, 4 or 2 bits with a scale for each group that
    lose something again. It is packed again and again, so it is rounded up or down in turn, such that over
    many steps an element comes out right on average, however small it is beside its neighbours. Where each
    element stands in its turn follows from the step and its place alone (a Weyl sequence), so everybody
    rounds alike."""

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.largest = float(2 ** (bits - 1) - 1)
        self.per = 8 // bits  # elements in a byte

    def size(self, elements: int) -> int:
        """Bytes of a packed run."""
        return elements // self.per + elements // GROUP * 4

    def encode(self, values: Tensor, step: int) -> Tensor:
        """(elements,) f32 -> (bytes,) u8"""
        turns = [math.fmod(k * _GOLDEN + step * _SILVER, 1.0) for k in range(GROUP)]
        groups, scales = _scaled(values, self.largest)
        groups.add_(torch.tensor(turns).clamp_(max=1.0 - 2.0**-24)).floor_()
        if self.per == 1:
            return _packed(groups, scales)
        small = groups.nan_to_num_(0.0).clamp_(-self.largest, self.largest).to(torch.int8).view(torch.uint8)
        small &= 2**self.bits - 1
        codes = small[:, 0 :: self.per].clone()
        for place in range(1, self.per):
            codes |= small[:, place :: self.per] << place * self.bits
        return torch.cat([codes.view(-1), scales.view(-1).view(torch.uint8)])

    def decode(self, codes: Tensor, scales: Tensor) -> Tensor:
        """(elements / per,) u8 and (elements / 64,) f32 -> (elements,) f32. A code of zero is zero,
        whatever the scale: what lies between two parameters is in no checkpoint."""
        if self.per == 1:
            return unpack(codes.view(torch.int8), scales)
        mask, sign = 2**self.bits - 1, 2 ** (self.bits - 1)
        small = torch.stack([codes >> place * self.bits & mask for place in range(self.per)], dim=1)
        whole: Tensor = (small.view(-1, GROUP) ^ sign).float() - sign
        return (whole * scales.view(-1, 1)).view(-1)


_GOLDEN, _SILVER = (math.sqrt(5.0) - 1.0) / 2.0, math.sqrt(2.0) - 1.0  # far from every short fraction


class Codec(Protocol):
    """Packs runs of f32 into bytes. `feedback`: how what it leaves out is kept; None: it is forgotten."""

    @property
    def feedback(self) -> Residue | None: ...

    def size(self, elements: int) -> int:
        """Bytes of a packed run."""
        ...

    def encode(self, values: Tensor) -> Tensor:
        """(elements,) f32 -> (bytes,) u8"""
        ...

    def decode(self, data: Tensor, elements: int) -> Tensor:
        """(bytes,) u8 -> (elements,) f32, in memory of its own"""
        ...


class Half:
    """Two bytes for each element."""

    feedback = None

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def size(self, elements: int) -> int:
        return 2 * elements

    def encode(self, values: Tensor) -> Tensor:
        return values.to(self.dtype).view(torch.uint8)

    def decode(self, data: Tensor, elements: int) -> Tensor:
        return data.view(self.dtype).float()


class Int8:
    """One byte for each element, and a scale for each group."""

    feedback = Residue(2)  # at most half a step of its own

    def size(self, elements: int) -> int:
        return elements + elements // GROUP * 4

    def encode(self, values: Tensor) -> Tensor:
        groups, scales = _scaled(values, LARGEST)
        return _packed(groups.round_(), scales)

    def decode(self, data: Tensor, elements: int) -> Tensor:
        codes, scales = data[:elements].view(torch.int8), data[elements:].view(torch.float32)
        return unpack(codes, scales)


def unpack(codes: Tensor, scales: Tensor) -> Tensor:
    """(n,) i8 and (n / 64,) f32 -> (n,) f32"""
    return (codes.view(-1, GROUP) * scales.view(-1, 1)).view(-1)


def _scaled(values: Tensor, largest: float) -> tuple[Tensor, Tensor]:
    """Each group by its own scale, (groups, 64) within -largest..largest, and the scales (groups, 1)."""
    groups = values.view(-1, GROUP)
    scales = groups.abs().amax(1, keepdim=True).div_(largest)
    return groups / torch.where(scales == 0.0, 1.0, scales), scales


def _packed(codes: Tensor, scales: Tensor) -> Tensor:
    codes = codes.nan_to_num_(0.0).clamp_(-LARGEST, LARGEST).to(torch.int8)
    return torch.cat([codes.view(-1).view(torch.uint8), scales.view(-1).view(torch.uint8)])


class LargestOfEach:
    """Of each block the `fraction` of its elements that are largest in magnitude: value and place."""

    feedback = Residue(4)

    def __init__(self, fraction: float, block: int) -> None:
        self.fraction, self.block = fraction, block

    def kept(self, block: int) -> int:
        """Of a block of so many elements; at least one."""
        return max(1, math.ceil(self.fraction * block - 1e-9))

    def _rows(self, elements: int) -> list[tuple[int, int]]:
        """(blocks, elements of each): those of full length, then a short last one."""
        full, rest = divmod(elements, self.block)
        return [(n, length) for n, length in ((full, self.block), (1, rest)) if n and length]

    def size(self, elements: int) -> int:
        return sum(_sparse_bytes(n * self.kept(length)) for n, length in self._rows(elements))

    def encode(self, values: Tensor) -> Tensor:
        packed, at = [values.new_empty(0, dtype=torch.uint8)], 0
        for n, length in self._rows(values.numel()):
            rows = values[at : at + n * length].view(n, length)
            places = rows.abs().topk(self.kept(length), dim=1, sorted=False).indices
            where = (places - _MIDDLE).to(torch.int16).view(-1)
            padding = where.new_zeros(where.numel() % 2)
            found = rows.gather(1, places).view(-1)
            packed += [p.view(torch.uint8) for p in (found, where, padding)]
            at += n * length
        return torch.cat(packed)

    def decode(self, data: Tensor, elements: int) -> Tensor:
        values, at, start = torch.zeros(elements), 0, 0
        for n, length in self._rows(elements):
            count = n * self.kept(length)
            found = data[at : at + 4 * count].view(torch.float32).view(n, -1)
            where = data[at + 4 * count : at + 6 * count].view(torch.int16).view(n, -1)
            values[start : start + n * length].view(n, length).scatter_(1, where.long() + _MIDDLE, found)
            at, start = at + _sparse_bytes(count), start + n * length
        return values


_MIDDLE = 1 << 15  # places 0..65535 fit into 16 bits with a sign


def _sparse_bytes(count: int) -> int:
    return 6 * count + 2 * (count % 2)  # so that the next one begins at a multiple of four


class Nothing:
    """All of it is left out."""

    feedback = Residue(4)

    def size(self, elements: int) -> int:
        return 0

    def encode(self, values: Tensor) -> Tensor:
        return values.new_empty(0, dtype=torch.uint8)

    def decode(self, data: Tensor, elements: int) -> Tensor:
        return torch.zeros(elements)


def codec(spec: CompressionSpec, block: int) -> Codec | None:
    """The one that `spec.compression` names; None: fp32 as it is. block: elements of a block."""
    match spec.name:
        case "none":
            return None
        case "bf16":
            return Half(torch.bfloat16)
        case "fp16":
            return Half(torch.float16)
        case "int8":
            return Int8()
        case "powersgd":
            return Nothing()
        case _:
            assert isinstance(spec, TopK)
            return LargestOfEach(spec.fraction, block)
