"""A safetensors file in memory, made in one pass over what goes into it.

The library's `save` wants each tensor in one piece and copies all of them twice more, holding the
interpreter. A checkpoint is made beside a step that uses every core: what it copies, training waits for. The
bytes are those that the library would make.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from safetensors.torch import save
from torch import Tensor

from elastrain.trainers.numerics.memory import blank_again

# In the order in which the library lays tensors out: the widest first, so that each is aligned.
_NAMES = {
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_ORDER = {dtype: at for at, dtype in enumerate(_NAMES)}


@dataclass(frozen=True)
class Entry:
    """One tensor of the file, as the parts that it is put together from: of one type, one after the other."""

    shape: tuple[int, ...]
    parts: Sequence[Tensor]

    @classmethod
    def of(cls, value: Tensor) -> Entry:
        return cls(tuple(value.shape), [value])

    @classmethod
    def joined(cls, parts: Sequence[Tensor]) -> Entry:
        """(sum of the lengths,) of parts with one dimension. At least one part."""
        return cls((sum(p.numel() for p in parts),), parts)

    @property
    def dtype(self) -> torch.dtype:
        return self.parts[0].dtype

    @property
    def bytes(self) -> int:
        return sum(p.numel() * p.element_size() for p in self.parts)


class TensorFiles:
    """Makes one file after the other, in the same memory: a result holds until the next call."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    def pack(self, entries: Mapping[str, Entry]) -> memoryview:
        """The file's bytes."""
        if any(e.dtype not in _NAMES for e in entries.values()):  # rare: the library knows them all
            whole = {n: torch.cat([p.reshape(-1) for p in e.parts]).view(e.shape) for n, e in entries.items()}
            return memoryview(save(whole))
        ordered = sorted(entries.items(), key=lambda item: (_ORDER[item[1].dtype], item[0]))
        header, at = _header(ordered), 0
        size = len(header) + sum(entry.bytes for _, entry in ordered)
        if self._memory.numel() < size:
            self._memory = torch.empty(0, dtype=torch.uint8)  # what there was is free first
            self._memory = blank_again(size, torch.uint8)
        self._memory[: len(header)] = torch.frombuffer(header, dtype=torch.uint8)
        at = len(header)
        for _, entry in ordered:
            for part in entry.parts:
                flat = part.detach().contiguous().reshape(-1).view(torch.uint8)
                self._memory[at : at + flat.numel()] = flat
                at += flat.numel()
        return self._memory[:size].numpy().data


def _header(ordered: Sequence[tuple[str, Entry]]) -> bytearray:
    """Its length as 8 bytes, and what lies where; filled up with blanks to a multiple of 8."""
    said, at = {}, 0
    for name, entry in ordered:
        offsets = [at, at + entry.bytes]
        said[name] = {"dtype": _NAMES[entry.dtype], "shape": list(entry.shape), "data_offsets": offsets}
        at = offsets[1]
    text = json.dumps(said, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return bytearray(len(text).to_bytes(8, "little") + text)
