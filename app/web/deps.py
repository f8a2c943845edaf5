"""The routes' dependencies: the database, the settings, pricing. All live on `app.state`, made once by create_app().

They are `async`, so that providing them takes no turn in the thread pool.
"""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import Depends, Request

from app.datasets.parsing import Parsers
from app.db.engine import Database
from app.ledger.transparency.heads import Heads
from app.lifecycle.queue.presence import GpuWorkers
from app.pricing.service import PricingService
from app.settings import Settings


def database_of(request: Request) -> Database:
    """The application's database."""
    return cast(Database, request.app.state.db)


async def get_db(request: Request) -> Database:
    return database_of(request)


async def get_settings(request: Request) -> Settings:
    return cast(Settings, request.app.state.settings)


async def get_pricing(request: Request) -> PricingService:
    return cast(PricingService, request.app.state.pricing)


async def get_heads(request: Request) -> Heads:
    return cast(Heads, request.app.state.heads)


def gpus_of(request: Request) -> GpuWorkers:
    """Whether a GPU worker is alive, for one request."""
    return GpuWorkers(database_of(request), cast(Settings, request.app.state.settings).lease_s)


async def get_gpus(request: Request) -> GpuWorkers:
    return gpus_of(request)


def get_parsers(request: Request) -> Parsers:
    return cast(Parsers, request.app.state.parsers)


Db = Annotated[Database, Depends(get_db)]
Parsing = Annotated[Parsers, Depends(get_parsers)]
Pricing = Annotated[PricingService, Depends(get_pricing)]
Gpus = Annotated[GpuWorkers, Depends(get_gpus)]
RecordedHeads = Annotated[Heads, Depends(get_heads)]
ServiceSettings = Annotated[Settings, Depends(get_settings)]
