"""Encoders and language models of transformers as frozen extractors."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from app.catalogue import extractors
from core.contracts.extractor import ImageInput
from core.parts.stored_records import StoredPart, Texts
from tests.hf import tiny
from tests.worker.extractor import write_extractor
from worker.extractors.extractor_files import ExtractorMissingError
from worker.extractors.features import extracted, of_folder
from worker.training.self_test import extractor_failures

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
from add_encoder import Asked, add_encoder

IMAGE = ImageInput(height=5, width=4, channels=1)
PIXELS = np.random.default_rng(0).random(IMAGE.numbers, dtype=np.float32)
TEXT = "w1 w2 w3 w4 w5"
IDS = torch.tensor([[5, 6, 7, 8, 9]])


def added(folder: Path, kind: str, asked: Asked = Asked(max_tokens=10), **changes: Any) -> tuple[Path, str]:
    """A tiny model's folder, and the extractor that the script makes of it."""
    source = tiny.write(folder / "source", kind, **changes)
    return folder / "e", add_encoder(source, folder / "e", asked)


def states(source: Path, **inputs: torch.Tensor) -> Any:
    """Of transformers' own loader."""
    from transformers import AutoModel

    model = AutoModel.from_pretrained(source, local_files_only=True).eval()
    with torch.no_grad():
        return model(**inputs, output_hidden_states=True)


@pytest.mark.parametrize(
    ("kind", "asked"),
    [
        ("bert", Asked("cls", max_tokens=10)),
        ("roberta", Asked("mean", max_tokens=10, normalize=False)),
        ("llama", Asked("last", max_tokens=10)),
        ("gpt2", Asked("mean", layer=1, max_tokens=10)),
    ],
)
def test_texts_become_pooled_hidden_states(tmp_path: Path, kind: str, asked: Asked) -> None:
    folder, sha256 = added(tmp_path, kind, asked)
    found = of_folder(folder, sha256, None)
    assert not list(extractor_failures(found))
    ids = torch.cat([torch.tensor([[0]]), IDS, torch.tensor([[2]])], 1) if kind in ("bert", "roberta") else IDS
    wanted = states(tmp_path / "source", input_ids=ids)
    hidden = (wanted.last_hidden_state if asked.layer is None else wanted.hidden_states[asked.layer])[0]
    vector = {"cls": hidden[0], "last": hidden[-1], "mean": hidden.mean(dim=0)}[asked.pooling or "mean"]
    if asked.normalize is not False:
        vector = vector / vector.norm()
    torch.testing.assert_close(found(TEXT), vector, rtol=1e-5, atol=1e-6)
    known = extractors.find(tmp_path, "e")
    assert known is not None and (known.takes, known.manifest.features) == ("text", 8)
    assert known.manifest.length == 1.0 or known.manifest.length == pytest.approx(float(vector.norm()), rel=2.0)
    assert torch.equal(found("w1 " * 40), found("w1 " * 30)), "texts are cut"
    assert found("").shape == (8,) and bool(found("\ud800").isfinite().all()), "no text raises"


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_images_are_resized_and_normalized(tmp_path: Path, pooling: str) -> None:
    sizes = {"image_size": 32, "patch_size": 16}
    source = tiny.write(tmp_path / "source", "vit", **sizes)
    document = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.6, 0.7]}
    (source / "preprocessor_config.json").write_text(json.dumps(document))
    sha256 = add_encoder(source, tmp_path / "e", Asked(pooling, normalize=False))
    found = of_folder(tmp_path / "e", sha256, IMAGE)
    assert not list(extractor_failures(found))
    grey = torch.from_numpy(PIXELS).view(1, 1, 5, 4).expand(1, 3, 5, 4)
    x = torch.nn.functional.interpolate(grey, (32, 32), mode="bilinear", antialias=True)
    mean, std = (torch.tensor(document[name]).view(3, 1, 1) for name in ("image_mean", "image_std"))
    hidden = states(source, pixel_values=(x - mean) / std).last_hidden_state[0]
    torch.testing.assert_close(found(PIXELS), hidden[0] if pooling == "cls" else hidden.mean(dim=0))


def test_features_do_not_depend_on_the_other_records(tmp_path: Path) -> None:
    folder, sha256 = added(tmp_path, "llama")

    def made(texts: list[str], name: str) -> Any:
        part = StoredPart(x=Texts.of(texts), y=np.zeros(len(texts)))
        return extracted(part, name * 64, folder, sha256, tmp_path / name, lambda: None).x

    texts = [TEXT, "w7", "w1 w1 w9", ""]
    whole = made(texts, "0")
    assert np.array_equal(made(texts[::-1], "1"), whole[::-1]) and np.array_equal(made(texts[1:2], "2")[0], whole[1])


GROWING = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10_000.0}
PLAIN = {"rope_type": "default", "rope_theta": 10_000.0}
SWITCHING = {"rope_type": "longrope", "short_factor": [1.0, 1.0], "long_factor": [3.0, 4.0], "rope_theta": 10_000.0}


@pytest.mark.parametrize(
    ("kind", "rope"),
    [("llama", GROWING), ("gemma3_text", {"sliding_attention": PLAIN, "full_attention": GROWING})],
    ids=["everywhere", "in some layers"],
)
def test_positions_that_remember_longer_texts_are_refused(tmp_path: Path, kind: str, rope: dict[str, Any]) -> None:
    """`dynamic` frequencies grow with the longest text so far: a text's features would depend on its neighbours."""
    with pytest.raises(ExtractorMissingError, match="depend on other texts"):
        added(tmp_path, kind, rope_parameters=rope)


def test_texts_longer_than_the_positions_are_refused(tmp_path: Path) -> None:
    """Rotary positions have no table that would end."""
    with pytest.raises(ExtractorMissingError, match="more tokens than the encoder has positions"):
        added(tmp_path, "llama", Asked(max_tokens=13))


def test_positions_that_switch_by_the_text_at_hand_repeat(tmp_path: Path) -> None:
    """`longrope` chooses by each text's own length, whatever came before."""
    rope = SWITCHING | {"original_max_position_embeddings": 6}
    folder, sha256 = added(tmp_path, "llama", Asked("mean", max_tokens=12), rope_parameters=rope)
    found = of_folder(folder, sha256, None)
    assert not list(extractor_failures(found))
    short, long = TEXT, " ".join(["w3"] * 12)
    alone = found(short)
    assert found(long).isfinite().all() and torch.equal(found(short), alone)


def test_an_encoder_of_sentences_is_read_as_transformers_reads_it(tmp_path: Path) -> None:
    """BERT with WordPiece, mean pooling and length 1, by the library's own reader of the same files."""
    from transformers import AutoTokenizer

    found = of_folder(tmp_path / "e", write_extractor(tmp_path / "e"), None)
    (tmp_path / "e" / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizerFast"}')
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "e", local_files_only=True)
    for text in ("a good film", "bad films, a", "GOOD,é", "a " * 40, ""):
        ids = tokenizer(text, truncation=True, max_length=16, return_tensors="pt")
        vector = states(tmp_path / "e", **ids).last_hidden_state[0].mean(dim=0)
        torch.testing.assert_close(found(text), vector / vector.norm(), rtol=1e-5, atol=1e-6)


def test_nothing_is_fetched_and_no_threads_tokenize(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights come from safetensors alone: a pickle beside them is not read."""
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "TOKENIZERS_PARALLELISM"):
        monkeypatch.delenv(name, raising=False)
    folder, sha256 = added(tmp_path, "bert")
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    assert of_folder(folder, sha256, None)(TEXT).shape == (8,)
    offline = [os.environ[name] for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "TOKENIZERS_PARALLELISM")]
    assert offline == ["1", "1", "false"]


def manifest_of(folder: Path) -> Any:
    return json.loads((folder / "extractor.json").read_text())


@pytest.mark.parametrize("case", ["width", "layer", "tokens", "kind", "images", "hash", "code"])
def test_what_does_not_fit_is_refused(tmp_path: Path, case: str) -> None:
    from add_encoder import write_manifest

    folder, sha256 = added(tmp_path, "bert")
    manifest, config = manifest_of(folder), json.loads((folder / "config.json").read_text())
    files = tuple(manifest["files"])
    match case:
        case "width":
            manifest["features"] = 9
        case "layer":
            manifest["layer"] = 7
        case "tokens":
            manifest["max_tokens"] = 13  # more than there are positions
        case "kind":
            config["model_type"] = "no-such-model"
        case "code":
            config |= {"model_type": "own", "auto_map": {"AutoModel": "modeling.Own"}}
            (folder / "modeling.py").write_text("raise SystemExit('it ran')")
    (folder / "config.json").write_text(json.dumps(config))
    if case != "hash":
        sha256 = write_manifest(folder, manifest, files)
    with pytest.raises(ExtractorMissingError):
        of_folder(folder, "0" * 64 if case == "hash" else sha256, IMAGE if case == "images" else None)
