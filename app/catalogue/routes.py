"""/v1/models and /v1/extractors: what can be trained, what each kind takes and when to use it."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends
from pydantic import Field

from app.catalogue.models import CATALOGUE
from app.contracts.base import Document
from app.extractors import registry
from app.keys.auth import current_key
from app.web.deps import ServiceSettings

router = APIRouter(prefix="/v1", tags=["catalogue"], dependencies=[Depends(current_key)])


class ModelView(Document):
    kind: str
    summary: str
    when_to_use: str
    takes: list[str]  # kinds of features
    source: str
    json_schema: dict[str, Any] = Field(serialization_alias="schema")  # of a JobSpec's `model`


class ModelList(Document):
    items: list[ModelView]
    next: None = None


class ExtractorView(Document):
    name: str
    kind: str
    takes: str  # the kind of features
    features: int
    sha256: str


class ExtractorList(Document):
    items: list[ExtractorView]
    next: None = None


@router.get("/extractors")
def list_extractors(settings: ServiceSettings) -> ExtractorList:
    """The frozen feature extractors of this service, for `model.extractor` of a linear model."""
    return ExtractorList(
        items=[
            ExtractorView(
                name=each.name,
                kind=each.manifest.kind,
                takes="text",
                features=each.manifest.features,
                sha256=each.sha256,
            )
            for each in registry.every(settings.models_root)
        ]
    )


@router.get("/models")
def list_models() -> ModelList:
    """The kinds of model, with the JSON schema of their settings."""
    return ModelList(
        items=[
            ModelView(
                kind=kind,
                summary=entry.summary,
                when_to_use=entry.when_to_use,
                takes=list(entry.takes),
                source=entry.source,
                json_schema=entry.document.model_json_schema(),
            )
            for kind, entry in CATALOGUE.items()
        ]
    )
