"""Where a model is cut. What comes of it is in tests/engine/test_split.py."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from elastrain.trainers.split.model import blocks_of


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(4, 8)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(3))
        self.heads = nn.ModuleDict({"a": nn.Linear(8, 2), "b": nn.Linear(8, 2)})


def test_the_layers_of_a_model_are_brought_together_one_at_a_time() -> None:
    model = Layers()
    found = blocks_of(model, set())
    assert found == [*model.layers, *model.heads.values()]


def test_what_a_layer_shares_with_another_part_of_the_model_belongs_to_the_whole() -> None:
    model = Layers()
    model.heads["a"].weight = nn.Parameter(torch.zeros(2, 8))
    model.heads["b"].weight = model.heads["a"].weight  # tied
    model.layers[1][0].bias = model.layers[0][0].bias
    assert blocks_of(model, set()) == [model.layers[2]]


def test_a_layer_of_frozen_parameters_stays_whole() -> None:
    model = Layers()
    frozen = set(model.layers.parameters())
    assert blocks_of(model, frozen) == list(model.heads.values())


@pytest.mark.parametrize("model", [nn.Linear(3, 3), nn.Sequential()])
def test_a_model_without_layers_is_one_block(model: nn.Module) -> None:
    assert blocks_of(model, set()) == []
