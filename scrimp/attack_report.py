"""An owner's attack, with the rows, on a model that leaves: what SACRO-ML finds, and what was promised.

    rows ──▶ the model's probabilities ──▶ SACRO-ML, in an environment of its own ──▶ scores ──▶ rates and their bounds

The report is computed from the rows and nobody paid for it: it is not private. It lies outside of the egress's folder.

A threshold is chosen by the scores of absent rows alone: at most a share α of them lies above it. Then

    p⁻ ≤ true-positive rate ≤ p⁺,   false-positive rate ≤ q⁺        (Clopper-Pearson),

and p⁻ > bound(q⁺) is more than the certificate allows. The area under the curve has Hoeffding's interval for
two samples. All intervals hold together with 95 %, if rows are independent.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from scrimp import attack_run
from scrimp.audit.audit_statistics import lower_bound, upper_bound
from scrimp.egress import MANIFEST, MODEL, Examined
from scrimp.errors import ScrimpError
from scrimp.explain import FALSE_POSITIVES, loss_of
from scrimp.loading import LoadedModel, load_model
from scrimp.record_files import RecordFile

if TYPE_CHECKING:
    from scrimp.audit.audit_statistics import Numbers

WARNING = "NOT PRIVATE: computed from the rows themselves. For the data set's owner only; never release it."
HOW = "python3 -m venv sacro && sacro/bin/pip install sacroml==2.0.1, and give --python sacro/bin/python"
CAVEATS = (
    "The intervals are over rows of this one model: its noise is one draw, which all rows share, and rows of one "
    "person are not independent. What is above the bound is a reason to look; what is not above it proves nothing.",
    "Both files must be of the same kind of people: an attack that tells another year or clinic from this one finds "
    "that, not who took part.",
    "Who has this model has no such rows: the attacker here was taught with half of them.",
)
FEWEST = 40  # rows of each file: half of them are judged
LEVEL = 0.05 / (3 * len(FALSE_POSITIVES) + 2)  # three bounds of each rate, and two of the area
CELLS = 1000  # of the curve's area
ROUNDING = 1.0 + 1e-9  # the profile's own


@dataclass(frozen=True)
class Rate:
    """What the attack found at a share of wrong accusations.

    Attributes:
        false_positive: at most this share of the absent rows was accused.
        true_positive, between: the share of the rows that took part, and its interval.
        promised: the signed true-positive rate at this share.
        false_positive_at_most: what the share may be in truth.
        bound: what the certificate allows there.
    """

    false_positive: float
    true_positive: float
    between: tuple[float, float]
    promised: float | None
    false_positive_at_most: float
    bound: float

    @property
    def above(self) -> bool:
        """True if the attack found more than the certificate allows."""
        return self.between[0] > self.bound


@dataclass(frozen=True)
class Area:
    """The area under the attack's curve, its interval, and the largest one that the certificate allows."""

    auc: float
    between: tuple[float, float]
    bound: float

    @property
    def above(self) -> bool:
        """True if the attack found more than the certificate allows."""
        return self.between[0] > self.bound


def answers_on(model: LoadedModel, file: RecordFile) -> dict[str, list[Any]]:
    """The model's probabilities of each row, in the order of its classes, and if its class is right.

    Raises:
        ScrimpError: the model has no classes, a row does not fit it, or there are too few.
    """
    task = model.card["task"]
    if task["kind"] != "classification":
        raise ScrimpError(f"the attack reads probabilities of classes, and this model's task is {task['kind']}")
    classes = [str(each) for each in task["classes"]]
    labels = [str(row[task["label"]]) for row in file.kept([task["label"]])]
    strange = next((at for at, label in enumerate(labels) if label not in classes), None)
    if strange is not None:
        raise ScrimpError(f"{file.place(strange)}: {labels[strange]!r} is no class of the model")
    if len(labels) < FEWEST:
        raise ScrimpError(f"{file.name} has {len(labels)} rows, and the attack needs {FEWEST}")
    try:
        answers = model.predict(file.records(model.card["features"]), top=len(classes))
    except ValueError as error:
        raise ScrimpError(f"{file.name} does not fit the model: {error}") from None
    if any(len(answer["probabilities"]) != len(classes) for answer in answers):
        raise ScrimpError(f"the model gives no probabilities for a row of {file.name}: its outputs are not finite")
    return {
        "probabilities": [[answer["probabilities"][each] for each in classes] for answer in answers],
        "correct": [str(answer["class"]) == label for answer, label in zip(answers, labels, strict=True)],
    }


def attacked(python: Path, rows: Mapping[str, Any]) -> dict[str, Any]:
    """SACRO-ML's answer. Rows go through a folder that this user alone can read, and that is deleted.

    Args:
        python: the interpreter of its environment; it is told nothing of ours, keys included.
        rows: {"train": …, "holdout": …} of `answers_on`.

    Raises:
        ScrimpError: there is no such environment, or the attack failed.
    """
    with tempfile.TemporaryDirectory(prefix="scrimp-attack-") as name:
        folder = Path(name)
        (folder / "rows.json").write_text(json.dumps(rows), encoding="utf-8")
        words = [str(python.absolute()), "-I", str(Path(attack_run.__file__).resolve()), name]
        try:
            result = subprocess.run(
                words, cwd=name, env={"HOME": name, "PATH": os.defpath}, capture_output=True, text=True, check=False
            )
        except OSError as error:
            raise ScrimpError(f"{python}: {error.strerror}; make an environment: {HOW}") from None
        if result.returncode == attack_run.NO_SACROML:
            raise ScrimpError(f"{python} has no sacroml: {HOW}")
        if result.returncode:
            raise ScrimpError(f"the attack failed: {(result.stderr.strip().splitlines() or ['no word'])[-1]}")
        answer: dict[str, Any] = json.loads((folder / "answer.json").read_text(encoding="utf-8"))
        return answer


def bound_of(body: Mapping[str, Any]) -> Callable[[float], float]:
    """The largest true-positive rate that a certificate allows, as a function of the false-positive rate: rising.

    >>> loss = {"attacks": [{"false_positive": 0.1, "true_positive": 0.2}], "epsilons": [], "advantage": 0.3}
    >>> allowed = bound_of({"profile": loss})
    >>> allowed(0.05), allowed(0.1), allowed(0.2), allowed(0.9)
    (0.2, 0.2, 0.5, 1.0)
    """
    loss, profile = loss_of(body), body.get("profile") or {}
    advantage = float(profile.get("advantage", 1.0))
    mu, normal = profile.get("mu"), NormalDist()
    curve = [(delta, min(epsilon, 700.0)) for delta, epsilon in loss.epsilons.items() if epsilon is not None]

    def bound(share: float) -> float:
        rates = [true for false, true in loss.attacks.items() if false >= share]
        lines = [math.exp(epsilon) * share + delta for delta, epsilon in curve]
        values = [1.0 - math.exp(-epsilon) * (1.0 - delta - share) for delta, epsilon in curve]
        if mu is not None and 0.0 < share < 1.0:
            lines.append(normal.cdf(normal.inv_cdf(share) + mu) * ROUNDING)
        return min(1.0, share + advantage, *rates, *lines, *values)

    return bound


def rates_of(answer: Mapping[str, Any], body: Mapping[str, Any]) -> list[Rate]:
    """What the attack found, beside what the certificate allows."""
    present, absent = _scores(answer)
    bound, promised = bound_of(body), loss_of(body).attacks
    return [_rate(present, absent, share, bound, promised.get(share)) for share in sorted(FALSE_POSITIVES)]


def _rate(
    present: Numbers, absent: Numbers, share: float, bound: Callable[[float], float], promised: float | None
) -> Rate:
    threshold = np.sort(absent)[::-1][math.floor(share * len(absent))]
    right, wrong = int((present > threshold).sum()), int((absent > threshold).sum())
    ends = lower_bound(right, len(present), LEVEL), upper_bound(right, len(present), LEVEL)
    largest = upper_bound(wrong, len(absent), LEVEL)
    return Rate(share, right / len(present), ends, promised, largest, bound(largest))


def area_of(answer: Mapping[str, Any], body: Mapping[str, Any]) -> Area:
    """The area under the curve: how often a row that took part has a higher score than one that did not."""
    present, absent = _scores(answer)
    ordered = np.sort(absent)
    below = (np.searchsorted(ordered, present, "left") + np.searchsorted(ordered, present, "right")) / 2.0
    auc = float(below.mean() / len(absent))
    width = math.sqrt(math.log(1.0 / LEVEL) / (2.0 * min(len(present), len(absent))))
    bound = bound_of(body)
    # The bound rises: each cell's right end is its largest value.
    largest = min(1.0, sum(bound((at + 1) / CELLS) for at in range(CELLS)) / CELLS)
    return Area(auc, (max(0.0, auc - width), min(1.0, auc + width)), largest)


def _scores(answer: Mapping[str, Any]) -> tuple[Numbers, Numbers]:
    scores, members = np.array(answer["score"], dtype=np.float64), np.array(answer["member"], dtype=bool)
    if len(scores) != len(members) or members.all() or not members.any() or not np.isfinite(scores).all():
        raise ScrimpError("the attack's answer is not one of scores of rows of both files")
    return scores[members], scores[~members]


def report_of(folder: Path, examined: Examined, files: Mapping[str, Path], python: Path) -> dict[str, Any]:
    """Attacks the model of an egress.

    Args:
        folder, examined: the egress, and what `scrimp.egress.examine` says of it.
        files: "train": rows that took part; "holdout": rows that did not.
        python: of SACRO-ML's environment.

    Raises:
        ValueError: the egress does not hold.
        ScrimpError: it has no model, rows do not fit, or the attack failed.
    """
    if not examined.holds:
        raise ValueError("; ".join(examined.faults))
    digests = {name: _digest(path) for name, path in files.items()}
    if len(set(digests.values())) < len(digests):
        raise ScrimpError("both files are the same: give rows that took part, and rows that did not")
    body = json.loads((folder / "certificate.json").read_text(encoding="utf-8"))["certificate"]
    try:
        model = load_model(folder / MODEL)
    except ValueError as error:
        raise ScrimpError(str(error)) from None
    rows = {name: answers_on(model, RecordFile.read(path)) for name, path in files.items()}
    answer = attacked(python, rows)
    rates, area = rates_of(answer, body), area_of(answer, body)
    return {
        "warning": WARNING,
        "above": area.above or any(each.above for each in rates),
        "egress": examined.manifest["egress"],
        "job": examined.manifest["job"],
        "manifest_sha256": _digest(folder / MANIFEST),
        "signer_checked": examined.signer_checked,
        "model": model.card["kind"],
        "unit": body["unit"],
        "rows": {name: len(each["correct"]) for name, each in rows.items()},
        "files_sha256": digests,
        "right": {name: sum(each["correct"]) / len(each["correct"]) for name, each in rows.items()},
        "attack": {"name": "SACRO-ML worst case", "version": answer["sacroml"], "judged": len(answer["score"])},
        "rates": [asdict(each) | {"above": each.above} for each in rates],
        "area": asdict(area) | {"above": area.above, "of_repetitions": answer["auc"]},
        "caveats": list(CAVEATS),
    }


def write(report: Mapping[str, Any], folder: Path, egress: Path) -> str:
    """Writes report.json and report.md into a new folder that its user alone can read. Returns the first's SHA-256.

    Raises:
        ScrimpError: the folder is within the egress, or is there already.
    """
    require_apart(folder, egress)
    content = (json.dumps(report, indent=2) + "\n").encode()
    try:
        folder.mkdir(mode=0o700)
        for name, text in (("report.json", content), ("report.md", words_of(report).encode())):
            (folder / name).touch(mode=0o600, exist_ok=False)
            (folder / name).write_bytes(text)
    except OSError as error:
        raise ScrimpError(f"{folder}: {error.strerror}") from None
    return hashlib.sha256(content).hexdigest()


def require_apart(folder: Path, egress: Path) -> None:
    """Raises ScrimpError unless a folder is new and outside of an egress: what lies there is sent to others."""
    if folder.resolve().is_relative_to(egress.resolve()):
        raise ScrimpError(f"{folder} is within {egress}, which leaves: the report must not leave with it")
    if folder.exists() or folder.is_symlink():
        raise ScrimpError(f"{folder} is there already: name a new folder")


def words_of(report: Mapping[str, Any]) -> str:
    """The report in Markdown."""
    rows, area = report["rows"], report["area"]
    verdict = "**Above what the certificate allows: this would be a fault.**" if report["above"] else "Not above it."
    lines = [
        f"# {report['warning']}",
        "",
        f"{report['attack']['name']} {report['attack']['version']} on the {report['model']} of job {report['job']}, "
        f"egress {report['egress']} (manifest `{report['manifest_sha256']}`), with {rows['train']:,} rows that took "
        f"part and {rows['holdout']:,} that did not. {report['attack']['judged']:,} rows are judged. {verdict}",
        "",
        "| wrong accusations | found | interval | promised there | may be in truth | allowed at that |",
        "|---|---|---|---|---|---|",
        *map(_line, report["rates"]),
        "",
        f"Area under the curve: {area['auc']:.3f} ({_interval(area['between'])}); allowed: {area['bound']:.3f}.",
        "",
        *(f"* {each}" for each in report["caveats"]),
    ]
    return "\n".join(lines) + "\n"


def _line(rate: Mapping[str, Any]) -> str:
    promised = "unknown" if rate["promised"] is None else f"{rate['promised']:.4f}"
    cells = (
        f"{100 * rate['false_positive']:g} %",
        f"{rate['true_positive']:.4f}",
        _interval(rate["between"]),
        promised,
        f"{rate['false_positive_at_most']:.4f}",
        f"{rate['bound']:.4f}{' **above**' if rate['above'] else ''}",
    )
    return f"| {' | '.join(cells)} |"


def _interval(ends: Sequence[float]) -> str:
    return f"{ends[0]:.4f} to {ends[1]:.4f}"


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ScrimpError(f"{path}: {error.strerror}") from None
