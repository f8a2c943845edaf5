"""Reads of what is left: quotes and forecasts, which write nothing and must say what an admission would do."""

from __future__ import annotations

from app.admission import forecast as forecasts
from tests.machine import model
from tests.machine.jobs import Jobs
from tests.machine.machine import caller, same
from tests.machine.model import Pair
from tests.machine.world import KEYS


class Reads(Jobs):
    """What callers read before they submit."""

    def quote(self) -> None:
        key, spec = self.draw.choice(KEYS), self.spec()
        answer = self.call("quote", lambda: forecasts.quote(self.admission(), caller(key), spec))
        ledgers = self.ledgers_of(answer, key, spec)
        if ledgers is None or not self.agree(answer, None):
            return
        quote, amounts, left = answer.result, self.priced(), self.left(ledgers, key)
        same("the quoted charge", "quote", (quote.charge.train, quote.charge.holdout), amounts)
        same("fits", "quote", quote.fits, model.covers(left, amounts))
        same("jobs that fit", "quote", quote.jobs_that_fit, jobs_that_fit(left, amounts))
        after = quote.remaining_after
        remaining = None if after is None else (after.train, after.holdout)
        same("what remains after it", "quote", remaining, model.minus(left, amounts) if quote.fits else None)

    def forecast(self) -> None:
        key, spec, first = self.draw.choice(KEYS), self.spec(), self.state.first
        answer = self.call("forecast", lambda: forecasts.forecast(self.admission(), caller(key), spec, first))
        ledgers = self.ledgers_of(answer, key, spec)
        if ledgers is None or not self.agree(answer, None):
            return
        forecast, amounts, whole = answer.result, self.priced(), self.state.lead().own.budget
        same("its price", "forecast", (forecast.per_job.train, forecast.per_job.holdout), amounts)
        same("jobs that fit", "forecast", forecast.jobs_that_fit, jobs_that_fit(self.left(ledgers, key), amounts))
        share = max(amount / budget for amount, budget in zip(amounts, whole, strict=True))
        same("its share", "forecast", forecast.share_per_job, share)

    def left(self, ledgers: list[str], key: str) -> Pair:
        """The least that is left on any of these ledgers, of each account."""
        lefts = [self.state.left(ledger, key) for ledger in ledgers]
        return min(train for train, _ in lefts), min(holdout for _, holdout in lefts)


def jobs_that_fit(left: Pair, amounts: Pair) -> int:
    """How many charges of these amounts fit: subtracted one after another."""
    count = 0
    while model.covers(left, amounts):
        left, count = model.minus(left, amounts), count + 1
    return count
