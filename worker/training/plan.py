"""From the stored mechanism to execution: the only place that builds sampler, clipping, noise, model and optimizer.

On private data every number that matters for privacy (q, σ, C, L, T, the kind of clipping) is the stored mechanism's,
which was priced and charged. It equals the mechanism that core.privacy.derive makes from the specification. This module
has not seen the data: the real number of records decides nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast

import torch
from torch import Tensor

from core.contracts.dataset_spec import HashedText
from core.contracts.extractor import Words
from core.contracts.hf import HfModel
from core.contracts.job_spec import JobSpec, LinearModel
from core.contracts.memory import in_memory, record_bytes
from core.contracts.metrics import ClipRatios
from core.contracts.optimizers import DpZo, PublicSideSettings
from core.contracts.sampling import Cyclic
from core.contracts.slots import PartSlots, Slots
from core.contracts.table import TableFeatures
from core.errors import PrivacyError
from core.privacy.derive import PublicFacts, check_agreement, delayed_of
from core.privacy.mechanism import MIN_POISSON_BLOCK_STEPS, MechanismConfig
from core.privacy.numerics import KEPT_BYTES, Arithmetic, Numerics, has_sparse_rows, most_rows, numerics_of, sizes_of
from core.privacy.score_histogram import CLASSES
from core.privacy.slot_numbers import slots_of
from core.privacy.two_class_answers import clip_ratios
from worker.clipping.adaptive import AdaptiveNorm
from worker.clipping.bookkeeping import Bookkeeping
from worker.clipping.build import build_engine, unclipped_engine
from worker.clipping.engine import CountingEngine, GradientEngine
from worker.clipping.totals import Floats, Grid
from worker.clipping.zeroth_order import Slope, ZerothOrder
from worker.data.placed import CPU, placed, resident
from worker.data.ranks import ALONE, Ranks
from worker.data.records import Records
from worker.messages import JobDescription, Keys, Segment, Shape
from worker.models.base import Model, Parameters
from worker.models.build import build_model
from worker.models.linear import Linear
from worker.models.matrix_factorization import MatrixFactorization
from worker.models.modules import ModuleModel
from worker.models.networks import Network
from worker.models.views import Views
from worker.noise.attempt_keys import Purpose, public_key_of_seed
from worker.noise.batch_sampling import CyclicSampler, FullBatch, PoissonSampler, Sampler
from worker.noise.directions import ALONG, Directions
from worker.noise.gaussian import CorrelatedRelease, CountRelease, GaussianRelease, GradientRelease, PublicRelease
from worker.noise.secret_places import TRAIN, RandomOrder
from worker.optimizers.base import Optimizer, Preconditioned
from worker.optimizers.build import build_optimizer
from worker.statistics.base import Job, Statistic
from worker.statistics.build import statistics_of
from worker.training.evaluation import Scores
from worker.training.side import PublicSide


class SupersededError(PrivacyError):
    """The job was admitted with an arithmetic that this release does not have."""

    code = "superseded"


BLOCKS = 25
MAX_BLOCK_STEPS = 1000


@dataclass(frozen=True)
class Randomness:
    """All that is drawn under one segment's keys.

    Attributes:
        order: gives private records their rows; None for public data.
        gradients, counts: the noise on gradients, and on counts if the norm adapts.
    """

    keys: Segment
    sampler: Sampler
    order: RandomOrder | None
    gradients: GradientRelease
    counts: CountRelease | None


@dataclass(frozen=True)
class Plan:
    """Everything that determines a job's work, except data and keys.

    Attributes:
        job: as stored; its mechanism is None on public data without privacy.
        before: the statistics of the training part that are released once, before the first step.
        scores: what is scored, and when.
        numerics: types and shapes of passes, and the rounding of sums: as fixed at admission, or with one row per pass
            if an operation is not known to keep rows apart.
        ranks: the processes that share the attempt's passes.
        views: of each record in a step; None: the record itself.
    """

    job: JobDescription
    model: Model
    engine: GradientEngine
    optimizer: Optimizer
    before: tuple[Statistic, ...]
    scores: Scores
    numerics: Numerics
    ranks: Ranks = ALONE
    views: Views | None = None

    @property
    def spec(self) -> JobSpec:
        """The job's specification."""
        return self.job.spec

    @property
    def mechanism(self) -> MechanismConfig | None:
        """The stored mechanism; None on public data without privacy."""
        return self.job.mechanism

    @property
    def shape(self) -> Shape:
        """The data set's public numbers."""
        return self.job.shape

    @property
    def steps(self) -> int:
        """T."""
        return self.job.steps

    @property
    def device(self) -> torch.device:
        """The device of passes, sums, noise, parameters and optimizer state."""
        return self.model.device

    @property
    def adaptive_norm(self) -> AdaptiveNorm | None:
        """How the clipping norm adapts; None: it does not."""
        training = self.mechanism.training if self.mechanism else None
        if training is None or training.adaptive is None:
            return None
        engine, adaptive = cast(CountingEngine, self.engine), training.adaptive  # see _engine
        rates = adaptive.target_quantile, adaptive.learning_rate
        return AdaptiveNorm(engine, training.max_grad_norm, *rates, training.expected_batch_size)

    @property
    def even_rows(self) -> bool:
        """True if a record's features are 0 or one value: of hashed presence of words, and of a one-hot table."""
        if isinstance(self.job.features, TableFeatures):
            return self.job.features.is_one_hot
        extractor = self.spec.model.extractor if isinstance(self.spec.model, LinearModel) else None
        words = self.job.features if extractor is None else extractor.words
        return isinstance(words, HashedText | Words) and words.binary

    @property
    def sampling(self) -> Literal["full_batch", "poisson", "cyclic"]:
        """The kind of the sampling scheme."""
        return self.spec.sampling.kind

    @property
    def sample_rate(self) -> float:
        """q."""
        charged = self.mechanism
        return charged.training.sample_rate if charged else self.spec.sampling.rate(self.shape.records_train)

    @property
    def expected_batch_size(self) -> int:
        """L, the divisor."""
        charged = self.mechanism
        return charged.training.expected_batch_size if charged else self.spec.sampling.batch(self.shape.records_train)

    @property
    def sparse(self) -> bool:
        """True if the model's features are sparse."""
        model = self.spec.model
        if self.sparse_table:
            return True
        return model.is_sparse(self.shape.sparse) if isinstance(model, LinearModel) else self.shape.sparse

    @property
    def sparse_table(self) -> bool:
        """True if a table's records are sparse rows. Jobs that were admitted before have dense ones, in float32."""
        return has_sparse_rows(self.spec, self.job.features) and self.numerics.passes == "float64"

    @property
    def sharded(self) -> bool:
        """True if each rank keeps the optimizer's state of the numbers that it owns, and no others."""
        return _is_sharded(self.spec, self.ranks)

    @property
    def public(self) -> bool:
        """True if no privacy is claimed: the data are declared public."""
        return self.mechanism is None

    @property
    def keeps_passes(self) -> bool:
        """True if a full batch's passes stay in memory between steps, where its records are. Depends on public sizes.
        Kept sparse passes use another product, which may round a sum's last bits otherwise; dense ones the same."""
        numbers = self._most_records * self.model.features
        return self.sampling == "full_batch" and (self.sparse or numbers * self.model.dtype.itemsize <= KEPT_BYTES)

    @property
    def in_memory(self) -> bool:
        """True if the data set's parts are loaded whole.

        A function of the data set's public sizes: all attempts of a job decide the same, so a replay repeats each bit.
        Passes have the same bits either way, but those of sparse full batches are kept only where they are in memory,
        see `keeps_passes`.
        """
        return in_memory(self._most_records, self._record_bytes)

    @property
    def loaded_bytes(self) -> int:
        """What the declared records take in memory; 0 where they stay on disk, or their size is not public. Slots take
        none where they are empty."""
        varies = self.sparse or self._record_bytes != record_bytes(self.model.features, sparse=False, rating=False)
        return 0 if varies or not self.in_memory else self.shape.records_train * self._record_bytes

    def exceeds(self, cache_bytes: int) -> bool:
        """True if the data set's parts may be larger than a cache, by the same public sizes as `in_memory`."""
        return self._most_records * self._record_bytes > cache_bytes

    @property
    def _most_records(self) -> int:
        """The most records of the training part, by public numbers."""
        return self.shape.records_train if self.slots is None else self.slots.train.rows

    @property
    def _record_bytes(self) -> int:
        """A record's size on disk; a text's tokens'."""
        rating = isinstance(self.model, MatrixFactorization)
        tokens = self.spec.model.most_tokens if isinstance(self.spec.model, HfModel) else 0
        return record_bytes(self.model.features, sparse=self.sparse, rating=rating, tokens=tokens)

    def initial(self, keys: Keys) -> Parameters:
        """The initial parameters of a segment, on the device."""
        return placed(self.model.init(self.init_key(keys)), self.device)

    def resident(self, records: Records) -> Records:
        """The records, on a GPU if a public bound on their size fits there."""
        size = self._most_records * (self.model.features + 2) * 8
        resident_records: Records = resident(records, size, self.device)
        return resident_records

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """The layers without a rule for their norms, by name and kind."""
        return self.engine.fallbacks if isinstance(self.engine, Bookkeeping) else ()

    @property
    def evaluation_steps(self) -> tuple[int, ...]:
        """The steps after which the model is scored."""
        return self.scores.steps(self.steps)

    def block_end(self, first: int, end: int | None = None) -> int | None:
        """The last step of the block that begins at `first`. Depends on public numbers only, the same in every attempt.

        Blocks end at multiples of clamp(⌈T/25⌉, least, 1000), at evaluations and at T. `least` is 1, or 10 if batches
        are drawn: a block's end is visible from outside, and a single step's time would reveal its batch size, which
        amplification by sampling must hide.

        Args:
            end: the attempt's last step, if fewer than T are paid for; no evaluation comes after it.

        Returns:
            None if batches are hidden and too few steps are left to hide one step's time.
        """
        end = self.steps if end is None else end
        minimum = MIN_POISSON_BLOCK_STEPS if self.sampling == "poisson" and not self.public else 1
        size = min(max(-(-self.steps // BLOCKS), minimum), MAX_BLOCK_STEPS)
        if minimum > 1:
            return self._hidden_end(first, size, end)
        return min(-(-first // size) * size, end, *(step for step in self.evaluation_steps if step >= first))

    def _hidden_end(self, first: int, size: int, last: int) -> int | None:
        """As `block_end`, if batches are hidden: ranges between evaluations are cut into blocks of `size`.

        A rest of fewer than ten steps joins the block before it.
        """
        evaluations = {step for step in self.evaluation_steps if step <= last - MIN_POISSON_BLOCK_STEPS}
        end = next(step for step in sorted({*evaluations, last}) if step >= first)
        left = end - first + 1
        if left < MIN_POISSON_BLOCK_STEPS:
            return None
        return end if left < size + MIN_POISSON_BLOCK_STEPS else first + size - 1

    def summed(self, parameters: Parameters) -> Parameters:
        """What a step's sum has, in names, shapes and device: a gradient's numbers, or one slope."""
        if not isinstance(self.engine, ZerothOrder):
            return parameters
        return {ALONG: torch.zeros(1, dtype=torch.float64, device=self.device)}

    def side(self, public: Records) -> PublicSide:
        """Side information from public records."""
        engine = unclipped_engine(self.model)
        return PublicSide(public, engine, self._public_batch_size)

    def norms(self, step: int) -> tuple[float, ...]:
        """The clipping norm of each query in a step; ones on public data, where nothing is clipped."""
        if self.mechanism is not None:
            return self.mechanism.training.norms(step)
        delayed = delayed_of(self.spec.optimizer)
        return delayed.norms(step, 1.0) if delayed else (1.0,)

    def sampler(self, keys: Keys, records: int) -> Sampler:
        """The sampler of one segment. `records`: how many numbers are drawn from."""
        if self.sampling == "full_batch":
            return FullBatch()
        if isinstance(self.spec.sampling, Cyclic):
            return CyclicSampler(self._key(keys, "sampler"), self.spec.sampling.batches, records)
        return PoissonSampler(self._key(keys, "sampler"), self.sample_rate, records)

    @property
    def _public_batch_size(self) -> int | None:
        settings = self.spec.optimizer
        return settings.public_batch_size if isinstance(settings, PublicSideSettings) else None

    @property
    def slots(self) -> Slots | None:
        """The places of the data set's parts; None for public data."""
        if self.mechanism is None:
            return None
        shape, k = self.shape, self.mechanism.training.records_per_unit
        return slots_of(shape.slots, shape.records_train, k)

    def slots_of(self, part: int) -> PartSlots | None:
        """The places of one part."""
        slots = self.slots
        return None if slots is None else slots.train if part == TRAIN else slots.holdout

    def rows_of(self, drawn: int) -> int | None:
        """The rows of a step whose draw has so many slots, occupied or not; None for public data.

        Of a Poisson step always R. A cyclic group has rows for all its slots: how many these are tells of the key, and
        of no record.
        """
        if self.mechanism is None or self.slots is None:
            return None
        if self.sampling == "cyclic":
            return min(drawn * self.mechanism.training.records_per_unit, self.slots.train.rows)
        return self.numerics.rows_per_step

    def order(self, keys: Keys) -> RandomOrder | None:
        """The secret order that gives private records their rows; None for public data."""
        if self.public:
            return None
        return RandomOrder(self._key(keys, "order"))

    def gradient_release(self, keys: Keys, first_step: int = 1) -> GradientRelease:
        """The noise step of one segment, which begins at `first_step`."""
        if self.mechanism is None:
            return PublicRelease(self.expected_batch_size)
        training, key = self.mechanism.training, self._key(keys, "noise")
        numbers = {
            "noise_multiplier": training.gradient_noise_multiplier,
            "max_grad_norm": training.max_grad_norm,
            "sensitivity_slack": self.numerics.sensitivity_slack,
        }
        if training.noise is None:
            return GaussianRelease(key, expected_batch_size=self.expected_batch_size, **numbers)
        return CorrelatedRelease(
            key,
            decay=training.noise.decay,
            first_step=first_step,
            expected_batch_size=self.expected_batch_size,
            **numbers,
        )

    def count_release(self, keys: Keys) -> CountRelease | None:
        """The noise on one segment's counts, if the norm adapts."""
        if self.mechanism is None or self.mechanism.training.adaptive is None:
            return None
        return CountRelease(self._key(keys, "noise"), self.mechanism.training.adaptive.count_noise_multiplier)

    def randomness(self, keys: Segment, units: int) -> Randomness:
        """All that is drawn under one segment's keys.

        Args:
            units: how many the sampler draws from.
        """
        return Randomness(
            keys,
            sampler=self.sampler(keys, units),
            order=self.order(keys),
            gradients=self.gradient_release(keys, max(1, keys.from_step)),
            counts=self.count_release(keys),
        )

    def release_key(self, keys: Keys) -> bytes:
        """The key of one segment's noise on scores."""
        return self._key(keys, "release")

    def init_key(self, keys: Keys) -> bytes:
        """The key of the initial parameters."""
        return self._key(keys, "init")

    def begin_passes(self, keys: Keys, step: int) -> None:
        """Call before a step's passes: sets its direction, its dropout masks and the views of its records."""
        self._begin(self._key(keys, "dropout"), self._key(keys, "views"), step)

    def begin_public_passes(self, step: int) -> None:
        """Call before passes of public records, or of canaries, within a step.

        Their masks and views have publicly known keys: numbers that leave without noise must reveal nothing about
        private records' ones.
        """
        self._begin(public_key_of_seed(0, "dropout"), public_key_of_seed(0, "views"), step)

    def _begin(self, of_masks: bytes, of_views: bytes, step: int) -> None:
        masks = self.model.masks if isinstance(self.model, ModuleModel) else None
        if masks is not None:
            masks.begin(of_masks, step)
        if self.views is not None:
            self.views.begin(of_views, step)
        if isinstance(self.engine, ZerothOrder):
            self.engine.begin(step)

    def _key(self, keys: Keys, purpose: Purpose) -> bytes:
        if self.spec.seed is not None:  # of a repeatable run on public data
            return public_key_of_seed(self.spec.seed, purpose)
        return bytes.fromhex(getattr(keys, f"{purpose}_key"))


def build_plan(
    job: JobDescription,
    *,
    rows: int | None = None,
    device: torch.device = CPU,
    mean: Tensor | None = None,
    ranks: Ranks = ALONE,
) -> Plan:
    """Builds the plan of an attempt.

    Args:
        job: without stored numerics it has those of this release.
        rows: of a pass, if not the numerics': fewer where more do not fit in memory, or 1 where an operation is not
            known to keep rows apart.
        device, ranks: what computes, and the processes that share the attempt's passes.
        mean: the mean of the features, if the study's first trial released it; the mechanism then has none.

    Raises:
        SupersededError: an earlier release admitted the job: its records would have no places.
        PrivacyError: specification and mechanism disagree; a mean is given that was not asked for; or private data lack
            a mechanism or have a seed.
    """
    spec, mechanism, shape = job.spec, job.mechanism, job.shape
    if not job.data_public and (mechanism is None or spec.seed is not None):
        raise PrivacyError("private data need a mechanism and must not have a seed")
    if mechanism is not None:
        check_agreement(spec, facts_of_job(job, mechanism), mechanism, mean_given=mean is not None)
        if job.steps != mechanism.training.steps:
            raise PrivacyError("the job's steps and its stored mechanism disagree")
    sizes = sizes_of(spec, shape.public_sizes(mechanism), job.features)
    numerics = _numerics(job.numerics or numerics_of(spec, sizes, job.features), mechanism, rows)
    models_root = Path(job.models_root) if job.models_root else None
    by = (numerics.passes, numerics.rows_per_pass, models_root, device)
    model = _weighted(build_model(spec.model, shape, job.task, job.features, *by), spec)
    optimizer = build_optimizer(spec.optimizer, job.steps)
    model = replace(model, clip_ratios=_clip_ratios(model, job, optimizer), tf32=_has_tf32(numerics, model))
    views = Views.of_job(spec.augmentation, spec.model)
    numerics, engine = _engine(job, model, numerics, ranks, views, most_rows(spec, sizes))
    public = {"data_public": job.data_public, "holdout_public": job.holdout_public}
    return Plan(
        job=job,
        model=model,
        engine=engine,
        optimizer=optimizer,
        before=statistics_of(Job(spec, mechanism, model, job.features, shape, mean)),
        scores=Scores.of(spec, mechanism, job.task, **public),
        numerics=numerics,
        ranks=ranks,
        views=views,
    )


def _numerics(numerics: Numerics, mechanism: MechanismConfig | None, rows: int | None) -> Numerics:
    """The numerics with passes of so many rows. Raises SupersededError: see build_plan."""
    if mechanism is not None and numerics.arithmetic is not Arithmetic.PLACES:
        raise SupersededError("this release does not have the arithmetic of the job's stored numerics")
    return numerics if rows is None else numerics.of_rows(rows)


def _engine(
    job: JobDescription, model: Model, numerics: Numerics, ranks: Ranks, views: Views | None, largest: int
) -> tuple[Numerics, GradientEngine]:
    """The numerics, with the slack of integer totals, and the engine that adds passes so. `largest`: a sum's rows."""
    sharded, optimizer = _is_sharded(job.spec, ranks), job.spec.optimizer
    if isinstance(optimizer, DpZo):
        return _zeroth_order(job, model, numerics, optimizer, (ranks, largest))
    if job.mechanism is None:
        return numerics, unclipped_engine(model, numerics.sums, Floats(ranks, sharded), views)
    training = job.mechanism.training
    numerics = numerics.of_numbers(model.numbers, largest, training.terms_per_unit)
    engine = build_engine(
        model,
        job.spec.clipping,
        training,
        positions=numerics.positions,
        group=numerics.group if numerics.sums == "float32" else None,
        grid=Grid(largest, numerics.rows_per_pass, ranks, sharded),
        views=views,
    )
    if training.adaptive is not None and not isinstance(engine, CountingEngine):
        raise PrivacyError("this model's engine cannot count: its clipping norm cannot adapt")
    return numerics, engine


def _zeroth_order(
    job: JobDescription, model: Model, numerics: Numerics, settings: DpZo, over: tuple[Ranks, int]
) -> tuple[Numerics, GradientEngine]:
    """The same for slopes. `over`: the ranks, and the most rows of one sum."""
    (ranks, largest), directions = over, Directions(settings.direction_seed)
    if job.mechanism is None:
        return numerics, ZerothOrder(model, Slope(settings.phi), directions, Floats(ranks))
    training = job.mechanism.training
    if training.clipping not in ("flat", "automatic") or training.noise is not None:
        raise PrivacyError("slopes are clipped to one norm, and each step has its own noise")
    slope = Slope(settings.phi, training.clipping, training.max_grad_norm, training.terms_per_unit)
    numerics = numerics.of_numbers(1, largest, training.terms_per_unit)
    return numerics, ZerothOrder(model, slope, directions, Grid(largest, numerics.rows_per_pass, ranks))


def _weighted(model: Model, spec: JobSpec) -> Model:
    """The model with the job's weights of classes."""
    if spec.class_weights is None:
        return model
    fits = isinstance(spec.class_weights, list) and len(spec.class_weights) == model.outputs
    if not fits or not isinstance(model, Linear | Network):
        raise PrivacyError("weights of classes are a number for each class of a linear model or a network")
    return replace(model, class_weights=tuple(map(float, spec.class_weights)))


def _has_tf32(numerics: Numerics, model: Model) -> bool:
    """True if passes compute products in TF32. Raises PrivacyError if admission let it through where there is none."""
    asked = numerics.fp32_precision == "tf32"
    if asked and (model.device.type != "cuda" or not isinstance(model, ModuleModel) or model.dtype != torch.float32):
        raise PrivacyError("TF32 is for a network's passes in float32 on a GPU")
    return asked


def _clip_ratios(model: Model, job: JobDescription, optimizer: Optimizer) -> ClipRatios | None:
    """What the answers of a linear model of two classes undo; None where C, or the length of a gradient, is not a
    declared number: then answers are the softmax."""
    spec, features = job.spec, job.features
    reads_cells = isinstance(spec.model, LinearModel) and spec.model.extractor is None and spec.model.center is None
    is_flat = spec.clipping is None or spec.clipping.kind in ("flat", "per_layer")  # a linear model is one layer
    if not isinstance(model, Linear) or not isinstance(features, TableFeatures) or not (reads_cells and is_flat):
        return None
    unclipped = isinstance(optimizer, Preconditioned) or isinstance(spec.optimizer, DpZo)  # no gradient of its own
    if job.mechanism is None or model.outputs != CLASSES or unclipped:
        return None
    if not features.is_bounded:
        return None
    training, (first, second) = job.mechanism.training, model.class_weights or (1.0, 1.0)
    length = math.hypot(features.length(model.features), float(model.bias))
    return clip_ratios(length, training.max_grad_norm / training.terms_per_unit, (first, second))


def _is_sharded(spec: JobSpec, ranks: Ranks) -> bool:
    return spec.runtime.shard == "optimizer" and ranks.size > 1


def facts_of_job(job: JobDescription, mechanism: MechanismConfig) -> PublicFacts:
    """The public facts from which the mechanism is derived again, as at admission."""
    shape, k = job.shape, mechanism.training.records_per_unit
    return PublicFacts(
        records_train=shape.records_train,
        records_holdout=shape.records_holdout,
        records_per_unit=k,
        unit=mechanism.unit,
        classification=job.task.is_classification,
        outputs=shape.outputs,
        holdout_is_private=not job.holdout_public,
        holdout_account=job.holdout_account,
        delta=mechanism.target_delta,
        slots=slots_of(shape.slots, shape.records_train, k).train.units,
    )
