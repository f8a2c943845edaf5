"""The audit itself: registers data sets, runs jobs, and tests the results against the certificates' claims."""

from __future__ import annotations

import itertools
import math
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scrimp.audit.audit_statistics import (
    Agreement,
    Claim,
    Finding,
    agreement,
    examine,
    examine_guesses,
    quantile_thresholds,
)
from scrimp.audit.audited_kinds import SCORE_MU, Kind
from scrimp.audit.claimed_curve import claim_of
from scrimp.audit.planting import GROUPS, LOSS_BOUND, Planted, plant, plant_neighbours
from scrimp.audit.released import NETWORK_TENSORS, charged_scores_mu, output_at, read_tensor, scores_of, uncharged
from scrimp.client import Client
from scrimp.errors import ScrimpError
from scrimp.models import Job

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]

SPREAD = (-1.0, -0.5, 0.0, 0.5, 1.0)  # of thresholds, in standard deviations around the middle
SHARING = 10  # jobs of one data set: their prices add up to half of its cap
REGISTERING = 2  # data sets at once: as many as a service parses by default
SCORE_SHARE = 8  # scores have fewer canaries than weights by this factor: a job's are 50 · points
# A job tells one guess: as many jobs as canaries by this factor, and never fewer than can contradict an ε.
GUESS_SHARE, FEWEST_GUESSES = 250, 24
WEIGHTS = "model.safetensors"
Slot = tuple[str, int]


@dataclass(frozen=True)
class Result:
    """The findings on one kind.

    Attributes:
        epsilon, delta: the certificate's figures.
        charged_mu: the tested claim as one number; for scores the claim of one score.
        exact: True if a Gaussian mechanism's curve is claimed.
        problems: releases without a charge.
    """

    kind: str
    jobs: tuple[str, ...]
    epsilon: float
    delta: float
    charged_mu: float
    exact: bool
    finding: Finding
    problems: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Returns True if no claim is exceeded and every release was charged."""
        return self.finding.stands and not self.problems


@dataclass(frozen=True)
class Pair:
    """Two jobs' noises, compared on coordinates without a canary of either."""

    kinds: tuple[str, str]
    agreement: Agreement
    passed: bool


@dataclass(frozen=True)
class Report:
    """All findings, and the probability that they are wrong."""

    results: tuple[Result, ...]
    pairs: tuple[Pair, ...]
    false_alarm: float
    level: float

    @property
    def passed(self) -> bool:
        """Returns True if every kind passed and no pair of jobs shares noise."""
        return all(each.passed for each in self.results) and all(each.passed for each in self.pairs)


@dataclass(frozen=True)
class _Registered:
    """A data set of the audit: its own id, and the id of public records on the same coordinates."""

    planted: Planted
    id: str
    side: str | None


@dataclass(frozen=True)
class _Job:
    kind: Kind
    planted: Planted
    dataset: str
    id: str


@dataclass
class Audit:
    """One audit of one service.

    Args:
        client: with a key that may register data sets.
        kinds: what to audit.
        canaries: about how many of each kind; half of them are in.
        false_alarm: the largest probability of a fault found in an honest service, over all tests together.
        name: the beginning of its data sets' and jobs' names.
        timeout_s: how long one job may take.
    """

    client: Client
    kinds: Sequence[Kind]
    canaries: int
    false_alarm: float = 1e-3
    name: str = "audit"
    timeout_s: float = 600.0
    _noise: list[tuple[_Job, Numbers]] = field(default_factory=list)
    # The coins: nobody else knows them before the jobs have ended.
    _random: np.random.Generator = field(default_factory=np.random.default_rng)

    def run(self) -> Report:
        """Runs every kind's jobs, as many at once as there are workers.

        Raises:
            ScrimpError: the service refused, or a job did not succeed. An incomplete audit has not passed.
        """
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            slots = self._slots()
            datasets = self._datasets(slots, folder)
            jobs = {kind.name: [self._submit(kind, datasets[slot]) for slot in slots[kind.name]] for kind in self.kinds}
            results = tuple(self._examined(kind, jobs[kind.name], folder) for kind in self.kinds)
        return Report(results, self._pairs(), self.false_alarm, self.level)

    @property
    def level(self) -> float:
        """The level of each single test: all together fail as often as `false_alarm`. Fixed before any
        result is read."""
        comparable = sum(kind.comparable for kind in self.kinds)
        bounds = sum(2 if kind.of_presence else 2 * len(SPREAD) for kind in self.kinds)
        return self.false_alarm / (bounds + math.comb(comparable, 2))

    def _slots(self) -> dict[str, list[Slot]]:
        """The data sets of each kind's jobs: as many jobs share one as its cap admits; a job of scores has its own. For
        guesses a coin decides: 0 is the data set without the record, 1 the one with it."""
        numbers: Counter[str] = Counter()
        slots: dict[str, list[Slot]] = {}
        for kind in self.kinds:
            if kind.of_scores:
                jobs = math.ceil(self.canaries / SCORE_SHARE / (GROUPS * kind.points))
                slots[kind.name] = [(kind.name, number) for number in range(jobs)]
            elif kind.of_presence:
                jobs = max(FEWEST_GUESSES, self.canaries // GUESS_SHARE)
                slots[kind.name] = [(kind.name, int(coin)) for coin in self._random.integers(2, size=jobs)]
            else:
                slots[kind.name] = [(kind.layout, numbers[kind.layout] // SHARING)]
                numbers[kind.layout] += 1
        return slots

    def _datasets(self, slots: Mapping[str, Sequence[Slot]], folder: Path) -> dict[Slot, _Registered]:
        random = self._random
        tag = random.bytes(4).hex()
        firsts: dict[Slot, Kind] = {}
        with_side = {slot for kind in self.kinds for slot in slots[kind.name] if kind.has_side}
        for kind in self.kinds:
            for slot in slots[kind.name]:
                firsts.setdefault(slot, kind)
        planted = {
            slot: plant(kind, f"{self.name}-{tag}-{number}", self.canaries, folder, random)
            for number, (slot, kind) in enumerate(firsts.items())
            if not kind.of_presence
        }
        for kind in (each for each in self.kinds if each.of_presence):
            names = (f"{self.name}-{tag}-without", f"{self.name}-{tag}-with")
            planted |= {(kind.name, at): one for at, one in enumerate(plant_neighbours(kind, names, folder, random))}

        def register(slot: Slot) -> _Registered:
            planted_set = planted[slot]
            dataset = self.client.create_dataset(planted_set.spec, planted_set.file).id
            side = self.client.create_dataset(*planted_set.side).id if planted_set.side and slot in with_side else None
            return _Registered(planted_set, dataset, side)

        with ThreadPoolExecutor(REGISTERING) as pool:
            return dict(zip(planted, pool.map(register, planted), strict=True))

    def _submit(self, kind: Kind, on: _Registered) -> _Job:
        spec = job_spec(kind, on.id, on.planted.spec["privacy"]["records"], on.side)
        job = self.client.submit(spec | {"name": f"{self.name}: {kind.name}"})
        return _Job(kind, on.planted, on.id, job.id)

    def _examined(self, kind: Kind, jobs: Sequence[_Job], folder: Path) -> Result:
        ended = [self._succeeded(job) for job in jobs]
        certificates = [self.client.certificate(job.id).certificate for job in jobs]
        metrics = [self.client.metrics(job.id) for job in jobs]
        posted = [self._posted(job) for job in jobs]
        problems = [each for record in zip(certificates, metrics, posted, strict=True) for each in uncharged(*record)]
        # Of guesses each job has its own certificate for one plan; the weakest claim must cover all.
        weakest = max(certificates, key=lambda certificate: float(certificate["epsilon"]["value"]))
        printed = weakest["epsilon"]
        if kind.of_scores:
            mu = max(charged_scores_mu(kind, *record) for record in zip(certificates, metrics, strict=True))
            claim = Claim.gaussian(mu)
            scores = [scores_of(kind, *record) for record in zip(certificates, metrics, strict=True)]
            present, absent = _by_coin(jobs, scores)
            finding = examine(present, absent, [0.5 + each / SCORE_MU for each in SPREAD], claim, self.level)
        else:
            claim = claim_of(weakest["events"]["train"], printed["value"], printed["delta"])
            if kind.of_presence:
                finding = self._of_guesses(jobs, claim, folder)
            else:
                finding = self._of_weights(kind, jobs[0], ended[0], claim, folder)
        ids = tuple(job.id for job in jobs)
        return Result(
            kind.name, ids, printed["value"], printed["delta"], claim.mu, claim.exact, finding, tuple(problems)
        )

    def _of_guesses(self, jobs: Sequence[_Job], claim: Claim, folder: Path) -> Finding:
        """The guess was fixed with the data: x is there if the output is below 0."""
        guesses = np.array([self._output(job, folder) < 0.0 for job in jobs])
        truth = np.array([job.planted.inside[0] for job in jobs])
        return examine_guesses(guesses, truth, claim, self.level)

    def _output(self, job: _Job, folder: Path) -> float:
        features = job.planted.features
        if features is None:
            raise ValueError("only neighbouring data sets have features that all records share")
        path = self.client.download(job.id, WEIGHTS, folder / f"{job.id}.safetensors")
        output = output_at(features, {name: read_tensor(path, name) for name in NETWORK_TENSORS})
        path.unlink()
        return output

    def _of_weights(self, kind: Kind, job: _Job, ended: Job, claim: Claim, folder: Path) -> Finding:
        path = self.client.download(ended.id, WEIGHTS, folder / f"{ended.id}.safetensors")
        values = read_tensor(path, kind.released)
        path.unlink()
        planted = job.planted
        if kind.comparable:
            self._noise.append((job, values))
        scores = values[planted.places]
        thresholds = quantile_thresholds(values[planted.decoys], claim.mu, SPREAD)
        return examine(scores[planted.inside], scores[~planted.inside], thresholds, claim, self.level)

    def _succeeded(self, job: _Job) -> Job:
        ended = self.client.wait_for(job.id, self.timeout_s)
        if ended.status != "succeeded":
            message = (ended.failure or {}).get("message", "")
            raise ScrimpError(
                f"the job of {job.kind.name!r} ({job.id}) is {ended.status}, not audited. {message}".strip()
            )
        return ended

    def _posted(self, job: _Job) -> dict[str, int]:
        entries = [entry for entry in self.client.ledger_entries(job.dataset, job.id) if entry.kind == "post"]
        return {name: sum(getattr(entry, name) for entry in entries) for name in ("train", "holdout")}

    def _pairs(self) -> tuple[Pair, ...]:
        pairs = []
        for (one, its), (other, other_noise) in itertools.combinations(self._noise, 2):
            both = np.concatenate([_nobody(one.planted), _nobody(other.planted)])
            places, times = np.unique(both, return_counts=True)
            places = places[times == 2]
            correlation = agreement(its[places], other_noise[places])
            pairs.append(Pair((one.kind.name, other.kind.name), correlation, correlation.chance > self.level))
        return tuple(pairs)


def job_spec(kind: Kind, dataset: str, records: int, side: str | None = None) -> dict[str, Any]:
    """The specification of a kind's job.

    Args:
        dataset, records: its data set, and the declared size.
        side: the data set of public records, for kinds that need one.
    """
    batch = math.ceil(kind.sample_rate * records)
    rate = kind.learning_rate * (batch if kind.scaled else 1.0)
    optimizer = {**kind.optimizer, "learning_rate": rate}
    optimizer |= {"public_dataset": side} if kind.has_side else {}
    optimizer |= {"learning_rate_adaptive": rate} if kind.delayed else {}
    sampled = {"kind": "poisson", "expected_batch_size": batch}
    return {
        "dataset": dataset,
        "model": dict(kind.model),
        "optimizer": optimizer,
        "clipping": dict(kind.clipping),
        "privacy": {"noise_multiplier": kind.noise_multiplier},
        "sampling": sampled if kind.sample_rate < 1.0 else {"kind": "full_batch"},
        "length": {"steps": kind.steps},
        "evaluation": _evaluation(kind) if kind.of_scores else None,
        "runtime": {"physical_batch_size": kind.rows_per_pass or "auto"},
    }


def _evaluation(kind: Kind) -> dict[str, Any]:
    return {
        "on": kind.on,
        "noise_mu": SCORE_MU,
        "points": kind.points,
        "metrics": [kind.metric],
        "loss_bound": LOSS_BOUND,
        "groups": {f"g{group}": [group + 1] for group in range(GROUPS)},
    }


def _by_coin(jobs: Sequence[_Job], scores: Iterable[dict[int, list[float]]]) -> tuple[Numbers, Numbers]:
    """All jobs' scores of groups whose canary is in, and of groups whose canary is out."""
    sides: dict[bool, list[float]] = {True: [], False: []}
    for job, job_scores in zip(jobs, scores, strict=True):
        for group, values in job_scores.items():
            sides[bool(job.planted.inside[group])] += values
    return np.array(sides[True]), np.array(sides[False])


def _nobody(planted: Planted) -> NDArray[np.int64]:
    """The coordinates without a record: decoys, and canaries that are out."""
    return np.concatenate([planted.decoys, planted.places[~planted.inside]])
