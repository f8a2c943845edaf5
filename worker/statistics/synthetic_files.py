"""The files of a synthetic job, from what it released: rows.csv, the same rows in rows.parquet, and utility.json."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from core.contracts.job_spec import JobSpec
from core.contracts.kinds import ROWS_FILE, ROWS_TABLE, UTILITY_FILE
from core.contracts.table import CategoryColumn, NumberColumn
from core.errors import PrivacyError
from core.statistics.plans import Asked, CellsPlan
from core.statistics.statistics_columns import Axis
from core.synthetic.synthesis import synthesise
from core.synthetic.values import Values
from worker.statistics.sums_release import Release


def contents(spec: JobSpec, question: Asked, release: Release) -> dict[str, bytes]:
    """The job's files, by name; the same for the same release.

    Raises:
        PrivacyError: the job was not closed by admission.
    """
    if spec.columns is None or not isinstance(spec.rows, int):
        raise PrivacyError("a synthetic job names its columns, and how many rows it draws")
    axes = _axes(question, len(spec.columns))
    synthesized = synthesise(axes, [each.numpy() for each in release.noisy], release.stds, spec.target, spec.rows)
    table = pa.table({each.name: _array(each, axis) for each, axis in zip(synthesized.columns, axes, strict=True)})
    utility = (
        json.dumps(synthesized.utility.model_dump(mode="json"), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    )
    return {ROWS_FILE: _csv(table), ROWS_TABLE: _parquet(table), UTILITY_FILE: utility.encode()}


def _axes(question: Asked, columns: int) -> list[Axis]:
    """Of each column, in order: the first pairs are those of the first column with all others."""
    pairs = [each.axes for each in question.plans if isinstance(each, CellsPlan)]
    return [pairs[0][0], *(axes[1] for axes in pairs[: columns - 1])]


def _array(column: Values, axis: Axis) -> pa.Array:
    declared = axis.column.declared
    if isinstance(declared, NumberColumn):
        return pa.array(column.values, pa.float64())
    # As core.synthetic.values writes them: a value that is none of the declared ones is a text.
    is_integer = isinstance(declared, CategoryColumn) and all(isinstance(value, int) for value in declared.values)
    texts = isinstance(declared, CategoryColumn) and declared.unknown == "other" and declared.missing != "other"
    return pa.array(column.values, pa.int64() if is_integer and not texts else pa.string())


def _csv(table: pa.Table) -> bytes:
    written = pa.BufferOutputStream()
    pyarrow.csv.write_csv(table, written, pyarrow.csv.WriteOptions(quoting_style="needed", quoting_header="needed"))
    return bytes(written.getvalue())


def _parquet(table: pa.Table) -> bytes:
    written = pa.BufferOutputStream()
    pyarrow.parquet.write_table(table, written)
    return bytes(written.getvalue())
