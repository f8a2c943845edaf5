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

    `kind` `gradients` tests noise and clipping of what is summed. A canary is a gradient that clipping leaves at C,
    along a coordinate of its own in a tensor beside the model, which stays the same to the bit: the most that one unit
    can do. It costs time and memory of 1.5 `canaries` more parameters. Refused with public gradients and
    `runtime.shard`.

    `kind` `records` tests passes, gradients and clipping of the model itself. A canary is a random record of the data
    set's own form (features and a label, a rating, a sequence of items, a text; where users are protected, a user whose
    k records are the same), by SHAKE-256 of the job's id. It costs accuracy: half of them are trained on beside the
    records, and the quote warns of the share. Refused where they are more than the declared records. It finds less.

    Both are refused with studies, public data and `largest_batch`.
    """

    canaries: Annotated[int, Field(strict=True, ge=100, le=100_000)]
    kind: CanaryKind = Field(default="gradients", exclude_if=lambda kind: kind == "gradients")

    @property
    def trained(self) -> int:
        """How many canaries the model may train on, at most."""
        return self.canaries if self.kind == "records" else 0
