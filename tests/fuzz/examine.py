"""The property: a file is parsed and what comes out is sound, or it is refused with a text that holds none of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from app.formats.parse import parse
from app.sandbox.confinement import Policy
from app.sandbox.limited import run_limited
from core.contracts.blocks import UNITS
from core.errors import InvalidRequest, LimitError, ServiceError
from core.parts.layout import index_path
from core.parts.part_files import load_part
from core.parts.stored_records import Csr, Pairs, Sequences, StoredPart
from tests.fuzz.cases import CANARY, Case

KEYS = {"split": "5a" * 32, "content": "c3" * 32}
MEMORY_BYTES = 1536 * 2**20
TIME_S = 20.0
MAX_ERROR_BYTES = 20_000


class Unsound(AssertionError):
    """The property does not hold."""


def require(holds: bool, what: str) -> None:
    if not holds:
        raise Unsound(what)


def examine(case: Case, folder: Path, *, limited: bool = False) -> str:
    """Parse one input in `folder`, here or in a limited process, and check what comes of it.

    Returns:
        What became of it: "accepted", "refused: file | columns | cells", "limit".

    Raises:
        Unsound: and whatever else the parser raises that it should not.
    """
    out = folder / "out"
    out.mkdir()
    (folder / "input").write_bytes(case.content)
    request = {
        "spec": case.spec,
        "file": str(folder / "input"),
        "holdout_file": None,
        "output_dir": str(out),
        "keys": KEYS,
        "max_unpacked_bytes": MEMORY_BYTES // 2,
        "max_unpack_ratio": 1e9,
        "reserve_bytes": 0,
        "opens": {},
        "seal": None,
    }
    try:
        if limited:
            sizes = {"memory_bytes": MEMORY_BYTES, "time_s": TIME_S}
            files = Policy((folder / "input",), (out,))
            answer = run_limited("app.formats.parse:parse", request, files=files, **sizes)
        else:
            answer = parse(request)
        check_answer(answer, case, out)
        return "accepted"
    except InvalidRequest as error:
        return check_refusal(error)
    except (LimitError, MemoryError):
        return "limit"
    finally:
        require({path.name for path in folder.iterdir()} == {"input", "out"}, "a file beside the output folder")
        shutil.rmtree(out)
        (folder / "input").unlink()


def check_answer(answer: dict[str, Any], case: Case, out: Path) -> None:
    json.dumps(answer, allow_nan=False)
    names = {part["file"] for part in answer["parts"].values()}
    there = {path.name for path in out.iterdir()}
    beside = {UNITS} if answer["units_sha256"] is not None else set()
    require(
        there == names | {index_path(Path(name)).name for name in names} | beside, "files are the parts that are named"
    )
    parts = {name: load_part(out / part["file"], part["sha256"]) for name, part in answer["parts"].items()}
    counts = answer["counts"]
    require(counts["records"] >= 1, "a data set has a record")
    require(sum(len(part.y) for part in parts.values()) == counts["records"], "every record is in one part")
    require(
        all(len(part.y) == counts[name] for name, part in parts.items()) and counts["dropped"] >= 0,
        "counts are those of the parts",
    )
    for part in parts.values():
        check_part(part, answer)
    require(CANARY not in json.dumps(answer), "the answer holds a cell")
    columns = case.spec["features"].get("columns")
    require(columns is None or answer["features"] == len(columns), "the declared columns")


def check_part(part: StoredPart, answer: dict[str, Any]) -> None:
    require(part.shape == (len(part.y), answer["features"]), "one row a record, one column a feature")
    require(part.sparse == answer["sparse"], "sparse where it says so")
    if isinstance(part.x, Pairs | Sequences):
        check_rows(part.x)
        return
    values = part.x.data if isinstance(part.x, Csr) else part.x
    require(values.dtype == np.float32 and bool(np.isfinite(values).all()), "finite 32-bit features")
    require(bool(np.isfinite(part.y).all()), "finite targets")
    if part.y.dtype == np.int64:
        require(bool(((part.y >= 0) & (part.y < answer["outputs"])).all()), "declared classes")
    if isinstance(part.x, Csr):
        steps = np.diff(part.x.indptr)
        require(bool((steps >= 0).all()) and part.x.indptr[0] == 0, "rows follow each other")
        require(part.x.indptr[-1] == len(part.x.data) == len(part.x.indices), "every cell is in a row")
        require(bool(((part.x.indices >= 0) & (part.x.indices < part.x.shape[1])).all()), "indices of buckets")


def check_rows(x: Pairs | Sequences) -> None:
    """Of declared lists."""
    if isinstance(x, Sequences):
        require(bool((np.diff(x.ends, prepend=0) >= 1).all()), "no record is without an item")
        require(len(x.items) == (x.ends[-1] if len(x.ends) else 0), "every item is in a record")
    columns = [(x.items, x.size)] if isinstance(x, Sequences) else zip((x.users, x.items), x.sizes, strict=True)
    for rows, size in columns:
        require(bool(((rows >= 0) & (rows < size)).all()), "rows of declared ids")


def check_refusal(error: ServiceError) -> str:
    text = json.dumps([error.message, error.members], ensure_ascii=False, allow_nan=False)
    require(len(text.encode()) <= MAX_ERROR_BYTES, "an error is short, and is Unicode")
    errors = error.members["errors"]
    require(bool(errors) and all(each["pointer"].startswith("/") for each in errors), "an error says where")
    # What stands in the first line is taken for names of columns, which are told; a damaged file may have a cell there.
    named = "has no column" in error.message or "column names must be unique" in error.message
    told = [each for each in errors if "row" not in each]  # those of rows tell their sender a cell
    require(len(errors) <= len(told) + 10, "at most ten rows")
    require(named or CANARY not in json.dumps([error.message, told]), "the text holds a cell")
    if error.message.startswith("The data has"):
        return "refused: cells"
    return "refused: file" if errors[0]["pointer"] == "/file" else "refused: columns"
