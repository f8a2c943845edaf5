"""A torch.export file (.pt2), read as what it is: a zip of one JSON graph and raw tensors. No pickle in it is opened.

Members are named by a closed list. Whatever else lies in the archive is refused by its name before any member is read:
sample inputs (a pickle that torch writes), tensors that were pickled, custom objects, compiled code.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.parts.graph_program import BYTES, Program, UnfitGraphError, program_of

MOST_BYTES = 1 << 30
MOST_JSON, MOST_MEMBERS = 32 << 20, 20_000
MODEL = "models/model.json"
WEIGHTS, CONSTANTS = "data/weights/model_weights_config.json", "data/constants/model_constants_config.json"
# What a file of torch's has besides: a few bytes each, of which the byte order alone matters.
SMALL = ("archive_format", "archive_version", ".data/version", "byteorder", ".data/serialization_id")
SMALL_BYTES = 256
TENSOR = re.compile(r"^data/(weights/weight|constants/tensor)_\d{1,6}$")
PICKLE = "it is a pickle, which is never opened here: write the file with scrimp.export_graph"
_TENSOR_MEMBERS = {"path_name", "is_param", "use_pickle", "tensor_meta"}


@dataclass(frozen=True)
class GraphFile:
    """A graph and where its tensors lie.

    Attributes:
        sha256: of the whole file.
        members: the member of each tensor, by the tensor's name.
    """

    program: Program
    sha256: str
    members: dict[str, str]
    _content: bytes

    def tensor(self, name: str) -> bytes:
        """The raw numbers of a tensor, in its type, one after the other."""
        with zipfile.ZipFile(io.BytesIO(self._content)) as archive:
            return archive.read(self.members[name])


def read(path: Path) -> GraphFile:
    """Reads a graph's file, as a whole: what is hashed is what is read.

    Raises:
        UnfitGraphError: it is not one, or holds more than a graph and raw tensors.
        OSError: it cannot be read.
    """
    if not path.is_file():
        raise UnfitGraphError("there is no such file")
    with path.open("rb") as file:
        return of_content(file.read(MOST_BYTES + 1))


def of_content(content: bytes) -> GraphFile:
    """Reads a file's content.

    Raises:
        UnfitGraphError: see `read`.
    """
    if len(content) > MOST_BYTES:
        raise UnfitGraphError(f"the file has more than {MOST_BYTES} bytes")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = _members(archive, len(content))
            program, members = _program(archive, names)
    except (zipfile.BadZipFile, NotImplementedError, EOFError, UnicodeDecodeError, OverflowError):
        raise UnfitGraphError("the file is not a zip archive as torch.export.save writes it") from None
    except (KeyError, TypeError, ValueError) as error:
        raise UnfitGraphError(f"its list of tensors is not what torch.export writes ({type(error).__name__})") from None
    return GraphFile(program, hashlib.sha256(content).hexdigest(), members, content)


def _members(archive: zipfile.ZipFile, size: int) -> dict[str, zipfile.ZipInfo]:
    """The members by their names within the one folder. Sizes are checked before a byte is read."""
    listed = archive.infolist()
    if len(listed) > MOST_MEMBERS:
        raise UnfitGraphError(f"the archive has {len(listed)} members; at most {MOST_MEMBERS} are read")
    members: dict[str, zipfile.ZipInfo] = {}
    folder = listed[0].filename.partition("/")[0] if listed else ""
    for member in listed:
        top, _, name = member.filename.partition("/")
        if top != folder or name in members:
            raise UnfitGraphError(f"{member.filename[:120]!r} is twice in the archive, or beside its one folder")
        if not (name in (MODEL, WEIGHTS, CONSTANTS, *SMALL) or TENSOR.match(name)):
            reason = (
                PICKLE if name.endswith((".pt", ".pth", ".pkl", ".bin")) else "only a graph and raw tensors are read"
            )
            raise UnfitGraphError(f"{name[:120]!r} in the archive: {reason}")
        if (
            member.compress_type != zipfile.ZIP_STORED
            or member.file_size != member.compress_size
            or member.flag_bits & 1
        ):
            raise UnfitGraphError(f"{name!r} in the archive is compressed or encrypted: torch.export.save stores")
        limit = SMALL_BYTES if name in SMALL else MOST_JSON if name.endswith(".json") else MOST_BYTES
        if member.file_size > limit:
            raise UnfitGraphError(f"{name!r} in the archive has {member.file_size} bytes; at most {limit} are read")
        members[name] = member
    if sum(each.file_size for each in listed) > size:
        raise UnfitGraphError("members of the archive overlap")
    if MODEL not in members or WEIGHTS not in members:
        raise UnfitGraphError(f"the archive has no {MODEL} or no {WEIGHTS}")
    return members


def _program(archive: zipfile.ZipFile, names: dict[str, zipfile.ZipInfo]) -> tuple[Program, dict[str, str]]:
    if "byteorder" in names and archive.read(names["byteorder"]) != b"little":
        raise UnfitGraphError("its numbers are not little-endian")
    weights = _config(_document(archive, names[WEIGHTS]))
    constants = _config(_document(archive, names[CONSTANTS])) if CONSTANTS in names else {}
    program = program_of(_document(archive, names[MODEL]), weights, constants)
    members = {}
    for tensor in program.tensors.values():
        folder, config = ("weights", weights) if tensor.name in weights else ("constants", constants)
        member = f"data/{folder}/{config[tensor.name]['path_name']}"
        if not TENSOR.match(member) or member not in names:
            raise UnfitGraphError(f"the tensor {tensor.name} is not in the archive")
        if names[member].file_size != math.prod(tensor.sizes) * BYTES[tensor.dtype]:
            raise UnfitGraphError(f"the tensor {tensor.name} has another size in the archive than its description says")
        members[tensor.name] = names[member].filename
    return program, members


def _document(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Any:
    try:
        return json.loads(archive.read(info))
    except (ValueError, RecursionError):
        raise UnfitGraphError(f"{info.filename.partition('/')[2]!r} in the archive is not JSON") from None


def _config(document: Any) -> dict[str, Any]:
    """The descriptions of a folder's tensors: none is a pickle, a custom object or a view of another's memory."""
    config = document.get("config") if isinstance(document, dict) else None
    if not isinstance(config, dict):
        raise UnfitGraphError("the archive's list of tensors has no `config`")
    for name, value in config.items():
        if (
            not isinstance(value, dict)
            or not value.keys() <= _TENSOR_MEMBERS
            or not isinstance(value["tensor_meta"], dict)
        ):
            raise UnfitGraphError(f"{name[:120]!r} is no plain tensor: custom objects are never opened here")
        if value.get("use_pickle") is not False:
            raise UnfitGraphError(f"the tensor {name[:120]!r}: {PICKLE}")
        meta = value["tensor_meta"]
        if not _is_contiguous(meta):
            raise UnfitGraphError(f"the tensor {name[:120]!r} is a view: export it contiguous")
    return config


def _is_contiguous(meta: Any) -> bool:
    """One number after the other, from the file's first byte on."""
    try:
        sizes, strides = ([each["as_int"] for each in meta[name]] for name in ("sizes", "strides"))
        first, layout = meta["storage_offset"]["as_int"], meta["layout"]
    except (KeyError, TypeError):
        return False
    if len(sizes) != len(strides):
        return False
    step, wanted = 1, []
    for size in reversed(sizes):
        wanted.append(step)
        step *= size
    fits = all(size == 1 or stride == due for size, stride, due in zip(sizes, strides, reversed(wanted), strict=True))
    return first == 0 and layout == 7 and (fits or 0 in sizes)
