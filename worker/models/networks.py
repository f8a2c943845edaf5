"""Networks of torch modules over dense features: `mlp`, `cnn`, `gcn`, and `linear` for the reference engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn

from core.contracts.cnn import behind
from core.contracts.gcn import GcnModel
from core.contracts.graph import GraphModel
from core.contracts.job_spec import CnnModel, LinearModel, MlpModel
from core.errors import PrivacyError
from worker.data.records import FeatureRecords
from worker.models.activations import Tanh
from worker.models.base import Parameters
from worker.models.dropout import Dropout, Masks
from worker.models.graphs import TwoHops
from worker.models.modules import ModuleModel, allocated
from worker.models.pooling import AvgPool2x2, MaxPool2x2
from worker.models.residual import wide_residual


@dataclass(frozen=True)
class Network(ModuleModel):
    """A chain of layers over dense features.

    Attributes:
        features: d.
        outputs: K; 1 means regression.
        spec: what the job requested.
    """

    features: int
    outputs: int
    spec: LinearModel | MlpModel | CnnModel | GcnModel | GraphModel
    dtype: torch.dtype = field(default=torch.float32, kw_only=True)

    @cached_property
    def masks(self) -> Masks | None:  # type: ignore[override]
        """The masks of the dropout layers, if there are any; a step begins them before its passes."""
        rate = self.spec.dropout if isinstance(self.spec, MlpModel) else 0.0
        return Masks(rate) if rate else None

    def module(self) -> nn.Module:
        """Its input is (n, d)."""
        layers = self._layers()
        return allocated(nn.Sequential(*layers).to(self.dtype), self.device)

    @property
    def gain(self) -> float:  # type: ignore[override]
        """2 before a ReLU, else 1.

        Source: He et al. 2015, "Delving deep into rectifiers"; LeCun et al. 1998 for tanh.
        """
        return 2.0 if getattr(self.spec, "activation", "") == "relu" else 1.0

    def record_losses(self, module: nn.Module, records: FeatureRecords) -> Tensor:
        """Each record's loss, (n,), with gradients; 0 for a record with a feature that is not finite."""
        outputs = module(records.dense(self.dtype)).mT
        losses = self.losses(outputs, records.labels.to(outputs.dtype) if self.outputs == 1 else records.labels)
        if self.class_weights:
            losses = losses * self.weights_of(records.labels, losses.dtype)
        return torch.where(torch.isfinite(records.private_norms), losses, 0.0)

    def evaluator(self, parameters: Parameters) -> Callable[[FeatureRecords], Tensor]:
        module = self.filled(parameters).double()

        def evaluate(records: FeatureRecords) -> Tensor:
            with torch.no_grad():
                outputs: Tensor = module(records.dense(torch.float64)).mT
            return outputs

        return evaluate

    def _layers(self) -> list[nn.Module]:
        with torch.device("meta"):
            layers = self._chain()
            if self.masks is None:
                return layers
            dropped: list[nn.Module] = []
            for layer in layers:
                dropped.append(layer)
                if isinstance(layer, tuple(_ACTIVATIONS.values())):
                    dropped.append(Dropout(self.masks, len(dropped)))
            return dropped

    def _chain(self) -> list[nn.Module]:
        if isinstance(self.spec, LinearModel):
            return [nn.Linear(self.features, self.outputs, bias=self.spec.has_bias)]
        if isinstance(self.spec, GraphModel):
            raise PrivacyError("a graph's layers are its file's")
        act = _ACTIVATIONS[self.spec.activation]
        if isinstance(self.spec, GcnModel):
            return _gcn(self.spec, self.features, self.outputs, act)
        if isinstance(self.spec, MlpModel):
            return _mlp(self.spec, self.features, self.outputs, act)
        return _cnn(self.spec, self.outputs, act, AvgPool2x2)


class Scaled(nn.Module):
    """x · s, for a public s; with a shape, x becomes (n, …) in that shape, channels first."""

    def __init__(self, scale: float, shape: tuple[int, ...] = (), *, channels_last: bool = False) -> None:
        super().__init__()
        self.scale, self.shape, self.channels_last = scale, shape, channels_last

    def forward(self, x: Tensor) -> Tensor:
        """The scaled and reshaped input."""
        if self.scale != 1.0:
            x = x * self.scale
        if self.shape:
            x = x.unflatten(1, self.shape)
        return x.movedim(-1, 1) if self.channels_last else x


def _mlp(spec: MlpModel, features: int, outputs: int, act: type[nn.Module]) -> list[nn.Module]:
    layers: list[nn.Module] = [Scaled(spec.input_scale)]
    for size in spec.hidden:
        layers += [nn.Linear(features, size), act()]
        features = size
    return [*layers, nn.Linear(features, outputs)]


def _gcn(spec: GcnModel, features: int, outputs: int, act: type[nn.Module]) -> list[nn.Module]:
    """Layers over the trees of core.parts.nodes."""
    layers: list[nn.Module] = []
    sizes = list(spec.hidden)
    if spec.hops == 2:
        first = TwoHops(features, spec.neighbours, sizes.pop(0), act())
        layers, features = [first], first.outputs
    for size in sizes:
        layers += [nn.Linear(features, size), act()]
        features = size
    return [*layers, nn.Linear(features, outputs)]


def _cnn(spec: CnnModel, outputs: int, act: type[nn.Module], means: Callable[[], nn.Module]) -> list[nn.Module]:
    """conv2: two convolutions (the MNIST model of TensorFlow Privacy's and Opacus' tutorials).

    conv5: four convolutions and a linear layer (the CIFAR-10 model of Opacus' examples).
    wrn16_4: worker.models.residual.

    Args:
        means: over windows of 2 × 2. torch's keep the order of memory of images with channels last, and so convolutions
            behind them have other bits than behind ours.
    """
    size = spec.size
    last, channels, (tall, wide) = spec.channels == "last", size.channels, behind(spec.preset, size)
    shape = (size.height, size.width, channels) if last else (channels, size.height, size.width)
    layers: list[nn.Module] = [Scaled(spec.input_scale, shape, channels_last=last)]
    if spec.preset == "conv2":
        return [
            *layers,
            *(nn.Conv2d(channels, 16, 8, stride=2, padding=3), act(), MaxPool2x2()),
            *(nn.Conv2d(16, 32, 4, stride=2), act(), MaxPool2x2()),
            *(nn.Flatten(), nn.Linear(32 * tall * wide, 32), act(), nn.Linear(32, outputs)),
        ]
    if spec.preset == "wrn16_4":
        return [*layers, *wide_residual(channels, (tall, wide), outputs, act, standardized=spec.weight_standardization)]
    for inputs, channels_out in ((channels, 32), (32, 64), (64, 64), (64, 128)):
        layers += [nn.Conv2d(inputs, channels_out, 3, padding=1), act()]
        layers.append(means() if channels_out < 128 else nn.AvgPool2d((tall, wide)))
    return [*layers, nn.Flatten(), nn.Linear(128, outputs)]


_ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": Tanh, "relu": nn.ReLU}
