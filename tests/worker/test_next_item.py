"""Recommenders of next items: exact clipping user by user, files that work, attempts from parts to the model."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter
from safetensors.numpy import load_file

from app.catalogue.model_kinds import layers
from core.contracts.dataset_spec import Interactions, NextItemTask
from core.contracts.job_spec import GruRecModel, LstmRecModel, TransformerRecModel
from core.parts.damage import DataDamagedError
from core.parts.id_rows import IdCoder
from core.parts.part_files import save_part
from core.parts.stored_records import Sequences, StoredPart
from core.privacy.mechanism import MechanismConfig
from tests.by_night import but
from tests.worker.support import Supervisor, key, run_thread, spec, start_of
from worker.clipping.build import build_engine
from worker.data.loaded_parts import load_stored, records_of
from worker.data.sequence_records import SequenceRecords
from worker.messages import Finished, Part, Shape
from worker.models.base import Parameters
from worker.models.model_files import save_model
from worker.models.next_item import NextItem

RecommenderKind = TransformerRecModel | GruRecModel | LstmRecModel
ITEMS, LENGTH = 11, 6
KEY = bytes.fromhex(key("init"))
SETTINGS: list[dict[str, Any]] = [
    {},
    {"tied": False},
    {"loss_positions": "last"},
    {"tied": False, "loss_positions": "last", "heads": 1, "blocks": 1},
    {"kind": "gru_rec"},
    {"kind": "lstm_rec", "layers": 2, "tied": False},
]


def model(dtype: torch.dtype = torch.float64, items: int = ITEMS, **changes: Any) -> NextItem:
    asked: dict[str, Any] = {"dim": 4, "max_length": LENGTH}
    asked |= changes if "kind" in changes else {"kind": "transformer_rec", "heads": 2, "blocks": 2} | changes
    return NextItem(items, TypeAdapter(RecommenderKind).validate_python(asked), dtype=dtype)


def part_of(n: int = 12, seed: int = 0) -> Sequences:
    """Of 0, 1, 2, … rows: none, one, fewer than the model takes, and more."""
    generator = np.random.default_rng(seed)
    lengths = np.arange(n) % (LENGTH + 4)
    return Sequences(generator.integers(0, ITEMS, lengths.sum(), dtype=np.int32), np.cumsum(lengths), ITEMS)


def records(n: int = 12, seed: int = 0) -> SequenceRecords:
    x = part_of(n, seed)
    return SequenceRecords(x.items, np.append(0, x.ends)[:-1], x.ends)


def parameters_of(m: NextItem) -> Parameters:
    return {name: value + 0.3 * torch.randn_like(value) for name, value in m.init(KEY).items()}


def test_windows_are_the_last_items_and_their_successors() -> None:
    some = SequenceRecords(np.arange(9, dtype=np.int32), np.array([0, 0, 1, 3]), np.array([0, 1, 3, 9]))
    ids, targets = some.windows(3)
    assert ids.tolist() == [[0, 0, 0], [0, 0, 0], [2, 0, 0], [6, 7, 8]]
    assert targets.tolist() == [[0, 0, 0], [0, 0, 0], [3, 0, 0], [7, 8, 9]]
    assert some.select(np.array([3, 2])).windows(1)[1].tolist() == [[9], [3]]
    pieces = list(some.passes(3, torch.float32))
    assert [(len(each.records), int(each.present.sum())) for each in pieces] == [(3, 3), (3, 1)]
    assert pieces[1].records.windows(2)[1].tolist() == [[8, 9], [0, 0], [0, 0]]
    assert not list(some.select(np.array([], dtype=np.int64)).passes(3, torch.float32))


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("rows", [48, 5])
def test_the_sum_is_that_of_users_clipped_one_at_a_time(settings: dict[str, Any], rows: int) -> None:
    torch.manual_seed(0)
    m, batch = replace(model(**settings), rows_per_pass=rows), records()
    parameters, job = parameters_of(m), spec(clipping={"max_grad_norm": 0.2})
    training = MechanismConfig.model_validate(start_of(job, SHAPE)["mechanism"]).training
    engine = build_engine(m, None, training.model_copy(update={"max_grad_norm": 0.2, "clipping": "flat"}))
    wanted = {name: torch.zeros_like(value) for name, value in parameters.items()}
    module = m.filled(parameters)
    for at in range(len(batch)):
        loss = m.record_losses(module, batch.select(np.array([at]))).sum()
        gradient = torch.autograd.grad(loss, list(module.parameters()))
        factor = 1.0 / max(1.0, float(torch.cat([each.flatten() for each in gradient]).norm()) / 0.2)
        wanted = {name: value + factor * g for (name, value), g in zip(wanted.items(), gradient, strict=True)}
    got = engine.private_sum(parameters, batch)
    assert list(got) == list(wanted)
    one, two = (torch.cat([each.flatten() for each in parts.values()]) for parts in (got, wanted))
    assert float((one - two).norm()) <= 1e-10 * float(two.norm())


@pytest.mark.parametrize("settings", SETTINGS)
def test_the_catalogue_knows_the_tensors(settings: dict[str, Any]) -> None:
    m = model(**settings)
    listed = {
        f"{layer.name}.{name}": shape
        for layer in layers(m.spec, ITEMS, 1, (0, ITEMS))
        for name, shape in layer.shapes.items()
    }
    assert listed == {name: list(value.shape) for name, value in m.init(KEY).items()}


def test_scores_are_mean_losses_whatever_the_batches() -> None:
    m, batch = model(torch.float32), records(40)
    parameters = parameters_of(m)
    outputs = m.forward(parameters, batch)
    each = torch.cat([m.forward(parameters, batch.select(np.array([at])))[0] for at in range(40)])
    assert outputs.dtype == torch.float64 and outputs.shape == (1, 40)
    torch.testing.assert_close(outputs[0], each, rtol=1e-5, atol=1e-6)
    assert torch.equal(m.losses(outputs, batch.labels), m.errors(outputs, batch.labels))
    assert m.forward(parameters, batch.select(np.array([], dtype=np.int64))).shape == (1, 0)


IDS: list[dict[str, Any]] = [
    {"kind": "numbered", "count": ITEMS, "first": 7},
    {"kind": "listed", "ids": [f"it'em {i}" for i in range(ITEMS)]},
    {"kind": "hashed", "buckets": ITEMS},
]


def features(items: dict[str, Any] = IDS[0]) -> dict[str, Any]:
    return {"kind": "interactions", "layout": "inter", "items": items}


CORRECTED: list[dict[str, Any]] = [{"re_attention": {"mode": mode}} for mode in ("logits", "paper")]


@pytest.mark.parametrize(
    ("settings", "items"), list(zip([*SETTINGS[:3], *SETTINGS[4:], *CORRECTED], [*IDS, *IDS, *IDS], strict=False))
)
def test_the_card_s_snippet_ranks_items(
    settings: dict[str, Any], items: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    m = model(torch.float32, **settings)
    if m.effective_errors:
        m.effective_errors.instantiate(20.0, 40, torch.linspace(0.1, 1.0, ITEMS), 0.01)
    parameters = parameters_of(m)
    declared = Interactions.model_validate(features(items))
    weights, card_file, _readme = save_model(tmp_path, m, parameters, NextItemTask(), declared)
    card = json.loads(Path(card_file.path).read_text())
    assert card["kind"] == m.spec.kind and card["model"]["max_length"] == LENGTH
    assert card["tensors"] == {name: list(value.shape) for name, value in load_file(weights.path).items()}
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(card["usage"], names)  # noqa: S102 - our own snippet, as a user would run it
    known = [str(7 + i) if items["kind"] == "numbered" else f"it'em {i}" for i in (3, 1, 4, 1, 5, 9, 2, 6)]
    column = IdCoder(declared.items)
    ids = torch.tensor([[1 + column.code(each)[0] for each in known]])[:, -LENGTH:]
    scores = m.filled(parameters).scores(ids)[0, -1, 1:].detach()
    (answer,) = names["model"].predict([known], top=10)
    assert [each["row"] for each in answer["items"]] == scores.topk(10).indices.tolist()
    assert [each["score"] for each in answer["items"]] == pytest.approx(scores.topk(10).values.tolist(), rel=1e-4)


SHAPE: dict[str, Any] = {"records_train": 40, "records_holdout": 12, "features": ITEMS, "outputs": 1, "sparse": True}


def stored(path: Path, n: int, **changes: Any) -> dict[str, str]:
    x = part_of(n, n)
    sequences = Sequences(**({"items": x.items, "ends": x.ends, "size": x.size} | changes))
    part = StoredPart(x=sequences, y=np.zeros(n), user=np.arange(n))
    return {"path": str(path), "sha256": save_part(path, part)}


ATTEMPTS = [
    (kind, private, sampling)
    for kind, private in (("transformer_rec", True), ("transformer_rec", False), ("gru_rec", True))
    for sampling in ("full_batch", "poisson")
]
BY_DAY = {
    ("transformer_rec", False, "full_batch"),
    ("transformer_rec", True, "poisson"),
    ("gru_rec", True, "full_batch"),
}


@pytest.mark.parametrize(("kind", "private", "sampled"), but(ATTEMPTS, BY_DAY.__contains__))
def test_an_attempt_from_stored_parts_to_the_model(tmp_path: Path, kind: str, private: bool, sampled: str) -> None:
    sampling = {"kind": sampled} | ({"expected_batch_size": 10} if sampled == "poisson" else {})
    asked = {"kind": kind, "dim": 4, "max_length": LENGTH, "dropout": 0.2}
    changes: dict[str, Any] = {} if private else {"privacy": None, "seed": 5}
    changes |= {"sampling": sampling, "length": {"steps": 20}, "model": asked}
    changes["evaluation"] = {"noise_mu": 1.0, "points": 2, "loss_bound": 4.0}
    parts = {name: stored(tmp_path / name, n) for name, n in (("train", 40), ("holdout", 12))}
    start = start_of(spec(**changes), SHAPE, public=not private, parts=parts, output_dir=tmp_path)
    if private:
        start["mechanism"]["unit"] = "user"
    supervisor = Supervisor(start | {"task": {"kind": "next_item"}, "features": features()})
    ended = run_thread(supervisor)
    assert ended.status == 0 and isinstance(ended.last, Finished)
    assert {name for name, _ in supervisor.metrics} == ({"loss"} if private else {"loss", "training_loss"})
    assert {step for name, step in supervisor.metrics if name == "loss"} == {10, 20}
    again = Supervisor(supervisor.start, segments=supervisor.segments, started=supervisor.started)
    assert run_thread(again).status == 0 and again.resalts == 0, "a replay is bit for bit the same"


def test_parts_that_do_not_fit(tmp_path: Path) -> None:
    shape = Shape.model_validate(SHAPE)
    assert len(records_of(load_stored(Part.model_validate(stored(tmp_path / "a", 40)), shape))) == 40
    ends = part_of(40, 40).ends
    for name, changes in {
        "an item beyond the list": {"items": part_of(40, 40).items + np.int32(1)},
        "another list": {"size": ITEMS + 1},
        "records that end before they begin": {"ends": np.append(ends[-1] + 1, ends[1:])},
    }.items():
        with pytest.raises(DataDamagedError):
            load_stored(Part.model_validate(stored(tmp_path / name, 40, **changes)), shape)
