"""Event trees: what a mechanism does to one account, as plain JSON.

    {"kind": "composed", "events": [tree, …]}
    {"kind": "self_composed", "count": T, "event": tree}
    {"kind": "gaussian", "noise_multiplier": σ}                   noise std σ at sensitivity 1
    {"kind": "poisson_sampled", "sample_rate": q, "event": {"kind": "gaussian", …}}

The same shape as dp_accounting's `DpEvent`, but stored, signed and read without it. Every accountant here is a pure
function of such a tree: nothing is accumulated, so asking twice cannot change an answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from app.contracts.base import AccountName
from app.errors import PrivacyError
from app.privacy.mechanism import (
    MechanismConfig,
    NoisyFrequencies,
    NoisyMean,
    NoisySum,
    TrainingMechanism,
    of_two_queries,
)

Tree = dict[str, Any]


class Leaf(NamedTuple):
    """One noisy sum over a Poisson sample of rate q. q = 1 is the plain Gaussian mechanism."""

    sample_rate: float
    noise_multiplier: float


def composed(trees: Iterable[Tree]) -> Tree:
    return {"kind": "composed", "events": list(trees)}


def noisy_sums(sample_rate: float, noise_multiplier: float, count: int) -> Tree:
    """`count` noisy sums, each over a fresh Poisson sample of rate q; at q = 1 nothing is sampled."""
    event: Tree = {"kind": "gaussian", "noise_multiplier": noise_multiplier}
    if sample_rate < 1.0:
        event = {"kind": "poisson_sampled", "sample_rate": sample_rate, "event": event}
    return {"kind": "self_composed", "count": count, "event": event}


def gradient_sums(sample_rate: float, noise_multiplier: float, steps: int, double_steps: int = 0) -> Tree:
    """T-fold Gaussian(σ) for full batch, T-fold PoissonSampled(q, Gaussian(σ)) for Poisson sampling.

    Args:
        double_steps: of the T, those that query their batch twice. Two Gaussian queries with noise multiplier σ of one
            batch, the second chosen by releases of earlier steps, are one with σ/√2; the sample is drawn once.
    """
    if double_steps == 0:
        return noisy_sums(sample_rate, noise_multiplier, steps)
    single = [noisy_sums(sample_rate, noise_multiplier, steps - double_steps)] if steps > double_steps else []
    return composed([*single, noisy_sums(sample_rate, of_two_queries(noise_multiplier), double_steps)])


def training_tree(training: TrainingMechanism) -> Tree:
    """All steps of a training."""
    return gradient_sums(training.sample_rate, training.noise_multiplier, training.steps, training.double_steps)


def release_tree(release: NoisySum) -> Tree:
    """A sum in which one record weighs `sensitivity`, with std sensitivity/μ: Gaussian(1/μ), `times` times."""
    return noisy_sums(1.0, 1.0 / release.noise_mu, release.times)


def frequencies_tree(frequencies: NoisyFrequencies) -> Tree:
    """A histogram of sensitivity √T with std √T/μ: Gaussian(1/μ), once."""
    return noisy_sums(1.0, 1.0 / frequencies.noise_mu, 1)


def mean_tree(mean: NoisyMean) -> Tree:
    """A sum of sensitivity B with std B/μ: Gaussian(1/μ), once."""
    return noisy_sums(1.0, 1.0 / mean.noise_mu, 1)


def first_releases(frequencies: NoisyFrequencies | None, mean: NoisyMean | None) -> dict[str, Tree]:
    """What a job releases of its training part before the first step, by the name of its line on the bill."""
    found = {"frequencies": frequencies and frequencies_tree(frequencies), "mean": mean and mean_tree(mean)}
    return {what: tree for what, tree in found.items() if tree}


def event_tree(mechanism: MechanismConfig, account: AccountName) -> Tree:
    """All that `mechanism` does to the records of one account, as a `composed` tree.

    Training part and a split hold-out are disjoint, so each account has a tree of its own and the job's guarantee is
    the larger of the two ε's (parallel composition).

    Args:
        mechanism: the stored configuration of the job.
        account: `train` or `holdout`.

    Returns:
        A `composed` tree, with no events where the mechanism never touches the account. Public.
    """
    training = [training_tree(mechanism.training)] if account == "train" else []
    if account == "train":
        training += first_releases(mechanism.frequencies, mechanism.mean).values()
    return composed(training + [release_tree(r) for r in mechanism.releases if r.account == account])


def leaves(tree: Tree) -> Counter[Leaf]:
    """How often each distinct noisy sum occurs in `tree`.

    Composition is commutative for every accountant used here, so this multiset is all that an ε depends on.

    Raises:
        PrivacyError: the tree has an event of a kind that is not accounted here.
    """
    kind = tree.get("kind")
    if kind == "composed":
        return sum((leaves(event) for event in tree["events"]), Counter())
    if kind == "self_composed":
        inner = leaves(tree["event"])
        return Counter({leaf: count * tree["count"] for leaf, count in inner.items()})
    if kind == "gaussian":
        return Counter({Leaf(1.0, tree["noise_multiplier"]): 1})
    if kind == "poisson_sampled" and tree["event"].get("kind") == "gaussian":
        return Counter({Leaf(tree["sample_rate"], tree["event"]["noise_multiplier"]): 1})
    raise PrivacyError(f"no accountant for an event of kind {kind!r}")


def to_dp_event(tree: Tree) -> Any:
    """The `dp_accounting.DpEvent` of a tree.

    Raises:
        PrivacyError: the tree has an event of a kind that is not accounted here.
    """
    import dp_accounting as dp  # noqa: PLC0415 - slow to import: only pricing pays for it

    kind = tree.get("kind")
    if kind == "composed":
        return dp.ComposedDpEvent([to_dp_event(event) for event in tree["events"]])
    if kind == "self_composed":
        return dp.SelfComposedDpEvent(to_dp_event(tree["event"]), tree["count"])
    if kind == "gaussian":
        return dp.GaussianDpEvent(tree["noise_multiplier"])
    if kind == "poisson_sampled":
        return dp.PoissonSampledDpEvent(tree["sample_rate"], to_dp_event(tree["event"]))
    raise PrivacyError(f"no accountant for an event of kind {kind!r}")
