"""/v1/models, /v1/extractors, /v1/optimizers, /v1/hpo-strategies: what can be trained and how, and when to use it."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends
from pydantic import Field

from app.catalogue import extractors, model_kinds, optimizer_kinds, strategies
from app.db.row_view import Whole
from app.keys.auth import current_key
from app.web.deps import ServiceSettings
from app.web.route_operation import Operation
from core import leaves
from core.contracts.base import Document
from core.contracts.extractor import HASHED_WORDS, Words

router = APIRouter(prefix="/v1", tags=["catalogue"], dependencies=[Depends(current_key)])


class ModelView(model_kinds.ModelText):
    """A kind of model, with the JSON schema of its settings."""

    kind: str
    json_schema: dict[str, Any] = Field(serialization_alias="schema")  # the schema of a JobSpec's `model`


class ModelList(Document, Whole[ModelView]):
    """Every kind of model."""


class ExtractorView(Document):
    """A frozen feature extractor of this service."""

    name: str
    kind: str
    takes: str  # the kind of features
    features: int
    sha256: str


class ExtractorList(Document, Whole[ExtractorView]):
    """Every extractor of this service."""


@router.get("/extractors")
@Operation(
    "Every frozen feature extractor of this service.", audience="every key", leaves=leaves.NO_DATA, command="extractors"
)
def list_extractors(settings: ServiceSettings) -> ExtractorList:
    """Lists this service's frozen feature extractors, for `model.extractor` of a linear model."""
    words = ExtractorView(
        name=HASHED_WORDS,
        kind="hashed_words",
        takes="text",
        features=Words().buckets,
        sha256=extractors.WORDS_SHA256,
    )
    return ExtractorList(
        items=[
            words,
            *(
                ExtractorView(
                    name=each.name,
                    kind=each.manifest.kind,
                    takes=each.takes,
                    features=each.manifest.features,
                    sha256=each.sha256,
                )
                for each in extractors.every(settings.models_root)
            ),
        ]
    )


class OptimizerView(optimizer_kinds.OptimizerText):
    """An optimizer, with its rule, its state, and the JSON schema of its settings."""

    kind: str
    json_schema: dict[str, Any] = Field(serialization_alias="schema")  # the schema of a JobSpec's `optimizer`


class OptimizerList(Document, Whole[OptimizerView]):
    """Every optimizer."""


class StrategyView(Document):
    """A strategy of private study, with its cost and the JSON schema of its settings."""

    strategy: str
    summary: str
    cost: str  # the cost, and whose budget pays it
    when_to_use: str
    source: str
    json_schema: dict[str, Any] = Field(serialization_alias="schema")  # the schema of a JobSpec's `hpo`


class StrategyList(Document, Whole[StrategyView]):
    """Every strategy of private study."""


@router.get("/hpo-strategies")
@Operation(
    "Every strategy of private study, with the JSON schema of its settings.",
    audience="every key",
    leaves=leaves.NO_DATA,
    command="strategies",
)
def list_hpo_strategies() -> StrategyList:
    """Lists the strategies for a private study of hyperparameters on a job's one budget, with their costs."""
    return StrategyList(
        items=[
            StrategyView(
                strategy=strategy,
                summary=entry.summary,
                cost=entry.cost,
                when_to_use=entry.when_to_use,
                source=entry.source,
                json_schema=entry.spec.model_json_schema(),
            )
            for strategy, entry in strategies.STRATEGIES.items()
        ]
    )


@router.get("/models")
@Operation(
    "Every kind of model, with the JSON schema of its settings.",
    audience="every key",
    leaves=leaves.NO_DATA,
    command="models",
)
def list_models() -> ModelList:
    """Lists the kinds of model, with the JSON schema of their settings."""
    return ModelList(
        items=[
            ModelView(
                kind=kind, json_schema=entry.document.model_json_schema(), **entry.model_dump(exclude={"document"})
            )
            for kind, entry in model_kinds.CATALOGUE.items()
        ]
    )


@router.get("/optimizers")
@Operation(
    "Every optimizer, with the JSON schema of its settings.",
    audience="every key",
    leaves=leaves.NO_DATA,
    command="optimizers",
)
def list_optimizers() -> OptimizerList:
    """Lists the optimizers, with their rules, their state, and the JSON schema of their settings."""
    return OptimizerList(
        items=[
            OptimizerView(
                kind=kind, json_schema=entry.document.model_json_schema(), **entry.model_dump(exclude={"document"})
            )
            for kind, entry in optimizer_kinds.CATALOGUE.items()
        ]
    )
