"""The routes' dependencies: the database, the settings, pricing. All live on `app.state`, made once by create_app().

They are `async`, so that providing them takes no turn in the thread pool.
"""

from __future__ import annotations

from typing import Annotated, Any, cast

from fastapi import Depends, Request

from app.datasets.parsing import Parsers
from app.db.database import Database
from app.ledger.transparency.heads import Heads
from app.lifecycle.queue.presence import GpuWorkers
from app.pricing.service import PricingService
from app.settings import Settings


def database_of(request: Request) -> Database:
    """The application's database."""
    return cast(Database, request.app.state.db)


def of_state(name: str) -> Any:
    """A dependency on what `app.state` has under a name."""

    async def member(request: Request) -> Any:
        return getattr(request.app.state, name)

    return Depends(member)


def gpus_of(request: Request) -> GpuWorkers:
    """Whether a GPU worker is alive, for one request."""
    return GpuWorkers(database_of(request), cast(Settings, request.app.state.settings).lease_s)


async def get_gpus(request: Request) -> GpuWorkers:
    return gpus_of(request)


Db = Annotated[Database, of_state("db")]
Parsing = Annotated[Parsers, of_state("parsers")]
Pricing = Annotated[PricingService, of_state("pricing")]
Gpus = Annotated[GpuWorkers, Depends(get_gpus)]
RecordedHeads = Annotated[Heads, of_state("heads")]
ServiceSettings = Annotated[Settings, of_state("settings")]
