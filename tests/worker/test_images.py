"""Convolutional networks for images of any declared size, and wide residual networks: exact for every record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from app.catalogue.model_kinds import layers, refusal
from core.contracts.cnn import OWN_SIZE, behind, convolutions
from core.contracts.job_spec import Clipping, CnnModel
from tests.hf.test_norms import training
from tests.worker.support import key
from tests.worker.test_meta import META, drawn, shapes
from worker.clipping.build import build_engine, unclipped_engine
from worker.data.records import DenseRecords
from worker.models.networks import Network

KEY = bytes.fromhex(key("init"))


def cnn(preset: Any, height: int, width: int, depth: int, **settings: Any) -> CnnModel:
    image = {"height": height, "width": width, "channels": depth}
    return CnnModel.model_validate({"preset": preset, "image": image} | settings)


SPECS = [
    cnn("conv2", 14, 21, 3),
    cnn("conv5", 9, 17, 1, activation="relu"),
    cnn("conv5", 8, 8, 5, channels="last"),
    cnn("wrn16_4", 8, 6, 3, activation="relu"),
    cnn("wrn16_4", 5, 4, 1, weight_standardization=True),
]


def images(spec: CnnModel, n: int = 3) -> DenseRecords:
    generator = torch.Generator().manual_seed(0)
    return DenseRecords(torch.randn(n, spec.size.numbers, generator=generator), torch.arange(n) % 3)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_a_network_is_what_the_catalogue_says(spec: CnnModel) -> None:
    network, seen = (
        Network(spec.size.numbers, 3, spec, dtype=torch.float64, rows_per_pass=3),
        list[tuple[int, int, int]](),
    )
    made = layers(spec, spec.size.numbers, 3)
    of = {f"{each.name}.{name}": shape for each in made for name, shape in each.shapes.items()}
    assert {name: list(value.shape) for name, value in network.init(KEY).items()} == of
    module = network.filled(network.init(KEY))
    for layer in module.modules():
        if isinstance(layer, torch.nn.Conv2d):
            layer.register_forward_hook(lambda m, _, y: seen.append((m.in_channels, m.out_channels, y[0, 0].numel())))
    assert module(images(spec).dense(torch.float64)).shape == (3, 3)
    found = [(each.inputs, each.outputs, each.places) for each in convolutions(spec.preset, spec.size)]
    assert sorted(seen) == sorted(found) and spec.positions() == max(places for _, _, places in found)
    assert refusal(spec, "classification", "tensor", spec.size.numbers, 3) is None


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_clipped_sums_are_those_of_autograd_record_by_record(spec: CnnModel) -> None:
    network, batch = Network(spec.size.numbers, 3, spec, dtype=torch.float64, rows_per_pass=3), images(spec)
    parameters = network.init(KEY)
    plain = unclipped_engine(network)
    alone = [plain.private_sum(parameters, batch.select(np.array([at]))) for at in range(len(batch))]
    norms = [float(torch.cat([value.flatten() for value in each.values()]).norm()) for each in alone]
    C = float(np.median(norms))
    found = build_engine(network, Clipping(), training(C)).private_sum(parameters, batch)
    for name, value in found.items():
        parts: list[Tensor] = [each[name] / max(1.0, size / C) for each, size in zip(alone, norms, strict=True)]
        wanted = torch.stack(parts).sum(dim=0)
        assert float((value - wanted).norm()) <= 1e-9 * max(1.0, float(wanted.norm())), name


@pytest.mark.parametrize("spec", SPECS[3:], ids=str)
def test_wide_residual_networks_on_the_meta_device(spec: CnnModel) -> None:
    network = replace(Network(spec.size.numbers, 3, spec, dtype=torch.float32, rows_per_pass=3), device=META)
    parameters, records = drawn(network)
    shapes(build_engine(network, Clipping(), training(1.0)).private_sum(parameters, records), parameters)


def test_standardized_filters_ignore_their_scale_and_mean() -> None:
    spec = cnn("wrn16_4", 4, 4, 1, weight_standardization=True)
    network = Network(16, 3, spec, dtype=torch.float64, rows_per_pass=3)
    parameters = network.init(KEY)
    moved = {name: 7.0 * value + 3.0 if value.dim() == 4 else value for name, value in parameters.items()}
    one, other = (network.forward(each, images(spec)) for each in (parameters, moved))
    torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize(
    ("spec", "features", "pointer", "says"),
    [
        (cnn("conv2", 13, 28, 1), 13 * 28, "/model/image", "at least 14 × 14"),
        (cnn("conv5", 7, 64, 3), 7 * 64 * 3, "/model/image", "at least 8 × 8"),
        (cnn("wrn16_4", 3, 3, 1), 9, "/model/image", "at least 4 × 4"),
        (cnn("conv5", 16, 16, 3), 767, "/model/image", "768 numbers"),
        (CnnModel(preset="conv5"), 784, "/model/preset", "give `image`"),
        (cnn("conv5", 4096, 4096, 3), 3 * 4096**2, "/model/image", "MiB"),
        (cnn("conv2", 28, 28, 1, weight_standardization=True), 784, "/model/weight_standardization", "only `wrn16_4`"),
    ],
    ids=str,
)
def test_refusals_name_the_number(spec: CnnModel, features: int, pointer: str, says: str) -> None:
    found = refusal(spec, "classification", "tensor", features, 3)
    assert found is not None and found[0] == pointer and says in found[1]


def test_the_presets_own_sizes() -> None:
    """What a pass holds decides its rows, which stored jobs have: it stays."""
    assert {name: behind(name, size) for name, size in OWN_SIZE.items()} == {
        "conv2": (4, 4),
        "conv5": (4, 4),
        "wrn16_4": (8, 8),
    }
    held = {
        name: [(each.inputs, each.outputs, each.kernel, each.places) for each in convolutions(name, size)]
        for name, size in OWN_SIZE.items()
    }
    assert held["conv2"] == [(1, 16, 8, 196), (16, 32, 4, 25)]
    assert held["conv5"] == [(3, 32, 3, 1024), (32, 64, 3, 256), (64, 64, 3, 64), (64, 128, 3, 16)]
    assert len(held["wrn16_4"]) == 16
