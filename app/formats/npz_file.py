"""NPZ: a ZIP archive of NPY arrays. Sizes are checked before anything is unpacked, and no pickle is ever loaded."""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from app.formats.records import Records, Wanted

SUFFIX = ".npy"
MAX_MEMBERS = 10_000
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
PLAIN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
NOT_PLAIN = "it is not an intact, plain ZIP archive of NPY arrays"
# zipfile's errors for a damaged archive, including names that are not text and offsets before its beginning.
UNREADABLE = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, RuntimeError, ValueError, OverflowError)
NUMBER_KINDS, LABEL_KINDS, USER_KINDS = "buif", "buifU", "uiU"


def read(path: Path, records: Records) -> None:
    """Reads the declared arrays; checks sizes before it unpacks them."""
    try:
        with zipfile.ZipFile(path) as archive:
            _read(archive, records)
    except UNREADABLE:
        raise records.broken(NOT_PLAIN) from None


def _read(archive: zipfile.ZipFile, records: Records) -> None:
    members = archive.infolist()
    if len(members) > MAX_MEMBERS or not all(member.filename.endswith(SUFFIX) for member in members):
        raise records.broken("it holds something other than NPY arrays")
    records.begin([member.filename.removesuffix(SUFFIX) for member in members])
    used = [archive.getinfo(each.name + SUFFIX) for each in (*records.features, records.label)]
    if any(member.compress_type not in PLAIN for member in used):
        raise records.broken(NOT_PLAIN)
    claimed = sum(member.file_size for member in used)
    if claimed > records.max_unpacked_bytes:
        raise records.broken(f"it unpacks to {claimed} bytes; at most {records.max_unpacked_bytes} are allowed")
    x = _array(archive, records, records.features[0], NUMBER_KINDS)
    y = _array(archive, records, records.label, LABEL_KINDS)
    if x.ndim == 0 or y.shape != x.shape[:1]:
        raise records.broken(f"x has the shape {x.shape} and the labels {y.shape}: (n, …) and (n,) are needed")
    if 0 in x.shape[1:]:
        raise records.broken(f"x has the shape {x.shape}: records without features")
    if records.users is not None:
        users = _array(archive, records, records.features[1], USER_KINDS)
        if users.shape != y.shape:
            raise records.broken(f"the users have the shape {users.shape} and the labels {y.shape}")
        for user in _listed(users, records, records.features[1]):
            records.add_user(user)
    records.count = len(x)
    records.tensor = x.reshape(len(x), math.prod(x.shape[1:]))
    for label in _listed(y, records, records.label):
        records.add_label(label)


def _listed(values: NDArray[Any], records: Records, wanted: Wanted) -> list[Any]:
    try:
        return list(values.tolist())
    except (ValueError, SystemError):  # Python's refusal of numbers that are not characters
        raise records.unsuited(wanted, "holds text that is not Unicode") from None


def _array(archive: zipfile.ZipFile, records: Records, wanted: Wanted, kinds: str) -> NDArray[Any]:
    member = archive.getinfo(wanted.name + SUFFIX)
    with archive.open(member) as file:
        try:
            version = npy.read_magic(file)
            shape, _, dtype = HEADERS[version](file)
        except (KeyError, ValueError):
            raise records.broken(f"the array {wanted.name!r} is not in NPY format 1 or 2") from None
    if dtype.kind not in kinds or dtype.hasobject or dtype.itemsize == 0:
        what = "objects, which would need pickle" if dtype.hasobject else f"values of type {str(dtype)[:40]}"
        raise records.unsuited(wanted, f"holds {what}; numbers are needed")
    if math.prod(shape) * dtype.itemsize > member.file_size:
        raise records.broken(f"the array {wanted.name!r} claims to be larger than its file")
    with archive.open(member) as file:
        return _loaded(file, records, wanted)


def _loaded(file: IO[bytes], records: Records, wanted: Wanted) -> NDArray[Any]:
    try:
        return np.lib.format.read_array(file, allow_pickle=False)
    except ValueError:
        raise records.broken(f"the array {wanted.name!r} is damaged") from None
