"""The client's typed specifications say what the service's contracts say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

import scrimp
from core.contracts.dataset_spec import DatasetSpec
from core.contracts.job_spec import JobSpec
from core.contracts.slots import rounded as rounded_there
from scrimp import specs
from scrimp.declare import rounded
from scrimp.models import ReadingProgress
from scripts import write_answers, write_openapi, write_specs

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
JOB = specs.JobSpec(
    dataset="reviews",
    optimizer=specs.DpSgd(learning_rate=20.0, schedule=specs.CosineSchedule()),
    privacy=specs.JobPrivacy(target_epsilon=1.0),
    length=specs.Length(steps=50),
)


@pytest.mark.parametrize(("mine", "theirs"), [(specs.JobSpec, JobSpec), (specs.DatasetSpec, DatasetSpec)])
def test_client_and_service_have_one_schema(mine: type[BaseModel], theirs: type[BaseModel]) -> None:
    assert mine.model_json_schema() == theirs.model_json_schema(), "run `make openapi`"


def test_the_files_are_as_they_are_written() -> None:
    for name, text in write_specs.files().items():
        assert (write_specs.CLIENT / name).read_text() == text, "run `make openapi`"


def test_a_new_member_of_an_answer_reaches_the_client() -> None:
    """What a route shows is declared once: the files of a service with one member more are not those that are here."""
    document = json.loads((write_openapi.DOCS / "openapi.json").read_text())
    note = document["components"]["schemas"]["ErasureNote"]
    note["properties"]["reviewed_by"] = {"anyOf": [{"$ref": "#/components/schemas/KeyView"}, {"type": "null"}]}
    note["properties"]["uses"] = {"type": "integer", "default": 0}
    assert "    reviewed_by: Key | None = None\n    uses: int = 0\n" in write_answers.files(document)["models/data.py"]


def test_a_new_list_reaches_the_client() -> None:
    document = json.loads((write_openapi.DOCS / "openapi.json").read_text())
    planted = document["paths"]["/v1/datasets/{dataset_id}/grants"]["get"] | {"operationId": "list_reviewers"}
    document["paths"]["/v1/datasets/{dataset_id}/reviewers"] = {"get": planted}
    lists = write_answers.files(document)["lists.py"]
    assert "    def reviewers(self, dataset: str) -> Pages[Grant]:\n" in lists
    assert 'return self.pages(f"/v1/datasets/{in_path(dataset)}/reviewers", Grant)' in lists


def test_a_new_member_of_a_plain_call_reaches_the_client() -> None:
    document = json.loads((write_openapi.DOCS / "openapi.json").read_text())
    void = document["paths"]["/v1/charges/{charge_id}/void"]["post"]["requestBody"]["content"]["application/json"]
    members = document["components"]["schemas"][void["schema"]["$ref"].rpartition("/")[2]]["properties"]
    members["by"] = {"anyOf": [{"type": "string"}, {"type": "null"}]}
    lists = write_answers.files(document)["lists.py"]
    assert "def void(self, charge_id: str, reason: str, by: str | None = None) -> Charge:\n" in lists
    assert 'json={"reason": reason, "by": by}' in lists


def test_an_answer_of_a_newer_service_is_read() -> None:
    """Members, states and kinds may be added."""
    reading = {"bytes": 2, "bytes_read": 1, "speed": 3}
    progress = ReadingProgress.model_validate({"state": "frozen", "reading": reading, "since": "today"})
    assert progress.state == "frozen" and progress.reading is not None and progress.reading.bytes_read == 1
    assert progress.model_dump(exclude_unset=True) == {"state": "frozen", "reading": reading, "since": "today"}


def test_what_was_not_given_is_not_sent() -> None:
    """The service's defaults may differ from those of an older client."""
    optimizer = {"kind": "dp_sgd", "learning_rate": 20.0, "schedule": {"kind": "cosine"}}
    wanted = {"dataset": "reviews", "optimizer": optimizer, "privacy": {"target_epsilon": 1.0}, "length": {"steps": 50}}
    assert JOB.document() == wanted
    assert specs.document({"optimizer": JOB.optimizer, "more": [JOB.length, {"a": JOB.privacy}], "name": "x"}) == {
        "optimizer": optimizer,
        "more": [{"steps": 50}, {"a": {"target_epsilon": 1.0}}],
        "name": "x",
    }
    assert JobSpec.model_validate(JOB.document()).optimizer.kind == "dp_sgd"


def test_a_study_has_a_strategy() -> None:
    given = JOB.document() | {"hpo": {"strategy": "linear_scaling"}}
    study = scrimp.StudySpec(**given)
    assert study.hpo == specs.LinearScaling() and study.document() == given
    with pytest.raises(ValidationError, match="hpo"):
        scrimp.StudySpec(**JOB.document())


def test_a_wrong_member_is_named_before_anything_is_sent() -> None:
    with pytest.raises(ValidationError, match=r"(?s)optimizer\.dp_sgd.*DpSgd has no `learning_rat`: did you mean `l"):
        scrimp.JobSpec.model_validate(JOB.document() | {"optimizer": {"kind": "dp_sgd", "learning_rat": 1.0}})
    with pytest.raises(ValidationError, match="steps"):
        specs.Length(steps=0)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.json")), ids=lambda path: path.name)
def test_the_examples_are_specifications(path: Path) -> None:
    given = json.loads(path.read_text())
    kind: type[specs.Spec] = specs.DatasetSpec if "features" in given else specs.JobSpec
    read = kind.model_validate(given).document()
    assert kind.model_validate(read) == kind.model_validate(given) and read.keys() == given.keys()


def test_client_and_service_round_alike() -> None:
    assert [rounded(count) for count in (1, 64, 943, 24_873)] == [rounded_there(n) for n in (1, 64, 943, 24_873)]
