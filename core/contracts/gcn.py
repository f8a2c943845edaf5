"""Settings of a model of a graph's nodes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from core.contracts.model_settings import ModelSettings, RecordSizes
from core.contracts.neighbourhoods import Fan, Hops, Tree

Width = Annotated[int, Field(strict=True, ge=1, le=4096)]


class GcnModel(ModelSettings):
    """A graph network: a node's class from its own columns and those of at most `neighbours` nodes at each hop.

    A layer reads a node's numbers beside the mean of its neighbours': `hops` such layers, then linear layers of the
    other sizes of `hidden`, with an activation between all. With one hop and no `hidden` it is linear.

    A node more or less changes the gradients of all nodes that read it, so each is clipped to C / (2 N − 1) with
    N = 1 + neighbours + … + neighbours^hops: few neighbours mean little noise.

    Source: Daigavane et al. 2021, "Node-level differentially private graph neural networks"; layers as in Hamilton,
    Ying & Leskovec 2017, "Inductive representation learning on large graphs".
    """

    kind: Literal["gcn"] = "gcn"
    hops: Hops = 1
    neighbours: Fan = 4
    hidden: Annotated[tuple[Width, ...], Field(max_length=8)] = ()
    activation: Literal["tanh", "relu"] = "tanh"

    @model_validator(mode="after")
    def _reads_twice(self) -> GcnModel:
        if self.hops > len(self.hidden) + 1:
            raise ValueError("two `hops` need a size in `hidden`, of what the first one makes")
        return self

    @property
    def tree(self) -> Tree:
        """What it reads around a node."""
        return Tree(hops=self.hops, neighbours=self.neighbours)

    @property
    def reach(self) -> int:
        """See ModelSettings.reach."""
        return self.tree.reach

    def held(self, sizes: RecordSizes) -> int:
        """See ModelSettings.held."""
        first = self.hidden[0] * self.positions() if self.hidden else 0
        return 4 * (sizes.features + first + sum(self.hidden) + sizes.outputs)

    def positions(self) -> int:
        """See ModelSettings.positions: the first of two hops sees the node and its neighbours."""
        return 1 if self.hops == 1 else 1 + self.neighbours
