"""Hugging Face models as models of this project: a record is one text's tokens."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from app.contracts.hf import HfModel
from app.formats.model_folder import ModelFolder
from worker.data.sequences import SequenceRecords
from worker.models.base import Parameters
from worker.models.hf import loading
from worker.models.initial import EMBEDDING_STD
from worker.models.modules import ModuleModel
from worker.noise.fills import KeyedInit


@dataclass(frozen=True)
class HfTuning(ModuleModel):
    """A model of transformers, of which some tensors are trained.

    Attributes:
        folder: where it comes from.
        spec: what the job asked for.
        classes: the data set's, as texts; none where the next token is what is predicted.
        asked_rows: of a physical batch, where the job says so.

    Passes in bfloat16 are always of as many rows, filled up with copies of the first: how a product rounds depends on
    its sizes, and in so few digits one record more would move all others' gradients by a share that clipping does not
    bound. The loss of what fills up is 0.
    """

    folder: ModelFolder
    spec: HfModel
    classes: tuple[str, ...]
    dtype: torch.dtype = torch.float32
    asked_rows: int | None = None

    @property
    def features(self) -> int:  # type: ignore[override]
        return 1

    @property
    def outputs(self) -> int:  # type: ignore[override]
        return max(1, len(self.classes))

    def module(self) -> nn.Module:
        """A copy that shares what is frozen."""
        shared: dict[int, Any] = {id(p): p for p in self._loaded.parameters() if not p.requires_grad}
        made: nn.Module = copy.deepcopy(self._loaded, shared)
        return made

    def init(self, key: bytes | None = None) -> Parameters:
        """The folder's weights; A as peft begins it, B zero; a classifier's weights N(0, 0.02²), biases zero. Keyed."""
        init = KeyedInit(key)
        return {name: self._first(init, at, name, value) for at, (name, value) in enumerate(self._trained())}

    def _first(self, init: KeyedInit, at: int, name: str, value: Tensor) -> Tensor:
        if name.endswith(".lora_A.weight"):
            return init.kaiming_uniform(at, value.shape)
        classifier = bool(self.classes) and name.startswith(self.folder.architecture.head)
        if name.endswith(".lora_B.weight") or (classifier and value.dim() == 1):
            return torch.zeros(value.shape, dtype=torch.float64)
        return init.normal(at, value.shape, EMBEDDING_STD) if classifier else value.detach().double()

    def record_losses(self, module: nn.Module, records: SequenceRecords) -> Tensor:
        """(n,): the class's cross-entropy; or the mean of the next tokens', 0 for a text of one token."""
        if self.classes:
            losses = self.losses(self._logits(module, records).mT, records.labels)
        else:
            losses = token_mean(*self.token_losses(module, records))
        return F.pad(losses, (0, self.rows_in_pass(records) - len(losses)))

    def rows_in_pass(self, records: SequenceRecords) -> int:
        """Of passes in bfloat16 always as many."""
        rows = len(records)
        return max(rows, self.physical_batch_size) if rows and self.dtype == torch.bfloat16 else rows

    def _filled_up(self, ids: Tensor, records: SequenceRecords) -> Tensor:
        return torch.cat([ids, ids[:1].expand(self.rows_in_pass(records) - len(ids), -1)])

    def token_losses(self, module: nn.Module, records: SequenceRecords) -> tuple[Tensor, Tensor]:
        """Of each token that follows another one its cross-entropy, (n, T), and its id + 1, 0 where there is none.

        Texts are filled up on the right, so that the causal mask alone keeps fillings out of sight.
        """
        logits, targets = self.token_logits(module, records)
        losses = F.cross_entropy(logits.flatten(0, 1), (targets - 1).clamp(min=0).flatten(), reduction="none")
        return losses.view(targets.shape), targets

    def token_logits(self, module: nn.Module, records: SequenceRecords) -> tuple[Tensor, Tensor]:
        """Behind each token what the module makes of the next, (n, T, V), and that one's id + 1, 0 where there is none,
        (n, T)."""
        known, targets = records.windows(self.spec.max_length)
        ids, length = self._filled_up(known, records), known.shape[1]
        places = torch.arange(length).expand(len(ids), length)
        logits = module(input_ids=(ids - 1).clamp(min=0), position_ids=places, use_cache=False).logits[: len(known)]
        return logits.float() if logits.itemsize < 4 else logits, targets

    @property
    def vocabulary(self) -> int:
        return self.folder.vocabulary

    def predicted(self, records: SequenceRecords) -> tuple[Tensor, Tensor]:
        """The ids of all tokens that follow another one, (tokens,), and how many of them each record has, (n,)."""
        targets = records.windows(self.spec.max_length)[1]
        return targets[targets != 0] - 1, (targets != 0).sum(dim=1)

    def token_scores(self, parameters: Parameters, records: SequenceRecords) -> tuple[Tensor, Tensor]:
        """Each record's loss, float64 (n,), and each predicted token's, float64 (tokens,)."""
        module, means, tokens = self.filled(parameters), [torch.zeros(0)], [torch.zeros(0)]
        with torch.no_grad():
            for piece in records.split(self.physical_batch_size):
                losses, targets = self.token_losses(module, piece)
                means.append(token_mean(losses, targets))
                tokens.append(losses[targets != 0])
        return torch.cat(means).double(), torch.cat(tokens).double()

    def _logits(self, module: nn.Module, records: SequenceRecords) -> Tensor:
        """(n, K). Fillings are masked; the mask is made in full whether or not there are any."""
        ids = self._filled_up(records.padded(self.spec.max_length), records)
        there = ids != 0
        rows, length = ids.shape
        places = torch.arange(length).expand(rows, length)
        if self.folder.kind == "roberta":  # counted from the one after the padding's id
            padding = int(self.folder.config.get("pad_token_id", 1))
            places = torch.where(there, places + padding + 1, padding)
        mask = there[:, None, None, :].expand(rows, 1, length, length)
        found: Tensor = module(
            input_ids=(ids - 1).clamp(min=0),
            attention_mask=mask,
            position_ids=places,
            token_type_ids=torch.zeros_like(ids),
        ).logits[: len(records)]
        return found.float() if found.itemsize < 4 else found

    def forward(self, parameters: Parameters, records: SequenceRecords) -> Tensor:
        """Logits, float64 (K, n); of the next token each record's loss, (1, n)."""
        module = self.filled(parameters)
        of = self._logits if self.classes else self.record_losses
        with torch.no_grad():
            pieces = [of(module, each)[: len(each)] for each in records.split(self.physical_batch_size)]
        shape = (0, len(self.classes)) if self.classes else (0,)
        found = torch.cat([torch.zeros(shape), *pieces]).double()
        return found.mT if self.classes else found[None]

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return super().losses(outputs, labels) if self.classes else outputs[0]

    def errors(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The score `loss` is the mean of the losses."""
        return super().errors(outputs, labels) if self.classes else outputs[0]

    def filled(self, parameters: Parameters) -> nn.Module:
        with torch.no_grad():
            for name, value in self._scored.named_parameters():
                if name in parameters:
                    value.copy_(parameters[name])
        return self._scored

    @cached_property
    def physical_batch_size(self) -> int:  # type: ignore[override]
        """By what a pass keeps of a record, about: each block's activations and attention, the scores of all tokens."""
        if self.asked_rows is not None:
            return self.asked_rows
        config, length = self._loaded.config, self.spec.max_length
        wide = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
        block = length * (12 * config.hidden_size + 4 * wide) + 2 * config.num_attention_heads * length**2
        blocks = (1 if self.spec.gradient_checkpointing else self.folder.blocks) * block
        scores = 0 if self.classes else 4 * length * config.vocab_size
        return self.rows_of((blocks + scores + self.folder.blocks * length * config.hidden_size) * self.dtype.itemsize)

    @cached_property
    def _loaded(self) -> Any:
        return loading.load(self.folder, self.spec, self.classes, self.dtype)

    @cached_property
    def _scored(self) -> nn.Module:
        # Who is right is counted of passes in float64: see `correct`.
        made: nn.Module = copy.deepcopy(self._loaded).double() if self.classes else self.module()
        return made.eval().requires_grad_(False)

    def _trained(self) -> list[tuple[str, Tensor]]:
        return [(name, value) for name, value in self._loaded.named_parameters() if value.requires_grad]


def token_mean(losses: Tensor, targets: Tensor) -> Tensor:
    """(n,), over the tokens that are there; 0 where none is."""
    there = targets != 0
    return torch.where(there, losses, 0.0).sum(dim=1) / there.sum(dim=1).clamp(min=1)
