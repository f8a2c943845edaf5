"""Recomputes the ε of a certificate from the certificate alone.

    scrimp certificates recompute certificate.json [--public-key KEY]
    python recompute.py certificate.json [--public-key KEY]           this file alone, copied anywhere

It imports nothing of the service that issued the certificate: only the standard library, and `cryptography` if
`--public-key` is given. ε is recomputed by the client's own accountant (scrimp/privacy_loss.py, which needs numpy where
batches are sampled), and of this file alone by dp_accounting, the library that the service prices with. The key (base64
of the raw Ed25519 key, or a file with it) must come from the owner, not from the certificate. The file is a
certificate, or its in-toto statement in a DSSE envelope. It checks:

1. with --public-key, that this key signed the canonical JSON of the certificate, or the envelope's bytes;
2. that the printed event tree matches the printed mechanism, and so do σ, q, T, C and δ;
3. that the printed ε is not below the mechanism's ε, nor any figure of the printed profile.

Exit status: 0 if all hold, 1 if one does not, 2 if the file cannot be read, or if no key was given. A holder of the
file needs nothing else. They trust the accountant's mathematics and, through the signature, that the printed mechanism
was run.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import json
import math
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from fractions import Fraction
from functools import reduce
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

Json = Mapping[str, Any]

DEFAULT_GRID = 1e-4
ROUNDING = 1e-6  # absolute, on ε
PROFILE_TOLERANCE = 1e-4  # of a profile's figures, absolute up to 1: two grids' rounding
MOST_RUNS = 100  # of a selection
# Orders of Rényi divergences: the service's.
RENYI_ORDERS = (*(1.0 + x / 10.0 for x in range(1, 100)), *map(float, range(11, 64)), 128.0, 256.0, 512.0, 1024.0)
LARGEST_COUNT, LARGEST_RECORDS = 10**15, 10**10  # of events, and of units in a truncated sample
TYPES = (
    "application/vnd.in-toto+json",
    "https://in-toto.io/Statement/v1",
    "https://scrimp.example.org/privacy-certificate/v1",
)  # of an envelope's payload, of the statement, and of what it says


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Recompute the ε of a certificate from the certificate alone.")
    parser.add_argument("file", type=Path, help="the certificate, as the service returned it")
    parser.add_argument("--public-key", help="Ed25519 key to check the signature with: base64, or a file with it")
    options = parser.parse_args(arguments)
    try:
        document = json.loads(options.file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        print(f"cannot read {options.file} as a certificate: {error!r}", file=sys.stderr)
        return 2
    return recompute(document, options.public_key, str(options.file))


def recompute(document: Json, public_key: str | None, name: str) -> int:
    """Checks a signed certificate and prints the findings; returns the exit status.

    Args:
        name: where the document came from, for the message that it cannot be read.
    """
    try:
        faults = check_signature(document, public_key) + check_envelope(document, public_key)
        faults += check_body(body_of(document))
    except (OSError, ValueError, ArithmeticError, LookupError, TypeError, AttributeError, RecursionError) as error:
        print(f"cannot read {name} as a certificate: {error!r}", file=sys.stderr)
        return 2
    for fault in faults:
        print(f"FAULT      {fault}")
    sound = "the certificate holds" if public_key else "the numbers hold; signer not checked: give --public-key"
    print("result     " + ("the certificate does NOT hold" if faults else sound))
    return 1 if faults else 0 if public_key else 2


def body_of(document: Json) -> Json:
    """The certificate itself: the predicate of the statement, if the document is an envelope."""
    if "payload" in document:
        return dict(json.loads(base64.b64decode(document["payload"], validate=True))["predicate"])
    return dict(document["certificate"])


def signed_of(document: Json) -> tuple[bytes, list[str]]:
    """The signed bytes, and the signatures (base64) over them.

    A certificate's are its canonical JSON: sorted keys, no spaces, UTF-8. An envelope's are "DSSEv1", then length and
    text of the type and of the payload.
    """
    if "payload" in document:
        kind, payload = document["payloadType"].encode(), base64.b64decode(document["payload"], validate=True)
        return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload), [
            each["sig"] for each in document["signatures"]
        ]
    text = json.dumps(document["certificate"], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8"), [document["signature"]]


def check_envelope(document: Json, key: str | None) -> list[str]:
    """Checks that an envelope is about a certificate; within a document, about this one, and signed by the same key."""
    envelope = document if "payload" in document else document.get("envelope")
    if envelope is None:
        return []
    statement = json.loads(base64.b64decode(envelope["payload"], validate=True))
    kinds = envelope["payloadType"], statement["_type"], statement["predicateType"]
    if kinds != TYPES:
        return ["the envelope is not about a certificate"]
    if envelope is document:
        return []
    faults = [] if statement["predicate"] == document["certificate"] else ["the envelope holds another certificate"]
    return faults + check_signature(envelope, key)


def check_signature(document: Json, key: str | None) -> list[str]:
    """Checks that the key signed the document."""
    if key is None:
        print("signature  NOT CHECKED: without --public-key only the numbers are")
        return []
    if document.get("algorithm", "Ed25519") != "Ed25519":
        return [f"unknown signature algorithm {document['algorithm']!r}"]
    if not is_signed_by(document, _key_bytes(key)):
        print("signature  WRONG")
        return ["the signature is not the given key's over this certificate"]
    print("signature  right")
    return []


def is_signed_by(document: Json, key: bytes) -> bool:
    """Says if one of the document's signatures is this raw key's."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    signed, signatures = signed_of(document)
    verifier = Ed25519PublicKey.from_public_bytes(key)
    for signature in signatures:
        try:
            verifier.verify(base64.b64decode(signature, validate=True), signed)
        except (InvalidSignature, binascii.Error):
            continue
        return True
    return False


def check_body(body: Json) -> list[str]:
    """Checks the body and prints the findings; returns the faults."""
    print(f"certificate of {body['job']} on {body['dataset']['name']}")
    mechanism, study = body["mechanism"], body.get("study")
    if mechanism is None and study is None:
        print("privacy    none claimed: the data set is public")
        return [] if body["epsilon"] is None else ["an ε is printed, but no mechanism"]
    delta, claimed = body["epsilon"]["delta"], body["epsilon"]["value"]
    grid = body["accountant"]["grid"] or DEFAULT_GRID
    figures = {}
    for account, tree in body["events"].items():
        if tree is not None and tree["events"]:
            figures[account] = epsilon_of(tree, delta, grid)
            name = "exact Gaussian" if gaussian_sigma(tree) else f"PLD, grid {grid:g}"
            name = "Rényi, best order" if selected(tree, delta) is not None else name
            print(f"{account:<10} ε = {figures[account]:.6f} at δ = {delta:g} ({name}; {describe(tree)})")
    # Training part and hold-out are disjoint: the two compose in parallel, and the larger is the job's ε.
    recomputed = max(figures.values(), default=0.0)
    print(f"printed    ε = {claimed:.6f}; recomputed {recomputed:.6f}")
    steps = body["steps"]
    if steps["started"] < steps["planned"]:
        print(f"note       stopped after {steps['started']} of {steps['planned']} steps; ε is that of the whole plan")
    print(f"charged    train {body['charge']['train']}, holdout {body['charge']['holdout']} ({body['charge']['unit']})")
    # A grid's figure may differ between versions of the library by about the grid; an exact figure may not. A coarse
    # grid is the signer's choice, and buys no tolerance.
    exact = all(gaussian_sigma(tree) for tree in body["events"].values() if tree)
    tolerance = ROUNDING + (0.0 if exact else min(grid, DEFAULT_GRID))
    faults = check_agreement(body) if study is None else check_runs(body, tolerance)
    if not claimed >= recomputed - tolerance:
        faults.append(f"the printed ε = {claimed:.6f} is below the mechanism's {recomputed:.6f}")
    return faults + check_profile(body)


def check_profile(body: Json) -> list[str]:
    """The printed profile must not be below what the events lose: ε at each δ, what an attacker finds, his advantage.
    By the client's accountant; where this file was copied alone, ε is checked at each δ, and the rest is not."""
    profile, trees = body.get("profile"), [tree for tree in body["events"].values() if tree and tree["events"]]
    if profile is None:  # a certificate before version 3
        return []
    printed = {each["delta"]: each["epsilon"] for each in profile["epsilons"]}
    rates = {each["false_positive"]: each["true_positive"] for each in profile["attacks"]}
    try:
        from scrimp.privacy_loss import NO_LOSSES, Curve

        reason = NO_LOSSES if any(leaf.runs for tree in trees for leaf in leaves(tree)) else ""
    except ImportError as error:
        reason = str(error)
    if reason:
        print(f"profile    ε alone is checked: {reason}")
        figures = {
            delta: max((epsilon_of(tree, delta, DEFAULT_GRID) for tree in trees), default=0.0) for delta in printed
        }
        pairs = [(f"ε at δ = {delta:g}", printed[delta], figures[delta]) for delta in printed]
    else:
        curves = [Curve.of(tree, min(printed)) for tree in trees]
        values = zip(*(curve.epsilons(list(printed)) for curve in curves), strict=True) if curves else ()
        pairs = [
            (f"ε at δ = {delta:g}", printed[delta], max(each)) for delta, each in zip(printed, values, strict=False)
        ]
        for alpha, rate in rates.items():
            attack = max((curve.attack([alpha])[alpha] for curve in curves), default=alpha)
            pairs.append((f"attack at {alpha:g}", rate, attack))
        attack = max((curve.deltas([0.0])[0] for curve in curves), default=0.0)
        pairs.append(("advantage", profile["advantage"], attack))
    print(
        "profile    "
        + "; ".join(f"{name}: {'unknown' if stated is None else f'{stated:.4g}'}" for name, stated, _ in pairs)
    )
    return [
        f"the printed {name} of {stated:.6g} is below the mechanism's {attack:.6g}"
        for name, stated, attack in pairs
        if stated is not None and not stated >= attack - PROFILE_TOLERANCE * max(1.0, attack)
    ]


def check_runs(body: Json, tolerance: float) -> list[str]:
    """For a study: each trial's events must match its mechanism, the mechanism must match the study's printed values,
    and all trials together, as they ran, must be within the printed ε."""
    delta, claimed = body["epsilon"]["delta"], body["epsilon"]["value"]
    runs = body["study"]["runs"]
    faults = [f"run {run['job']}: {fault}" for run in runs for fault in check_agreement(_as_a_job(body, run))]
    faults += check_mean(body["study"])
    for count in ("planned", "started"):
        if sum(run["steps"][count] for run in runs) != body["steps"][count]:
            faults.append(f"the steps {count} are not those of the runs together")
    for account in ("train", "holdout"):
        tree = {"kind": "composed", "events": [run["events"][account] for run in runs if run["events"][account]]}
        if tree["events"]:
            ran = epsilon_of(tree, delta, body["accountant"]["grid"] or DEFAULT_GRID)
            print(f"{account:<10} ε = {ran:.6f} of the {len(runs)} runs as they ran")
            if not claimed >= ran - tolerance:
                faults.append(f"the printed ε = {claimed:.6f} is below {ran:.6f}, what the runs give together")
        drawn, charged = sum(run["charge"][account] for run in runs), body["charge"][account]
        if drawn > charged or (drawn < charged and body["status"] == "succeeded"):
            faults.append(f"the runs were charged {drawn} of {account}, and their study {charged}")
    return faults


def check_mean(study: Json) -> list[str]:
    """If one mean serves the study, the named trial released it, and no other trial did."""
    if "mean" not in study:  # each trial that centres released its own
        return []
    mean_runs, makers = [study["mean"]["run"]], [run["job"] for run in study["runs"] if run["mechanism"].get("mean")]
    print(f"mean       released once, by {', '.join(mean_runs)}, for the whole study")
    if makers == mean_runs:
        return []
    return [f"the study's mean is {mean_runs[0]}'s alone, but these runs release one: {', '.join(makers) or 'none'}"]


def _as_a_job(body: Json, run: Json) -> Json:
    """A trial with the study's printed values, in the form of a single job's certificate."""
    training = run["mechanism"]["training"]
    return {
        **{name: body[name] for name in ("sampling", "expected_batch_size", "epsilon", "unit", "relation")},
        **{name: run[name] for name in ("mechanism", "events", "gradient_noise_multiplier", "steps")},
        **{name: training[name] for name in ("noise_multiplier", "max_grad_norm")},
    }


def check_agreement(body: Json) -> list[str]:
    """The event tree and the single numbers must match the mechanism."""
    mechanism, training = body["mechanism"], body["mechanism"]["training"]
    pairs = {
        "events of train": (body["events"]["train"], expected_tree(mechanism, "train")),
        "events of holdout": (body["events"]["holdout"] or {"kind": "composed", "events": []},
                              expected_tree(mechanism, "holdout")),
        "sample rate": (body["sampling"]["sample_rate"], training["sample_rate"]),
        "sampling": (body["sampling"]["kind"], training["sampling"]),
        "noise multiplier": (body["noise_multiplier"], training["noise_multiplier"]),
        "max_grad_norm": (body["max_grad_norm"], training["max_grad_norm"]),
        "expected batch size": (body["expected_batch_size"], training["expected_batch_size"]),
        "steps planned": (body["steps"]["planned"], training["steps"]),
        "delta": (body["epsilon"]["delta"], mechanism["target_delta"]),
        "unit": (body["unit"], mechanism["unit"]),
        "relation": (body["relation"], mechanism["relation"]),
    }  # fmt: skip
    faults = [
        f"{name}: {printed} is printed, but the mechanism has {expected}"
        for name, (printed, expected) in pairs.items()
        if printed != expected
    ]
    if body["relation"] != "add_or_remove_one":
        faults.append(f"the relation {body['relation']!r} is not the one computed here")
    if training["sampling"] != "poisson" and training["sample_rate"] != 1.0:
        faults.append(f"{training['sampling']} at a sample rate below 1")
    if (training["sampling"] == "cyclic") != bool(training.get("cycle")):
        faults.append("a cycle is named where batches are not cyclic, or none where they are")
    return faults + check_truncation(training) + check_count(body, training)


def check_truncation(training: Json) -> list[str]:
    """The chance of a full batch must be taken at all slots, the most units that registration admits. A certificate
    does not state them, but there are at least as many as the N = L/q declared units: with fewer, the price would be
    too small."""
    cut = training.get("truncation")
    if not cut:
        return []
    if training["sampling"] != "poisson" or not 0.0 < training["sample_rate"] < 1.0:
        return ["a largest batch is named where batches are no Poisson samples"]
    smallest = round(training["expected_batch_size"] / training["sample_rate"])
    print(f"truncated  at most {cut['largest_batch']} of {cut['records']} units, at least {smallest}")
    if cut["records"] < smallest:
        return [f"batches are cut of {cut['records']} units, but {smallest} are declared"]
    return []


def check_count(body: Json, training: Json) -> list[str]:
    """If the clipping norm adapts, a step is two Gaussian mechanisms on one batch: σ⁻² = σ_g⁻² + σ_c⁻²."""
    if training.get("noise"):
        return check_correlated(body, training)
    adaptive = training.get("adaptive")
    source = (
        body if "gradient_noise_multiplier" in body else {"gradient_noise_multiplier": training["noise_multiplier"]}
    )
    sigma, own_sigma = Fraction(training["noise_multiplier"]), Fraction(source["gradient_noise_multiplier"])
    if adaptive is None:
        return (
            []
            if own_sigma == sigma
            else ["the gradient's noise differs from the step's, although nothing else is released"]
        )
    count = Fraction(adaptive["count_noise_multiplier"])
    print(
        f"count      noise multipliers {float(own_sigma):.6g} (gradient) and {float(count):.6g} (count): "
        f"{float(sigma):.6g}"
    )
    return [] if 1 / own_sigma**2 + 1 / count**2 <= 1 / sigma**2 else ["gradient and count release more than σ says"]


def check_correlated(body: Json, training: Json) -> list[str]:
    """Noise s (z_t − λ z_{t−1}): s/C must be at least σ √((1 + λᵇ) / ((1 − λ²)(1 − λᵇ))) for units that take part every
    b steps."""
    decay, sigma = Fraction(training["noise"]["decay"]), Fraction(training["noise_multiplier"])
    again = decay ** (training.get("cycle") or 1)
    smallest = sigma**2 * (1 + again) / ((1 - decay**2) * (1 - again))
    own_sigma = Fraction(body["gradient_noise_multiplier"])
    print(
        f"noise      correlated, decay {float(decay):g}: {float(own_sigma):.6g}, at least {float(smallest) ** 0.5:.6g}"
    )
    faults = [] if own_sigma**2 >= smallest else ["correlated noise has less fresh noise than σ needs"]
    if training["sampling"] == "poisson" or training.get("adaptive") or training.get("delayed"):
        faults.append("correlated noise has no price with Poisson batches, an adaptive norm or phases")
    return faults


def expected_tree(mechanism: Json, account: str) -> Json:
    """T sums over (sampled) records with noise σ, ⌈T/b⌉ where units take part every b steps; then releases with std
    sensitivity/μ, that is σ = 1/μ. Those before the first step name no account and no times: training part, once."""

    def sums(sample_rate: float, sigma: float, count: int, cut: Json | None = None) -> Json:
        event: Json = {"kind": "gaussian", "noise_multiplier": sigma}
        if cut:
            event = {**cut, "kind": "truncated_sampled", "sample_rate": sample_rate, "event": event}
        elif sample_rate < 1.0:
            event = {"kind": "poisson_sampled", "sample_rate": sample_rate, "event": event}
        return {"kind": "self_composed", "count": count, "event": event}

    def training_sums() -> Json:
        """If a step queries its batch twice, both sums together are one with σ/√2, rounded down."""
        rate, sigma, steps = training["sample_rate"], training["noise_multiplier"], training["steps"]
        steps = math.ceil(steps / (training.get("cycle") or 1))  # how often a unit takes part at most
        delayed, cut = training.get("delayed"), training.get("truncation")
        if not delayed or delayed["variant"] != "extra_query":
            return sums(rate, sigma, steps, cut)
        single = math.ceil(steps / delayed["delay_sgd"])
        if single == steps:
            return sums(rate, sigma, steps, cut)
        twice = sums(rate, math.nextafter(sigma / math.sqrt(2.0), 0.0), steps - single, cut)
        return {"kind": "composed", "events": [sums(rate, sigma, single, cut), twice]}

    training = mechanism["training"]
    trees = [training_sums()] if account == "train" else []
    first = (mechanism.get(name) for name in ("frequencies", "mean")) if account == "train" else ()
    trees += [sums(1.0, 1.0 / release["noise_mu"], 1) for release in first if release]
    scores = [r for r in mechanism["releases"] if r.get("account", "train") == account]
    trees += [sums(1.0, 1.0 / r["noise_mu"], r.get("times", 1)) for r in scores]
    selection = mechanism.get("selection")
    if selection and trees:
        run = {"kind": "composed", "events": trees}
        trees = [{"kind": "best_of", "weights": selection["weights"], "event": run}]
    return {"kind": "composed", "events": trees}


def epsilon_of(tree: Json, delta: float, grid: float) -> float:
    """Exact if every event is a plain Gaussian, otherwise by a pessimistic privacy loss distribution: that of the
    client, which needs numpy, or where this file was copied alone that of dp_accounting."""
    best = selected(tree, delta)
    if best is not None:
        return best
    with suppress(ImportError):
        from scrimp import privacy_loss

        return privacy_loss.epsilon(tree, delta, grid)
    import dp_accounting

    sigma = gaussian_sigma(tree)
    if sigma is not None:
        return float(dp_accounting.get_epsilon_gaussian(sigma, delta))
    if is_truncated(tree):
        return float(losses(tree, grid).get_epsilon_for_delta(delta))
    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=grid)
    accountant.compose(dp_event(tree))
    return float(accountant.get_epsilon(delta))


def is_truncated(tree: Json) -> bool:
    """Returns True if an event in the tree has truncated samples."""
    inner = tree.get("events") or ([tree["event"]] if "event" in tree else [])
    return bool(tree["kind"] == "truncated_sampled" or any(is_truncated(event) for event in inner))


def losses(tree: Json, grid: float) -> Any:
    """The privacy loss distribution of an event tree. A truncated sample mixes two Gaussians: a unit is added or, with
    the chance of a full batch, takes another's place, at twice the distance."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    def gaussian(sigma: float, rate: float = 1.0) -> Any:
        return pld.from_gaussian_mechanism(sigma, value_discretization_interval=grid, sampling_prob=rate)

    kind = tree["kind"]
    if kind == "composed":
        return reduce(lambda one, other: one.compose(other), [losses(event, grid) for event in tree["events"]])
    if kind == "self_composed":
        return losses(tree["event"], grid).self_compose(tree["count"])
    if kind == "gaussian":
        return gaussian(tree["noise_multiplier"])
    rate, sigma = tree["sample_rate"], tree["event"]["noise_multiplier"]
    if kind == "poisson_sampled":
        return gaussian(sigma, rate)
    full = chance_of_a_full_batch(tree["records"], tree["largest_batch"], rate)
    return gaussian(sigma / 2.0, rate).compute_mixture(gaussian(sigma, rate), full)


def chance_of_a_full_batch(records: int, largest_batch: int, rate: float) -> float:
    """P(Bin(N, q) ≥ B), summed term by term.

    >>> round(chance_of_a_full_batch(3, 2, 0.5), 12)
    0.5
    """
    if largest_batch > records:
        return 0.0
    if largest_batch == 0 or not 0.0 < rate < 1.0:  # no sampling: a fault of its own, see check_truncation
        return 1.0
    odds, upward = rate / (1.0 - rate), largest_batch > rate * records
    first = (
        largest_batch if upward else largest_batch - 1
    )  # away from the mean, where the terms fall; below it, the other draws
    ways = math.lgamma(records + 1) - math.lgamma(first + 1) - math.lgamma(records - first + 1)
    log_first = ways + first * math.log(rate) + (records - first) * math.log1p(-rate)
    total = term = 1.0  # relative to the first term
    for k in range(first, records) if upward else range(first, 0, -1):
        term *= (records - k) / (k + 1) * odds if upward else k / (records - k + 1) / odds
        total += term
        if term < 1e-18 * total:
            break
    chance = min(1.0, math.exp(log_first + math.log(total)))
    return chance if upward else 1.0 - chance


class Leaf(NamedTuple):
    """One noisy sum over a Poisson sample of rate q; q = 1 takes every unit.

    `full`: of a truncated sample, the chance of a full batch. `runs`: the weights of the best of K runs,
    each of this noise.
    """

    sample_rate: float
    noise_multiplier: float
    full: float = 0.0
    runs: tuple[int, ...] = ()

    @property
    def is_plain(self) -> bool:
        """True if nothing is sampled."""
        return self.sample_rate == 1.0 and self.full == 0.0 and not self.runs


def leaves(tree: Json) -> Counter[Leaf]:
    """How often each noisy sum is in an event tree, at least once. The order of composition changes no ε.

    Raises:
        ValueError: an event of an unknown kind, or with numbers that no mechanism has.
    """
    kind = tree["kind"]
    if kind == "composed":
        total: Counter[Leaf] = Counter()
        for event in tree["events"]:
            total.update(leaves(event))
        return total
    if kind == "self_composed":
        count, inner = _whole(tree, "count", LARGEST_COUNT), leaves(tree["event"])
        if count * inner.total() > LARGEST_COUNT:
            raise ValueError(f"a count of {count} events: at most {LARGEST_COUNT} can be composed")
        return Counter({leaf: count * times for leaf, times in inner.items() if count})
    if kind == "gaussian":
        return Counter([Leaf(1.0, _number(tree, "noise_multiplier", 1e-100, 1e100))])
    if kind == "best_of":
        return _best_of(tree)
    if kind not in ("poisson_sampled", "truncated_sampled") or tree["event"]["kind"] != "gaussian":
        raise ValueError(f"an event of unknown kind {kind!r}")
    sigma, rate = _number(tree["event"], "noise_multiplier", 1e-100, 1e100), _number(tree, "sample_rate", 1e-100, 1.0)
    if kind == "poisson_sampled":
        return Counter([Leaf(rate, sigma)])
    records, largest_batch = (_whole(tree, name, LARGEST_RECORDS) for name in ("records", "largest_batch"))
    return Counter([Leaf(rate, sigma, chance_of_a_full_batch(records, largest_batch, rate))])


def _best_of(tree: Json) -> Counter[Leaf]:
    """One leaf: the Gaussians of a run are together one."""
    weights = tree["weights"]
    if not 1 < len(weights) <= MOST_RUNS or not all(isinstance(each, int) and 0 <= each <= 2**53 for each in weights):
        raise ValueError("the weights of a selection must be whole numbers, one for each number of runs")
    sigma = gaussian_sigma(tree["event"])
    if sigma is None or weights[0] < 1:
        raise ValueError("the best of several runs has a price for plain Gaussians, and if one run is possible")
    return Counter([Leaf(1.0, sigma, runs=tuple(weights))])


def selected(tree: Json, delta: float) -> float | None:
    """ε of an event tree with the best of several runs; None if it has none. Beside it are plain Gaussians alone.

    By the same theorem as the service (Papernot & Steinke 2022, Lemma 7), from points of its supremum instead of cells:
    D_λ ≤ λμ²/2 + sup_q [λ log f′(q) − (λ−1) log f′(Φ(Φ⁻¹(q) − μ))]/(λ−1), f(x) = Σ w_k x^k / Σ w; then ε at δ at the
    best order, by Canonne, Kamath & Steinke 2020, Proposition 12.
    """
    counts = leaves(tree)
    if not any(leaf.runs for leaf in counts):
        return None
    if not all(leaf.runs or leaf.is_plain for leaf in counts):
        raise ValueError("nothing that is sampled is composed with the best of several runs")
    curves = {leaf: _log_slopes(leaf) for leaf in counts if leaf.runs}

    def epsilon(order: float) -> float:
        total = math.fsum(count * order / leaf.noise_multiplier**2 / 2.0 for leaf, count in counts.items())
        for leaf, pairs in curves.items():
            excess = max(order * high - (order - 1.0) * low for high, low in pairs)
            total += counts[leaf] * excess / (order - 1.0)
        return total + math.log1p(-1.0 / order) - (math.log(delta) + math.log(order)) / (order - 1.0)

    return max(0.0, min(epsilon(order) for order in RENYI_ORDERS))


def _log_slopes(leaf: Leaf) -> list[tuple[float, float]]:
    """log f′(q) and log f′ of the least q′, at points of q and at both its ends."""
    normal, mu, total = NormalDist(), 1.0 / leaf.noise_multiplier, sum(leaf.runs)

    def log_slope(at: float) -> float:
        value = 0.0
        for k in range(len(leaf.runs), 0, -1):
            value = value * at + k * leaf.runs[k - 1] / total
        return math.log(value)

    points = (12.0 * step / 600 for step in range(-600, 601))
    pairs = [(log_slope(normal.cdf(z)), log_slope(normal.cdf(z - mu))) for z in points]
    return [*pairs, (log_slope(0.0), log_slope(0.0)), (log_slope(1.0), log_slope(1.0))]


def _number(event: Json, name: str, low: float, high: float) -> float:
    value = event[name]
    if not (isinstance(value, int | float) and low < value <= high):
        raise ValueError(f"an event's {name} of {value!r}: it must be a number above {low:g}, at most {high:g}")
    return float(value)


def _whole(event: Json, name: str, largest: int) -> int:
    value = event[name]
    if not (isinstance(value, int) and 0 <= value <= largest):
        raise ValueError(f"an event's {name} of {value!r}: it must be a whole number from 0 to {largest}")
    return value


def gaussian_sigma(tree: Json) -> float | None:
    """σ of the single Gaussian that is equivalent to a composition of Gaussians, 1/√(Σ 1/σ²); None if anything is
    sampled."""
    precision = precision_of(tree)
    return None if precision is None or precision == 0.0 else 1.0 / math.sqrt(precision)


def precision_of(tree: Json) -> float | None:
    """Σ 1/σ² = μ² of a tree of Gaussians; None if anything is sampled. Raises as `leaves`."""
    counts = leaves(tree)
    if not all(leaf.is_plain for leaf in counts):
        return None
    return math.fsum(count * leaf.noise_multiplier**-2 for leaf, count in counts.items())


def dp_event(tree: Json) -> Any:
    """Converts an event tree to dp_accounting's events."""
    import dp_accounting as dp

    if tree["kind"] == "composed":
        return dp.ComposedDpEvent([dp_event(event) for event in tree["events"]])
    if tree["kind"] == "self_composed":
        return dp.SelfComposedDpEvent(dp_event(tree["event"]), tree["count"])
    if tree["kind"] == "gaussian":
        return dp.GaussianDpEvent(tree["noise_multiplier"])
    if tree["kind"] == "poisson_sampled":
        return dp.PoissonSampledDpEvent(tree["sample_rate"], dp_event(tree["event"]))
    raise ValueError(f"unknown event kind {tree['kind']!r}")


def describe(tree: Json) -> str:
    """`50 × Gaussian(26.4)`, `1953 × Poisson(0.01024) of Gaussian(1.86)`, joined by `+`."""
    if tree["kind"] == "composed":
        return " + ".join(describe(event) for event in tree["events"])
    if tree["kind"] == "self_composed":
        return f"{tree['count']} × {describe(tree['event'])}"
    if tree["kind"] == "gaussian":
        return f"Gaussian({tree['noise_multiplier']:.6g})"
    if tree["kind"] == "best_of":
        return f"the best of at most {len(tree['weights'])} × ({describe(tree['event'])})"
    if tree["kind"] == "truncated_sampled":
        batch_text = f"at most {tree['largest_batch']} of {tree['records']}"
        return f"Poisson({tree['sample_rate']:.6g}), {batch_text}, of {describe(tree['event'])}"
    return f"Poisson({tree['sample_rate']:.6g}) of {describe(tree['event'])}"


def _key_bytes(key: str) -> bytes:
    path = Path(key)
    text = path.read_text(encoding="ascii") if path.is_file() else key
    return base64.b64decode(text.strip(), validate=True)


if __name__ == "__main__":
    sys.exit(main())
