"""Hugging Face models as models of this project: a record is one text's tokens."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from core.contracts.hf import HfModel
from core.parts.model_folder import ModelFolder
from worker.data.passes import Batch, Pass
from worker.data.placed import passes_on
from worker.data.sequence_records import SequenceRecords
from worker.models.base import Parameters
from worker.models.hf import hf_loading
from worker.models.initial import EMBEDDING_STD
from worker.models.modules import ModuleModel
from worker.noise.fills import KeyedInit


@dataclass(frozen=True)
class HfTuning(ModuleModel):
    """A transformers model, of which some tensors are trained.

    Attributes:
        folder: where it comes from.
        spec: what the job requested.
        classes: the data set's, as texts; empty if the model predicts the next token.
        prompts: a record's label is the number of its first tokens that are not predicted, its prompt's.
    """

    folder: ModelFolder
    spec: HfModel
    classes: tuple[str, ...]
    dtype: torch.dtype = field(default=torch.float32, kw_only=True)
    prompts: bool = False

    @property
    def of_images(self) -> bool:
        """True if records are images."""
        return False

    @property
    def features(self) -> int:  # type: ignore[override]
        return 1

    @property
    def outputs(self) -> int:  # type: ignore[override]
        return max(1, len(self.classes))

    def module(self) -> nn.Module:
        """A copy that shares the frozen tensors."""
        shared: dict[int, Any] = {id(p): p for p in self._loaded.parameters() if not p.requires_grad}
        module: nn.Module = copy.deepcopy(self._loaded, shared)
        return module

    def shapes_alone(self) -> nn.Module:
        """A copy on torch's meta device: its tensors have shapes and no numbers, so it takes no memory."""
        tensors = [*self._loaded.parameters(), *self._loaded.buffers()]
        memo: dict[int, Any] = {id(each): _without_numbers(each) for each in tensors}
        module: nn.Module = copy.deepcopy(self._loaded, memo)
        return module

    def init(self, key: bytes | None = None) -> Parameters:
        """The folder's weights. LoRA: A as in peft, B zero. Classifier: weights N(0, 0.02²), biases zero. Keyed."""
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
        """(n,): the class's cross-entropy, or the mean over next tokens; 0 for a text of one token."""
        if self.classes:
            return self.losses(self._logits(module, records).mT, records.labels)
        return token_mean(*self.token_losses(module, records))

    def token_losses(self, module: nn.Module, records: SequenceRecords) -> tuple[Tensor, Tensor]:
        """The cross-entropy of each token that follows another, (n, T), and its id + 1, or 0 where there is none.

        Texts are padded on the right, so the causal mask alone hides padding.
        """
        logits, targets = self.token_logits(module, records)
        losses = F.cross_entropy(logits.flatten(0, 1), (targets - 1).clamp(min=0).flatten(), reduction="none")
        return losses.view(targets.shape), targets

    def token_logits(self, module: nn.Module, records: SequenceRecords) -> tuple[Tensor, Tensor]:
        """The logits (n, T, V) after each token, and the next token's id + 1, (n, T), or 0 where there is none."""
        ids, targets = self._windows(records)
        places = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape)
        logits = module(input_ids=(ids - 1).clamp(min=0), position_ids=places, use_cache=False).logits
        return logits.float() if logits.itemsize < 4 else logits, targets

    def _windows(self, records: SequenceRecords) -> tuple[Tensor, Tensor]:
        """The tokens that are read, and those that are predicted: 0 in place of a prompt's tokens."""
        ids, targets = records.windows(self.spec.max_length)
        if self.prompts:
            following = torch.arange(1, targets.shape[1] + 1, device=targets.device)
            targets = torch.where(following >= records.labels[:, None], targets, 0)
        return ids, targets

    @property
    def vocabulary(self) -> int:
        """The number of tokens."""
        return self.folder.vocabulary

    def predicted(self, records: SequenceRecords) -> tuple[Tensor, Tensor]:
        """The ids of all tokens of public records that follow another, (tokens,), and each record's number of them."""
        targets = self._windows(records)[1]
        return targets[targets != 0] - 1, (targets != 0).sum(dim=1)

    def scored(
        self, parameters: Parameters, records: Batch[SequenceRecords]
    ) -> Iterator[tuple[Tensor, Tensor, Pass[SequenceRecords]]]:
        """Each place's loss, (P, T), and its token's id + 1, int64 (P, T), 0 where none is predicted; for each pass."""
        module = self.filled(parameters)
        for batch in passes_on(self.device, records, self.rows_per_pass, self.dtype):
            with torch.no_grad():
                losses, targets = self.token_losses(module, batch.records)
            yield losses, targets, batch

    def token_scores(self, parameters: Parameters, records: Batch[SequenceRecords]) -> tuple[Tensor, Tensor]:
        """Of public records: each one's loss, float64 (n,), and each predicted token's, float64 (tokens,)."""
        means, tokens = [torch.zeros(0)], [torch.zeros(0)]
        for losses, targets, batch in self.scored(parameters, records):
            means.append(batch.only(token_mean(losses, targets)).cpu())
            tokens.append(losses[targets != 0].cpu())  # empty rows have no targets
        return torch.cat(means).double(), torch.cat(tokens).double()

    def _logits(self, module: nn.Module, records: SequenceRecords) -> Tensor:
        """(n, K). Padding is masked; the mask is always made in full, even without padding."""
        ids = records.padded(self.spec.max_length)
        present = ids != 0
        present[:, 0] = True  # an empty text or padding row attends only to this place
        rows, length = ids.shape
        places = torch.arange(length, device=ids.device).expand(rows, length)
        if self.folder.kind == "roberta":  # positions count from the padding id + 1
            padding = int(self.folder.config.get("pad_token_id", 1))
            places = torch.where(present, places + padding + 1, padding)
        mask = present[:, None, None, :].expand(rows, 1, length, length)
        output: Tensor = module(
            input_ids=(ids - 1).clamp(min=0),
            attention_mask=mask,
            position_ids=places,
            token_type_ids=torch.zeros_like(ids),
        ).logits
        return output.float() if output.itemsize < 4 else output

    def evaluator(self, parameters: Parameters) -> Callable[[SequenceRecords], Tensor]:
        """Returns logits, float64 (K, P); for next tokens each record's loss, (1, P)."""
        module = self.filled(parameters)

        def evaluate(records: SequenceRecords) -> Tensor:
            with torch.no_grad():
                if self.classes:
                    return self._logits(module, records).double().mT
                return self.record_losses(module, records).double()[None]

        return evaluate

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The class's cross-entropy; for next tokens the output itself."""
        return super().losses(outputs, labels) if self.classes else outputs[0]

    def errors(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The losses: the score `loss` is their mean."""
        return super().errors(outputs, labels) if self.classes else outputs[0]

    def filled(self, parameters: Parameters) -> nn.Module:
        """A module with these parameters, in evaluation mode."""
        with torch.no_grad():
            for name, value in self._scored.named_parameters():
                if name in parameters:
                    value.copy_(parameters[name])
        return self._scored

    @cached_property
    def _loaded(self) -> Any:
        module: Any = hf_loading.load(self.folder, self.spec, self.classes, self.dtype).to(self.device)
        if self.device.type != "cpu":
            module.tie_weights()  # a move may part tied tensors
        return module

    @cached_property
    def _scored(self) -> nn.Module:
        # Accuracy is computed from float64 forward passes.
        module: nn.Module = copy.deepcopy(self._loaded).double() if self.classes else self.module()
        return module.eval().requires_grad_(False)

    def _trained(self) -> list[tuple[str, Tensor]]:
        return [(name, value) for name, value in self._loaded.named_parameters() if value.requires_grad]


def _without_numbers(tensor: Tensor) -> Tensor:
    placeholder = torch.empty_like(tensor, device="meta", requires_grad=False)
    return (
        nn.Parameter(placeholder, requires_grad=tensor.requires_grad)
        if isinstance(tensor, nn.Parameter)
        else placeholder
    )


def token_mean(losses: Tensor, targets: Tensor) -> Tensor:
    """The mean over existing tokens, (n,); 0 if there is none."""
    present = targets != 0
    return torch.where(present, losses, 0.0).sum(dim=1) / present.sum(dim=1).clamp(min=1)
