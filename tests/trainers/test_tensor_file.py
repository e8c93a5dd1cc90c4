"""The files of a checkpoint are those that the safetensors library would write."""

import torch
from safetensors.torch import load, save

from elastrain.trainers.checkpoints.tensor_file import Entry, TensorFiles

TENSORS = {
    "a.weight": torch.arange(6, dtype=torch.float32).view(2, 3),
    "scale": torch.tensor(2.5),
    "Zeilenlänge": torch.tensor([1, 2, 3]),
    "steps": torch.tensor([7], dtype=torch.int32),
    "half": torch.ones(3, dtype=torch.bfloat16),
    "mask": torch.tensor([True, False, True]),
    "double": torch.ones(2, dtype=torch.float64),
    "bytes": torch.arange(5, dtype=torch.uint8),
    "nothing": torch.empty(0, 4),
}


def test_a_packed_file_has_the_bytes_that_the_library_writes() -> None:
    packed = TensorFiles().pack({name: Entry.of(value) for name, value in TENSORS.items()})
    assert bytes(packed) == save(TENSORS)


def test_parts_are_put_together_and_memory_of_a_longer_file_leaves_nothing_behind() -> None:
    files = TensorFiles()
    files.pack({"long": Entry.of(torch.ones(1000))})
    parts = [torch.arange(3.0), torch.arange(10.0)[::2], torch.empty(0)]
    packed = bytes(files.pack({"exp_avg": Entry.joined(parts)}))
    assert packed == save({"exp_avg": torch.cat(parts)})
    assert load(packed)["exp_avg"].tolist() == [0, 1, 2, 0, 2, 4, 6, 8]


def test_a_type_that_we_do_not_name_is_left_to_the_library() -> None:
    value = torch.ones(2, dtype=torch.complex64)
    packed = TensorFiles().pack({"z": Entry.of(value)})
    assert bytes(packed) == save({"z": value})
