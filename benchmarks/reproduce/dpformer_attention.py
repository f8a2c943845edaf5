"""Where attention looks: the weights of a trained model's first block, over many users."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks.reproduce.runs import Data, Result
from core.contracts.job_spec import TransformerRecModel
from worker.models import recommenders
from worker.models.base import Parameters
from worker.models.next_item import NextItem

USERS = 500


def looked_at(data: Data, job: dict[str, Any], result: Result) -> dict[str, Any]:
    """The mean weights of full sequences, and how much of the last item's attention goes to rare items.

    Returns:
        `map`, (T, T), of the first block's first head; `rare`, the attention of the last item to those of the items
        before it (and itself) that are rarer than the median of the sequence, over their share of the places: 1 is no
        preference.
    """
    spec = TransformerRecModel.model_validate(job["model"])
    model = NextItem(data.features_count, spec)
    frequencies = data.train.item_counts(data.features_count, spec.max_length) / len(data.train)  # type: ignore[attr-defined]
    if model.effective_errors is not None:
        users = len(data.train)
        batch = job["sampling"].get("expected_batch_size", users)
        model.effective_errors.instantiate(result.noise_multiplier or 0.0, batch, frequencies, 1.0 / users)
    ids = data.train.padded(spec.max_length)  # type: ignore[attr-defined]
    ids = ids[(ids != 0).all(dim=1)][:USERS]
    weights = _weights(model, result.parameters, ids)
    rarity = frequencies[ids - 1]
    rare = rarity < rarity.median(dim=1, keepdim=True).values
    to_rare = (weights[:, -1] * rare).sum(dim=1) / weights[:, -1].sum(dim=1)
    mean = [[round(each, 4) for each in row] for row in weights.mean(dim=0).tolist()]
    return {"map": mean, "rare": round(float((to_rare / rare.double().mean(dim=1)).mean()), 4)}


def _weights(model: NextItem, parameters: Parameters, ids: Tensor) -> Tensor:
    """(n, T, T), as attention used them."""
    module: Any = model.filled(parameters)
    seen: dict[str, Tensor] = {}
    block = module.blocks[0]
    for name in ("query", "key"):
        getattr(block, name).register_forward_hook(lambda _m, _i, out, name=name: seen.__setitem__(name, out))
    original = recommenders.corrected

    def watched(*arguments: Any) -> Tensor:
        found = original(*arguments)
        seen.setdefault("weights", found)
        return found

    recommenders.corrected = watched  # type: ignore[assignment]
    try:
        with torch.no_grad():
            module(ids)
    finally:
        recommenders.corrected = original
    if "weights" in seen:
        return seen["weights"][:, 0].double()
    logits = (seen["query"] @ seen["key"].mT / seen["query"].shape[2] ** 0.5).double()
    causal = torch.ones(logits.shape[1:], dtype=torch.bool).tril()
    return torch.softmax(logits.masked_fill(~causal, -torch.inf), dim=2)
