"""What the ranks of an attempt to train run: the first one from its start message to `finished`, and the others."""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence

import torch

from worker.attempt.link import SupervisorLink
from worker.attempt.part_loading import loader
from worker.attempt.prepare import agreed_plan, device_of_start, report_of
from worker.attempt.rank_processes import SharedLink, Unheard
from worker.attempt.saving import saved
from worker.attempt.selecting import outcome_of
from worker.channel import Channel
from worker.data.loaded_parts import records_of, users_of
from worker.data.ranks import Ranks
from worker.messages import RankReport, Ready, Start, Verdict, WarningCode
from worker.noise.secret_places import HOLDOUT, TRAIN
from worker.telemetry import Telemetry
from worker.training.batches import TrainingData
from worker.training.loop import Outcome
from worker.training.planted import canaries_of


def train(channel: Channel, link: SupervisorLink, start: Start, pids: Sequence[int], ranks: Ranks) -> None:
    """Runs one attempt of a training job as its first or only rank. `pids`: of all ranks."""
    device = device_of_start(start)
    plan, tested, fitted = agreed_plan(start, device, ranks)
    link.vouch(Verdict(self_test=tested, fitted_rows=fitted))  # nothing private was opened: worker.attempt.verdicts
    telemetry = Telemetry(
        link,
        start.mechanism,
        data_public=start.data_public,
        holdout_public=start.holdout_public,
        released=start.released,
        score_only=start.score_only,
    )
    load = loader(start, link.loading, plan)
    stored = load(start.parts.train)
    users, train = users_of(stored.whole, start.mechanism), records_of(stored.whole)
    ranks.from_first()  # the others load now: they find what was extracted
    scored = plan.scores.points > 0 and plan.scores.on == "holdout"
    held_out = load(start.parts.holdout) if start.parts.holdout and scored else None
    if held_out is not None and not start.holdout_public:
        # Checks that no user has more hold-out records than the scores' noise covers.
        users_of(held_out.whole, start.mechanism)
    holdout = records_of(held_out.whole) if held_out is not None else None
    public = records_of(load([start.parts.public]).whole) if start.parts.public else None
    report = report_of(plan, tested, device)
    ready = Ready(
        device=start.device,
        processes=tuple(pids) or (os.getpid(),),
        fitted_rows=fitted,
        fallbacks=plan.fallbacks,
        numerics=report,
    )
    channel.send(ready)
    data = TrainingData(
        train,
        holdout,
        start.holdout_public,
        users=users,
        blocks={TRAIN: stored.blocks, HOLDOUT: held_out.blocks if held_out is not None else ()},
        side=plan.side(public) if public is not None else None,
        canaries=canaries_of(start, plan),
    )
    outcome = outcome_of(start, plan, data, SharedLink(ranks, link) if ranks.size > 1 else link, telemetry)
    reports = () if ranks.size == 1 or not start.data_public else _reports(ranks, outcome)
    artifacts = saved(start, plan.model, outcome, telemetry.scores)
    slow: tuple[WarningCode, ...] = ("one-record-passes",) if tested == "one_record" else ()
    telemetry.finished(outcome.steps, artifacts, outcome.warnings + slow, reports)


def run_rank(start: Start, ranks: Ranks) -> None:
    """Runs another rank of an attempt: the same plan, draws, noise and updates, over passes of its own.

    It sends nothing, and reads no hold-out.
    """
    plan, _, _ = agreed_plan(start, device_of_start(start), ranks)
    ranks.from_first()
    load = loader(start, lambda: None, plan)
    stored = load(start.parts.train)
    public = records_of(load([start.parts.public]).whole) if start.parts.public else None
    unheard = Telemetry(Unheard(), start.mechanism, data_public=start.data_public, holdout_public=start.holdout_public)
    data = TrainingData(
        records_of(stored.whole),
        None,
        start.holdout_public,
        users=users_of(stored.whole, start.mechanism),
        blocks={TRAIN: stored.blocks},
        side=plan.side(public) if public is not None else None,
        canaries=canaries_of(start, plan),
    )
    outcome = outcome_of(start, plan, data, SharedLink(ranks, None), unheard)
    if start.data_public:
        _reports(ranks, outcome)


def _reports(ranks: Ranks, outcome: Outcome) -> tuple[RankReport, ...]:
    """What each rank did, gathered in all of them."""
    mine = [os.getpid(), outcome.private_passes, 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]
    counts = torch.zeros(ranks.size, len(mine), dtype=torch.int64)
    counts[ranks.rank] = torch.tensor(mine)
    ranks.add_up(counts)
    return tuple(RankReport(pid=pid, passes=passes, max_rss_bytes=rss) for pid, passes, rss in counts.tolist())
