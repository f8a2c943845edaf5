"""Extractors through the API: listed, pinned at admission, refused where they do not fit."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.catalogue import extractors
from tests.datasets.conftest import Api, new_api
from tests.datasets.conftest import spec as declared
from tests.worker.extractor import write_extractor, write_former_extractor

CSV = "t,y\n" + "".join(f'"a film, number {i}",{i % 2}\n' for i in range(60))
TEXT = {"kind": "text", "column": "t"}


@pytest.fixture
def models(tmp_path: Path) -> Path:
    root = tmp_path / "models"
    write_extractor(root / "tiny")
    return root


@pytest.fixture
def text_api(tmp_path: Path, migrated_database: Path, models: Path) -> Any:
    made = new_api(tmp_path / "home", migrated_database, models_root=models)
    yield made
    made.close()


def post(api: Api, path: str, dataset: str, extractor: Any, **changes: Any) -> Any:
    body = {
        "dataset": dataset,
        "model": {"kind": "linear", "extractor": extractor},
        "optimizer": {"kind": "dp_sgd", "learning_rate": 1.0},
        "privacy": {"target_epsilon": 1.0},
        "length": {"steps": 10},
    }
    return api.client.post(path, json=body | changes, headers=api.headers("owner") | {"Idempotency-Key": "k"})


def test_a_job_pins_its_extractor(text_api: Api, models: Path) -> None:
    made = text_api.upload(declared("texts", features=TEXT), CSV)
    assert made.status_code == 201, made.text
    assert made.json()["shape"]["features"] == 1
    words, listed = text_api.get("/v1/extractors", "analyst").json()["items"]
    assert (words["name"], words["takes"], words["sha256"]) == ("hashed-words", "text", extractors.WORDS_SHA256)
    sha256 = write_extractor(models.parent / "copy")
    assert listed == {"name": "tiny", "kind": "transformers", "takes": "text", "features": 8, "sha256": sha256}
    quote = post(text_api, "/v1/quotes", "texts", {"name": "tiny"}).json()
    assert quote["model"]["parameters"] == 2 * 8
    job = post(text_api, "/v1/jobs", "texts", {"name": "tiny"})
    assert job.status_code == 201, job.text
    pinned = {"name": "tiny", "image": None, "words": None, "sha256": sha256, "features": 8, "length": 1.0}
    assert job.json()["spec"]["model"]["extractor"] == pinned
    shutil.rmtree(models / "tiny")
    again = post(text_api, "/v1/jobs", "texts", {"name": "tiny"})
    assert again.status_code == 201 and again.json()["id"] == job.json()["id"], "the same request is the same job"


def test_refusals(text_api: Api, models: Path) -> None:
    write_former_extractor(models / "former")
    text_api.upload(declared("texts", features=TEXT), CSV)
    text_api.upload(declared("numbers"))
    cases: list[tuple[str, Any, str]] = [
        ("texts", {"name": "tiny", "words": {}}, "/model/extractor"),
        ("texts", {"name": "hashed-words", "sha256": "0" * 64}, "/model/extractor/sha256"),
        ("texts", {"name": "hashed-words", "words": {"buckets": 64}, "features": 65}, "/model/extractor/features"),
        ("texts", {"name": "hashed-words", "words": {"ngrams": [2, 1]}}, "/model/extractor/words"),
        ("numbers", {"name": "hashed-words"}, "/model/extractor"),
        ("numbers", {"name": "tiny"}, "/model/extractor"),
        ("texts", {"name": "other"}, "/model/extractor/name"),
        ("texts", {"name": "../tiny"}, "/model/extractor/name"),
        ("texts", {"name": "former"}, "/model/extractor/name"),
        ("texts", {"name": "tiny", "sha256": "0" * 64}, "/model/extractor/sha256"),
        ("texts", {"name": "tiny", "features": 9}, "/model/extractor/features"),
    ]
    for dataset, extractor, pointer in cases:
        answer = post(text_api, "/v1/quotes", dataset, extractor)
        assert answer.status_code == 422, (extractor, answer.text)
        assert answer.json()["errors"][0]["pointer"] == pointer
    former = post(text_api, "/v1/quotes", "texts", {"name": "former"}).json()["errors"][0]["detail"]
    assert "releases before 2026-11-24 ran" in former and "add_extractor.py" in former
    mlp = post(text_api, "/v1/quotes", "texts", None, model={"kind": "mlp", "hidden": [2]})
    assert mlp.json()["errors"][0]["pointer"] == "/model/kind"
    hashed = text_api.upload(declared("hashed", features={"kind": "hashed_text", "column": "t"}), CSV)
    assert hashed.json()["type"] == "/problems/duplicate-content", "the same texts, whatever is made of them"


def test_images_are_declared(text_api: Api, models: Path) -> None:
    """An extractor of images takes arrays of numbers, and the job says how they are images."""
    (models / "lite0").mkdir()
    manifest = {"format": "scrimp-extractor/1", "kind": "efficientnet_lite0", "mean": 0.5, "std": 0.5}
    (models / "lite0" / "extractor.json").write_text(json.dumps(manifest | {"files": {"model.safetensors": "0" * 64}}))
    listed = {each["name"]: each for each in text_api.get("/v1/extractors", "analyst").json()["items"]}
    assert (listed["lite0"]["takes"], listed["lite0"]["features"]) == ("tensor", 1280)
    file = io.BytesIO()
    np.savez(file, x=np.random.default_rng(0).random((60, 4, 5), dtype=np.float32), y=np.arange(60) % 2)
    document = declared("images", format="npz", features={"kind": "tensor", "array": "x"})
    made = text_api.upload(document, file.getvalue())
    assert made.status_code == 201, made.text
    image = {"height": 4, "width": 5, "channels": 1}
    quote = post(text_api, "/v1/quotes", "images", {"name": "lite0", "image": image})
    assert quote.status_code == 200, quote.text
    assert quote.json()["model"]["parameters"] == 2 * 1280
    cases: list[tuple[Any, str]] = [
        ({"name": "lite0"}, "/model/extractor/image"),
        ({"name": "lite0", "image": image | {"channels": 3}}, "/model/extractor/image"),
        ({"name": "tiny", "image": image}, "/model/extractor/image"),
        ({"name": "tiny"}, "/model/extractor"),
    ]
    for extractor, pointer in cases:
        answer = post(text_api, "/v1/quotes", "images", extractor)
        assert answer.status_code == 422 and answer.json()["errors"][0]["pointer"] == pointer, answer.text


def test_nothing_outside_of_the_models_root_is_found(tmp_path: Path, models: Path) -> None:
    write_extractor(tmp_path / "outside")
    (models / "link").symlink_to(tmp_path / "outside")
    (models / "broken").mkdir()
    write_former_extractor(models / "former")
    (models / "broken" / "extractor.json").write_text('{"format": "scrimp-extractor/1"}')
    for name in ("link", "broken", "..", ".", "", "tiny/../tiny", "/etc", "a\x00b", str(tmp_path / "outside")):
        assert extractors.find(models, name) is None
    assert [each.name for each in extractors.every(models)] == ["tiny"]
    assert extractors.every(None) == [] and extractors.every(tmp_path / "absent") == []


def test_one_set_of_texts_serves_hashed_words_and_an_encoder(text_api: Api) -> None:
    """A second registration for other features would be a second budget."""
    text_api.upload(declared("texts", features=TEXT), CSV)
    encoded = post(text_api, "/v1/quotes", "texts", {"name": "tiny"}).json()
    plain = post(text_api, "/v1/quotes", "texts", None).json()
    few = post(text_api, "/v1/quotes", "texts", {"name": "hashed-words", "words": {"buckets": 64}}).json()
    assert [each["model"]["parameters"] for each in (encoded, plain, few)] == [2 * 8, 2 * 32768, 2 * 64]
    job = post(text_api, "/v1/jobs", "texts", None).json()["spec"]["model"]["extractor"]
    words = {"buckets": 32768, "binary": True, "ngrams": [1, 1]}
    assert job == {
        "name": "hashed-words",
        "image": None,
        "words": words,
        "sha256": extractors.WORDS_SHA256,
        "features": 32768,
        "length": 1.0,
    }
    centred = {"kind": "linear", "center": {"noise_mu": 0.1, "max_norm": 1.0}}
    for changes, pointer in (
        ({"model": centred}, "/model/center"),
        ({"clipping": {"max_grad_norm": 1.0, "engine": "opacus"}}, "/clipping/engine"),
    ):
        refused = post(text_api, "/v1/quotes", "texts", None, **changes)
        assert refused.json()["errors"][0]["pointer"] == pointer, refused.text
