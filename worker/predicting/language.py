"""Predictions of a tuned language model: how well it predicts each text, and the likely next tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from core.parts.inputs import finite
from core.parts.stored_records import StoredPart, Texts
from worker.data.loaded_parts import records_of
from worker.data.records import Records
from worker.data.sequence_records import SequenceRecords
from worker.models.base import Parameters
from worker.models.hf.hf_model import HfTuning, token_mean
from worker.models.hf.tokens import Tokens

Answer = dict[str, Any]


def tokens_of(model: HfTuning, texts: list[str]) -> Records:
    """The texts as a classifier's tokens; labels are ignored."""
    part = StoredPart(Texts.of(texts), np.zeros(len(texts), dtype=np.int64))
    return records_of(Tokens(model.folder, model.spec.max_length).of_part(part, lambda: None))


def continuations(model: HfTuning, parameters: Parameters, texts: list[str], top: int) -> list[Answer]:
    """{"loss": …, "perplexity": …, "tokens": …, "next": [{"token": text, "id": …, "probability": …}]} for each text.

    At most `max_length` tokens of a text are read. loss: the mean of −log p over predicted tokens, in nats. It includes
    the text's end if it is read, as in training. perplexity: e to the loss. tokens: the number of predicted tokens;
    none for a text of one token without an end. next: the `top` most probable tokens after those read; empty if the
    model's numbers are not finite.

    Raises:
        ModelMissingError: the model or its tokenizer is missing.
    """
    tokens = Tokens(model.folder, model.spec.max_length)
    prompts = [tokens.followed(text) for text in texts]
    # A text without a next token gets token 0 as a placeholder, which is not scored.
    ids = [[*ids_before, 0 if behind is None else behind] for ids_before, behind in prompts]
    open_ends = torch.tensor([behind is None for _, behind in prompts])
    ends = np.cumsum([len(each) for each in ids])
    records = SequenceRecords(np.concatenate(ids).astype(np.int32), np.append(0, ends)[:-1], ends)
    rows = model.rows_per_pass
    pieces = [records.select(np.arange(at, min(at + rows, len(ends)))) for at in range(0, len(ends), rows)]
    both = zip(pieces, open_ends.split(rows), strict=True)
    return [each for piece, ends_open in both for each in _of(model, parameters, tokens, piece, ends_open, top)]


def _of(
    model: HfTuning, parameters: Parameters, tokens: Tokens, records: SequenceRecords, open_ends: Tensor, top: int
) -> Iterator[Answer]:
    with torch.no_grad():
        logits, targets = model.token_logits(model.filled(parameters), records)
    rows, last = torch.arange(len(records)), (targets != 0).sum(dim=1) - 1
    best = torch.softmax(logits[rows, last].double(), dim=1).topk(min(top, model.vocabulary), dim=1)
    targets[rows[open_ends], last[open_ends]] = 0
    losses = F.cross_entropy(logits.mT, (targets - 1).clamp(min=0), reduction="none")
    means, counts = token_mean(losses, targets).double(), (targets != 0).sum(dim=1).tolist()
    perplexities = means.exp().tolist()
    for at, count in enumerate(counts):
        expected = zip(best.indices[at].tolist(), best.values[at].tolist(), strict=True)
        yield {
            "loss": finite(float(means[at])) if count else None,
            "perplexity": finite(perplexities[at]) if count else None,
            "tokens": count,
            "next": [
                {"token": tokens.text(id_), "id": id_, "probability": p} for id_, p in expected if math.isfinite(p)
            ],
        }
