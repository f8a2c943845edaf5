"""What a model's files say about its privacy: the same in model.json, in safetensors' metadata and in README.md.

All of it is planned or was released: the job's ε is the one that its certificate prints, and each score is a copy of a
released number.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import Field

from core.contracts.base import Document
from core.contracts.shape_function import ShapeFunction
from core.contracts.stored_documents import ReleasedScore
from core.privacy.releases import STDS, is_as_good
from worker.messages import Claim

COVERED = (
    "everything that the job released: these weights, the scores, and what its certificate lists beside them",
    "any use of these files: predictions, fine-tuning, copies and merges are post-processing",
)
NOT_COVERED = (
    "other jobs on the same data: the data set's ledger has their total, which its cap bounds",
    "what was declared public: counts, classes, column names, hold-outs and pretrained parts",
    "several records of one person, where the unit is one example",
    "how often the weights are right: a score's ± is the privacy noise alone, without the sampling error",
)
MOST_PLACES, MOST_COLUMNS = 40, 50  # of the tables of shape functions for people
RELATIONS = {"add_or_remove_one": "adding or removing one"}


class Privacy(Document):
    """The privacy of a model, as its files say it."""

    epsilon: float
    delta: float
    unit: str
    relation: str
    accountant: str
    certificate: str
    scores: tuple[ReleasedScore, ...]
    noise: str | None = Field(default=None, exclude_if=lambda noise: noise is None)
    covered: tuple[str, ...] = COVERED
    not_covered: tuple[str, ...] = NOT_COVERED

    @classmethod
    def of(cls, claim: Claim, scores: Iterable[ReleasedScore]) -> Privacy:
        """Builds it from a claim and the released scores."""
        epsilon = claim.epsilon
        return cls(
            epsilon=epsilon.value,
            delta=epsilon.delta,
            unit=epsilon.unit,
            relation=epsilon.relation,
            accountant=epsilon.accountant,
            certificate=claim.certificate,
            scores=tuple(scores),
            noise=claim.noise,
        )

    def metadata(self) -> dict[str, str]:
        """Its members for a safetensors header, which holds texts: each member's JSON."""
        return {f"privacy.{name}": _json(value) for name, value in self.model_dump(mode="json").items()}


def readme(
    kind: str,
    weights: str,
    privacy: Privacy | None,
    library: str | None = None,
    shapes: Sequence[ShapeFunction] = (),
) -> bytes:
    """The model card: Hugging Face's YAML front matter, then the same for people.

    Args:
        kind: the model's kind.
        weights: the name of its file of weights.
        privacy: None if no privacy is claimed.
        library: the library that loads the files, if one does by itself.
        shapes: what the model learned of each column of a table.
    """
    front = ["---"] + ([f"library_name: {library}"] if library else []) + ["tags:", "- scrimp", f"- {kind}"]
    if privacy is not None:
        front += ["- differential-privacy", "privacy:"]
        front += [f"  {name}: {_yaml(value)}" for name, value in privacy.model_dump(mode="json").items()]
    parts = ["\n".join([*front, "---"]), f"# A {kind} model, trained by Scrimp"]
    parts += _nothing_claimed() if privacy is None else _for_people(privacy)
    parts += _learned(shapes)
    parts.append(
        f"`model.json` describes the weights in `{weights}`; its member `usage` is Python code that uses them."
    )
    return ("\n\n".join(parts) + "\n").encode()


def _learned(shapes: Sequence[ShapeFunction]) -> list[str]:
    """A table for each column; of wide ones and of pairs model.json has the numbers."""
    single = [each for each in shapes if len(each.columns) == 1 and len(each.places[0]) <= MOST_PLACES]
    if not single:
        return []
    left = [" and ".join(each.columns) for each in shapes if each not in single]
    parts = ["## What it learned", "What each column adds to the output, less its mean over the places."]
    for shape in single[:MOST_COLUMNS]:
        head = f"| {_cell(shape.columns[0])} | " + " | ".join(map(_cell, shape.outputs)) + " |"
        rows = zip(shape.places[0], zip(*shape.values, strict=True), strict=True)
        lines = [f"| {_cell(place)} | " + " | ".join(f"{value:+.3g}" for value in row) + " |" for place, row in rows]
        parts.append("\n".join([head, "|---" * (len(shape.outputs) + 1) + "|", *lines]))
    left += [each.columns[0] for each in single[MOST_COLUMNS:]]
    if left:
        parts.append(f"`shape_functions` in `model.json` has also: {_cell(', '.join(left))}.")
    return parts


def _cell(text: str) -> str:
    """A text in a table of Markdown."""
    return text.replace("|", "\\|").replace("\n", " ")


def _nothing_claimed() -> list[str]:
    return ["**No privacy is claimed.** It was trained on data that are declared public, without noise."]


def _for_people(privacy: Privacy) -> list[str]:
    thing = "record" if privacy.unit == "example" else privacy.unit
    relation = RELATIONS.get(privacy.relation, privacy.relation)
    epsilon = f"{math.ceil(privacy.epsilon * 1e6) / 1e6:.10g}"  # never shown smaller
    claim = (
        f"**(ε = {epsilon}, δ = {privacy.delta:g})-differential privacy** with respect to {relation} {thing} "
        f"({privacy.accountant}). Certificate: `{privacy.certificate}`."
    )
    if privacy.noise is not None:
        claim += f" Correlated noise: {privacy.noise}."
    lines = [f"* {each.name} on the {each.on} part: {_score(each)}" for each in privacy.scores]
    lines += _baseline({each.name: each for each in privacy.scores})
    scores = "\n".join(["## Scores", "", *(lines or ["None was released."])])
    covered = "\n".join(["## Covered", "", *(f"* {each}" for each in privacy.covered)])
    not_covered = "\n".join(["## Not covered", "", *(f"* {each}" for each in privacy.not_covered)])
    return [claim, scores, covered, not_covered]


def _baseline(scores: Mapping[str, ReleasedScore]) -> list[str]:
    """What always answering the largest class scores, beside the model's accuracy."""
    positives, largest, accuracy = (scores.get(name) for name in ("positive_share", "largest_share", "accuracy"))
    share = positives or largest
    if share is None or accuracy is None:
        return []
    larger = share if largest else share.model_copy(update={"value": max(share.value, 1.0 - share.value)})
    line = f"* baseline: always answering the larger class has accuracy {_score(larger)}"
    gain, std = accuracy.value - larger.value, math.hypot(accuracy.std, larger.std)
    if gain > STDS * std:
        return [line]
    is_better = "is as good as" if is_as_good(gain, std) else "is not shown, through the noise, to be better than"
    return [f"{line}: **at a threshold of 0.5 this model {is_better} always answering the larger class**"]


def _score(score: ReleasedScore) -> str:
    return f"{score.value:.4g} ± {score.std:.2g}" if score.std > 0.0 else f"{score.value:.4g} (exact)"


def _yaml(value: Any) -> str:
    """A value as YAML: JSON, but for numbers such as 1e-05, which YAML 1.1 reads as a text without a point."""
    text = _json(value)
    return text.replace("e", ".0e") if isinstance(value, float) and "e" in text and "." not in text else text


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
