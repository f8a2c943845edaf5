"""Models from folders at admission: pinned by their content, refused where they cannot be tuned, without torch."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from core.parts import model_folder
from core.parts.model_folder import UnfitModelError
from tests.datasets.conftest import Api, new_api
from tests.datasets.conftest import spec as declared

CSV = "t,y\n" + "".join(f'"w{i % 20} w{i * 7 % 20}",{i % 2}\n' for i in range(60))
OTHER = "t\n" + "".join(f'"w{i % 19} w{i * 5 % 20}"\n' for i in range(60))
TEXT = {"kind": "text", "column": "t"}


@pytest.fixture
def text_api(tmp_path: Path, migrated_database: Path, models_root: Path) -> Iterator[Api]:
    made = new_api(tmp_path / "home", migrated_database, models_root=models_root)
    assert made.upload(declared("labelled", features=TEXT), CSV).status_code == 201
    assert made.upload(declared("plain", features=TEXT, task={"kind": "language_model"}), OTHER).status_code == 201
    yield made
    made.close()


def post(api: Api, dataset: str, model: dict[str, Any], path: str = "/v1/quotes", **changes: Any) -> Any:
    body = {
        "dataset": dataset,
        "model": {"kind": "hf", "max_length": 8} | model,
        "optimizer": {"kind": "dp_adam", "learning_rate": 1e-3},
        "privacy": {"target_epsilon": 1.0},
        "length": {"steps": 10},
    }
    return api.client.post(path, json=body | changes, headers=api.headers("owner") | {"Idempotency-Key": "k"})


def test_a_job_pins_its_model(text_api: Api, models_root: Path) -> None:
    answer = post(text_api, "plain", {"path": "gpt2", "tuning": "lora", "lora": {"rank": 2}}, "/v1/jobs")
    assert answer.status_code == 201, answer.text
    pinned = answer.json()["spec"]["model"]
    folder = model_folder.read(models_root, "gpt2")
    assert pinned["sha256"] == folder.sha256 and pinned["architecture"] == "gpt2"
    assert pinned["trained"] == 2 * (2 * 8 + 24 * 2) == answer.json()["quote"]["model"]["parameters"]
    assert pinned["parameters"] == (32 + 12) * 8 + 2 * (216 + 72 + 32 + 288 + 264) + 16


@pytest.mark.parametrize(
    ("dataset", "model", "pointer", "says"),
    [
        ("labelled", {"path": "gpt2"}, "/model/path", "cannot be tuned on"),
        ("plain", {"path": "roberta"}, "/model/path", "cannot be tuned on"),
        ("plain", {"path": "llama", "tuning": "bias"}, "/model/tuning", "no biases"),
        ("plain", {"path": "gpt2", "max_length": 13}, "/model/max_length", "at most 12"),
        ("labelled", {"path": "roberta", "max_length": 13}, "/model/max_length", "at most 12"),
        ("plain", {"path": "gpt2", "lora": {"targets": ["c_attn", "nothing"]}}, "/model/lora/targets", "'nothing'"),
        ("plain", {"path": "gpt2", "lora": {"targets": ["ln_1"]}}, "/model/lora/targets", "linear"),
        ("plain", {"path": "gpt2", "sha256": "0" * 64}, "/model/sha256", "leave this out"),
        ("plain", {"path": "gpt2", "trained": 7}, "/model/trained", "leave this out"),
        ("plain", {"path": "absent"}, "/model/path", "models here: bert, gpt2, llama"),
        ("plain", {"path": "../gpt2"}, "/model/hf/path", ""),
        ("plain", {"path": "/etc"}, "/model/hf/path", ""),
        ("plain", {"path": "gpt2/.."}, "/model/hf/path", ""),
        ("plain", {"path": "gpt2", "tuning": "full", "lora": {}}, "/model/hf", "only with"),
    ],
)
def test_refusals(text_api: Api, dataset: str, model: dict[str, Any], pointer: str, says: str) -> None:
    answer = post(text_api, dataset, model)
    assert answer.status_code == 422, answer.text
    error = answer.json()["errors"][0]
    assert error["pointer"].replace("/hf", "") == pointer.replace("/hf", "") and says in error["detail"]


def test_other_models_do_not_read_texts_and_opacus_not_these_models(text_api: Api) -> None:
    answer = post(text_api, "plain", {"path": "gpt2", "kind": "mlp"})
    assert answer.json()["errors"][0]["pointer"].startswith("/model")
    answer = post(text_api, "plain", {"path": "gpt2"}, clipping={"engine": "opacus"})
    assert answer.json()["errors"][0]["pointer"] == "/clipping/engine"


def test_a_quote_says_that_a_probe_is_the_way_for_classes_of_texts(text_api: Api) -> None:
    """An encoder tuned inside learns at a searched rate, not at the default; a language model has no such other way."""
    tuned = post(text_api, "labelled", {"path": "roberta", "tuning": "lora", "lora": {"rank": 2}}).json()
    (said,) = [each for each in tuned["warnings"] if "probe" in each]
    assert "`extractor`" in said and "docs/language.md" in said
    assert not any("probe" in each for each in post(text_api, "plain", {"path": "gpt2"}).json()["warnings"])


def rewritten(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def as_pickle(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def with_header(content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / "model.safetensors").write_bytes(content) and None  # type: ignore[return-value]


BROKEN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "code": (lambda folder: rewritten(folder, auto_map={"AutoModel": "x.py"}), "code of its own"),
    "quantized": (lambda folder: rewritten(folder, quantization_config={}), "quantized"),
    "another kind": (lambda folder: rewritten(folder, model_type="t5"), "do not show a language model"),
    "no kind": (lambda folder: rewritten(folder, model_type=["t5"]), "not supported"),
    "pickle": (as_pickle, "a pickle, which is never read"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "no tokenizer.json"),
    "no JSON": (lambda folder: (folder / "config.json").write_text("{"), "cannot be read"),
    "a list": (lambda folder: (folder / "config.json").write_text("[]"), "cannot be read"),
    "more blocks": (lambda folder: rewritten(folder, n_layer=3), "blocks"),
    "another vocabulary": (lambda folder: rewritten(folder, vocab_size=33), "the embedding"),
    "no number": (lambda folder: rewritten(folder, n_embd="8"), "does not say"),
    "empty": (with_header(b""), "not a safetensors file"),
    "a long header": (with_header(struct.pack("<Q", 1 << 40)), "not a safetensors file"),
    "no header": (with_header(struct.pack("<Q", 4) + b"[[]]"), "not a safetensors file"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_folders_that_are_no_models(models_root: Path, tmp_path: Path, case: str) -> None:
    shutil.copytree(models_root / "gpt2", tmp_path / "m")
    change, says = BROKEN[case]
    change(tmp_path / "m")
    with pytest.raises(UnfitModelError, match=says):
        model_folder.read(tmp_path, "m")


def test_nothing_outside_of_the_root_is_read(models_root: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(models_root / "gpt2", root / "inside" / "m")
    (root / "link").symlink_to(models_root / "gpt2")
    with pytest.raises(UnfitModelError, match="no such folder"):
        model_folder.read(root, "link")
    file = root / "inside" / "m" / "model.safetensors"
    file.unlink()
    file.symlink_to(models_root / "gpt2" / "model.safetensors")
    with pytest.raises(UnfitModelError, match=r"no model\.safetensors"):
        model_folder.read(root, "inside/m")
    file.unlink()
    file.symlink_to(shutil.copy(models_root / "gpt2" / "model.safetensors", root / "blob"))
    assert model_folder.read(root, "inside/m").sha256 == model_folder.read(models_root, "gpt2").sha256


def test_old_names_and_missing_prefixes_are_understood(models_root: Path, tmp_path: Path) -> None:
    """As the first GPT-2 and BERT files have them."""
    import safetensors.torch

    for kind, old in (("gpt2", "transformer."), ("bert", "bert.")):
        shutil.copytree(models_root / kind, tmp_path / kind)
        tensors = safetensors.torch.load_file(models_root / kind / "model.safetensors")
        renamed = {
            name.removeprefix(old)
            .replace("LayerNorm.weight", "LayerNorm.gamma")
            .replace("LayerNorm.bias", "LayerNorm.beta"): value
            for name, value in tensors.items()
        }
        safetensors.torch.save_file(renamed, tmp_path / kind / "model.safetensors")
        one, other = (model_folder.read(root, kind) for root in (models_root, tmp_path))
        assert one.shapes == other.shapes and one.sha256 != other.sha256


def test_tokens_are_counted_in_public_texts_and_ranked_for_private_ones(text_api: Api) -> None:
    public = declared("open", features=TEXT, task={"kind": "language_model"}, holdout={"kind": "public"})
    other = "t\n" + "".join(f'"w{i % 11} w{i * 3 % 20}"\n' for i in range(20))
    assert text_api.upload(public, OTHER.replace("w1 ", "w2 "), other).status_code == 201
    evaluation = {"noise_mu": 0.1, "by_frequency": True}
    assert post(text_api, "open", {"path": "gpt2"}, evaluation=evaluation).status_code == 200
    whole = post(text_api, "plain", {"path": "gpt2"}, evaluation={"noise_mu": 0.1}).json()
    ranked = post(text_api, "plain", {"path": "gpt2"}, evaluation=evaluation).json()
    assert ranked["charge"] == whole["charge"], "a record's tokens share its weight: the price is the same"
    assert ranked["charge"]["holdout"] > 0
    labelled = post(text_api, "labelled", {"path": "roberta"}, evaluation=evaluation)
    assert labelled.json()["errors"][0]["pointer"] == "/evaluation/by_frequency"


def test_a_bound_below_any_guess_s_loss_is_warned_of(text_api: Api) -> None:
    said = [
        post(text_api, "plain", {"path": "gpt2"}, evaluation={"on": "holdout", "loss_bound": bound}).json()["warnings"]
        for bound in (1.0, 11.0)
    ]
    assert [any("ln V" in each for each in warnings) for warnings in said] == [True, False]
