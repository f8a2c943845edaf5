"""Writes a torch module as a file that the service reads: `scrimp.export_graph`.

The file is what `torch.export.save` writes, less what a reader would have to trust: torch's pickle of the example, the
traces of source files, and guards. Decompositions run here, so that the service needs rules for few operations.
"""

from __future__ import annotations

import io
import json
import warnings
import zipfile
from importlib import import_module
from pathlib import Path
from typing import Any

from scrimp.errors import MissingPackage

_KEPT = ("models/", "data/weights/", "data/constants/")
_SMALL = ("archive_format", "archive_version", ".data/version", "byteorder", ".data/serialization_id")
_DECOMPOSED = ("einsum.default", "_weight_norm.default", "instance_norm.default", "one_hot.default", "cdist.default")
_ROWS = 29  # records of the example that the module is traced with: torch takes sizes of 0 and 1 for constants


def export_graph(module: Any, example: Any, path: str | Path) -> Path:
    """Writes a module's graph and weights, for a job's `model: {"kind": "graph"}`.

    Args:
        module: any `torch.nn.Module` with one tensor as its input, records along dimension 0, and one output with a row
            for each record. It is exported in the mode that it is in.
        example: an input with one record or more; its numbers leave no trace in the file.
        path: of the file to write, by convention with the ending `.pt2`.

    Raises:
        ValueError: the module fixes the number of records, or cannot be exported.
        MissingPackage: torch is not installed.
    """
    try:
        torch = import_module("torch")
    except ModuleNotFoundError as error:
        raise MissingPackage("export_graph", "torch", "scrimp-client[graph]") from error
    repeats = -(-_ROWS // len(example))
    batch = torch.cat([example.detach()] * repeats)[:_ROWS].contiguous()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch itself: of its classes, and of weights that an nn.GRU lists
            exported = torch.export.export(module, (batch,), dynamic_shapes=({0: torch.export.Dim.AUTO},), strict=False)
            table = torch.export.default_decompositions()
            plain = exported.run_decompositions(
                {each: rule for each, rule in table.items() if each.__name__ in _DECOMPOSED}
            )
    except Exception as error:  # the module's own code may raise anything
        raise ValueError(f"torch.export cannot follow this module: {type(error).__name__}: {error}") from error
    full_file = io.BytesIO()
    torch.export.save(plain, full_file)
    path = Path(path)
    path.write_bytes(_reduced(full_file))
    return path


def _reduced(full_file: io.BytesIO) -> bytes:
    """The archive with the graph and the raw tensors alone.

    Raises:
        ValueError: the graph has a number where the records' is to be.
    """
    reduced = io.BytesIO()
    with zipfile.ZipFile(full_file) as source, zipfile.ZipFile(reduced, "w", zipfile.ZIP_STORED) as target:
        for member in source.infolist():
            name = member.filename.partition("/")[2]
            if name in _SMALL or name.startswith(_KEPT):
                content = source.read(member)
                content = _without_traces(content) if name == "models/model.json" else content
                target.writestr(zipfile.ZipInfo(f"graph/{name}"), content)
    return reduced.getvalue()


def _without_traces(content: bytes) -> bytes:
    """The graph's document without what tells of the machine: each node's stack, and the calls of modules."""
    document = json.loads(content)
    module = document["graph_module"]
    names = [each["user_input"]["arg"] for each in module["signature"]["input_specs"] if "user_input" in each]
    for name in (each["as_tensor"]["name"] for each in names if "as_tensor" in each):
        size = module["graph"]["tensor_values"][name]["sizes"][0]
        if "as_int" in size or size["as_expr"]["expr_str"].startswith("Integer("):
            raise ValueError(
                f"the module works for {_ROWS} records alone: use x.shape[0] or -1 where a size is the records', and "
                "matmul in place of einsum"
            )
    for node in module["graph"]["nodes"]:
        node["metadata"] = {}
    module["module_call_graph"], module["metadata"], document["guards_code"] = [], {}, []
    return json.dumps(document, separators=(",", ":")).encode()
