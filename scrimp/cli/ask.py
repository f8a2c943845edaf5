"""What `scrimp datasets init` asks on a terminal: which column is predicted, and who is protected."""

from __future__ import annotations

import sys

import typer

from scrimp.declare import Sheet


def asked_columns(
    sheet: Sheet, label: str | None, person: str | None, *, each_record: bool = False
) -> tuple[str | None, str | None]:
    """The column to predict, and the person's; each as the options say, else as the terminal's user answers.

    Without a terminal people are protected where a column looks like their id.

    Raises:
        BadParameter: there is no label, and no terminal to ask at.
    """
    is_terminal = sys.stdin.isatty()
    if label is None and not is_terminal:
        question = f"which column is to be predicted? The file has {', '.join(sheet.labels[:20])}"
        raise typer.BadParameter(question, param_hint="--label")
    if label is None:
        label = typer.prompt(f"Which column is to be predicted? ({', '.join(sheet.labels[:20])})", err=True)
    persons = [name for name in sheet.persons if name != label]
    if person is None and persons and not each_record:
        question = f"{persons[0]} looks like a person's id. Protect each person, with all records?"
        person = persons[0] if not is_terminal or typer.confirm(question, default=True, err=True) else None
    return label, person
