"""A model's scores: exact on public data, noisy sums on private data."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from core.contracts.hf import rank_groups
from core.contracts.job_spec import Ranking
from core.contracts.metrics import CELLS, MEANS, MOST_CONFUSED, ClipRatios, ReleasedHistogram, rule_of
from core.errors import PrivacyError
from core.privacy.numerics import release_slack
from core.privacy.releases import NoisyScore
from core.privacy.score_histogram import ScoreHistogram, cells_of, tree_sums
from worker.data.passes import Batch, Pass
from worker.data.records import Records
from worker.metrics.build import metric_of
from worker.metrics.confusion import confusion_cell, confusion_scores
from worker.metrics.regression_fit import GRID, Fit, fit_cells
from worker.metrics.score_cells import cell_of, has_histogram
from worker.models.base import Model, Parameters
from worker.noise.generator import GaussianGenerator
from worker.noise.rounding import add_noise

CELL_DIGITS = 3  # of a released count
Groups = Mapping[str, Sequence[int]]  # class indices, by group name


@runtime_checkable
class Ranks(Protocol):
    """A model that ranks items."""

    def ranked(
        self, parameters: Parameters, records: Any, *, leave_out_seen: bool
    ) -> Iterator[tuple[Tensor, Pass[Any]]]:
        """Each record's last item's rank among all items, from 1: float64 (P,) for each pass."""
        ...


@runtime_checkable
class ScoresTokens(Protocol):
    """A model that predicts tokens; its records are texts without a class."""

    @property
    def vocabulary(self) -> int:
        """The number of tokens."""
        ...

    def predicted(self, records: Any) -> tuple[Tensor, Tensor]:
        """The ids of all predicted tokens, int64 (tokens,), and each record's number of them, (n,)."""
        ...

    def token_scores(self, parameters: Parameters, records: Any) -> tuple[Tensor, Tensor]:
        """Each record's loss, float64 (n,); and the losses of `predicted`, in its order, float64 (tokens,)."""
        ...

    def scored(self, parameters: Parameters, records: Any) -> Iterator[tuple[Tensor, Tensor, Pass[Any]]]:
        """Each place's loss, (P, T), and its token's id + 1, (P, T), 0 where none is predicted; for each pass."""
        ...


@dataclass(frozen=True)
class Score:
    """A number that may leave the attempt.

    Attributes:
        std: of the noise on `value`, 0 if it is exact. A function of released numbers.
        noise_std: of the noise on the underlying sums; this is what was charged.
        parts: other numbers from the same release: the score on groups of classes, HIT, or AUC's.
        histogram: from which the value and the parts follow, as released.

    >>> Score("accuracy", 0.9, std=0.0).noise_std
    0.0
    """

    name: str
    value: float
    std: float
    noise_std: float = 0.0
    parts: tuple[Score, ...] = ()
    histogram: ReleasedHistogram | None = None


def public_scores(
    model: Model,
    parameters: Parameters,
    records: Records,
    groups: Groups | None = None,
    ranking: Ranking | None = None,
    ends: tuple[float, float] | None = None,
    *,
    confused: bool = False,
) -> list[Score]:
    """Exact means over public records: all metrics that suit the model, or NDCG and HIT. Empty without records.

    Args:
        groups: of classes: also all scores of each group that has records. Of tokens: their mean loss.
        ranking: how next items are ranked.
        confused: also macro-F1 and what comes with it.
        ends: the declared range of a target: also R², and the root of the mean squared error in the target's unit.
    """
    if len(records) == 0:
        return []
    if ranking is not None:
        pieces = [(batch.only(g), batch.only(h)) for g, h, batch in _ranked(ranking, model, parameters, records)]
        gains, hits = (torch.cat(each) for each in zip(*pieces, strict=True))
        parts = {f"ndcg@{ranking.k}": gains, f"hit@{ranking.k}": hits}
        return [Score(name, float(values.mean()), 0.0) for name, values in parts.items()]
    if groups and not model.classification and isinstance(model, ScoresTokens):
        return _of_tokens(groups, model, parameters, records)
    names = [name for name in MEANS if metric_of(name).suits(model)]
    functions = [partial(metric_of(name).values, model) for name in names]
    cells = [cell_of] if has_histogram(model) else []
    values = _of_each(model, parameters, records, *functions, *cells)
    parts = dict(zip(names, values, strict=False))
    labelled = groups if groups and model.classification else {}
    members = {name: torch.isin(records.labels, torch.tensor(places)) for name, places in labelled.items()}
    fit = [] if ends is None else public_fit(model, parameters, records, ends)
    means = [Score(part_name, float(values.mean()), 0.0) for part_name, values in parts.items()]
    in_groups = [
        Score(f"{part_name}:{name}", float(values[inside].mean()), 0.0)
        for name, inside in members.items()
        if bool(inside.any())
        for part_name, values in parts.items()
    ]
    confused_parts = _exact_confusion(model, parameters, records, parts) if confused else []
    counts = torch.bincount(values[-1], minlength=CELLS).tolist() if cells else []
    histogram = _of_histogram(counts, model.clip_ratios, parts) if cells else []
    return [*means, *fit, *in_groups, *histogram, *confused_parts]


def _exact_confusion(model: Model, parameters: Parameters, records: Records, apart: Container[str]) -> list[Score]:
    """Macro-F1 and what comes with it, without what is computed apart."""
    if not model.classification or model.outputs > MOST_CONFUSED:
        return []
    (cells,) = _of_each(model, parameters, records, confusion_cell)
    counts = torch.bincount(cells, minlength=model.outputs**2).view(model.outputs, -1).double()
    scores = _of_confusion(counts, 0.0)
    return [each for each in (replace(scores, parts=()), *scores.parts) if each.name not in apart]


def _of_histogram(counts: list[float], ratios: ClipRatios | None, apart: Container[str]) -> list[Score]:
    """The scores of an exact histogram, without those that are computed apart."""
    all_scores = ScoreHistogram(counts, 0.0, ratios).scores()
    scores = [Score(name, each.value, 0.0) for name, each in all_scores.items() if name not in apart]
    released = ReleasedHistogram(cells=tuple(counts), noise_std=0.0, clip_ratios=ratios)
    return [replace(each, histogram=released) if each.name == "auc" else each for each in scores]


def _of_tokens(groups: Groups, model: ScoresTokens, parameters: Parameters, records: Records) -> list[Score]:
    losses, of_tokens = model.token_scores(parameters, records)
    group_of = torch.full((model.vocabulary,), -1)
    for number, places in enumerate(groups.values()):
        group_of[list(places)] = number
    numbers = group_of[model.predicted(records)[0]]
    return [Score("loss", float(losses.mean()), 0.0)] + [
        Score(f"loss:{name}", float(of_tokens[numbers == number].mean()), 0.0)
        for number, name in enumerate(groups)
        if bool((numbers == number).any())
    ]


def frequency_groups(labels: Tensor, classes: int) -> dict[str, tuple[int, ...]]:
    """Groups classes or tokens by how often they are labels: 2ᵏ … 2ᵏ⁺¹ − 1 form one group, named by its bounds.

    Not private.
    """
    counts = torch.bincount(labels, minlength=classes).tolist()
    groups: dict[int, list[int]] = {}
    for place, count in enumerate(counts):
        if count > 0:
            groups.setdefault(count.bit_length() - 1, []).append(place)
    return {f"{2**k}-{2 ** (k + 1) - 1}": tuple(places) for k, places in sorted(groups.items())}


def public_training_loss(model: Model, parameters: Parameters, records: Records) -> Score:
    """The exact mean loss over public training records."""
    (losses,) = _of_each(model, parameters, records, model.losses)
    return Score("training_loss", float(losses.sum()) / max(1, len(records)), 0.0)


def noisy_score(
    release: NoisyScore, key: bytes, step: int, index: int, model: Model, parameters: Parameters, records: Batch[Any]
) -> Score:
    """A mean over private records, from two noisy sums: a = S̃ / (S̃ + M̃), times Δ.

    With groups of classes, each group and the rest have their own two sums; the overall score uses their totals. With
    ranks of tokens it is the mean over records of each record's mean token loss; each token's loss is clipped by
    itself.

    Each record adds s ∈ [0, Δ] to S and the remainder Δ − s to M. s is the metric's value of the record (accuracy: 1 if
    it is correct; loss: Model.errors), clipped to [0, Δ], Δ = `sensitivity`; a NaN counts as Δ. S̃ and M̃ get
    independent noise N(0, (kΔ/μ)²), where a unit has at most k records.

    Macro-F1: S are the cells of a histogram of true and predicted classes; a record is in one of them
    (worker.metrics.confusion).

    AUC: S are the weighted sums of a histogram by class and score, which a record moves by at most 1
    (core.privacy.score_histogram), and AUC and all else follow from S̃.

    Guarantee: one record changes (S, M) by (s, Δ − s), whose ℓ₂ norm is at most Δ. So both sums together are one
    Gaussian mechanism, μ-GDP: the second sum costs nothing. A user's k records change it by kΔ, and the noise is k
    times as large. Dividing by a public count instead would be off by the hash split's deviation (5,000 ± 63 of
    25,000), which exceeds the noise. Decision record 5.

    Args:
        release: the mechanism's declaration: what, Δ, μ.
        key: the segment's release key, 32 bytes.
        step: the step after which this is measured.
        index: the release's number in the mechanism; (step, index) is used for one pair of values only.
        records: the private records in their slots.

    Returns:
        the score, clamped to [0, Δ], and the std of the noise on it, Δ/μ · √(a² + (1−a)²) · Δ / (S̃ + M̃).

    Raises:
        PrivacyError: the declared sensitivity does not fit the measured score.
    """
    bound, noise_std = release.sensitivity, release.noise_std
    if not (1e-100 < bound < 1e100 and 1e-100 < noise_std < 1e100):
        raise PrivacyError("a noisy sum needs a sensitivity and a noise that floating point resolves")
    private_sums = torch.tensor(_private_sums(release, model, parameters, records), dtype=torch.float64)
    noisy = _noised(private_sums, release, key, step, index, len(records))
    if release.what == "auc":
        return _of_noisy_histogram(noisy.view(2, -1), noise_std, model.clip_ratios)
    if release.classes is not None:
        return _of_confusion(noisy.view(release.classes, -1), noise_std)
    noisy = noisy.view(-1, 2)
    groups = tuple(
        Score(f"{release.what}:{name}", *_ratio(inside, outside, noise_std, bound))
        for name, (inside, outside) in zip(release.group_names, noisy.tolist(), strict=False)
    )
    total, outside = noisy.sum(dim=0).tolist()
    value, std = _ratio(total, outside, noise_std * math.sqrt(len(noisy)), bound)
    return Score(release.what, value, std, noise_std, groups)


def noisy_ranking(
    release: NoisyScore,
    key: bytes,
    step: int,
    index: int,
    model: Model,
    parameters: Parameters,
    records: Batch[Any],
    ranking: Ranking,
) -> Score:
    """NDCG@k and HIT@k over private records, from three noisy sums.

    Each record has hit h ∈ {0, 1} and gain g = h / log₂(ρ + 1) ∈ [0, h], and adds (g, h − g, 1 − h) to (G, H, M), with
    independent noise N(0, 1/μ²) each: NDCG = G̃ / (G̃ + H̃ + M̃), HIT = (G̃ + H̃) / (G̃ + H̃ + M̃).

    Guarantee: each record's three addends are at least 0 and sum to 1, so their ℓ₂ norm is at most 1: one Gaussian
    mechanism, μ-GDP, gives both scores.

    Returns:
        NDCG@k, with HIT@k as its part; and the std of the noise on each, to first order.

    Raises:
        PrivacyError: the declared release is not a ranking at this k.
    """
    if release.what != "ranking" or release.sensitivity != 1.0 or release.cutoff != ranking.k:
        raise PrivacyError("a ranking must have sensitivity 1 and the k that the mechanism declares")
    sums = torch.zeros(3, dtype=torch.int64)
    for gains, hits, batch in _ranked(ranking, model, parameters, records):
        gain, hit = _units(gains, 1.0), _units(hits, 1.0)
        cells = torch.stack([gain, hit - gain, GRID - hit], dim=1)
        sums += torch.where(batch.present[:, None], cells, 0).sum(dim=0).cpu()
    private_sums = sums.double() / GRID
    gain, rest_count, missed = _noised(private_sums, release, key, step, index, len(records)).tolist()
    total = max(gain + rest_count + missed, release.noise_std)
    ndcg, hit = (min(max(each / total, 0.0), 1.0) for each in (gain, gain + rest_count))
    std = release.noise_std / total
    of_hit = Score(f"hit@{ranking.k}", hit, std * math.sqrt(2.0 * (1.0 - hit) ** 2 + hit**2))
    return Score(release.metric, ndcg, std * math.sqrt((1.0 - ndcg) ** 2 + 2.0 * ndcg**2), release.noise_std, (of_hit,))


def _noised(private_sums: Tensor, release: NoisyScore, key: bytes, step: int, index: int, slots: int) -> Tensor:
    """The sums with the release's noise, wider by what rounding over so many slots may add."""
    generator = GaussianGenerator(key)
    noise = generator.noise(step, index, len(private_sums))
    scale = release.noise_std * release_slack(slots)
    return add_noise(private_sums, noise, scale, generator.stream, step, index)


def _of_noisy_histogram(sums: Tensor, noise_std: float, ratios: ClipRatios | None) -> Score:
    """AUC with its parts, from noisy `tree_sums`, (2, BINS). All follows from the rounded cells."""
    cells = np.round(cells_of(sums.numpy()), CELL_DIGITS).flatten().tolist()
    scores = {
        name: Score(name, each.value, each.std, noise_std)
        for name, each in ScoreHistogram(cells, noise_std, ratios).scores().items()
    }
    auc = scores.pop("auc")
    released = ReleasedHistogram(cells=tuple(cells), noise_std=noise_std, clip_ratios=ratios)
    return replace(auc, parts=tuple(scores.values()), histogram=released)


def noisy_fit(
    release: NoisyScore,
    key: bytes,
    step: int,
    index: int,
    model: Model,
    parameters: Parameters,
    records: Batch[Any],
    ends: tuple[float, float],
) -> Score:
    """R² over private records, with RMSE as its part, from five noisy sums (worker.metrics.regression_fit).

    Guarantee: a record's cells have ℓ₂ norm at most √2, the release's sensitivity: one Gaussian mechanism, μ-GDP.

    Raises:
        PrivacyError: the declared release is not of R².
    """
    if release.what != "r_squared" or release.sensitivity != rule_of("r_squared").bound or release.groups:
        raise PrivacyError("R² must have the sensitivity √2 that the mechanism declares")
    noisy = _noised(_fit_sums(model, parameters, records), release, key, step, index, len(records))
    fit = Fit.of(noisy.tolist(), release.noise_std, ends)
    part = Score("rmse", fit.rmse, fit.rmse_std)
    return Score("r_squared", fit.r_squared, fit.r_squared_std, release.noise_std, (part,))


def public_fit(model: Model, parameters: Parameters, records: Records, ends: tuple[float, float]) -> list[Score]:
    """Exact R² and RMSE over public records."""
    fit = Fit.of(_fit_sums(model, parameters, records).tolist(), 0.0, ends)
    return [Score("r_squared", fit.r_squared, 0.0), Score("rmse", fit.rmse, 0.0)]


def _fit_sums(model: Model, parameters: Parameters, records: Any) -> Tensor:
    """The sums of all records' cells, (5,)."""
    sums = torch.zeros(5, dtype=torch.int64)
    for outputs, batch in model.evaluated(parameters, records):
        cells = fit_cells(outputs.cpu(), batch.records.labels.cpu())
        sums += torch.where(batch.present.cpu()[:, None], cells, 0).sum(dim=0)  # integers: the same for any passes
    return sums.double() / GRID


def _ranked(
    ranking: Ranking, model: Model, parameters: Parameters, records: Batch[Any]
) -> Iterator[tuple[Tensor, Tensor, Pass[Any]]]:
    """NDCG@k and HIT@k of each row: 1/log₂(ρ + 1) and 1 if ρ ≤ k, else 0. Float64 (P,) each, for each pass."""
    if not isinstance(model, Ranks):
        raise PrivacyError("a ranking needs a model of next items")
    for ranks, batch in model.ranked(parameters, records, leave_out_seen=ranking.leave_out_seen):
        hits = (ranks <= ranking.k).double()
        yield hits / torch.log2(ranks + 1.0), hits, batch


def _ratio(noisy_sum: float, noisy_rest: float, noise_std: float, bound: float) -> tuple[float, float]:
    """A score and the std of the noise on it, from two sums with noise of this std each."""
    total = max(
        noisy_sum + noisy_rest, noise_std
    )  # a hold-out smaller than its noise gives a score with a very large std
    share = min(max(noisy_sum / total, 0.0), 1.0)
    return share * bound, noise_std * math.hypot(share, 1.0 - share) / total * bound


def _private_sums(release: NoisyScore, model: Model, parameters: Parameters, records: Batch[Any]) -> tuple[float, ...]:
    """Σ s and Σ (Δ − s) of each group of classes, and last of all records outside every group."""
    if release.ranks is not None:
        return _sums_by_rank(release, release.ranks, model, parameters, records)
    if release.what == "auc":
        return _tree_sums(release, model, parameters, records)
    if release.classes is not None:
        return _confusion(release.classes, model, parameters, records)
    name = next(each for each in MEANS if each == release.what)
    metric, bound = metric_of(name), rule_of(name).bound
    if not metric.suits(model) or bound not in (None, release.sensitivity):
        raise PrivacyError("a metric needs a model that it suits, and its own sensitivity if it has one")
    if release.groups and not model.classification:
        raise PrivacyError("groups need a classification model")
    group_of = torch.full((model.outputs,), len(release.groups))  # of a class; last come those outside every group
    for number, places in enumerate(release.groups.values()):
        group_of[list(places)] = number
    total = torch.zeros(len(release.groups) + 1, 2, dtype=torch.int64)
    for outputs, batch in model.evaluated(parameters, records):
        labels, present = batch.records.labels, batch.present.cpu()
        values = metric.values(model, outputs, labels).cpu()
        units = _units(_clipped(values, release.sensitivity), release.sensitivity)
        cells = torch.where(present[:, None], torch.stack([units, GRID - units], dim=1), 0)
        groups = group_of[labels.cpu()] if model.classification else torch.zeros(len(cells), dtype=torch.int64)
        total.index_add_(0, groups, cells)  # integers: the same for any passes
    return tuple(each / GRID * release.sensitivity for each in total.flatten().tolist())


def _tree_sums(release: NoisyScore, model: Model, parameters: Parameters, records: Batch[Any]) -> tuple[float, ...]:
    """The weighted sums of the histogram by class and score: of whole numbers with dyadic weights, so exact."""
    if not has_histogram(model) or release.sensitivity != 1.0:
        raise PrivacyError("a histogram of scores by class needs two classes and sensitivity 1")
    counts = _histogram(cell_of, CELLS, model, parameters, records)
    return tuple(tree_sums(counts.view(2, -1).numpy()).flatten().tolist())


def _confusion(classes: int, model: Model, parameters: Parameters, records: Batch[Any]) -> tuple[float, ...]:
    """The number of records of each true and predicted class, (K²,)."""
    if not model.classification or model.outputs != classes:
        raise PrivacyError("a histogram of classes needs the model's classes, which the mechanism declares")
    return tuple(map(float, _histogram(confusion_cell, classes**2, model, parameters, records).tolist()))


def _histogram(
    cell: Callable[[Tensor, Tensor], Tensor],
    cells: int,
    model: Model,
    parameters: Parameters,
    records: Batch[Any],
) -> Tensor:
    """The number of records in each cell."""
    counts = torch.zeros(cells, dtype=torch.int64)
    for outputs, batch in model.evaluated(parameters, records):
        places = cell(outputs.cpu(), batch.records.labels.cpu())
        counts.index_add_(0, places, batch.present.cpu().to(torch.int64))  # integers: the same for any passes
    return counts


def _of_confusion(cells: Tensor, noise_std: float) -> Score:
    """Macro-F1 with its parts, from noisy cells, (K, K)."""
    all_scores = confusion_scores(cells.numpy(), noise_std)
    scores = [Score(name, each.value, each.std, noise_std) for name, each in all_scores.items()]
    return replace(scores[0], parts=tuple(scores[1:]))


def _sums_by_rank(
    release: NoisyScore, ranks: int, model: Model, parameters: Parameters, records: Batch[Any]
) -> tuple[float, ...]:
    """Σ s/T and Σ (Δ − s)/T over the tokens of each group: s is a token's clipped loss, T its record's token count.

    Last come all records without tokens, which count as records without loss.
    """
    if model.classification or not isinstance(model, ScoresTokens) or model.vocabulary != ranks:
        raise PrivacyError("ranks need a language model's tokens")
    groups, bound = rank_groups(ranks), release.sensitivity
    stops = torch.tensor([each.stop for each in groups.values()])
    cells, silent = torch.zeros(len(groups), 2, dtype=torch.int64), 0
    for scores, ids, batch in model.scored(parameters, records):
        losses, targets, present = scores.double().cpu(), ids.cpu(), batch.present.cpu()
        valid = (targets != 0) & present[:, None]
        lengths = valid.sum(dim=1)
        clipped, weights = _clipped(losses, bound), 1.0 / lengths.clamp(min=1).double()[:, None]
        units = [torch.where(valid, _units(weights * part, bound), 0) for part in (clipped, bound - clipped)]
        places = torch.bucketize((targets - 1).clamp(min=0), stops, right=True)
        cells.index_add_(0, places.flatten(), torch.stack([each.flatten() for each in units], dim=1))
        silent += int((present & (lengths == 0)).sum())
    return (*(cells.double() / GRID * bound).flatten().tolist(), 0.0, bound * float(silent))


def _of_each(
    model: Model, parameters: Parameters, records: Records, *functions: Callable[[Tensor, Tensor], Tensor]
) -> list[Tensor]:
    """Functions of each public record's outputs and label, (n,) each, computed in passes of one shape."""
    results: list[list[Tensor]] = [[] for _ in functions]
    for outputs, batch in model.evaluated(parameters, records):
        for values, function in zip(results, functions, strict=True):
            values.append(batch.only(function(outputs, batch.records.labels)).cpu())
    return [torch.cat(each) if each else torch.zeros(0) for each in results]


def _units(values: Tensor, bound: float) -> Tensor:
    """Values in [0, bound] as whole parts of it, int64, rounded down.

    Their sum is exact: a record changes it by at most `bound`, in any order and for any number of records.
    """
    return (values.double() / bound * GRID).floor().clamp_(0.0, GRID).to(torch.int64)


def _clipped(errors: Tensor, bound: float) -> Tensor:
    return torch.nan_to_num(errors, nan=bound, posinf=bound).clamp_(min=0.0, max=bound)
