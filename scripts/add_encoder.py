"""A folder of the Hugging Face hub as an extractor of kind `transformers`. Used by add_extractor.py."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from core.contracts.architectures import POSITIONS, WIDTH

MOST_TOKENS = 512  # where neither the caller nor sentence-transformers says
POOLINGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}
HALVES = [0.5, 0.5, 0.5]


@dataclass(frozen=True)
class Asked:
    """How hidden states become a vector; None: as sentence-transformers' files say, or the defaults."""

    pooling: str | None = None
    layer: int | None = None
    max_tokens: int | None = None
    image_size: int | None = None
    normalize: bool | None = None


def add_encoder(source: Path, target: Path, asked: Asked = Asked()) -> str:
    """Copies the files, tries the encoder on random public records, writes extractor.json; returns its SHA-256."""
    config = _json(source / "config.json")
    images = _json(source / "preprocessor_config.json") if (source / "preprocessor_config.json").exists() else {}
    texts = (source / "tokenizer.json").exists()
    modules = json.loads((source / "modules.json").read_text()) if (source / "modules.json").exists() else []
    kinds = [each["type"].rpartition(".")[2] for each in modules]
    if set(kinds) - {"Transformer", "Pooling", "Normalize"}:
        raise SystemExit(f"sentence-transformers' modules {kinds} are more than an encoder, pooling and normalization")
    manifest: dict[str, Any] = {
        "format": "scrimp-extractor/1",
        "kind": "transformers",
        "features": next(config[name] for name in WIDTH if name in config),
        "pooling": asked.pooling or _pooling(source),
        "layer": asked.layer,
        "normalize": asked.normalize if asked.normalize is not None else (not modules or "Normalize" in kinds),
    }
    if texts:
        manifest["max_tokens"] = asked.max_tokens or _max_tokens(source, config)
    else:
        size = asked.image_size or config.get("image_size") or 224
        manifest["image"] = {"size": size, "mean": images.get("image_mean", HALVES)}
        manifest["image"]["std"] = images.get("image_std", HALVES)
    files = ("config.json", "model.safetensors", *(["tokenizer.json"] if texts else []))
    target.mkdir(parents=True)
    for name in files:
        shutil.copy(source / name, target / name)
    sha256 = write_manifest(target, manifest, files)
    length = _typical_length(target, sha256, images=not texts)
    return sha256 if manifest["normalize"] else write_manifest(target, manifest | {"typical_length": length}, files)


def write_manifest(target: Path, manifest: dict[str, Any], files: tuple[str, ...]) -> str:
    """Writes the manifest; returns its SHA-256, which identifies the extractor."""
    hashes = {name: hashlib.sha256((target / name).read_bytes()).hexdigest() for name in files}
    content = json.dumps(manifest | {"files": hashes}, indent=2).encode() + b"\n"
    (target / "extractor.json").write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def _typical_length(target: Path, sha256: str, *, images: bool) -> float:
    """Of random public records: raises if the encoder cannot be loaded or run."""
    import numpy as np

    from core.contracts.extractor import ImageInput
    from worker.extractors.features import of_folder

    made = of_folder(target, sha256, ImageInput(height=32, width=32) if images else None)
    return round(median(float(made(each).norm()) for each in made.examples(np.random.default_rng(0))), 4)


def _pooling(source: Path) -> str:
    if not (source / "1_Pooling" / "config.json").exists():
        return "mean"
    said = _json(source / "1_Pooling" / "config.json")
    found = [name for key, name in POOLINGS.items() if said.get(key)]
    if len(found) != 1:
        raise SystemExit("its pooling is none of mean, cls and last: name one with --pooling")
    return found[0]


def _max_tokens(source: Path, config: dict[str, Any]) -> int:
    if (source / "sentence_bert_config.json").exists():
        return int(_json(source / "sentence_bert_config.json")["max_seq_length"])
    return min([MOST_TOKENS, *(int(config[name]) for name in POSITIONS if name in config)])


def _json(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found
