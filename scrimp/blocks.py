"""`client.blocks`: what a data set grows by."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrimp.models import Ledger, Resource, Shape
from scrimp.wire import dataset_path, in_path

if TYPE_CHECKING:
    from scrimp.client import Client


class DataBlock(Resource):
    """A block of a data set, with a ledger of its own: `id` names it. `read` and `warnings` are its owner's alone.

    `state`: ready, behind (the service's database lost some of its spending) or retired.
    """

    id: str
    label: str
    dataset: str
    shape: Shape = Shape()
    ledger: Ledger
    state: str
    created_at: str
    content_deleted_at: str | None = None
    read: dict[str, int] | None = None
    warnings: list[str] | None = None


class Blocks:
    """The blocks of data sets: `client.blocks`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __call__(self, dataset: str) -> list[DataBlock]:
        """Lists a data set's blocks in the order of their arrival; its own is the first."""
        found = self._client.json("GET", f"{dataset_path(dataset)}/blocks")
        return [DataBlock.model_validate(each) for each in found["items"]]

    def add(
        self,
        dataset: str,
        label: str,
        records: int,
        file: Path | None = None,
        *,
        path: str | None = None,
        upload: str | None = None,
    ) -> DataBlock:
        """Appends a block: a file with the data set's declaration, and with units that no other block has.

        Args:
            label: names the block in jobs.
            records: the declared, public number of its units.
            file: sent with the request; or `path` under the service's data root, or the id of an `upload`.

        Raises:
            Conflict: `duplicate-content`: it shares units with another block; only you are told.
        """
        spec: dict[str, Any] = {"label": label, "records": records}
        spec |= {name: value for name, value in (("path", path), ("upload", upload)) if value is not None}
        address = f"{dataset_path(dataset)}/blocks"
        if file is None:
            return DataBlock.model_validate(self._client.json("POST", address, json=spec, timeout=600.0))
        with file.open("rb") as content:
            parts: dict[str, Any] = {"spec": (None, json.dumps(spec), "application/json")}
            parts["file"] = (file.name, content, "application/octet-stream")
            return DataBlock.model_validate(self._client.json("POST", address, files=parts, timeout=600.0))

    def retire(self, dataset: str, label: str) -> DataBlock:
        """Retires a block, for good: nothing more is admitted on it. It frees nothing."""
        address = f"{dataset_path(dataset)}/blocks/{in_path(label)}/retire"
        return DataBlock.model_validate(self._client.json("POST", address))
