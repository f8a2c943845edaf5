"""What admission stores (mechanism, quote, study) is what version 1 wrote: it is read for ever.

It is the same to the byte but for the last digits of calibrated numbers: they depend on the kind of processor, by the
FFT of a loss distribution.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import ValidationError

from app.admission.facts import DatasetFacts
from app.admission.hold import new_job
from app.admission.price import price_one
from app.admission.request import Limits, Request
from app.catalogue.model_kinds import resolved
from app.hpo.stored_study import StoredStudy
from app.keys.service import Caller
from app.pricing.service import PricingService
from core.contracts.dataset_spec import DatasetSpec
from core.contracts.job_spec import JobSpec
from core.errors import InvalidRequest
from core.privacy.numerics import Arithmetic, Numerics
from scrimp import JobSpec as ClientSpec
from tests.factories import dataset_spec, slots_for
from tests.hpo.conftest import PlainPricing
from tests.jobs.stored_cases import CASES, job_of

# Members that admission writes since, by column.
SINCE = [
    ("spec", ', "processes": 1'),
    ("spec", ', "threads": "auto"'),
    ("spec", ', "shard": "none"'),
    ("spec", ', "fp32_precision": "ieee"'),
    ("spec", ', "averaging": null'),
    ("quote", ', "resolved": null'),
    ("quote", r', "reads": \[\{[^}]*\}\]'),
    ("quote", r', "planned_noise": \[[^\]]*\]'),
]
# Of Hugging Face models.
SINCE_FOR_TEXTS = [("spec", ', "chat": false'), ("spec", ', "image": null'), ("spec", ', "patches": null')]
# Of a search where a rule gives the rate.
SINCE_FOR_SEARCHES = [("quote", r'"A search is not expected to gain[^"]*"')]
OTHERWISE = {"scaling"}  # a study with a mean, which one trial releases since
CALIBRATED = re.compile(r"-?\d+\.\d+(?:e-?\d+)?|\b\d{6,}\b")  # fractions, and amounts in a filter's units
NUMERICS = re.compile(r', "numerics": \{[^}]*\}')  # a job runs in those of the release that admitted it, or not at all
ADVICE = re.compile(r"noise_mu = \S+ gives \\u00b1 [\d.]+")  # words of a warning, which now name what the job's ε pays
STORED = Path(__file__).with_name("stored_v1.json")


def stored_then(name: str) -> dict[str, str]:
    found: dict[str, str] = json.loads(STORED.read_text())[name]
    return found


def facts_of(changes: dict[str, Any]) -> DatasetFacts:
    spec = DatasetSpec.model_validate(dataset_spec(name="set", **changes))
    private = spec.privacy.sensitivity == "private"
    return DatasetFacts(
        id="ds_x",
        name=spec.name,
        spec=spec,
        records_train=8000,
        records_holdout=2000,
        features=2,
        outputs=2 if spec.task.kind == "classification" else 1,
        filter=spec.privacy.filter if private else None,
        order=8.0 if spec.privacy.filter == "rdp" and private else None,
        cap_delta=1e-5 if private else None,
        stated_slots=slots_for(8000, 2000, spec.privacy.max_records_per_user or 1) if private else None,
    )


def stored(name: str) -> dict[str, str]:
    """The columns of a job's row, as text: also the order of members is the same."""
    row = columns_of(JobSpec.model_validate(job_of(name)), facts_of(CASES[name][1]))
    if row["study"] is not None:
        row["study"]["seed"] = "drawn"
    columns = {column: json.dumps(row[column]) for column in ("spec", "mechanism", "quote", "study")}
    return columns | {"mechanisms of runs": json.dumps(mechanisms_of(row["study"]))}


def columns_of(spec: JobSpec, facts: DatasetFacts) -> dict[str, Any]:
    spec = spec.model_copy(update={"model": resolved(spec.model, facts.spec.task.kind)})
    priced = price_one(cast(PricingService, PlainPricing()), spec, facts, None)
    return vars(new_job(Request(Caller("key", "test", "admin"), spec, Limits()), priced, "once"))


def asked(spec: JobSpec) -> JobSpec:
    return Request.of(Caller("key", "test", "admin"), spec, Limits()).spec


def mechanisms_of(column: dict[str, Any] | None) -> list[dict[str, Any]]:
    """What the runs of a study store, made from what is stored with it."""
    if column is None:
        return []
    study = StoredStudy.read(column)
    runs = [study.mechanism(number, study.steps, 0.7) for number in range(len(study.runs))]
    return [run.model_dump(mode="json") for run in runs if run is not None]


@pytest.mark.parametrize("name", [name for name in CASES if name not in OTHERWISE])
def test_stored_documents_are_those_of_version_1(name: str) -> None:
    now = stored(name)
    # Version 1 left out what a job of two classes names since.
    now["spec"] = now["spec"].replace('"metrics": ["accuracy"]', '"metrics": null')
    of_kind = {"tokens": SINCE_FOR_TEXTS, "scaling, batches": SINCE_FOR_SEARCHES}
    for column, member in SINCE + of_kind.get(name, []):
        now[column], found = re.subn(member, "", now[column])
        assert found == 1
    then = stored_then(name)
    for quote in (now, then):
        quote["quote"], found = NUMERICS.subn("", quote["quote"])
        assert found == 1
        quote["quote"] = ADVICE.sub("", quote["quote"])
    for column in then.keys() | now.keys():
        assert CALIBRATED.sub("#", now[column]) == CALIBRATED.sub("#", then[column]), column
        numbers, known = ([float(each) for each in CALIBRATED.findall(text[column])] for text in (now, then))
        assert numbers == pytest.approx(known, rel=1e-9, abs=0.0), column


@pytest.mark.parametrize("name", CASES)
def test_a_stored_specification_is_read_for_ever(name: str) -> None:
    """Its strategy or its engine may be one that no request may name any more."""
    then = json.loads(stored_then(name)["spec"])
    for engine in {"bookkeeping", "opacus"} if then["clipping"] is not None else set():
        then["clipping"]["engine"] = engine
        assert JobSpec.model_validate(then).model_dump(mode="json")["clipping"] == then["clipping"]
    read = JobSpec.model_validate(then).model_dump(mode="json")
    assert {name: read[name] for name in then if name in ("dataset", "hpo", "privacy", "length", "evaluation")} == {
        name: then[name] for name in ("dataset", "hpo", "privacy", "length", "evaluation")
    }


RETIRED = ("random_k", "grid_oracle")


@pytest.mark.parametrize("name", CASES)
def test_a_request_may_name_what_is_offered_alone(name: str) -> None:
    then = json.loads(stored_then(name)["spec"])
    spec = JobSpec.model_validate(then)
    if spec.hpo is not None and spec.hpo.strategy in RETIRED:
        with pytest.raises(InvalidRequest, match="offered no more"):
            asked(spec)
    else:  # the client types and submits it again
        assert asked(spec) is spec and ClientSpec.model_validate(then).dataset == then["dataset"]
    if then["clipping"] is not None:
        then["clipping"]["engine"] = "opacus"
        with pytest.raises(InvalidRequest, match="engine"):
            asked(JobSpec.model_validate(then))
        with pytest.raises(ValidationError, match="engine"):
            ClientSpec.model_validate(then)


@pytest.mark.parametrize("name", CASES)
def test_the_runs_of_a_stored_study_stay_those_of_version_1(name: str) -> None:
    """A study that began before an upgrade goes on, and recomputes, as it was priced: with a mean for each run."""
    then = stored_then(name)
    assert mechanisms_of(json.loads(then["study"])) == json.loads(then["mechanisms of runs"])


def test_a_study_has_one_mean_since() -> None:
    then, now = (json.loads(each["mechanisms of runs"]) for each in (stored_then("scaling"), stored("scaling")))
    assert ["mean" in each and each["mean"] is not None for each in then] == [True] * len(then)
    assert [each.get("mean") is not None for each in now] == [True] + [False] * (len(now) - 1)


def test_a_quote_of_version_1_is_read_as_it_was_meant() -> None:
    quote = json.loads(stored_then(next(iter(CASES)))["quote"])
    numerics = Numerics.model_validate(quote["numerics"])
    assert (numerics.arithmetic, numerics.totals, numerics.group) == (Arithmetic.TORCH_TANH, "float64", 48)
    assert numerics.rows_per_step is None, "no release since runs it"
