"""A job's own audit: canaries that a public coin puts in or leaves out."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from core.contracts.base import Document

CANARIES_FILE = "canaries.safetensors"  # an artifact: what the canaries left
TENSOR = "canaries"  # its only tensor
WORDS = 16  # of a synthetic text that becomes hashed words

CanaryKind = Literal["gradients", "records"]


class Audit(Document):
    """The job trains `canaries` synthetic units beside its records, each in or out by a public coin. Its certificate
    says how much privacy loss they show at least. The price does not change.

    `kind` `gradients`: a canary is one coordinate of a tensor beside the model, and the model stays the same. `kind`
    `records`: a canary is a random record of the data set's own form (features and a label, a rating, a sequence of
    items, a text). The model trains on it. This tests the path from a record to the weights, and costs accuracy.
    """

    canaries: Annotated[int, Field(strict=True, ge=100, le=100_000)]
    kind: CanaryKind = Field(default="gradients", exclude_if=lambda kind: kind == "gradients")

    @property
    def trained(self) -> int:
        """How many canaries the model may train on, at most."""
        return self.canaries if self.kind == "records" else 0
