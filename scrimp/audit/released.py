"""Reads a job's releases as canaries' scores, and finds releases without a charge."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scrimp.audit.audited_kinds import USER_RECORDS, Kind
from scrimp.audit.planting import FILLERS
from scrimp.behaviour import releases_with
from scrimp.models import MetricPoint
from scrimp.recompute import precision_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]

TYPES = {"F32": "<f4", "F64": "<f8"}
Certificate = Mapping[str, Any]
RELEASED_BY = ("noisy_count", "noisy_sum")
NETWORK_TENSORS = ("1.weight", "1.bias", "3.weight", "3.bias")  # of an `mlp` with one hidden layer


def read_tensor(path: Path, name: str) -> Numbers:
    """One tensor of a safetensors file, flat.

    Raises:
        ValueError: the file has no such tensor of floats.
    """
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    if name not in header or header[name]["dtype"] not in TYPES:
        raise ValueError(f"{path.name} has no tensor {name!r} of floats")
    first, last = header[name]["data_offsets"]
    values = np.frombuffer(content[start + first : start + last], dtype=np.dtype(TYPES[header[name]["dtype"]]))
    return np.asarray(values, dtype=np.float64)


def output_at(features: Numbers, tensors: Mapping[str, Numbers]) -> float:
    """w₂ · max(0, W₁ x + b₁) + b₂, the output of a network with one hidden layer.

    Args:
        tensors: NETWORK_TENSORS, each flat.
    """
    first, first_bias, second, second_bias = (tensors[name] for name in NETWORK_TENSORS)
    hidden = np.maximum(first.reshape(len(first_bias), len(features)) @ features + first_bias, 0.0)
    return float(second @ hidden + second_bias[0])


def scores_of(kind: Kind, certificate: Certificate, metrics: Iterable[MetricPoint]) -> dict[int, list[float]]:
    """For each group the noisy sums that contain its canary, in canaries: about 1 if it is in, 0 if it is not.

    A score is a = Δ S/(S + M) with std Δ s √(a² + (Δ−a)²) / Δ(S + M), s the noise of either sum, so both numbers give S
    and M back. The canary is in S for losses, because its loss is above the bound, and in M for counts of right
    answers, because it is wrong. If S + M was clamped, the value is off; it is only a test's input.
    """
    (release,) = (each for each in certificate["mechanism"]["releases"] if each["what"] == kind.metric)
    bound = release["sensitivity"]
    noise = bound * release["records_per_unit"] / release["noise_mu"]
    values: dict[int, list[float]] = {}
    for point in metrics:
        name, _, group = point.name.partition(":g")
        if name != kind.metric or not group:
            continue
        share = point.value / bound
        total = noise * math.hypot(share, 1.0 - share) / point.std * bound
        inside = share * total - FILLERS * bound / 2.0 if name == "loss" else (1.0 - share) * total - FILLERS
        unit = bound * (USER_RECORDS if kind.layout == "users" else 1)
        values.setdefault(int(group), []).append(inside / unit)
    return values


def charged_scores_mu(kind: Kind, certificate: Certificate, metrics: Iterable[MetricPoint]) -> float:
    """μ of one score: the account's total charge in equal shares of the existing scores.

    A score without a charge leaves the others a smaller share, for which their noise is too small.
    """
    charged = precision_of(certificate["events"][kind.on] or {"kind": "composed", "events": []}) or 0.0
    released = sum(point.released_by in RELEASED_BY and point.on == kind.on for point in metrics)
    return math.sqrt(charged / max(1, released))


def uncharged(certificate: Certificate, metrics: Iterable[MetricPoint], posted: Mapping[str, int]) -> list[str]:
    """Finds what left a job and is not on its bill, in sentences. For jobs on private data, with a private hold-out.

    Args:
        metrics: all that the service shows of the job.
        posted: the charges in the ledger's entries.
    """
    problems: list[str] = []
    releases = certificate["mechanism"]["releases"]
    declared = {_metric(each): each for each in releases}
    seen = Counter((point.name, point.on) for point in metrics if point.released_by in RELEASED_BY)
    wholes = {(point.name, point.step) for point in metrics if point.released_by in RELEASED_BY}
    for (name, on), times in sorted(seen.items()):
        release = declared.get(name)
        if release is None or release["account"] != on:
            problems.append(
                f"{name} on {on} was released {times} times, and the certificate's mechanism has no such score"
            )
        elif times > release["times"]:
            problems.append(f"{name} on {on} was released {times} times, and charged for {release['times']}")
    for point in metrics:
        if point.released_by == "public_data":
            problems.append(f"{point.name} at step {point.step} is exact")
        elif point.released_by != "post_processing" or point.name in ("clipping_norm", "learning_rate"):
            continue
        elif not any((total, point.step) in wholes for total in releases_with(point.name)):
            problems.append(f"{point.name} at step {point.step} is part of no score")
    return problems + _undercharged(certificate, releases, posted)


def _undercharged(certificate: Certificate, releases: list[dict[str, Any]], posted: Mapping[str, int]) -> list[str]:
    """Finds scores that the event tree lacks, or a ledger's charge below the tree."""
    problems = []
    for account in ("train", "holdout"):
        tree = certificate["events"][account]
        precision = precision_of(tree) if tree is not None else 0.0
        if precision is None:  # sampled: its scores cannot be told apart in the tree
            continue
        scores = math.fsum(each["times"] * each["noise_mu"] ** 2 for each in releases if each["account"] == account)
        if scores > precision * (1.0 + 1e-9):
            problems.append(f"scores on {account} are μ² = {scores:g}, and its events hold {precision:g}")
        if certificate["filter"]["kind"] == "gdp" and posted[account] < precision * 1e12 * (1.0 - 1e-9):
            problems.append(f"the ledger charged {account} {posted[account]}, less than its events")
    if dict(posted) != {account: certificate["charge"][account] for account in ("train", "holdout")}:
        problems.append("the ledger's entry differs from the certificate's charge")
    return problems


def _metric(release: Mapping[str, Any]) -> str:
    return f"ndcg@{release['cutoff']}" if release["what"] == "ranking" else str(release["what"])
