"""The model as flat memory."""

import pytest
import torch
from torch import nn

from elastrain.trainers.numerics.chunks import ALIGN
from elastrain.trainers.numerics.flat import FlatModel, UnusableModel


def test_every_parameter_begins_aligned_and_the_module_sees_the_flat_memory() -> None:
    module = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    before = [p.detach().clone() for p in module.parameters()]
    flat = FlatModel(module)
    assert all(p.start % ALIGN == 0 for p in flat.space.pieces)
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
    flat.params.fill_(7.0)
    assert all((p == 7.0).all() for p in module.parameters())


def test_tied_parameters_are_kept_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(4, 3)
            self.out = nn.Linear(3, 4, bias=False)
            self.out.weight = self.embed.weight

    flat = FlatModel(Tied())
    assert [p.name for p in flat.space.pieces] == ["embed.weight"]
    assert flat.module.out.weight is flat.module.embed.weight


def test_a_parameter_without_gradient_is_told_apart_from_a_zero_one() -> None:
    flat = FlatModel(nn.Linear(2, 1))
    came: dict[str, bool] = {}
    with flat.handing_over(lambda piece, grad: came.update({piece.name: bool(grad.any())})):
        (flat.module.weight * 0.0).sum().backward()
    assert came == {"weight": False}


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (nn.ReLU(), "no parameter"),
        (nn.Linear(1, 1).half(), "float16"),
        (nn.Linear(1, 1).requires_grad_(False), "no parameter"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused(module: nn.Module, said: str) -> None:
    with pytest.raises(UnusableModel, match=said):
        FlatModel(module)


def test_buffers_that_are_not_floats_travel_as_they_are_whatever_their_types() -> None:
    module = nn.Linear(1, 1)
    values = {
        "count": torch.tensor(7),
        "mask": torch.tensor([True, False, True]),
        "freqs": torch.polar(torch.ones(5), torch.arange(5.0)),
        "empty": torch.empty(0, dtype=torch.int32),
        "bytes": torch.arange(3, dtype=torch.uint8),
    }
    for name, value in values.items():
        module.register_buffer(name, value)
    bank = FlatModel(module).buffers
    packed = bank.pack_others(bank.others_now())
    assert packed.numel() == bank.others_size() and packed.numel() % 8 == 0
    came = bank.unpack_others(packed)
    assert all(torch.equal(came[n], v) and came[n].dtype == v.dtype for n, v in values.items())
    before = bank.others_digest()
    module.get_buffer("freqs").mul_(1j)
    assert bank.others_digest() != before, "the imaginary part counts too"
