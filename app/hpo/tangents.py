"""How long an output's gradient is at a network's start: what ‖x‖ is for a linear model.

A network near its start is a linear model of its tangent features: noise of standard deviation s in every parameter
moves an output by s J, with J = ‖∂ output/∂ θ‖. Initial weights are N(0, gain/fan-in) and biases zero
(worker.models.initial), so J follows from the sizes of the layers and a typical ‖x‖. It is public.
"""

from __future__ import annotations

import math
from functools import lru_cache

from core.contracts.job_spec import Activation, CnnModel, LinearModel, MlpModel, Model

# Of conv2, by 20 digits and 20 clothes and at half their brightness, and noise images, three starts each: within a
# fifth of 3 √‖x‖ for tanh, which saturates, and within two fifths of 2 ‖x‖ for ReLU.
CONV2 = {"tanh": (3.0, 0.5), "relu": (2.0, 1.0)}


def tangent_length(model: Model, features: int, length: float) -> float | None:
    """J of a typical record; None if it is not known for such a model.

    Args:
        features: the number of inputs.
        length: about ‖x‖.
    """
    if isinstance(model, LinearModel):
        return math.hypot(length, 1.0) if model.has_bias else length
    if isinstance(model, MlpModel):
        return _of_mlp(model, features, length * model.input_scale)
    if isinstance(model, CnnModel) and model.preset == "conv2" and model.image is None:
        factor, power = CONV2[model.activation]
        return factor * math.pow(length * model.input_scale, power)
    return None


def _of_mlp(model: MlpModel, features: int, length: float) -> float:
    """J² is a sum over layers: ‖(inputs, 1)‖² times the squared length of the output's gradient there.

    Forwards, a unit's input has variance gain ‖h‖²/fan-in. Backwards, each layer multiplies the squared length by gain
    times the mean square of the activation's slope.
    """
    gain = 2.0 if model.activation == "relu" else 1.0
    squares, slopes = [length**2], []  # ‖h‖² at the layers' inputs, and E[φ′(z)²]
    for fan_in, units in zip([features, *model.hidden[:-1]], model.hidden, strict=True):
        value, slope = _mean_squares(model.activation, gain * squares[-1] / fan_in)
        squares.append(units * value)
        slopes.append(slope)
    total, gradient = squares[-1] + 1.0, 1.0
    for square, slope in zip(reversed(squares[:-1]), reversed(slopes), strict=True):
        gradient *= gain * slope
        total += gradient * (square + 1.0)
    return math.sqrt(total)


@lru_cache(maxsize=1024)
def _mean_squares(activation: Activation, variance: float) -> tuple[float, float]:
    """Returns E[φ(z)²] and E[φ′(z)²] for z of N(0, variance)."""
    if activation == "relu":
        return variance / 2.0, 0.5
    import numpy as np  # noqa: PLC0415 - a tenth of the API's start, which few requests need

    points = np.linspace(-8.0, 8.0, 4_001)  # also of slopes where tanh saturates
    weights = np.exp(-(points**2) / 2.0)
    weights /= weights.sum()
    values = np.tanh(math.sqrt(variance) * points) ** 2
    return float(weights @ values), float(weights @ (1.0 - values) ** 2)
