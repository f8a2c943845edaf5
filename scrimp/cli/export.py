"""`scrimp jobs export`: a finished model in another format."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from scrimp.cli.command_session import Session, written
from scrimp.loading import CARD


def export(
    session: Session,
    job_id: Annotated[str, typer.Argument(metavar="JOB", help="A job's id or name, or the folder of its files.")],
    onnx: Annotated[Path, typer.Option(help="The ONNX file to write.")],
) -> None:
    """Write a linear model, an MLP or one's own graph as ONNX, for runtimes without Python. It costs no privacy."""
    from scrimp.onnx_export import onnx_of_files

    with tempfile.TemporaryDirectory() as empty:
        folder = Path(job_id)
        if not (folder / CARD).is_file():
            folder = Path(empty)
            session.client.jobs.get(job_id).fetch(folder)
        content = onnx_of_files(folder)
    written(onnx, content)
    session.result({"file": str(onnx), "bytes": len(content)}, lambda: print(onnx))
