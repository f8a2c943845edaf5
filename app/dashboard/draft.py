"""A job in the making: its document, the form that shows it, and what is wrong with it, at its place."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from pydantic import ValidationError

from app.catalogue.models import CATALOGUE as MODELS
from app.catalogue.optimizers import CATALOGUE as OPTIMIZERS
from app.catalogue.presets import PRESETS
from app.contracts.job_spec import JobSpec
from app.dashboard.fields import Control, SchemaForm
from app.datasets.schemas import DatasetView
from app.errors import InvalidRequest, ServiceError
from app.web import strict_json
from app.web.problems import validation_errors

RECIPE = "linear_probe"
FIRST_EPSILON = 1.0
# Every member of a JobSpec is in one section, in the order in which a person decides.
SECTIONS: dict[str, tuple[str, ...]] = {
    "Data set": ("dataset", "name"),
    "Model": ("model",),
    "Optimizer": ("optimizer",),
    "Privacy": ("privacy",),
    "Length and batches": ("length", "sampling", "clipping"),
    "Scores": ("evaluation",),
    "Study": ("hpo",),
    "Where it runs": ("runtime", "seed"),
}
# What is asked at once; the rest of a section is folded away.
ASKED = frozenset(
    (
        *("/dataset", "/name", "/model/kind", "/optimizer/kind", "/optimizer/learning_rate", "/privacy"),
        *("/privacy/target_epsilon", "/length/steps", "/length/epochs", "/sampling/kind", "/evaluation"),
        *("/evaluation/on", "/evaluation/points", "/hpo/strategy", "/runtime/device"),
    )
)


@dataclass(frozen=True)
class Section:
    """A part of the form: what is asked at once, and what is folded away."""

    title: str
    asked: tuple[Control, ...]
    more: tuple[Control, ...]


@dataclass(frozen=True)
class Problem:
    """Something to change. `at`: the control that shows it; None if only the JSON does."""

    pointer: str
    said: str
    at: Control | None


@dataclass
class Draft:
    """A job that somebody is composing.

    Attributes:
        document: the JobSpec as far as it is known.
        text: the document as JSON, or what was typed in its place if that is none.
        errors: what is wrong, by JSON pointer; "" holds what has no place of its own.
    """

    document: dict[str, Any]
    text: str = ""
    errors: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.text = self.text or json.dumps(self.document, indent=2, ensure_ascii=False)

    def spec(self) -> JobSpec | None:
        """The specification; None if it is not valid, with `errors` filled."""
        if self.errors:
            return None
        try:
            strict_json.check(self.text.encode())
            return JobSpec.model_validate_json(self.text)
        except ValidationError as error:
            found = validation_errors(list(error.errors()), self.document, JobSpec)
            self.refused(InvalidRequest("", found))
        except ServiceError as error:
            self.refused(error)
        return None

    def refused(self, error: ServiceError) -> None:
        """Notes why the service refused it, at the members that it names."""
        found = error.members.get("errors") or [{"pointer": "", "detail": error.message}]
        for each in found:
            said = self.errors.setdefault(each["pointer"], [])
            if each["detail"] not in said:
                said.append(each["detail"])

    def sections(self, datasets: list[DatasetView]) -> list[Section]:
        """The form. Options that the chosen data set rules out are left out."""
        found = []
        for title, members in SECTIONS.items():
            shown = [self._fitted(each, datasets) for each in form().show(self.document, members)]
            asked = tuple(each for each in shown if each.pointer in ASKED or each.required)
            found.append(Section(title, asked, tuple(each for each in shown if each not in asked)))
        return found

    def problems(self, sections: list[Section]) -> list[Problem]:
        """What is wrong, each with the control that shows it; what concerns an object stands at its first control."""
        controls = [each for section in sections for each in (*section.asked, *section.more)]
        found = []
        for pointer, said in self.errors.items():
            near = [each for each in controls if each.pointer == pointer]
            near += [each for each in controls if pointer and each.pointer.startswith(f"{pointer}/")]
            # A control shows several members (a pair, a list) whose own pointers are longer.
            near += [each for each in controls if pointer.startswith(f"{each.pointer}/")]
            found.append(Problem(pointer, "; ".join(said).replace("`", ""), near[0] if near else None))
        return found

    def _fitted(self, control: Control, datasets: list[DatasetView]) -> Control:
        chosen = next((each for each in datasets if each.id == self.document.get("dataset")), None)
        if control.pointer == "/dataset":
            options = tuple((each.id, each.name) for each in datasets)
            if control.value and chosen is None:
                options = ((control.value, control.value), *options)
            return _with(control, options=options or (("", "none"),))
        if control.pointer == "/model/kind":
            options = tuple(
                (kind, kind)
                for kind, _ in control.options
                if chosen is None or kind == control.value or suits(kind, chosen)
            )
            return _with(control, options=options, hint=MODELS[control.value].summary)
        if control.pointer == "/optimizer/kind":
            return _with(control, hint=OPTIMIZERS[control.value].summary)
        return control


@cache
def form() -> SchemaForm:
    """The form of a JobSpec."""
    return SchemaForm(JobSpec.model_json_schema())


def suits(kind: str, dataset: DatasetView) -> bool:
    """Returns True if a kind of model takes a data set's task and features, by the catalogue."""
    entry = MODELS[kind]
    return dataset.task["kind"] in entry.tasks and dataset.features["kind"] in entry.takes


def first_draft(dataset: DatasetView) -> Draft:
    """A job to begin with: the recipe where its model suits the data set, else the first model that does."""
    document: dict[str, Any] = {"dataset": dataset.id, **json.loads(json.dumps(PRESETS[RECIPE].spec))}
    if not suits("linear", dataset) or dataset.task["kind"] != "classification":
        kind = next((kind for kind in MODELS if suits(kind, dataset)), "linear")
        document |= {"model": {"kind": kind}, "hpo": None}
    return Draft(form().pruned(_for_dataset(document, dataset)))


def sent_draft(sent: Mapping[str, str], datasets: list[DatasetView]) -> Draft:
    """The draft that a sent form says; its JSON says it if `source` is `json`."""
    text = sent.get("json", "")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        document = None
        wrong = f"this is not JSON: {error}"
    else:
        wrong = "" if isinstance(document, dict) else "this is not a JSON object"
    if wrong:
        return Draft({}, text, {"": [wrong]})
    if sent.get("source") == "json":
        return Draft(document, text)
    before = document.get("dataset")
    try:
        document = form().read(sent, document)
    except (AttributeError, KeyError, TypeError):  # the JSON has a shape that no form shows
        return Draft(document, text)
    chosen = next((each for each in datasets if each.id == document.get("dataset")), None)
    if chosen is not None and chosen.id != before:
        document = form().pruned(_for_dataset(document, chosen))
    return Draft(document)


def of_job(spec: dict[str, Any], resolved: bool) -> Draft:
    """A job's specification, to submit again or to change.

    Args:
        resolved: its learning rate was "auto", and is again.
    """
    document = form().pruned(json.loads(json.dumps(spec)))
    if resolved:
        document["optimizer"].pop("learning_rate", None)
    return Draft(document)


def agreed_on(spec: JobSpec, charge: Mapping[str, Any]) -> str:
    """Names a specification and its price: a click spends what was shown, or nothing."""
    said = json.dumps([spec.model_dump(mode="json"), dict(charge)], sort_keys=True)
    return hashlib.sha256(said.encode()).hexdigest()


def _for_dataset(document: dict[str, Any], dataset: DatasetView) -> dict[str, Any]:
    """Fits privacy, model and scored part to a data set: its sensitivity, task and hold-out are public."""
    found = dict(document)
    if dataset.privacy["sensitivity"] == "public":
        found |= {"privacy": None, "clipping": None}
    elif found.get("privacy") is None:
        cap = dataset.privacy["cap"]["epsilon"]
        found["privacy"] = {"target_epsilon": min(FIRST_EPSILON, cap / 4)}
    kind = (found.get("model") or {"kind": "linear"}).get("kind")
    if kind in MODELS and not suits(kind, dataset):
        found["model"] = {"kind": next((each for each in MODELS if suits(each, dataset)), "linear")}
    if found.get("evaluation"):
        part = {"on": "holdout"} if dataset.holdout is not None else {"on": "train", "noise_mu": 0.01}
        kept = {name: each for name, each in found["evaluation"].items() if name not in ("on", "noise_mu")}
        found["evaluation"] = kept | part
    return found


def _with(control: Control, **changes: Any) -> Control:
    return Control(**(vars(control) | changes))
