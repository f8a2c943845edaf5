"""Predictions: what a released model says of inputs from outside, in a process of its own under a deadline."""

from __future__ import annotations

import hashlib
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from pydantic import TypeAdapter

from app.db.clock import boottime
from app.db.database import Database
from app.db.models import Prediction
from app.settings import Settings
from core.contracts.dataset_spec import Features, Task
from core.errors import InvalidRequest, TransientError
from core.ids import now
from core.parts.inputs import checked
from core.privacy.numerics import numerics_of
from core.privacy.two_class_answers import answer_logits
from tests.dashboard.scene import Scene
from tests.worker.support import key, spec
from worker.attempt.fork_server import START_S, ForkServer, Process
from worker.data.records import DenseRecords
from worker.messages import Part, Predict, Shape
from worker.models.build import build_model
from worker.models.linear import CLIP_RATIOS
from worker.models.model_files import save_model
from worker.predicting.predict import predicted
from worker.predicting.supervise import _asked, predict

KEY = bytes.fromhex(key("init"))
CLASSES = {"kind": "classification", "label": "y", "classes": ["no", "yes", "perhaps"]}
TWO_CLASSES = CLASSES | {"classes": ["no", "yes"]}
NUMBER = {"kind": "regression", "label": "y"}
COLUMNS = {"kind": "columns", "columns": ["a", "b"]}
ITEMS: dict[str, Any] = {"kind": "interactions", "layout": "tsv", "items": {"kind": "numbered", "count": 12}}
USERS = ITEMS | {"users": {"kind": "listed", "ids": ["ada", "bob"]}}
TABLE: dict[str, Any] = {
    "kind": "table",
    "columns": [
        {"name": "age", "kind": "number", "range": [0, 120], "missing": "flag"},
        {"name": "sex", "kind": "category", "values": ["f", "m"]},
    ],
}
# As an additive model reads it: 5 places of age, 2 of sex, 10 of the pair.
PAIRS: dict[str, Any] = {
    "kind": "table",
    "columns": [{"name": "age", "kind": "number", "range": [0, 120], "bins": 4, "missing": "own"}, TABLE["columns"][1]],
    "pairs": [["age", "sex"]],
}
RATIOS = (4.0, 9.0)
PIXELS = [0.5] * 784
TIME_S = 120.0  # a fork answers in a tenth; a busy machine takes longer
# model, task, features, width, records
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], int, list[Any]]] = {
    "linear": ({"kind": "linear"}, CLASSES, COLUMNS, 2, [{"a": 1, "b": -2.5}, {"b": 0.0, "a": 3}]),
    "table": ({"kind": "linear"}, CLASSES, TABLE, 4, [{"age": 30, "sex": "m"}, {"age": None, "sex": "f"}]),
    "pairs": ({"kind": "gam", "bins": 4}, CLASSES, PAIRS, 17, [{"age": 30, "sex": "m"}, {"age": 2, "sex": "f"}]),
    "clipped": ({"kind": "linear"}, TWO_CLASSES, TABLE, 4, [{"age": 30, "sex": "m"}, {"age": None, "sex": "f"}]),
    "range": ({"kind": "linear"}, NUMBER | {"range": [10, 30]}, COLUMNS, 2, [{"a": 1, "b": -2.5}, {"a": 9e9, "b": 3}]),
    "text": (
        {"kind": "linear", "bias": True},
        CLASSES,
        {"kind": "hashed_text", "column": "t", "buckets": 64},
        64,
        ["a fine film", ""],
    ),
    "mlp": ({"kind": "mlp", "hidden": [4]}, NUMBER, {"kind": "tensor", "array": "x"}, 3, [[1, 2, 3.5]] * 3),
    "relu": (
        {"kind": "mlp", "hidden": [4, 3], "activation": "relu", "input_scale": 0.5},
        CLASSES,
        COLUMNS,
        2,
        [{"a": 1, "b": -2.5}, {"b": 0.0, "a": 3}],
    ),
    "graph": (
        {"kind": "gcn", "hops": 2, "neighbours": 2, "hidden": [3]},
        CLASSES,
        {"kind": "nodes", "columns": ["a", "b"], "keep": 4, "tree": {"hops": 2, "neighbours": 2}},
        14,
        [
            {"a": 1, "b": 2, "neighbours": [{"a": 0, "b": "1", "neighbours": [{"a": 5, "b": 5}]}, {"a": 3, "b": 3}]},
            {"a": 1.0, "b": -2.5},
        ],
    ),
    "cnn": ({"kind": "cnn", "preset": "conv2"}, CLASSES, {"kind": "tensor", "array": "x"}, 784, [PIXELS, PIXELS]),
    "ratings": (
        {"kind": "matrix_factorization", "dim": 2},
        {"kind": "rating", "scale": [1, 5]},
        USERS,
        14,
        [{"user": "bob", "item": 3}, {"item": "12", "user": "ada"}],
    ),
    "transformer": (
        {"kind": "transformer_rec", "dim": 4, "max_length": 5},
        {"kind": "next_item"},
        ITEMS,
        12,
        [[3, "4"], [1] * 9],
    ),
    "gru": ({"kind": "gru_rec", "dim": 4, "max_length": 5}, {"kind": "next_item"}, ITEMS, 12, [[3], [12, 1, 7]]),
    "re-attention": (
        {"kind": "transformer_rec", "dim": 4, "max_length": 5, "re_attention": {"mode": "logits"}},
        {"kind": "next_item"},
        ITEMS,
        12,
        [[3, 4, 5]],
    ),
}


def message(tmp_path: Path, name: str, top: int = 2) -> tuple[Predict, Any]:
    """What a worker is asked, with a model of first weights; and that model."""
    model_spec, task, features, width, records = CASES[name]
    outputs = len(task["classes"]) if "classes" in task else 1
    shape = {"records_train": 40, "records_holdout": 0, "features": width, "outputs": outputs, "sparse": False}
    job = spec(model=model_spec, evaluation=None)
    asked: dict[str, Any] = {"spec": job, "task": task, "features": features, "shape": shape, "top": top}
    read_task, read = (TypeAdapter(of).validate_python(each) for of, each in ((Task, task), (Features, features)))
    made = Predict.model_validate(
        asked
        | {"records": checked(records, read_task, read, width), "weights": {"path": "/nowhere", "sha256": "0" * 64}}
    )
    sizes = Shape.model_validate(shape)
    numerics = numerics_of(made.spec, sizes.public_sizes(None), read)
    model: Any = build_model(made.spec.model, sizes, read_task, read, numerics.passes, numerics.rows_per_pass)
    if getattr(model, "effective_errors", None) is not None:
        model.effective_errors.instantiate(1.0, 40, torch.linspace(0.1, 1.0, 12), 0.01)
    if name == "clipped":
        model = replace(model, clip_ratios=RATIOS)
    torch.manual_seed(0)
    parameters = {each: value + 0.3 * torch.randn_like(value) for each, value in model.init(KEY).items()}
    weights, *_ = save_model(tmp_path, model, parameters, read_task, read)
    part = Part(path=weights.path, sha256=weights.sha256)
    return made.model_copy(update={"weights": part}), model


@pytest.mark.parametrize("name", CASES)
def test_answers_are_the_model_s(tmp_path: Path, name: str) -> None:
    asked, model = message(tmp_path, name)
    answers = predicted(asked)
    assert len(answers) == len(asked.records) and predicted(asked) == answers
    if name == "clipped":
        assert [set(answer["probabilities"]) for answer in answers] == [{"no", "yes"}] * 2
    elif name in ("linear", "table", "pairs", "text", "relu", "graph", "cnn"):
        for answer in answers:
            (best, share), *rest = answer["probabilities"].items()
            assert answer["class"] == best and share >= rest[0][1] > 0.0 and len(rest) == 1
    elif name in ("mlp", "ratings", "range"):
        assert all(isinstance(answer["value"], float) for answer in answers)
        assert name != "range" or (answers[1]["value"] in (10.0, 30.0) and 10.0 < answers[0]["value"] < 30.0)
        assert name != "ratings" or all(1.0 <= answer["value"] <= 5.0 for answer in answers)
    else:
        for answer in answers:
            one, two = answer["items"]
            assert one["score"] >= two["score"] and one["item"] == str(one["row"] + 1)
    if name == "linear":
        weights = {k: v.double() for k, v in safetensors.torch.load_file(asked.weights.path).items()}
        x = DenseRecords(torch.tensor([[1.0, -2.5], [3.0, 0.0]]), torch.zeros(2, dtype=torch.int64))
        wanted = torch.softmax(model.forward(weights, x), dim=0).mT
        assert [max(each["probabilities"].values()) for each in answers] == pytest.approx(wanted.amax(dim=1).tolist())


def test_answers_undo_the_clipping_of_training(tmp_path: Path) -> None:
    asked, model = message(tmp_path, "clipped")
    weights = {k: v.double() for k, v in safetensors.torch.load_file(asked.weights.path).items()}
    assert weights.pop(CLIP_RATIOS).tolist() == list(RATIOS)
    x = DenseRecords(torch.tensor([[-0.5, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0]]), torch.zeros(2, dtype=torch.int64))
    no, yes = model.forward(weights, x)
    wanted = 1.0 / (1.0 + np.exp(-answer_logits((yes - no).numpy(), RATIOS)))
    for answer, share, score in zip(predicted(asked), wanted, yes - no, strict=True):
        assert answer["probabilities"]["yes"] == pytest.approx(share) and share != pytest.approx(torch.sigmoid(score))
        assert answer["class"] == ("yes" if score > 0.0 else "no")  # weights of classes move the class alone


WRONG: list[tuple[str, Any]] = [
    ("linear", {"a": 1}),
    ("linear", {"a": 1, "b": "two"}),
    ("linear", {"a": 1, "b": "1_000"}),
    ("linear", {"a": 1, "B": 2}),
    ("linear", {"a": 1, "b": 1e39}),
    ("linear", {"a": True, "b": 1}),
    ("table", {"age": 30, "weight": 80}),
    ("table", {"Age": 30, "sex": "m"}),
    ("table", {"age": "3O", "sex": "m"}),
    ("mlp", [1, 2]),
    ("mlp", "1, 2, 3"),
    ("text", 3),
    ("text", "half of a letter: \ud800"),
    ("ratings", {"user": "eve", "item": 3}),
    ("ratings", ["ada", 3]),
    ("transformer", []),
    ("transformer", [13]),
    ("transformer", [[1]]),
    ("transformer", [1.5]),
    ("transformer", "1"),
]


@pytest.mark.parametrize(("name", "record"), WRONG)
def test_records_that_are_none_are_pointed_at(name: str, record: Any) -> None:
    _, task, features, width, records = CASES[name]
    read_task, read = (TypeAdapter(of).validate_python(each) for of, each in ((Task, task), (Features, features)))
    with pytest.raises(InvalidRequest) as refused:
        checked([records[0], record], read_task, read, width)
    assert refused.value.members["errors"][0]["pointer"].startswith("/records/1")


def test_a_process_of_its_own_answers(tmp_path: Path, fork_server: ForkServer) -> None:
    asked, _ = message(tmp_path, "transformer")
    assert _asked(asked, 60.0, fork_server) == (predicted(asked), None)
    Path(asked.weights.path).write_bytes(b"x")
    assert _asked(asked, 60.0, fork_server) == (None, "model-damaged")
    assert _asked(asked, 0.0, fork_server) == (None, "time")


def test_what_is_no_number_is_null(tmp_path: Path) -> None:
    asked, _ = message(tmp_path, "mlp")
    tensors = {name: value * torch.nan for name, value in safetensors.torch.load_file(asked.weights.path).items()}
    content = safetensors.torch.save(tensors)
    Path(asked.weights.path).write_bytes(content)
    weights = asked.weights.model_copy(update={"sha256": hashlib.sha256(content).hexdigest()})
    assert predicted(asked.model_copy(update={"weights": weights})) == [{"value": None}] * 3


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_fork_server_that_does_not_start_leaves_no_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.attempt.fork_server.START_S", 0.001)
    asked, _ = message(tmp_path, "linear")
    before = open_files()
    with pytest.raises(TransientError) as refused:
        _asked(asked, 60.0, ForkServer())
    assert open_files() == before, refused  # whose traceback keeps alive what was left open


class Slow(ForkServer):
    """Starts late: after the prediction's own time, by the clock that it moves."""

    late_s = 0.0

    def start(self, channel: int) -> Process:
        process = super().start(channel)
        self.late_s += 2.0 * TIME_S
        return process

    def monotonic(self) -> float:
        return time.monotonic() + self.late_s


def test_the_time_begins_when_the_process_has_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, _ = message(tmp_path, "linear")
    slow = Slow()
    monkeypatch.setattr("worker.predicting.supervise.time", slow)
    try:
        assert _asked(asked, TIME_S, slow) == (predicted(asked), None)
    finally:
        slow.close()


def test_a_lease_outlasts_a_slow_start(db: Database, settings: Settings) -> None:
    scene = Scene(db, settings)
    job = scene.succeeded(scene.dataset("incomes"), "finished", [0.8])
    moment = now()
    made = {"id": "pred_1", "job_id": job, "key_id": scene.owner.id, "status": "queued", "records": [[1.0, 2.0]]}
    times = {"created_at": moment, "expires_at": moment + timedelta(hours=1)}
    with db.write() as session:
        session.add(Prediction(**made, **times, top=1, attempt=0))

    class Failing(ForkServer):
        lease_s = 0.0

        def start(self, channel: int) -> Process:
            with db.read() as session:
                expires = session.get_one(Prediction, "pred_1").lease_until
            assert expires is not None
            self.lease_s = expires - boottime()
            raise TransientError("the attempt's process cannot be started")

    failing = Failing()
    predict(db, "pred_1", settings, failing)
    assert failing.lease_s > START_S + settings.prediction_time_s
    with db.read() as session:
        failure = session.get_one(Prediction, "pred_1").failure
    assert failure is not None and failure["code"] == "internal"
