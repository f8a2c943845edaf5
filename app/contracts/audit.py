"""A job's own audit: canaries that a public coin puts in or leaves out."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from app.contracts.base import Document

CANARIES_FILE = "canaries.safetensors"  # an artifact: what the canaries left
TENSOR = "canaries"  # its only tensor


class Audit(Document):
    """The job trains `canaries` synthetic units beside its records, each in or out by a public coin. Its certificate
    says how much privacy loss they show at least. Neither the price nor the model changes."""

    canaries: Annotated[int, Field(strict=True, ge=100, le=100_000)]
