"""Did you mean: errors name the member, value or column that was meant."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from app.web import strict_json
from app.web.problems import validation_errors
from app.web.suggest import ALIASES, members
from core.contracts.dataset_spec import DatasetSpec
from core.contracts.job_spec import JobSpec
from core.errors import InvalidRequest
from core.parts import inputs
from tests.factories import dataset_spec, job_spec

SGD = {"kind": "dp_sgd", "learning_rate": 1.0}
MEANT: list[tuple[dict[str, Any], str, str | None]] = [
    ({"privacy": {"epsilon": 1.0}}, "/privacy/epsilon", "target_epsilon"),
    ({"privacy": {"target_epsilon": 1.0, "delta": 1e-5}}, "/privacy/delta", "target_delta"),
    ({"optimizer": {"kind": "dp_sgd", "lr": 1.0}}, "/optimizer/lr", "learning_rate"),
    ({"optimizer": SGD | {"momentun": 0.9}}, "/optimizer/momentun", "momentum"),
    ({"optimizer": {"kind": "adam", "learning_rate": 1.0}}, "/optimizer", "dp_adam"),
    ({"model": {"kind": "logistic_regression"}}, "/model", "linear"),
    ({"model": {"kind": "linear", "init": "zero"}}, "/model/init", "zeros"),
    ({"sampling": {"kind": "poisson", "batch_size": 64}}, "/sampling/batch_size", "expected_batch_size"),
    ({"clipping": {"max_norm": 1.0}}, "/clipping/max_norm", "max_grad_norm"),
    ({"evaluation": {"on": "test"}}, "/evaluation/on", "holdout"),
    ({"hpo": {"space": {"lr": [0.1, 1.0]}}}, "/hpo/space/lr", "learning_rate"),
    ({"lenght": {"steps": 50}}, "/lenght", "length"),
    ({"model": "gam"}, "/model", '{"kind": "gam"}'),
    ({"sampling": "full"}, "/sampling", '{"kind": "full_batch"}'),
    ({"model": "zzz"}, "/model", None),
    ({"zzz": 1}, "/zzz", None),
    ({"optimizer": SGD | {"x" * 500: 1}}, "/optimizer/" + "x" * 500, None),
]


@pytest.mark.parametrize(("change", "pointer", "name"), MEANT, ids=lambda value: str(value)[:50])
def test_a_misspelt_job_is_told_the_right_name(change: dict[str, Any], pointer: str, name: str | None) -> None:
    body = job_spec("ds_x") | change
    with pytest.raises(ValidationError) as refused:
        JobSpec.model_validate(body)
    found = {each["pointer"]: each["detail"] for each in validation_errors(list(refused.value.errors()), body, JobSpec)}
    assert ("did you mean" in found[pointer]) == (name is not None)
    if name is not None:
        assert found[pointer].endswith(f": did you mean `{name}`?")


def test_a_misspelt_data_set_is_told_the_right_name() -> None:
    body = dataset_spec() | {"featurs": 1}
    with pytest.raises(ValidationError) as refused:
        DatasetSpec.model_validate(body)
    (found,) = validation_errors(list(refused.value.errors()), body, DatasetSpec)
    assert found["detail"].endswith("did you mean `features`?")


def test_every_alias_means_something() -> None:
    known = {*members(JobSpec, ()), *members(DatasetSpec, ())}
    text = str(JobSpec.model_json_schema()) + str(DatasetSpec.model_json_schema())
    for name, targets in ALIASES.items():
        assert any(target in known or f"'{target}'" in text for target in targets), name


def column_error(record: Any, names: list[str]) -> dict[str, str]:
    task, features = dataset_spec()["task"], {"kind": "columns", "columns": names}
    spec = DatasetSpec.model_validate(dataset_spec(task=task, features=features))
    with pytest.raises(InvalidRequest) as refused:
        inputs.checked([dict.fromkeys(names, 1.0), record], spec.task, spec.features, len(names))
    (found,) = refused.value.members["errors"]
    return dict(found)


def test_a_prediction_names_the_column_that_is_wrong() -> None:
    """The error listed 20 of 30 columns, and the wrong one was the 27th."""
    names = [f"column_{number}" for number in range(30)]
    record = dict.fromkeys(names, 1.0)
    misspelt = {("colunm_27" if name == "column_27" else name): 1.0 for name in names}
    assert column_error(misspelt, names) == {
        "pointer": "/records/1",
        "detail": "a record must have this data set's 30 columns (others are ignored): it lacks `column_27`; "
        "perhaps `colunm_27` must be called `column_27`",
    }
    assert column_error(record | {"column_28": "7O"}, names) == {
        "pointer": "/records/1/column_28",
        "detail": "column 'column_28' must be a number, finite in single precision, and is '7O'",
    }
    none = column_error({}, names)["detail"]
    assert none.endswith("it lacks `column_0`, `column_1`, `column_2`, `column_3`, `column_4` and 25 more")
    many = column_error({f"x{n}" * 40: 1 for n in range(9)} | {"x" * 99: "y" * 999}, names)["detail"]
    assert many == none and len(many) < 600
    assert len(column_error(record | {"column_3": "y" * 999}, names)["detail"]) < 200


FILES = [(b"PK\x03\x04 x", "npz"), (b"PAR1 x", "Parquet"), (b"\x93NUMPY x", "NumPy"), (b"\x1f\x8b x", "gzip")]


@pytest.mark.parametrize(("content", "name"), FILES)
def test_a_data_file_in_place_of_json_is_named(content: bytes, name: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        strict_json.check(content)
    (found,) = refused.value.members["errors"]
    assert name in found["detail"] and "not JSON" in found["detail"]
