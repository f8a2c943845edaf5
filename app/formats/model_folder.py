"""A Hugging Face model's folder, read without torch: its config, the shapes of its tensors, its content's hash.

Only JSON and safetensors are read: no pickle, and no code from the folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from app.contracts.hf import ARCHITECTURES, Architecture, HfModel, canonical, trained

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
NEEDED = (CONFIG, WEIGHTS, TOKENIZER)
# Delivered with a tuned model, if they exist.
BESIDE = ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json")
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
MAX_CONFIG_BYTES = 1 << 20
MAX_HEADER_BYTES = 16 << 20
MAX_WEIGHTS_BYTES, MAX_TOKENIZER_BYTES = 16 << 30, 256 << 20
CHUNK = 1 << 20
# The names in config.json for the numbers of attention heads and of a feed-forward layer's units.
NUMBERS = {"gpt2": ("n_head", "n_inner")} | dict.fromkeys(
    ("llama", "bert", "roberta"), ("num_attention_heads", "intermediate_size")
)
FLOATS = ("F64", "F32", "F16", "BF16")
# The tensors of learned positions.
POSITIONS = {"gpt2": "wpe.weight"} | dict.fromkeys(("bert", "roberta"), "embeddings.position_embeddings.weight")
# Masks and tables in old files, and RoBERTa's pooler, which its classifier does not use.
NO_PARAMETERS = re.compile(r"\.attn\.(masked_)?bias$|rotary_emb\.inv_freq$|^roberta\.pooler\.")


class UnfitModelError(Exception):
    """Why a folder holds no model that can be tuned, in words for the caller."""


@dataclass(frozen=True)
class ModelFolder:
    """A model's public facts, known before any tensor is read.

    Attributes:
        files: the files in use, by name, resolved.
        hashes: the SHA-256 of each.
        config: config.json.
        kind: its key in ARCHITECTURES.
        shapes: its tensors' shapes by canonical names, output layers included if the file has them.
    """

    files: dict[str, Path]
    hashes: dict[str, str]
    config: dict[str, Any]
    kind: str
    shapes: dict[str, tuple[int, ...]]

    @property
    def sha256(self) -> str:
        """The SHA-256 of all files' hashes."""
        content = json.dumps(self.hashes, sort_keys=True, separators=(",", ":")).encode()
        return hashlib.sha256(content).hexdigest()

    def content(self, name: str) -> bytes:
        """A file exactly as it was hashed: read into memory completely, so that it cannot change in between.

        Raises:
            UnfitModelError: the file has changed.
        """
        content = self.files[name].read_bytes()
        if hashlib.sha256(content).hexdigest() != self.hashes[name]:
            raise UnfitModelError(f"its {name} changed while it was read: try again")
        return content

    @contextmanager
    def copy(self, name: str) -> Iterator[Path]:
        """A mappable in-memory copy of a large file, exactly as it was hashed; gone when nothing maps it any more.

        Raises:
            UnfitModelError: the file has changed.
        """
        digest = hashlib.sha256()
        with self.files[name].open("rb") as file, os.fdopen(os.memfd_create(name), "wb") as made:
            while piece := file.read(CHUNK):
                digest.update(piece)
                made.write(piece)
            made.flush()
            if digest.hexdigest() != self.hashes[name]:
                raise UnfitModelError(f"its {name} changed while it was read: try again")
            yield Path(f"/proc/self/fd/{made.fileno()}")

    @property
    def architecture(self) -> Architecture:
        """The names of the kind's parts."""
        return ARCHITECTURES[self.kind]

    @property
    def blocks(self) -> int:
        """How many blocks it has."""
        return self._number(0)

    @property
    def positions(self) -> int:
        """The most tokens that it can read at once. RoBERTa counts them from the one after its padding's id."""
        return self._number(1) - self.first_position

    @property
    def first_position(self) -> int:
        """The index of the first usable position."""
        return int(self.config.get("pad_token_id", 1)) + 1 if self.kind == "roberta" else 0

    @property
    def vocabulary(self) -> int:
        """How many tokens it knows."""
        return int(self.config["vocab_size"])

    @property
    def tied(self) -> bool:
        """Returns True if its output layer is the embedding's matrix, by transformers' own defaults."""
        return bool(self.config.get("tie_word_embeddings", self.kind != "llama"))

    def pass_numbers(self, asked: HfModel) -> int:
        """About how many numbers a pass holds for one record: each block's activations and attention, and the scores of
        all tokens."""
        names, length = NUMBERS[self.kind], asked.max_length
        hidden, heads = self._number(2), int(self.config[names[0]])
        wide = int(self.config.get(names[1]) or 4 * hidden)
        block = length * (12 * hidden + 4 * wide) + 2 * heads * length**2
        blocks = (1 if asked.gradient_checkpointing else self.blocks) * block
        scores = 0 if self.architecture.task == "classification" else 4 * length * self.vocabulary
        return blocks + scores + self.blocks * length * hidden

    def tensors(self, asked: HfModel, outputs: int) -> dict[str, tuple[int, ...]]:
        """The tensors of the tuned model: without heads of other tasks, with the heads of this one."""
        of = self.architecture
        found = {name: shape for name, shape in self.shapes.items() if name.startswith(of.body)}
        if of.task == "classification":
            return found | _classifier(self.kind, self._number(2), outputs)
        if asked.tuning == "head" or not self.tied:
            head = f"{of.head}weight"
            found[head] = self.shapes.get(head, self.shapes[of.embedding])
        return found

    def trained(self, asked: HfModel, outputs: int) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the tensors that a job trains."""
        return trained(self.architecture, asked, self.tensors(asked, outputs), self.blocks)

    def _number(self, which: int) -> int:
        return int(self.config[self.architecture.numbers[which]])


def read(root: Path, path: str) -> ModelFolder:
    """Reads the model under `root` / `path`.

    Raises:
        UnfitModelError: there is none, or it cannot be tuned here.
    """
    folder = _inside(root, root / path)
    if folder is None or not folder.is_dir():
        raise UnfitModelError("there is no such folder in the models root")
    config, config_hash = _config(_inside(root, folder / CONFIG))
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise UnfitModelError(f"models of type {_shown(kind)} are not supported; there are {', '.join(ARCHITECTURES)}")
    inside = {name: _inside(root, folder / name) for name in (*NEEDED, *BESIDE)}
    files = {name: found for name, found in inside.items() if found is not None}
    _check_files(folder, [name for name in NEEDED if name not in files])
    _check_bytes(files)
    hashes = {name: _sha256(found) for name, found in files.items() if name != CONFIG} | {CONFIG: config_hash}
    made = ModelFolder(files, hashes, config, kind, _shapes(files[WEIGHTS], ARCHITECTURES[kind]))
    _check_sizes(made)
    return made


def _inside(root: Path, path: Path) -> Path | None:
    """The file or folder itself, links followed; None if it does not exist or leads out of the root."""
    try:
        found = path.resolve(strict=True)
    except OSError:
        return None
    return found if found.is_relative_to(root.resolve()) else None


def _config(path: Path | None) -> tuple[dict[str, Any], str]:
    """The document, and the SHA-256 of its bytes."""
    config, content = None, b""
    if path is not None and path.is_file():
        try:
            with path.open("rb") as file:
                config = json.loads(content := file.read(MAX_CONFIG_BYTES))
        except (OSError, ValueError, RecursionError):
            config = None
    if not isinstance(config, dict):
        raise UnfitModelError(f"its {CONFIG} cannot be read")
    if "auto_map" in config:
        raise UnfitModelError("it brings code of its own, which is never run here")
    if "quantization_config" in config:
        raise UnfitModelError("it is quantized: gradients need its plain weights")
    return config, hashlib.sha256(content).hexdigest()


def _check_files(folder: Path, absent: Sequence[str]) -> None:
    names = sorted(each.name for each in folder.iterdir())
    if WEIGHTS in absent and f"{WEIGHTS}.index.json" in names:
        raise UnfitModelError(f"its weights are in several files: save them as one {WEIGHTS}")
    if WEIGHTS in absent and any(name.endswith(PICKLES) for name in names):
        raise UnfitModelError(f"its weights are a pickle, which is never read here: save them as {WEIGHTS}")
    if absent:
        raise UnfitModelError(f"it has no {absent[0]}")


def _check_bytes(files: Mapping[str, Path]) -> None:
    """Checks sizes before anything is read."""
    for name, path in files.items():
        most = {WEIGHTS: MAX_WEIGHTS_BYTES, TOKENIZER: MAX_TOKENIZER_BYTES}.get(name, MAX_CONFIG_BYTES)
        if not path.is_file():
            raise UnfitModelError(f"its {name} is not a regular file")
        if path.stat().st_size > most:
            raise UnfitModelError(f"its {name} is larger than {most} bytes")


def _size(value: object) -> int:
    if type(value) is not int or not 0 <= value < 2**31:
        raise ValueError("a tensor's size must be a whole number")
    return value


def _shapes(path: Path, of: Architecture) -> dict[str, tuple[int, ...]]:
    """Shapes of the floating tensors in the file's header, by canonical names."""
    with path.open("rb") as file:
        first = file.read(8)
        length = struct.unpack("<Q", first)[0] if len(first) == 8 else 0
        if not 2 <= length <= MAX_HEADER_BYTES:
            raise UnfitModelError(f"its {WEIGHTS} is not a safetensors file")
        try:
            header = json.loads(file.read(length))
            tensors = {name: each for name, each in header.items() if name != "__metadata__"}
            return {
                canonical(of, name): tuple(_size(size) for size in each["shape"])
                for name, each in tensors.items()
                if each["dtype"] in FLOATS and not NO_PARAMETERS.search(canonical(of, name))
            }
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
            raise UnfitModelError(f"its {WEIGHTS} is not a safetensors file") from None


def _check_sizes(model: ModelFolder) -> None:
    """Checks that config and tensors describe one model."""
    of, wrong = model.architecture, f"its {CONFIG} and {WEIGHTS} do not match"
    numbers = [model.config.get(name) for name in (*of.numbers, "vocab_size")]
    if not all(type(each) is int and 1 <= each < 2**31 for each in numbers):
        raise UnfitModelError(f"its {CONFIG} does not say {', '.join((*of.numbers, 'vocab_size'))}")
    padding = model.config.get("pad_token_id", 1)
    if model.kind == "roberta" and not (type(padding) is int and 0 <= padding < model.config["vocab_size"]):
        raise UnfitModelError(f"its {CONFIG} does not name a padding token in its vocabulary")
    places = POSITIONS.get(model.kind)
    if places is not None and model.shapes.get(of.body + places) != (numbers[1], numbers[2]):
        raise UnfitModelError(f"{wrong}: the positions")
    inside = [name.removeprefix(of.blocks) for name in model.shapes if name.startswith(of.blocks)]
    found = {int(name.partition(".")[0]) for name in inside if name.partition(".")[0].isdecimal()}
    if found != set(range(model.blocks)):
        raise UnfitModelError(f"{wrong}: blocks")
    if model.shapes.get(of.embedding) != (numbers[3], numbers[2]):
        raise UnfitModelError(f"{wrong}: the embedding")
    if of.task == "language_model" and not model.tied and f"{of.head}weight" not in model.shapes:
        raise UnfitModelError(f"{wrong}: there is no output layer")
    if model.kind == "bert" and f"{of.body}pooler.dense.weight" not in model.shapes:
        raise UnfitModelError("it has no pooler, which a classifier of this kind needs")


def _classifier(kind: str, width: int, outputs: int) -> dict[str, tuple[int, ...]]:
    if kind == "bert":
        return {"classifier.weight": (outputs, width), "classifier.bias": (outputs,)}
    return {
        "classifier.dense.weight": (width, width),
        "classifier.dense.bias": (width,),
        "classifier.out_proj.weight": (outputs, width),
        "classifier.out_proj.bias": (outputs,),
    }


def _sha256(path: Path) -> str:
    known = path.stat()
    return _sha256_of(path, known.st_ino, known.st_size, known.st_mtime_ns)


@lru_cache(maxsize=256)
def _sha256_of(path: Path, *_version: int) -> str:
    """Cached as long as the file is the same: weights are large, and quotes are frequent."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _shown(value: object) -> str:
    return ascii(str(value)[:60])
