"""Nodes and constant tensors of an ONNX graph, as they are added."""

from __future__ import annotations

from typing import Any

import numpy as np


class Nodes:
    """The parts of a graph.

    Args:
        onnx: the package.
    """

    def __init__(self, onnx: Any) -> None:
        self._helper, self._numpy = onnx.helper, onnx.numpy_helper
        self.nodes: list[Any] = []
        self.tensors: list[Any] = []

    def add(self, operator: str, inputs: list[str], output: str = "", **attributes: Any) -> str:
        """Adds a node with one output, and returns the output's name; without a name it gets one."""
        output = output or f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(self._helper.make_node(operator, inputs, [output], **attributes))
        return output

    def constant(self, name: str, value: Any, dtype: Any = np.float32) -> str:
        """Adds a constant tensor; without a name it gets one."""
        name = name or f"constant_{len(self.tensors)}"
        self.tensors.append(self._numpy.from_array(np.asarray(value, dtype=dtype), name))
        return name

    def tensor(self, value: Any, dtype: Any) -> Any:
        """A tensor as an attribute's value."""
        return self._numpy.from_array(np.asarray(value, dtype=dtype))
