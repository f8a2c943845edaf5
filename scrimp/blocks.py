"""`client.blocks`: what a data set grows by."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scrimp import uploading
from scrimp.lists import BlockCalls
from scrimp.models import DataBlock, RegisteredDataset
from scrimp.reading import Progress, wait_until_read
from scrimp.wire import dataset_path


class Blocks(BlockCalls):
    """The blocks of data sets: `client.blocks`."""

    def __call__(self, dataset: str) -> list[DataBlock]:
        """Lists a data set's blocks in the order of their arrival; its own is the first."""
        answer = self.json("GET", f"{dataset_path(dataset)}/blocks")
        return [DataBlock.model_validate(each) for each in answer["items"]]

    def add(
        self,
        dataset: str,
        label: str,
        records: int,
        file: Path | None = None,
        *,
        edges_file: Path | None = None,
        edges_path: str | None = None,
        edges_upload: str | None = None,
        slots: Mapping[str, int] | None = None,
        path: str | None = None,
        upload: str | None = None,
        wait: bool = True,
        progress: Progress | None = None,
    ) -> DataBlock:
        """Appends a block: a file with the data set's declaration, and with records that no other block has. People may
        come back, within the bound on a person's records in all blocks together.

        Args:
            label: names the block in jobs.
            records: the declared, public number of its units.
            slots: at most so many units and records of each part: `train`, `holdout`, `train_rows`, `holdout_rows`;
                those left out have defaults.
            file: sent with the request; or `path` under the service's data root or `s3://bucket/key`, or the id of an
                `upload` (`Client.upload`). Of a graph with a file of edges, those too, in the same way.
            wait: for a large file, which the service reads in the background; otherwise its `state` is "reading".
            progress: called with the bytes that are read and those of the whole file, while it waits.

        Raises:
            Conflict: `duplicate-content`: it shares units with another block; only you are told.
        """
        spec: dict[str, Any] = {"label": label, "records": records}
        sources = {
            "slots": slots,
            "path": path,
            "upload": upload,
            "edges_path": edges_path,
            "edges_upload": edges_upload,
        }
        spec |= {name: value for name, value in sources.items() if value is not None}
        files = {"file": file, "edges_file": edges_file}
        sent = uploading.sent(self.json, f"{dataset_path(dataset)}/blocks", spec, files)
        block = DataBlock.model_validate(sent)
        return self._when_read(block, progress) if wait and block.state == "reading" else block

    def _when_read(self, found: DataBlock, progress: Progress | None) -> DataBlock:
        """Waits for a large file; returns the block as an append at once answers."""
        begun = RegisteredDataset.model_validate(self.json("GET", dataset_path(found.id)))
        reading = wait_until_read(self._client, begun, progress)
        block = next(each for each in self(found.dataset) if each.id == found.id)
        return block.model_copy(update={"read": reading.read, "warnings": reading.warnings})
