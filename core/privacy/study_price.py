"""The price of a private study: one total (ε, δ) for trials, scores and the final trial (core.privacy.division)."""

from __future__ import annotations

from decimal import ROUND_FLOOR

from core.contracts.base import AccountName
from core.errors import InvalidRequest
from core.privacy import events, gdp, pld
from core.privacy.accounting import comparison, epsilon_of
from core.privacy.division import others_of, price_runs, releases_of, rounded
from core.privacy.events import AccountEvents, Composed, Event
from core.privacy.filters import Filter
from core.privacy.price_requests import StudyFitRequest, StudyRequest, StudyRun
from core.privacy.prices import Charge, Largest, Line, PricedRun, StudyPrice, Units
from core.privacy.pricing import smallest_sigma
from core.privacy.shares import mu_of_share, noise_multiplier

_ACCOUNTS: tuple[AccountName, ...] = ("train", "holdout")


def price(request: StudyRequest) -> StudyPrice:
    """Prices a whole study before any trial runs.

    Raises:
        InvalidRequest: as in price_runs.
    """
    runs = _with_scores(request, price_runs(request))
    # An oracle's trials are priced one by one; they have no joint price.
    counted = slice(1) if request.oracle else slice(None)
    part = request.model_copy(update={"runs": request.runs[counted]})
    events_done = {name: study_event(part, runs[counted], name) for name in _ACCOUNTS}
    epsilons = {name: epsilon_of(event, request.target_delta, request.unit) for name, event in events_done.items()}
    account: AccountName = "train" if epsilons["train"].value >= epsilons["holdout"].value else "holdout"
    filter_, charge = request.filter.build(), charge_of(runs)
    return StudyPrice(
        runs=tuple(runs),
        events=AccountEvents(
            train=events_done["train"], holdout=events_done["holdout"] if events_done["holdout"].events else None
        ),
        epsilon=epsilons[account],
        comparison=comparison(events_done[account], epsilons[account]),
        charge=Charge(train=charge.train, holdout=charge.holdout, unit=filter_.unit),
        lines=tuple(_lines(request, runs, filter_)),
    )


def charge_of(runs: list[PricedRun]) -> Units:
    """Sums the charges of all trials."""
    return Units(train=sum(run.charge.train for run in runs), holdout=sum(run.charge.holdout for run in runs))


def study_event(request: StudyRequest, priced: list[PricedRun], account: AccountName) -> Composed:
    """Composes a study's events on one account. A full-batch trial's training equals one Gaussian sum with noise 1/μ,
    exactly and for any T."""
    events_of: list[Event] = []
    for released, price in zip(releases_of(request), priced, strict=True):
        if account == "train":
            events_of += [training_event(request, price), *released.train]
        else:
            events_of += released.holdout
    return events.composed(events_of)


def training_event(request: StudyRequest, price: PricedRun) -> Event:
    """Returns the event of one trial's training."""
    training, sigma = request.training, price.noise_multiplier
    if sigma is None:
        return events.noisy_sums(1.0, noise_multiplier(price.share, 1, 0, request.filter.build()), 1)
    return events.gradient_sums(training.sample_rate, sigma, training.steps, training.double_steps())


def largest_that_fits(request: StudyFitRequest) -> Largest:
    """Finds the largest total ε that the remaining units cover; None if they cover none."""
    study, remaining = request.study, request.remaining
    filter_ = study.filter.build()
    if remaining.train < 1:
        return Largest(epsilon=None)
    if study.training.sampling == "poisson":
        highest = _most_sampled(study, filter_, remaining.train)
    else:
        highest = gdp.epsilon_from_mu(mu_of_share(remaining.train, filter_), study.target_delta)
    highest = rounded(min(highest * (1.0 - 1e-6), 100.0), ROUND_FLOOR) if highest > 0.0 else 0.0
    try:
        runs = price_runs(study.with_total(highest)) if highest else []
    except InvalidRequest:
        return Largest(epsilon=None)
    return Largest(epsilon=highest if runs and remaining.covers(charge_of(runs)) else None)


def _most_sampled(request: StudyRequest, filter_: Filter, remaining: int) -> float:
    """Returns the study's ε if its final trial has the least noise that the rest can pay for; 0 if none fits."""
    training = request.training
    rate, steps, double = training.sample_rate, training.steps, training.double_steps()
    other_events = others_of(request, releases_of(request))
    left = remaining - sum(filter_.charge_event(event) for event in other_events)
    sharers = request.sharers
    sigma = smallest_sigma(filter_, training.event_of, double, left // sharers)
    if sigma is None:
        return 0.0
    final = events.gradient_sums(rate, sigma, steps, double)
    return pld.epsilon(events.composed([*other_events, *[final] * sharers]), request.target_delta)


def _with_scores(request: StudyRequest, runs: list[PricedRun]) -> list[PricedRun]:
    """Fills in each trial's ε of all its events on the training part; equal trials share the computation."""
    by_key: dict[tuple[int, str, int], float] = {}
    scores = []
    for run_request, released, run in zip(request.runs, releases_of(request), runs, strict=True):
        kind = (
            run.share,
            run_request.role,
            len(released.train),
        )  # the trial that releases the study's mean has one more
        if kind not in by_key:
            event = events.composed([training_event(request, run), *released.train])
            by_key[kind] = epsilon_of(event, request.target_delta, request.unit).value
        scores.append(run.model_copy(update={"epsilon_with_scores": by_key[kind]}))
    return scores


def _lines(request: StudyRequest, runs: list[PricedRun], filter_: Filter) -> list[Line]:
    """Builds the bill: one line each for the trainings of a level, of candidates and of the final trial, one for their
    scores and one for the mean, or for each trial's."""
    bill: dict[tuple[str, AccountName], list[tuple[Event, int]]] = {}

    def add(text: str, account: AccountName, event: Event, charge: int | None = None) -> None:
        charge = filter_.charge_event(event) if charge is None else charge
        bill.setdefault((text, account), []).append((event, charge))

    for number, (run_request, run) in enumerate(zip(request.runs, runs, strict=True)):
        add(_named(run_request), "train", events.composed([training_event(request, run)]), run.share)
        for first in request.before(number):
            add(first.line, first.account, first.event)
        for release in run_request.releases:
            add(release.line if run_request.role == "final" else "scores", release.account, release.event)
    return [
        Line(
            what=label,
            account=account,
            count=len(parts),
            epsilon=epsilon_of(events.composed(event for event, _ in parts), request.target_delta, request.unit),
            charge=sum(charge for _, charge in parts),
        )
        for (label, account), parts in bill.items()
    ]


def _named(run: StudyRun) -> str:
    """Returns the name of a trial's line on the bill."""
    return f"pilots of level {run.level + 1}" if run.level is not None else run.role
