"""What the service read from an owner's file, in a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from scrimp.cli import show
from scrimp.column_rows import FROM_DATA, MOST_WRONG, Row
from scrimp.declare import Proposal
from scrimp.models import CheckedDataset, Dataset, Read, RedeclaredDataset, RegisteredDataset

CHOOSE = (
    "Choose the number from what you expect to be true of the data, before you count them; twice the declared number "
    "hides how many there are within a factor of two"
)


def registered(console: Console, dataset: RegisteredDataset) -> None:
    """Prints a new data set, what was read from its file, and warnings."""
    show.dataset(console, dataset)
    if dataset.read is not None:
        show.facts(console, [("read", _read(dataset.read))])
    warnings(console, dataset.warnings)


def checked(console: Console, dataset: CheckedDataset) -> None:
    """Prints what a registration would answer."""
    console.print(Text.assemble((dataset.name, "bold"), "  checked; nothing is stored"))
    sizes = f"{dataset.shape['records_train']:,} to train on, {dataset.shape['records_holdout']:,} held out"
    suggested = f"{dataset.suggested_records:,} (rounded: an exact number becomes public once it is declared)"
    rows = [("read", _read(dataset.read)), ("public sizes", sizes), ("`records` to declare", suggested)]
    if dataset.suggested_slots is not None:
        rows.append(("`slots` to declare", f"{dataset.suggested_slots} (shown to you alone). {CHOOSE}"))
    show.facts(console, rows)
    warnings(console, dataset.warnings)


def proposed(console: Console, proposal: Proposal) -> None:
    """Prints a proposed declaration: its columns one by one, then what else to check in it."""
    if proposal.rows:
        grid = Table(
            "column", "kind", "range or values", "missing", "scale", "use", "from", box=None, header_style="dim"
        )
        for row in proposal.rows:
            grid.add_row(*map(Text, _cells(row)))
        console.print(grid)
    console.print("A declaration is public. Check:")
    for note in proposal.notes:
        console.print(f"  {note}", markup=False)
    if proposal.wrong:
        first = f"the first {len(proposal.wrong)}" if len(proposal.wrong) == MOST_WRONG else "these"
        console.print(
            f"The service refuses the file while it has wrong cells; {first}, of {proposal.looked_at:,} records:"
        )
        for cell in proposal.wrong:
            value = cell.value if len(cell.value) <= 40 else f"{cell.value[:37]}…"
            console.print(f"  record {cell.record}, {cell.column}: {value!r}", markup=False)
        drop = 'say `"wrong_rows": "drop"`, which leaves such rows out'
        console.print(f"Mend them in the file, declare the column otherwise, leave it out, or {drop}.", markup=False)


def _cells(row: Row) -> tuple[str, ...]:
    column = row.column
    values = column.get("values") or column.get("classes") or ()
    ends = column.get("range") or ()
    text = ", ".join(map(str, values)) or " to ".join(f"{end:g}" if isinstance(end, float) else end for end in ends)
    origin = {"data": FROM_DATA, "name": "public, by its name", "": ""}[row.origin]
    return (
        row.name,
        column.get("kind", ""),
        " ".join(filter(None, (text if len(text) <= 40 else f"{text[:37]}…", row.unit))),
        str(column.get("missing", "")),
        column.get("scale", ""),
        row.use,
        "; ".join(filter(None, (origin, row.doubt))),
    )


def slots(console: Console, old: Dataset, dataset: RedeclaredDataset, *, changed: bool, dry_run: bool) -> None:
    """Prints a data set's slots, and those that it would have by default.

    Args:
        old: the data set as it was.
        changed: slots were declared.
        dry_run: nothing was stored.
    """
    present = dataset.shape.slots or old.shape.slots
    console.print(Text.assemble((dataset.name, "bold"), f"  declaration {dataset.declaration}"))
    if dataset.default_slots is None:
        console.print("public: its number of records is public, and it has no slots")
        return
    rows = [("slots", show.UNSTATED_SLOTS if present is None else str(present))]
    if changed and dry_run:
        rows.append(("they would be", str(dataset.slots)))
    rows.append(("by default", str(dataset.default_slots)))
    show.facts(console, rows)
    console.print(Text(CHOOSE, style="dim"))
    warnings(console, dataset.warnings)


def redeclared(console: Console, dataset: RedeclaredDataset) -> None:
    """Prints a data set's declaration after a change, and what its records say about it."""
    sizes = f"{dataset.shape.records_train:,} to train on, {dataset.shape.records_holdout:,} held out"
    console.print(Text.assemble((dataset.name, "bold"), f"  declaration {dataset.declaration}"))
    rows = [("public sizes", sizes), *([] if dataset.slots is None else [("slots", str(dataset.slots))])]
    if dataset.read is not None and dataset.suggested_records is not None:
        suggested = f"{dataset.suggested_records:,} (rounded: an exact number becomes public once it is declared)"
        rows = [("stored", _read(dataset.read)), *rows, ("`records` to declare", suggested)]
    show.facts(console, rows)
    warnings(console, dataset.warnings)


def warnings(console: Console, messages: Iterable[str]) -> None:
    """Prints warnings, one a line."""
    for message in messages:
        console.print(Text(f"warning: {message}", style="yellow"))


def _read(read_settings: Read) -> str:
    units = "" if read_settings.units == read_settings.records else f", {read_settings.units:,} protected units"
    parts = f"{read_settings.train:,} to train on, {read_settings.holdout:,} held out"
    return (
        f"{read_settings.records:,} records{units}; {read_settings.dropped:,} dropped; in truth {parts} "
        "(shown to you alone)"
    )
