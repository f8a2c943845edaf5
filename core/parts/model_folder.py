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

from core.contracts.architectures import ARCHITECTURES, Architecture, canonical, layout_of
from core.contracts.hf import HfModel, trained

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
INDEX = f"{WEIGHTS}.index.json"  # names the file of each tensor, where the weights are in several
SHARD = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}\.safetensors$")
MAX_SHARDS = 256
# Delivered with a tuned model, if they exist.
TEMPLATE, TOKENIZER_CONFIG = "chat_template.jinja", "tokenizer_config.json"
PIXELS = "preprocessor_config.json"  # mean and deviation of a vision transformer's pixels
BESIDE = (TOKENIZER_CONFIG, "special_tokens_map.json", "generation_config.json", TEMPLATE, PIXELS)
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
MAX_CONFIG_BYTES, MAX_INDEX_BYTES = 1 << 20, 16 << 20
MAX_HEADER_BYTES = 16 << 20
MAX_WEIGHTS_BYTES, MAX_TOKENIZER_BYTES = 16 << 30, 256 << 20
CHUNK = 1 << 20
FLOATS = ("F64", "F32", "F16", "BF16")
# Masks and tables in old files, and poolers and tokens that the classifier does not use.
NO_PARAMETERS = re.compile(
    r"\.attn\.(masked_)?bias$|rotary_emb\.inv_freq$|^(roberta|vit|deit)\.pooler\.|mask_token$"
    r"|(cls|distillation)_classifier\."  # the two heads of a distilled DeiT: a job has a head of its own
)


KIND = re.compile(r"^[A-Za-z0-9_-]{1,60}$")


class UnfitModelError(Exception):
    """Why a folder holds no model that can be tuned, in words for the caller."""


@dataclass(frozen=True)
class ModelFolder:
    """A model's public facts, known before any tensor is read.

    Attributes:
        files: the files in use, by name, resolved.
        hashes: the SHA-256 of each.
        config: config.json.
        kind: the `model_type` of its config.
        architecture: the names of its parts.
        shapes: its tensors' shapes by canonical names, output layers included if the file has them.
    """

    files: dict[str, Path]
    hashes: dict[str, str]
    config: dict[str, Any]
    kind: str
    architecture: Architecture
    shapes: dict[str, tuple[int, ...]]

    @property
    def weights(self) -> tuple[str, ...]:
        """The files that hold its tensors."""
        return tuple(sorted(name for name in self.files if SHARD.match(name)))

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
        with self.files[name].open("rb") as file, os.fdopen(os.memfd_create(name), "wb") as target:
            while piece := file.read(CHUNK):
                digest.update(piece)
                target.write(piece)
            target.flush()
            if digest.hexdigest() != self.hashes[name]:
                raise UnfitModelError(f"its {name} changed while it was read: try again")
            yield Path(f"/proc/self/fd/{target.fileno()}")

    @property
    def blocks(self) -> int:
        """How many blocks it has."""
        return self._number(0)

    @property
    def positions(self) -> int:
        """The most tokens that it can read at once. RoBERTa counts them from the one after its padding's id."""
        if self.of_images:
            return self.shapes[self.architecture.places][1]
        return self._number(1) - self.first_position

    @property
    def of_images(self) -> bool:
        """True if it reads images."""
        return self.architecture.reads == "image"

    @property
    def image(self) -> tuple[int, int, int]:
        """Channels, height and width of the images that it reads."""
        height, width = _sides(self.config.get("image_size"))
        return int(self.config.get("num_channels", 3)), height, width

    @property
    def first_position(self) -> int:
        """The index of the first usable position."""
        return int(self.config.get("pad_token_id", 1)) + 1 if self.kind == "roberta" else 0

    @property
    def vocabulary(self) -> int:
        """How many tokens it knows; 1 if it reads images."""
        return 1 if self.of_images else int(self.config["vocab_size"])

    @property
    def tied(self) -> bool:
        """Returns True if its output layer is the embedding's matrix, by transformers' own defaults."""
        return bool(self.config.get("tie_word_embeddings", self.architecture.tied))

    def pass_numbers(self, settings: HfModel) -> int:
        """About how many numbers a pass holds for one record: each block's activations and attention, and the scores of
        all tokens."""
        names, length = self.architecture.widths, self.positions if self.of_images else settings.max_length
        hidden, heads = self._number(2), int(self.config[names[0]])
        wide = int(self.config.get(names[1]) or 4 * hidden)
        block = length * (12 * hidden + 4 * wide) + 2 * heads * length**2
        blocks = (1 if settings.gradient_checkpointing else self.blocks) * block
        scores = 0 if self.architecture.task == "classification" else 4 * length * self.vocabulary
        return blocks + scores + self.blocks * length * hidden

    def tensors(self, settings: HfModel, outputs: int) -> dict[str, tuple[int, ...]]:
        """The tensors of the tuned model: without heads of other tasks, with the heads of this one."""
        architecture = self.architecture
        shapes = {name: shape for name, shape in self.shapes.items() if name.startswith(architecture.body)}
        if architecture.task == "classification":
            return shapes | _classifier(self.kind, self._number(2), outputs)
        weight = f"{architecture.head}weight"
        head = {
            name: shape for name, shape in self.shapes.items() if name.startswith(architecture.head) and name != weight
        }
        if settings.tuning == "head" or not self.tied:
            head[weight] = self.shapes.get(weight, self.shapes[architecture.embedding])
        return shapes | head

    def trained(self, settings: HfModel, outputs: int) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the tensors that a job trains."""
        return trained(self.architecture, settings, self.tensors(settings, outputs), self.blocks)

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
    if not isinstance(kind, str) or not KIND.match(kind):
        raise UnfitModelError(f"models of type {_shown(kind)} are not supported")
    inside = {name: _inside(root, folder / name) for name in (CONFIG, WEIGHTS, INDEX, TOKENIZER, *BESIDE)}
    files = {name: found for name, found in inside.items() if found is not None}
    if WEIGHTS in files:
        files.pop(INDEX, None)
    elif INDEX in files:
        shards = _shards(files[INDEX])
        files |= {name: found for name in shards if (found := _inside(root, folder / name)) is not None}
        _check_files(folder, [name for name in shards if name not in files])
    architecture = ARCHITECTURES.get(kind)
    needed = (CONFIG,) if architecture is not None and architecture.reads == "image" else (CONFIG, TOKENIZER)
    _check_files(folder, [name for name in needed if name not in files])
    _check_files(folder, [WEIGHTS] if WEIGHTS not in files and INDEX not in files else [])
    _check_bytes(files)
    hashes = {name: _sha256(found) for name, found in files.items() if name != CONFIG} | {CONFIG: config_hash}
    shapes = _shapes(files)
    of = layout_of(kind, config, shapes)
    if of is None:
        raise UnfitModelError(
            f"models of type {_shown(kind)} are not in the table ({', '.join(ARCHITECTURES)}), and its files do not "
            "show a language model's blocks and embedding"
        )
    named_shapes = {canonical(of, name): shape for name, shape in shapes.items()}
    named_shapes = {name: shape for name, shape in named_shapes.items() if not NO_PARAMETERS.search(name)}
    model = ModelFolder(files, hashes, config, kind, of, named_shapes)
    _check_sizes(model)
    return model


def _inside(root: Path, path: Path) -> Path | None:
    """The file or folder itself, links followed; None if it does not exist or leads out of the root."""
    try:
        resolved = path.resolve(strict=True)
    except OSError:
        return None
    return resolved if resolved.is_relative_to(root.resolve()) else None


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
    if WEIGHTS in absent and any(name.endswith(PICKLES) for name in names):
        raise UnfitModelError(f"its weights are a pickle, which is never read here: save them as {WEIGHTS}")
    if absent:
        raise UnfitModelError(f"it has no {absent[0]}")


def _shards(index: Path) -> list[str]:
    """The files that an index names.

    Raises:
        UnfitModelError: it is no index, or names something that is no file beside it.
    """
    try:
        with index.open("rb") as file:
            content = file.read(MAX_INDEX_BYTES + 1)
        placed = json.loads(content)["weight_map"] if len(content) <= MAX_INDEX_BYTES else None
        shards = sorted(set(placed.values())) if isinstance(placed, dict) else []
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        shards = []
    if not 1 <= len(shards) <= MAX_SHARDS or not all(isinstance(each, str) and SHARD.match(each) for each in shards):
        raise UnfitModelError(f"its {INDEX} does not name 1 to {MAX_SHARDS} files of weights beside it")
    return shards


def _check_bytes(files: Mapping[str, Path]) -> None:
    """Checks sizes before anything is read."""
    most_of = {WEIGHTS: MAX_WEIGHTS_BYTES, TOKENIZER: MAX_TOKENIZER_BYTES, INDEX: MAX_INDEX_BYTES}
    for name, path in files.items():
        limit = MAX_WEIGHTS_BYTES if SHARD.match(name) else most_of.get(name, MAX_CONFIG_BYTES)
        if not path.is_file():
            raise UnfitModelError(f"its {name} is not a regular file")
        if path.stat().st_size > limit:
            raise UnfitModelError(f"its {name} is larger than {limit} bytes")
    weights = sum(path.stat().st_size for name, path in files.items() if SHARD.match(name))
    if weights > MAX_WEIGHTS_BYTES:
        raise UnfitModelError(f"its weights are larger than {MAX_WEIGHTS_BYTES} bytes together")


def _size(value: object) -> int:
    if type(value) is not int or not 0 <= value < 2**31:
        raise ValueError("a tensor's size must be a whole number")
    return value


def _shapes(files: Mapping[str, Path]) -> dict[str, tuple[int, ...]]:
    """Shapes of the floating tensors in the headers of the files of weights, by the files' own names."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, path in files.items():
        if SHARD.match(name):
            mine = _shapes_of(path, name)
            if twice := shapes.keys() & mine.keys():
                raise UnfitModelError(f"its {_shown(min(twice))} is in two files")
            shapes |= mine
    return shapes


def _shapes_of(path: Path, name: str) -> dict[str, tuple[int, ...]]:
    with path.open("rb") as file:
        first = file.read(8)
        length = struct.unpack("<Q", first)[0] if len(first) == 8 else 0
        if not 2 <= length <= MAX_HEADER_BYTES:
            raise UnfitModelError(f"its {name} is not a safetensors file")
        try:
            header = json.loads(file.read(length))
            tensors = {tensor: each for tensor, each in header.items() if tensor != "__metadata__"}
            return {
                tensor: tuple(_size(size) for size in each["shape"])
                for tensor, each in tensors.items()
                if each["dtype"] in FLOATS
            }
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
            raise UnfitModelError(f"its {name} is not a safetensors file") from None


def _check_sizes(model: ModelFolder) -> None:
    """Checks that config and tensors describe one model."""
    if model.of_images:
        _check_image_sizes(model)
        return
    architecture, wrong = model.architecture, f"its {CONFIG} and {WEIGHTS} do not match"
    numbers = [model.config.get(name) for name in (*architecture.numbers, "vocab_size")]
    if not all(type(each) is int and 1 <= each < 2**31 for each in numbers):
        raise UnfitModelError(f"its {CONFIG} does not say {', '.join((*architecture.numbers, 'vocab_size'))}")
    padding = model.config.get("pad_token_id", 1)
    if model.kind == "roberta" and not (type(padding) is int and 0 <= padding < model.config["vocab_size"]):
        raise UnfitModelError(f"its {CONFIG} does not name a padding token in its vocabulary")
    heads = model.config.get(architecture.widths[0])
    if type(heads) is not int or not 1 <= heads < 2**20:
        raise UnfitModelError(f"its {CONFIG} does not say {architecture.widths[0]}")
    if architecture.places and model.shapes.get(architecture.places) != (numbers[1], numbers[2]):
        raise UnfitModelError(f"{wrong}: the positions")
    _check_blocks(model)
    if model.shapes.get(architecture.embedding) != (numbers[3], numbers[2]):
        raise UnfitModelError(f"{wrong}: the embedding")
    if architecture.task == "language_model" and not model.tied and f"{architecture.head}weight" not in model.shapes:
        raise UnfitModelError(f"{wrong}: there is no output layer")
    if model.kind == "bert" and f"{architecture.body}pooler.dense.weight" not in model.shapes:
        raise UnfitModelError("it has no pooler, which a classifier of this kind needs")


def _check_blocks(model: ModelFolder) -> None:
    architecture = model.architecture
    inside = [name.removeprefix(architecture.blocks) for name in model.shapes if name.startswith(architecture.blocks)]
    blocks = {int(name.partition(".")[0]) for name in inside if name.partition(".")[0].isdecimal()}
    if blocks != set(range(model.blocks)):
        raise UnfitModelError(f"its {CONFIG} and {WEIGHTS} do not match: blocks")


def _check_image_sizes(model: ModelFolder) -> None:
    """Checks that config and tensors describe one vision transformer."""
    architecture, config, wrong = model.architecture, model.config, f"its {CONFIG} and {WEIGHTS} do not match"
    names = ("num_hidden_layers", "hidden_size", *architecture.widths)
    numbers = [config.get(name) for name in names]
    if not all(type(each) is int and 1 <= each < 2**20 for each in (*numbers, config.get("num_channels", 3))):
        raise UnfitModelError(f"its {CONFIG} does not say {', '.join(names)}")
    channels, height, width = model.image
    tall, wide = _sides(config.get("patch_size"))
    if channels not in (1, 3) or model.shapes.get(architecture.embedding) != (numbers[1], channels, tall, wide):
        raise UnfitModelError(f"{wrong}: the patches")
    patches = (height // tall) * (width // wide)
    extra = 2 if model.kind == "deit" else 1
    if patches < 1 or model.shapes.get(architecture.places) != (1, patches + extra, numbers[1]):
        raise UnfitModelError(f"{wrong}: the positions")
    _check_blocks(model)


def _sides(value: object) -> tuple[int, int]:
    """Height and width, from one number or two."""
    sides = value if isinstance(value, list) else [value, value]
    sizes = [each for each in sides if type(each) is int and 1 <= each <= 4096]
    if len(sides) != 2 or len(sizes) != 2:
        raise UnfitModelError(f"its {CONFIG} does not say the size of images and patches")
    return sizes[0], sizes[1]


def _classifier(kind: str, width: int, outputs: int) -> dict[str, tuple[int, ...]]:
    if kind in ("bert", "vit", "deit"):
        return {"classifier.weight": (outputs, width), "classifier.bias": (outputs,)}
    return {
        "classifier.dense.weight": (width, width),
        "classifier.dense.bias": (width,),
        "classifier.out_proj.weight": (outputs, width),
        "classifier.out_proj.bias": (outputs,),
    }


def _sha256(path: Path) -> str:
    status = path.stat()
    return _sha256_of(path, status.st_ino, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=256)
def _sha256_of(path: Path, *_version: int) -> str:
    """Cached as long as the file is the same: weights are large, and quotes are frequent."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _shown(value: object) -> str:
    return ascii(str(value)[:60])
