"""Files above 64 MiB are sent in pieces before their data set is registered or checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from scrimp.cli import show
from scrimp.client import Client
from scrimp.errors import ServiceUnreachable

LARGE_BYTES = 64 << 20
UPLOADS = {"file": "upload", "holdout_file": "holdout_upload", "edges_file": "edges_upload"}
RESUME = "what has arrived is kept for a day: run the same command again, and the upload goes on from there"


Files = dict[str, Path | None]  # `file`, `holdout_file`, `edges_file`


def sent(client: Client, spec: dict[str, Any], files: Files) -> tuple[dict[str, Any], Files]:
    """The declaration and the files to send with it. If one is large, all are uploaded and named in the declaration.

    Raises:
        ScrimpError: as `Client.upload`; the error of a lost connection says how to resume.
    """
    if not any(each is not None and each.stat().st_size > LARGE_BYTES for each in files.values()):
        return spec, files
    references = {UPLOADS[name]: _uploaded(client, each) for name, each in files.items() if each is not None}
    return spec | references, dict.fromkeys(files)


@contextmanager
def reading() -> Iterator[Callable[[int, int], None]]:
    """A bar of the bytes that the service has read; it appears with the first call."""
    console = show.console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=30), DownloadColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("the service reads it", total=None, visible=False)
        yield lambda completed, total: bar.update(task, completed=completed, total=total, visible=True)


def _uploaded(client: Client, file: Path) -> str:
    with uploading(file) as progress:
        return client.upload(file, progress).id


@contextmanager
def uploading(file: Path) -> Iterator[Callable[[int, int], None]]:
    """A bar of the bytes that are sent. Interruptions and lost connections say how to resume."""
    console = show.console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=30), DownloadColumn(), TransferSpeedColumn())
    try:
        with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as bar:
            task = bar.add_task(file.name, total=file.stat().st_size)
            yield lambda completed, _whole: bar.update(task, completed=completed)
    except KeyboardInterrupt:
        console.print(f"interrupted; {RESUME}")
        raise
    except ServiceUnreachable as error:
        raise ServiceUnreachable(f"{error}; {RESUME}") from error
