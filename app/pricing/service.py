"""Prices: computed by a few warm helper processes under time and memory limits, cached in the database by request.

Keys take turns at the processes (turns.py). A key has at most one price fewer computed at a time than there are
processes, and so have all keys together whose prices are expensive; the others wait, and a request is refused only if
sixteen of the key's own wait already. A cached price never waits.

A price is a function of public numbers only, so caching it reveals nothing.

Questions and answers are JSON here, on the pipe and in the cache, and typed elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections import OrderedDict
from contextlib import suppress
from copy import copy
from itertools import count
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.db.database import Database
from app.db.models import PriceCache, table_of
from app.lifecycle.measures import PRICES, PRICING_QUEUE, Measures
from app.pricing.fair_queue import FairTurns
from app.sandbox.limited import LimitedServer, busy
from app.settings import Settings
from core.errors import LimitError, ServiceError
from core.ids import now
from core.privacy import questions
from core.privacy.foreign_claims import ClaimRequest
from core.privacy.price_requests import (
    CompareRequest,
    FinalRunRequest,
    FitRequest,
    OrderRequest,
    PlanRequest,
    StudyFitRequest,
    StudyRequest,
    WarmRequest,
)
from core.privacy.prices import BasicSum, Compared, FinalRun, Largest, Price, StudyPrice, Units
from core.privacy.questions import Answer, Asked, Question

logger = logging.getLogger(__name__)

# Part of every fingerprint: raise it when a price could come out differently.
PRICING_VERSION = 3
PRICING = "core.privacy.pricing_server:answer"
BUSY = 503
WAITING = 16
NOBODY = ""  # stands for the key where no key asks
# Prices computed faster than this are not cached: caching needs a write to the disk.
WORTH_KEEPING_S = 0.05
DROP_EVERY = 100
REMEMBERED = 1000


class PricingService:
    """Prices of jobs and studies, and the largest ε that fits: core.privacy.pricing_server with a cache and limits."""

    def __init__(self, db: Database, settings: Settings, measures: Measures | None = None) -> None:
        self.db, self.measures = db, measures or Measures(db)
        self.measures.watch(PRICING_QUEUE, lambda: float(self._turns.waiting))
        self.max_prices = settings.max_prices
        self._kept = count(1)
        memory_bytes, time_s = settings.pricing_memory_bytes, settings.pricing_time_s
        number = settings.pricing_processes
        self.servers = [LimitedServer(PRICING, memory_bytes=memory_bytes, time_s=time_s) for _ in range(number)]
        self._turns = FairTurns(number, WAITING, busy)
        self._key, self._had_turn = NOBODY, False
        # Composing many jobs for comparison takes long: its own process, so that no admission waits. Starts on demand.
        self.comparing = LimitedServer(PRICING, memory_bytes=memory_bytes, time_s=time_s)
        self._remembered: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._closed = threading.Event()

    def of(self, key_id: str) -> PricingService:
        """Returns this service for one request of a key, so that its prices take that key's turns."""
        mine = copy(self)
        mine._key, mine._had_turn = key_id, False
        return mine

    @property
    def alive(self) -> bool:
        """True if a process runs. If none does, the next price starts one."""
        return any(each.alive for each in self.servers)

    def warm(self) -> None:
        """Starts the first process in the background, and loads its libraries. The second one starts when two prices
        are first asked for at once: it takes 80 MiB."""
        threading.Thread(target=self._warm, name="pricing-warm-up", daemon=True).start()

    def _warm(self) -> None:
        if self._closed.is_set():
            return
        try:
            self.servers[0].call(_asked(questions.WARM, WarmRequest()))
        except ServiceError as error:
            # The service was closed meanwhile, or the first real call will report the same error.
            logger.info("pricing is not warm: %s", error.message)

    def close(self) -> None:
        """Ends the processes."""
        self._closed.set()
        for server in self.servers:
            server.close()
        self.comparing.close()

    def price(self, request: PlanRequest) -> Price:
        """Prices a job (core.privacy.pricing)."""
        return self._cached(questions.PRICE, request)

    def price_study(self, request: StudyRequest) -> StudyPrice:
        """Prices a study (core.privacy.study_price)."""
        return self._cached(questions.PRICE_STUDY, request)

    def final_run(self, request: FinalRunRequest) -> FinalRun:
        """Computes the privacy of a study's final trial under another plan (core.privacy.sweep_price)."""
        return self._cached(questions.FINAL_RUN, request)

    def largest_study_that_fits(self, study: StudyRequest, remaining: Units) -> Largest:
        """Finds the largest total ε of a study that fits the remaining units."""
        return self._cached(questions.LARGEST_STUDY_THAT_FITS, StudyFitRequest(study=study, remaining=remaining))

    def largest_that_fits(self, plan: PlanRequest, remaining: Units) -> Largest:
        """Finds the largest ε of a job that fits the remaining units."""
        return self._cached(questions.LARGEST_THAT_FITS, FitRequest(plan=plan, remaining=remaining))

    def choose_order(self, request: OrderRequest) -> float:
        """Chooses the order of a data set's `rdp` filter."""
        return self._cached(questions.CHOOSE_ORDER, request).order

    def price_claim(self, request: ClaimRequest) -> int:
        """Prices another system's mechanism, in the filter's units (core.privacy.foreign_claims)."""
        return self._cached(questions.PRICE_CLAIM, request).units

    def compare(self, request: CompareRequest) -> Compared:
        """Compares accountants on an account's jobs.

        Raises:
            LimitError: it takes too long. The cache keeps this, so that it happens once.
        """
        return self._composed(questions.COMPARE, request)

    def basic(self, request: CompareRequest) -> BasicSum:
        """Composes an account's jobs by basic composition (core.privacy.accounting.basic).

        Raises:
            LimitError: as `compare`.
        """
        return self._composed(questions.BASIC, request)

    def _composed(self, question: Question[Asked, Answer], request: Asked) -> Answer:
        document = _asked(question, request)
        cached = self._known(document)
        if cached is None:
            try:
                cached = self.comparing.call(document)
            except LimitError as error:
                if error.status == BUSY:
                    raise
                cached = {"beyond_limits": error.message}
            self._keep(document, cached)
        if "beyond_limits" in cached:
            raise LimitError(cached["beyond_limits"])
        return question.answers.model_validate(self._remember(document, cached))

    def _cached(self, question: Question[Asked, Answer], request: Asked) -> Answer:
        document = _asked(question, request)
        cached = self._known(document)
        self.measures.count(PRICES, "computed" if cached is None else "cached")
        if cached is not None:
            return question.answers.model_validate(self._remember(document, cached))
        with self._turns.turn(self._key, again=self._had_turn) as place:
            self._had_turn = self._key != NOBODY
            began = time.monotonic()
            price = self.servers[place].call(document)
            took_s = time.monotonic() - began
        if took_s >= WORTH_KEEPING_S:
            self._keep(document, price)
        return question.answers.model_validate(self._remember(document, price))

    def _remember(self, document: dict[str, Any], price: dict[str, Any]) -> dict[str, Any]:
        """Caches a price in this process too. Callers never change a returned price."""
        self._remembered[_fingerprint(document)] = price
        while len(self._remembered) > REMEMBERED:
            with suppress(KeyError):  # another thread was faster
                self._remembered.popitem(last=False)
        return price

    def _known(self, document: dict[str, Any]) -> dict[str, Any] | None:
        fingerprint = _fingerprint(document)
        remembered = self._remembered.get(fingerprint)
        if remembered is not None:
            return remembered
        with self.db.quick_read() as connection:
            price: dict[str, Any] | None = connection.scalar(
                select(table_of(PriceCache).c.price).where(table_of(PriceCache).c.fingerprint == fingerprint)
            )
            return price

    def _keep(self, document: dict[str, Any], price: dict[str, Any]) -> None:
        fingerprint = _fingerprint(document)
        try:
            with self.db.write() as session:
                if session.get(PriceCache, fingerprint) is None:
                    session.add(PriceCache(fingerprint=fingerprint, price=price, created_at=now()))
                    session.flush()
                    self._drop_oldest(session)
        except IntegrityError:
            # A concurrent request cached the same price.
            logger.debug("this price was already cached")

    def _drop_oldest(self, session: Session) -> None:
        """Prunes every DROP_EVERY inserts, so the cache may exceed max_prices by DROP_EVERY per process."""
        if next(self._kept) % DROP_EVERY != 1:
            return
        too_many = select(PriceCache.created_at).order_by(PriceCache.created_at.desc()).offset(self.max_prices).limit(1)
        cutoff = session.scalar(too_many)
        if cutoff is not None:
            session.execute(delete(PriceCache).where(PriceCache.created_at <= cutoff))


def _asked(question: Question[Asked, Answer], request: Asked) -> dict[str, Any]:
    """Returns a question's JSON form for the pipe."""
    return {"function": question.name, "arguments": request.model_dump(mode="json")}


def _fingerprint(document: dict[str, Any]) -> str:
    canonical = json.dumps([PRICING_VERSION, document], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
