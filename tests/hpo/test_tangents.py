"""The length of a network's gradient at its start: the closed form against the service's own networks."""

from __future__ import annotations

import math

import pytest
import torch

from app.hpo.tangents import tangent_length
from core.contracts.job_spec import CnnModel, LinearModel, MatrixFactorizationModel, MlpModel
from worker.models.networks import Network


def measured(spec: MlpModel | CnnModel, features: int, length: float) -> float:
    """The root mean square of ‖∂ output/∂ θ‖ over random records and three starts."""
    generator, squares = torch.Generator().manual_seed(0), []
    for start in range(1, 4):
        network = Network(features, 10, spec)
        module = network.filled(network.init(bytes([start] * 32)))
        for _ in range(8):
            x = torch.rand(features, generator=generator)
            module.zero_grad()
            module(x[None] * (length / x.norm()))[0, 0].backward()
            squares.append(sum(float((each.grad**2).sum()) for each in module.parameters() if each.grad is not None))
    return math.sqrt(sum(squares) / len(squares))


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize(
    ("hidden", "features", "length"),
    [([64], 64, 4.0), ([64], 784, 9.0), ([256, 128, 64], 100, 1.0), ([32], 9, 30.0), ([1024], 784, 2_000.0)],
)
def test_an_mlps_length_is_its_gradients(hidden: list[int], features: int, length: float, activation: str) -> None:
    spec = MlpModel.model_validate({"hidden": hidden, "activation": activation, "input_scale": 0.5})
    assert tangent_length(spec, features, length) == pytest.approx(measured(spec, features, length), rel=0.25)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("length", [6.0, 13.0])
def test_conv2s_length_is_its_gradients(activation: str, length: float) -> None:
    spec = CnnModel.model_validate({"preset": "conv2", "activation": activation})
    assert tangent_length(spec, 784, length) == pytest.approx(measured(spec, 784, length), rel=0.4)


def test_a_linear_models_is_that_of_its_inputs() -> None:
    assert tangent_length(LinearModel(), 10, 3.0) == 3.0
    assert tangent_length(LinearModel(bias=True), 10, 3.0) == math.sqrt(10.0)


def test_other_models_have_none() -> None:
    assert tangent_length(CnnModel(preset="conv5"), 3_072, 30.0) is None
    assert tangent_length(MatrixFactorizationModel(), 10, 1.0) is None
