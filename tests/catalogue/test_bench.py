"""`scrimp bench-extractors`: public data alone, the service's own probe, the folds that it did not see."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer

from app.storage import parts
from core.contracts.dataset_spec import DatasetSpec
from core.parts.stored_records import StoredPart
from scrimp_server import extractor_bench
from scrimp_server.commands.bench import bench_extractors
from scrimp_server.extractor_bench import BenchRefusedError, Public, bench, cross_validated, opened
from tests.catalogue.test_extractors import TEXT, models, text_api
from tests.datasets.conftest import Api, MakeApi, make_api
from tests.datasets.conftest import spec as declared

__all__ = ["make_api", "models", "text_api"]  # fixtures
CSV = "t,y\n" + "".join(f'"a {("bad", "good")[i % 2]} film{" s" * (i % 3)}",{i % 2}\n' for i in range(60))
PUBLIC: dict[str, Any] = {"privacy": {"sensitivity": "public"}, "features": TEXT}


def test_the_bench_ranks_extractors(
    text_api: Api, models: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert text_api.upload(declared("texts", **PUBLIC), CSV).status_code == 201
    monkeypatch.setenv("SCRIMP_MODELS_ROOT", str(models))
    bench_extractors("texts", epsilon=[8.0], folds=2, as_json=True, home=text_api.settings.home, records=0)
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["extractor"]: row["features"] for row in rows} == {"hashed-words": 32768, "tiny": 8}
    assert [each["epsilon"] for each in rows[0]["scores"]] == [None, 8.0]
    assert rows[0]["scores"][1]["mean"] >= rows[1]["scores"][1]["mean"]
    words = next(row for row in rows if row["extractor"] == "hashed-words")
    assert words["scores"][0]["mean"] == 1.0 and words["milliseconds"] is not None, "a word tells the class"
    with opened(text_api.db, text_api.settings, "texts", None) as public:
        again = next(bench(public, models, ["tiny"], [], 2, None))
    assert again.milliseconds is None, "the features of all records are kept beside the data set, for its jobs"
    monkeypatch.setenv("SCRIMP_MODELS_ROOT", str(models))
    bench_extractors("texts", extractor=["tiny"], epsilon=[], folds=2, home=text_api.settings.home, records=20)
    assert "Best without privacy: tiny" in capsys.readouterr().out


def test_a_private_data_set_is_refused_before_its_file_is_opened(text_api: Api, capsys: Any) -> None:
    made = text_api.upload(declared("texts", features=TEXT), CSV)
    shutil.rmtree(text_api.settings.storage_root / "datasets" / made.json()["id"])
    with pytest.raises(BenchRefusedError, match="is private"), opened(text_api.db, text_api.settings, "texts", None):
        pass
    with pytest.raises(typer.Exit):
        bench_extractors("texts", home=text_api.settings.home)
    assert "every number computed from it is charged" in capsys.readouterr().err


def test_data_in_a_bucket_are_measured(
    make_api: MakeApi, models: Path, s3_bucket: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Also on a machine that never read them, which keeps a copy and its features."""
    monkeypatch.setenv("SCRIMP_OBJECT_STORE", s3_bucket)
    monkeypatch.setenv("SCRIMP_MODELS_ROOT", str(models))
    api = make_api(models_root=models, object_store=s3_bucket)
    id_ = api.upload(declared("texts", **PUBLIC), CSV).json()["id"]
    for records in (20, 0):
        bench_extractors("texts", extractor=["tiny"], epsilon=[], folds=2, home=api.settings.home, records=records)
        assert "Best without privacy: tiny" in capsys.readouterr().out
    kept = parts.of(api.settings).features(id_)
    assert "cache" in kept.parts and list(kept.glob("*.arrow"))


@pytest.mark.parametrize("how", ["deleted", "damaged"])
def test_content_that_is_gone_is_a_clear_error(text_api: Api, capsys: Any, how: str) -> None:
    id_ = text_api.upload(declared("texts", **PUBLIC), CSV).json()["id"]
    (part,) = (text_api.settings.storage_root / "datasets" / id_).glob("train.arrow")
    part.unlink() if how == "deleted" else part.write_bytes(part.read_bytes().replace(b"film", b"firm"))
    with pytest.raises(typer.Exit):
        bench_extractors("texts", home=text_api.settings.home)
    said = capsys.readouterr().err
    assert said.startswith("scrimp bench-extractors: a stored part of the data set") and said.count("\n") == 1


def test_what_cannot_be_measured_is_refused(text_api: Api, models: Path) -> None:
    text_api.upload(declared("texts", **PUBLIC), CSV)
    text_api.upload(declared("numbers", privacy=PUBLIC["privacy"]))
    for name, why in (("absent", "no data set"), ("numbers", "an extractor reads nothing")):
        with pytest.raises(BenchRefusedError, match=why), opened(text_api.db, text_api.settings, name, None):
            pass
    with opened(text_api.db, text_api.settings, "texts", 30) as public:
        assert len(public.part.y) == 30
        with pytest.raises(BenchRefusedError, match="no extractor other"):
            next(bench(public, models, ["other"], [], 2, None))


def test_a_probe_is_judged_by_records_that_it_did_not_see(monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels that features do not tell are guessed no better than by chance."""
    random = np.random.default_rng(0)
    x = np.eye(40, dtype=np.float32)  # a probe that saw a record knows its label
    public = Public(
        DatasetSpec.model_validate(declared("t", **PUBLIC)), StoredPart(x, random.permutation(40) % 2), "", Path(), 2
    )
    seen: list[int] = []
    real = extractor_bench.run

    def run(data: Any, job: Any, **named: Any) -> Any:
        seen.append(len(data.train))
        assert not set(map(tuple, data.train.dense(torch.float64).tolist())) & set(
            map(tuple, data.holdout.dense(torch.float64).tolist())
        )
        return real(data, job, **named)

    monkeypatch.setattr(extractor_bench, "run", run)
    found = cross_validated(public, public.part, 1.0, None, 4)
    assert seen == [30] * 4 and 0.2 < found.mean < 0.8
