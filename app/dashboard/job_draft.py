"""A job in the making: its form, what a data set rules out, and where to begin."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from app.catalogue.model_kinds import CATALOGUE as MODELS
from app.catalogue.optimizer_kinds import CATALOGUE as OPTIMIZERS
from app.dashboard.draft import Draft, Layout, Section, sent_draft
from app.dashboard.fields import Control, SchemaForm
from app.datasets.schemas import DatasetView
from app.hpo.rates import Resolved
from core.contracts import kinds as job_kinds
from core.contracts.job_spec import JobSpec
from core.privacy.prices import Charge

FIRST_EPSILON = 1.0
OF_COLUMNS = re.compile(r"/(queries|where)/\d+/columns?")
GOAL = "The job"
# A person decides about the first section; admission settles the others, which the page folds.
LAYOUT = Layout(
    {
        GOAL: (
            *("dataset", "kind", "hpo", "queries", "where", "columns", "rows", "target", "bins", "method"),
            *("privacy", "name", "use"),
        ),
        "Blocks": ("blocks",),
        "Model": ("model",),
        "Optimizer": ("optimizer", "class_weights"),
        "Length and batches": ("length", "sampling", "clipping", "noise", "augmentation"),
        "Scores": ("evaluation",),
        "Audit": ("audit",),
        "Where it runs": ("runtime", "priority", "seed"),
    },
    frozenset(
        (
            *("/dataset", "/name", "/model/kind", "/optimizer/kind", "/optimizer/learning_rate", "/blocks"),
            *("/privacy/target_epsilon", "/length/steps", "/length/epochs", "/sampling/kind", "/evaluation"),
            *("/evaluation/on", "/evaluation/points", "/hpo/strategy", "/runtime/device", "/audit", "/kind"),
            *(f"/queries/0/{name}" for name in ("kind", "column", "columns", "edges", "bins", "q")),
            *(f"/where/0/{name}" for name in ("column", "in", "between")),
        )
    ),
)
GOALS = {
    "": "a good model at this ε",
    "linear_scaling": "tune: try settings with a part of ε, train the best",
    "random": "one random setting of a range",
    "auto": "tune only where no rule gives the rate",
}
KINDS = {
    "": "train a model",
    "statistics": "statistics: counts, means, quantiles …",
    "synthetic": "synthetic rows, much like the records",
}
MOST_CHOICES = 500  # of columns: more are typed
COMPARED = "To compare settings before you spend, open Compare below; to compare jobs, tick them in the list of jobs."


@cache
def form() -> SchemaForm:
    """The form of a JobSpec."""
    return SchemaForm(JobSpec.model_json_schema())


def sections(draft: Draft, datasets: list[DatasetView], name: str = "") -> list[Section]:
    """The form of a draft. Models that the chosen data set rules out are left out.

    Args:
        name: the job's where the draft has none.
    """
    dataset = next((each for each in datasets if each.id == draft.document.get("dataset")), None)

    def fitted(control: Control) -> Control:
        if control.pointer == "/dataset":
            options = tuple((each.id, each.name) for each in datasets)
            if control.value and dataset is None:
                options = ((control.value, control.value), *options)
            return replace(control, options=options or (("", "none"),))
        if control.pointer == "/name":
            return replace(control, placeholder=name)
        if control.pointer == "/model/kind":
            fits = [kind for kind in MODELS if dataset is None or kind == control.value or suits(kind, dataset)]
            chosen_here = tuple(each for each in control.options if not each[0])
            options = (*chosen_here, *((kind, kind) for kind in fits))
            return replace(control, options=options, hint=MODELS[control.value].summary if control.value else "")
        if control.pointer == "/hpo/strategy":
            options = tuple((value, GOALS.get(value, text)) for value, text in control.options)
            return replace(control, options=options, hint=COMPARED)
        if control.pointer == "/optimizer/kind" and control.value:
            return replace(control, hint=OPTIMIZERS[control.value].summary)
        return _of_statistics(control, dataset)

    return draft.sections(form(), _of_kind(draft.document.get("kind")), fitted)


def columns_of(dataset: DatasetView) -> list[str]:
    """The columns that statistics can read, by name; their rules are core.statistics.statistics_columns'."""
    declared = dataset.features.get("columns") or []
    column_names = [each["name"] if isinstance(each, dict) else each for each in declared]
    column_names += [each["name"] for each in dataset.features.get("texts") or []]
    label = dataset.task.get("label")
    return column_names if label is None else [*column_names, label]


def _of_statistics(control: Control, dataset: DatasetView | None) -> Control:
    """The kind of job in words, and columns to choose from."""
    if control.pointer == "/kind":
        left = tuple((value, KINDS.get(value, text)) for value, text in control.options if value != "training")
        return replace(control, label="what for", options=left, value=control.value.replace("training", ""))
    return _of_columns(control, columns_of(dataset)) if OF_COLUMNS.fullmatch(control.pointer) and dataset else control


def _of_columns(control: Control, names: list[str]) -> Control:
    """A choice of one column; where several are typed, a hint with their names."""
    if len(names) > MOST_CHOICES:
        return control
    if not control.pointer.endswith("/column"):
        return replace(control, hint=f"separated by commas, of {', '.join(names)}")
    options = () if not control.value or control.value in names else ((control.value, control.value),)
    empty = tuple(each for each in control.options if not each[0]) or (("", "choose a column"),)
    return replace(control, options=(*empty, *options, *((name, name) for name in names)), placeholder="")


def _foreign(values: object) -> frozenset[str]:
    """The members that no job of a document's kind has."""
    kind: job_kinds.JobKind = next((each for each in job_kinds.KINDS if each == values), "training")
    return frozenset(job_kinds.rule_of(kind).foreign)


def _of_kind(kind: object) -> Layout:
    """The sections of a kind of job, without members of other kinds."""
    foreign = _foreign(kind)
    left = {title: tuple(each for each in names if each not in foreign) for title, names in LAYOUT.sections.items()}
    return Layout({title: names for title, names in left.items() if names}, LAYOUT.asked)


def suits(kind: str, dataset: DatasetView) -> bool:
    """Returns True if a kind of model takes a data set's task and features, by the catalogue."""
    entry = MODELS[kind]
    return dataset.task["kind"] in entry.tasks and dataset.features["kind"] in entry.takes


def first_draft(dataset: DatasetView) -> Draft:
    """A job to begin with: the data set and ε, and a model where admission chooses none."""
    document: dict[str, Any] = {"dataset": dataset.id}
    if dataset.task["kind"] == "language_model":
        document["model"] = {"kind": "hf"}
    return Draft(form().pruned(_for_dataset(document, dataset)))


def sent_job(sent: Mapping[str, str], datasets: list[DatasetView]) -> Draft:
    """The draft that a sent form says, fitted to the data set if another one was chosen."""
    draft = sent_draft(sent, form())
    if sent.get("source") == "json" or draft.errors:
        return draft
    foreign = _foreign(draft.document.get("kind"))
    if foreign & set(draft.document):
        draft = Draft({name: each for name, each in draft.document.items() if name not in foreign})
    previous = sent_draft(dict(sent) | {"source": "json"}, form()).document.get("dataset")
    dataset = next((each for each in datasets if each.id == draft.document.get("dataset")), None)
    if dataset is None or dataset.id == previous:
        return draft
    try:
        return Draft(form().pruned(_for_dataset(draft.document, dataset)))
    except (AttributeError, KeyError, TypeError):  # the JSON has a shape that no data set fits
        return draft


def named_datasets(sent: Mapping[str, str]) -> set[str]:
    """The data sets that a sent form and its JSON name."""
    written = sent_draft(dict(sent) | {"source": "json"}, form()).document.get("dataset")
    return {each for each in (sent.get("/dataset"), written) if isinstance(each, str) and each}


def of_job(spec: dict[str, Any], resolved: Resolved | None) -> Draft:
    """A job's specification, to submit again or to change.

    Args:
        resolved: what was "auto", and is again.
    """
    document = form().pruned(json.loads(json.dumps(spec)))
    if document.get("clipping") is not None:
        document["clipping"].pop("engine", None)  # stored, and no setting of a request
    resolved = resolved or Resolved()
    for part in resolved.parts:
        document.pop("evaluation" if part.name == "scores" else part.name, None)
        if part.name == "device" and "runtime" in document:
            runtime = {name: each for name, each in document.pop("runtime").items() if name != "device"}
            document |= {"runtime": runtime} if runtime else {}
        if part.name == "class weights":
            document["class_weights"] = "balanced"
    if resolved.learning_rate is not None and "optimizer" in document:
        document["optimizer"].pop("learning_rate", None)
    if resolved.steps is not None:
        document["length"] = {"steps": "auto"}
    if resolved.max_grad_norm is not None:
        document["clipping"]["max_grad_norm"] = "auto"
    if "optimizer" not in document:  # "auto" is what such a job has without a word
        left = {"length": {"steps": "auto"}, "clipping": {"kind": "flat", "max_grad_norm": "auto"}}
        document = {name: each for name, each in document.items() if left.get(name) != each}
    return Draft(document)


def names_more(members: Iterable[str]) -> bool:
    """Returns True if a job says more than a goal: its other settings are then shown."""
    return bool(set(members) - set(LAYOUT.sections[GOAL]))


def name_of(text: str) -> str:
    """Names a JSON text. Browsers may change the ends of its lines."""
    return hashlib.sha256(text.replace("\r\n", "\n").strip().encode(errors="replace")).hexdigest()


def agreed_on(spec: JobSpec, charge: Charge, resolved: Resolved | None) -> str:
    """Names a specification, its price and what "auto" stands for: a click spends what was shown, or
    nothing."""
    numbers = None if resolved is None else resolved.model_dump(mode="json")
    text = json.dumps([spec.request(), charge.model_dump(mode="json"), numbers], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _for_dataset(document: dict[str, Any], dataset: DatasetView) -> dict[str, Any]:
    """Fits privacy, model and scored part to a data set: its sensitivity, task and hold-out are public."""
    fitted = dict(document)
    if dataset.privacy["sensitivity"] == "public":
        fitted |= {"privacy": None, "clipping": None}
    elif fitted.get("privacy") is None:
        cap = dataset.privacy["cap"]["epsilon"]
        fitted["privacy"] = {"target_epsilon": min(FIRST_EPSILON, cap / 4)}
    kind = (fitted.get("model") or {}).get("kind")
    if kind in MODELS and not suits(kind, dataset):
        fitted["model"] = {"kind": next((each for each in MODELS if suits(each, dataset)), "linear")}
    if fitted.get("evaluation"):
        part = {"on": "holdout"} if dataset.holdout is not None else {"on": "train", "noise_mu": 0.01}
        kept_scores = {name: each for name, each in fitted["evaluation"].items() if name not in ("on", "noise_mu")}
        fitted["evaluation"] = kept_scores | part
    return fitted
