"""Recurrent recommenders with cells made of linear layers: unrolled, each time step is a position of such a layer.

The clipping engine records terms of `inputs`, which sees all positions at once, and of `states`, which is called once
per position. All calls together form one term with T positions. So norms are exact, and no record's gradient is formed
if Gram matrices over positions cost less. PyTorch's own recurrent layers offer no such terms.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from worker.models.dropout import Masks
from worker.models.recommenders import Recommender, at_place, dropout_of, last_place


class GruLayer(nn.Module):
    """h_t = (1 − z) n + z h_{t−1}, with r, z = σ(inputs + states), n = tanh(inputs + r ⊙ states), from h_0 = 0.

    Names and order of gates follow torch.nn.GRU: reset, update, new.

    Source: Cho et al. 2014, "Learning phrase representations using RNN encoder-decoder for statistical machine
    translation"; the reset gate comes after the product, as in cuDNN.
    """

    gates = 3

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.inputs, self.states = nn.Linear(dim, 3 * dim), nn.Linear(dim, 3 * dim)

    def forward(self, x: Tensor) -> Tensor:
        """(n, T, d) → (n, T, d)."""
        h, outputs = torch.zeros_like(x[:, 0]), []
        for inputs in self.inputs(x).unbind(dim=1):
            (r, z, new), (from_r, from_z, from_new) = inputs.chunk(3, dim=1), self.states(h).chunk(3, dim=1)
            z = torch.sigmoid(z + from_z)
            new = torch.tanh(new + torch.sigmoid(r + from_r) * from_new)
            h = new + z * (h - new)
            outputs.append(h)
        return torch.stack(outputs, dim=1)


class LstmLayer(nn.Module):
    """c_t = f c_{t−1} + i g, h_t = o tanh(c_t), with i, f, o = σ(inputs + states), g = tanh(inputs + states).

    Names and order of gates follow torch.nn.LSTM: input, forget, cell, output.

    Source: Hochreiter & Schmidhuber 1997, "Long short-term memory"; Gers, Schmidhuber & Cummins 2000 (forget gate).
    """

    gates = 4

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.inputs, self.states = nn.Linear(dim, 4 * dim), nn.Linear(dim, 4 * dim)

    def forward(self, x: Tensor) -> Tensor:
        """(n, T, d) → (n, T, d)."""
        h = c = torch.zeros_like(x[:, 0])
        outputs = []
        for inputs in self.inputs(x).unbind(dim=1):
            i, f, g, o = (inputs + self.states(h)).chunk(4, dim=1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            outputs.append(h)
        return torch.stack(outputs, dim=1)


class RecurrentRec(Recommender):
    """Recurrent layers over item embeddings; see Recommender.

    Args:
        cell: GruLayer or LstmLayer.
        layers: how many of them.
        masks: of dropout, after the embedding and after each layer; None: no dropout.
    """

    def __init__(
        self,
        items: int,
        dim: int,
        cell: type[GruLayer | LstmLayer],
        layers: int,
        *,
        tied: bool = True,
        positions: str = "all",
        masks: Masks | None = None,
    ) -> None:
        super().__init__(items, dim, tied=tied, positions=positions)
        self.dropouts = nn.ModuleList(dropout_of(masks, at) for at in range(layers + 1))
        self.layers = nn.ModuleList(cell(dim) for _ in range(layers))
        self.finish()

    def forward(self, ids: Tensor) -> Tensor:
        """H: (n, T, d), or (n, 1, d) for the last position."""
        x: Tensor = self.dropouts[0](self.embedding(ids))
        for layer, dropout in zip(self.layers, list(self.dropouts)[1:], strict=True):
            x = dropout(layer(x))
        return at_place(x, last_place(ids)) if self.last else x
