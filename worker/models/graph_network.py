"""A user's own graph as a model: its file's weights are where training begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from core.contracts.graph import GraphModel
from core.parts import graph_file
from core.parts.graph_file import GraphFile
from core.parts.graph_program import Program, UnfitGraphError
from core.parts.graph_rules import masked
from worker.models.base import Parameters
from worker.models.dropout import Masks
from worker.models.graph_module import KINDS, GraphModule
from worker.models.hf.hf_loading import ModelMissingError
from worker.models.networks import Network


@dataclass(frozen=True)
class GraphNetwork(Network):
    """A network whose layers are a file's.

    Attributes:
        program: the graph.
        tensors: the file's, by its names; of a finished model the constants alone are used.
    """

    spec: GraphModel
    program: Program = field(kw_only=True)
    tensors: Mapping[str, Tensor] = field(kw_only=True)

    @cached_property
    def masks(self) -> Masks | None:  # type: ignore[override]
        """See Network.masks; the rate is the file's."""
        rates = [float(each.arguments["p"]) for each in self.program.nodes if masked(each)]  # type: ignore[arg-type]
        return Masks(rates[0]) if rates else None

    def module(self) -> nn.Module:
        """Its input is (n, d), a record's numbers in the order of the graph's shape."""
        return GraphModule(self.program, self.constants, self.dtype, self.device, self.masks)

    def shapes_alone(self) -> nn.Module:
        """The module on torch's meta device: its tensors have shapes and no numbers; dropout draws no masks."""
        return GraphModule(self.program, self.constants, self.dtype, "meta")

    def init(self, key: bytes | None = None) -> Parameters:
        """The file's weights."""
        trained = (each.name for each in self.program.tensors.values() if each.trained)
        return {name: self.tensors[name].double() for name in trained}

    @property
    def constants(self) -> Parameters:
        """The tensors that are not trained, in their own types."""
        return {each.name: self.tensors[each.name] for each in self.program.tensors.values() if not each.trained}


def graph_of(root: Path, settings: GraphModel) -> tuple[Program, dict[str, Tensor]]:
    """The program and the tensors that a job was admitted with.

    Args:
        root: the folder of models; or the file itself, of a graph that was uploaded.

    Raises:
        ModelMissingError: the file is missing, or its content differs.
    """
    try:
        file = graph_file.read(root if settings.path is None else root / settings.path)
    except (OSError, UnfitGraphError):
        raise ModelMissingError("the graph is not where it was when the job was admitted") from None
    if settings.sha256 is not None and file.sha256 != settings.sha256:
        raise ModelMissingError("the graph differs from the admitted one")
    return file.program, tensors_of(file)


def tensors_of(file: GraphFile) -> dict[str, Tensor]:
    """A file's tensors, by its names."""
    return {
        each.name: torch.frombuffer(bytearray(content), dtype=KINDS[each.dtype]).view(each.sizes)
        if (content := file.tensor(each.name))
        else torch.empty(each.sizes, dtype=KINDS[each.dtype])
        for each in file.program.tensors.values()
    }


def published(program: Program, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a finished model's file, in the program's types and sizes.

    Raises:
        KeyError: one is missing.
        ValueError: one has other sizes.
    """
    tensors = {}
    for tensor in program.tensors.values():
        if tuple(weights[tensor.name].shape) != tensor.sizes:
            raise ValueError(f"{tensor.name} has other sizes than the graph says")
        tensors[tensor.name] = weights[tensor.name].to(KINDS[tensor.dtype])
    return tensors
