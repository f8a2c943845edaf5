"""A model's files: complete, hashed, and used as their own card says."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from pydantic import TypeAdapter
from safetensors import safe_open
from safetensors.numpy import load_file

from core.contracts.base import Epsilon
from core.contracts.dataset_spec import ClassificationTask, Columns, HashedText, RegressionTask, Tensor
from core.contracts.job_spec import CnnModel, MlpModel
from core.contracts.stored_documents import ReleasedScore
from core.contracts.table import TableFeatures
from worker.data.records import DenseRecords
from worker.messages import Claim
from worker.models.base import Model
from worker.models.card import Privacy, readme
from worker.models.linear import Linear
from worker.models.model_files import save_model
from worker.models.networks import Network

KEY = bytes(range(32))
TEXT = {"kind": "hashed_text", "column": "text", "buckets": 64, "ngrams": [1, 2]}
CASES = [
    (Linear(64, 2), ClassificationTask(label="y", classes=["bad", "good"]), HashedText.model_validate(TEXT)),
    (Linear(64, 3, bias=True), ClassificationTask(label="y", classes=[7, 8, 9]), HashedText.model_validate(TEXT)),
    (Linear(2, 1, bias=True), RegressionTask(label="y"), Columns(columns=["a", "b"])),
    (Linear(4, 2), ClassificationTask(label="y", classes=[0, 1]), Tensor(array="x")),
]
CONV = CnnModel(preset="conv2", input_scale=1 / 255)
COLOURS = CnnModel(preset="conv5", activation="relu", channels="last")
TABLE = TableFeatures.model_validate(
    {
        "columns": [
            {"name": "age", "kind": "number", "range": [-1, 1]},  # its example's features are all zero
            {"name": "dose", "kind": "number", "missing": "refuse"},
        ]
    }
)
DATED = TableFeatures.model_validate(
    {
        "columns": [
            {"name": "seen", "kind": "date", "range": ["2020-01-01", "2021-01-01"], "format": "%d.%m.%Y"},
            {"name": "left", "kind": "date", "range": ["2020-01-01", "2021-01-01"], "missing": "flag"},
            {"name": "ward", "kind": "category", "values": [3, 4], "unknown": "other"},
        ]
    }
)
LOADED = [
    (Linear(2, 1), RegressionTask(label="y"), TABLE),
    (Linear(6, 3), ClassificationTask(label="y", classes=[7, 8, 9]), DATED),
    (Network(2, 1, MlpModel(hidden=[5, 4])), RegressionTask(label="y"), Columns(columns=["a", "b"])),
    (Network(2, 1, MlpModel(hidden=[5, 4], dropout=0.5)), RegressionTask(label="y"), Columns(columns=["a", "b"])),
    (Network(784, 3, CONV), ClassificationTask(label="y", classes=[7, 8, 9]), Tensor(array="x")),
    (Network(3072, 2, COLOURS), ClassificationTask(label="y", classes=["a", "b"]), Tensor(array="x")),
]


@pytest.mark.parametrize(("model", "task", "features"), CASES + LOADED)
def test_the_files_hold_the_model_and_the_card_s_snippet_runs(
    model: Model, task: Any, features: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parameters = {name: torch.randn(value.shape, dtype=torch.float64) for name, value in model.init(KEY).items()}
    weights, card_file, readme_file = save_model(tmp_path, model, parameters, task, features)
    for artifact in (weights, card_file, readme_file):
        content = Path(artifact.path).read_bytes()
        assert artifact.sha256 == hashlib.sha256(content).hexdigest() and artifact.size_bytes == len(content)
        assert Path(artifact.path).is_absolute()
    tensors = load_file(weights.path)
    assert all(torch.equal(torch.from_numpy(tensors[name]), value.float()) for name, value in parameters.items())
    card = json.loads(Path(card_file.path).read_text())
    assert card["kind"] == (model.spec.kind if isinstance(model, Network) else "linear")
    assert card["tensors"] == {n: list(v.shape) for n, v in parameters.items()}
    assert card["files"] == {"model.safetensors": weights.sha256}
    assert TypeAdapter(type(task)).validate_python(card["task"]) == task
    assert type(features).model_validate(card["features"]) == features
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(card["usage"], {})  # noqa: S102 - our own snippet, as a user would run it
    said = ast.literal_eval(answer) if (answer := printed.getvalue().strip()).startswith("[") else answer
    numpy_alone = isinstance(model, Linear) and not isinstance(features, TableFeatures)
    assert isinstance(said, list) is not numpy_alone, "plain numpy for linear models of numbers and hashed texts alone"
    (said,) = said if isinstance(said, list) else [{"class": said, "value": said}]
    if isinstance(task, ClassificationTask):
        assert str(said["class"]) in {str(each) for each in task.classes}
    else:
        zeros = DenseRecords(torch.zeros(1, model.features), torch.zeros(1, dtype=torch.float64))
        assert float(said["value"]) == pytest.approx(float(model.forward(parameters, zeros)[0, 0]), rel=1e-5)


CLAIM = Claim(epsilon=Epsilon(value=0.99995, delta=1e-5, accountant="gdp"), certificate="job_1")
SCORE = ReleasedScore(name="accuracy", value=0.8246, std=0.004, on="holdout")


def front_matter(readme: str) -> dict[str, Any]:
    assert readme.startswith("---\n")
    found: dict[str, Any] = yaml.safe_load(readme.split("---\n")[1])
    return found


def test_every_file_says_the_same_about_its_privacy(tmp_path: Path) -> None:
    model, task, features = CASES[0]
    privacy = Privacy.of(CLAIM, [SCORE])
    files = {
        Path(each.path).name: Path(each.path)
        for each in save_model(tmp_path, model, model.init(), task, features, privacy=privacy)
    }
    wanted = privacy.model_dump(mode="json")
    assert {"epsilon", "delta", "unit", "relation", "certificate", "scores", "covered", "not_covered"} <= set(wanted)
    assert (wanted["epsilon"], wanted["delta"], wanted["certificate"]) == (0.99995, 1e-5, "job_1")
    assert json.loads(files["model.json"].read_text())["privacy"] == wanted
    with safe_open(files["model.safetensors"], framework="np") as opened:
        header = opened.metadata()
    assert {name: json.loads(header[f"privacy.{name}"]) for name in wanted} == wanted
    readme = files["README.md"].read_text()
    front = front_matter(readme)
    assert front["privacy"] == wanted and {"differential-privacy", "linear"} <= set(front["tags"])
    for part in ("ε = 0.99995", "δ = 1e-05", "one record", "job_1", "0.8246 ± 0.004", "## Not covered"):
        assert part in readme, part


@pytest.mark.parametrize(
    ("accuracy", "std", "as_good", "is_hidden"),
    [(0.8444, 0.008, True, False), (0.88, 0.008, False, False), (0.88, 0.04, False, True)],
)
def test_a_card_says_what_the_larger_class_alone_scores(
    accuracy: float, std: float, as_good: bool, is_hidden: bool
) -> None:
    """At the last, 0.04 ± 0.04 above, it said "as good as"."""
    scores = [SCORE.model_copy(update={"name": "accuracy", "value": accuracy, "std": std})]
    scores += [SCORE.model_copy(update={"name": "positive_share", "value": 0.161, "std": 0.004})]
    text = readme("linear", "model.safetensors", Privacy.of(CLAIM, scores)).decode()
    assert "baseline: always answering the larger class has accuracy 0.839 ± 0.004" in text
    assert ("this model is as good as always answering the larger class" in text) is as_good
    assert ("this model is not shown, through the noise, to be better than always" in text) is is_hidden


def test_a_model_of_public_data_claims_nothing(tmp_path: Path) -> None:
    model, task, features = CASES[0]
    save_model(tmp_path, model, model.init(), task, features)
    readme = (tmp_path / "README.md").read_text()
    assert "No privacy is claimed" in readme and "differential-privacy" not in front_matter(readme)["tags"]
    assert json.loads((tmp_path / "model.json").read_text())["privacy"] is None


def test_a_folder_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    model, task, features = CASES[0]
    with pytest.raises(OSError):
        save_model(tmp_path / "absent", model, model.init(), task, features)
