"""`scrimp attack-report`: the owner's own attack on a model that leaves, by SACRO-ML."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from scrimp.cli.command_session import FAILED, Session
from scrimp.cli.trust import Dated, HistoryFile, HistoryNumber, PublicKeys, Root, Witnesses, trust_of
from scrimp.errors import ScrimpError, Undecided


def attack_report(
    session: Session,
    folder: Annotated[Path, typer.Argument(help="The folder of an egress.", exists=True, file_okay=False)],
    train: Annotated[Path, typer.Option(help="Rows that took part: .csv, .tsv, .jsonl or .parquet.")],
    holdout: Annotated[Path, typer.Option(help="Rows of the same kind of people that did not take part.")],
    to: Annotated[Path, typer.Option(help="The report's folder: new, and outside of DIR.")],
    python: Annotated[
        Path | None, typer.Option(help="The interpreter of an environment that has sacroml 2.0.1.")
    ] = None,
    public_key: PublicKeys = None,
    root: Root = None,
    history: HistoryFile = None,
    history_number: HistoryNumber = None,
    witness: Witnesses = None,
    dated: Dated = None,
) -> None:
    """Attack a model that leaves with the rows themselves, and compare what is found with its certificate.

    Offline, on the machine of the data set's owner. The report is not private: never release it. Exit code 1 if the
    attack finds more than the certificate allows.
    """
    from scrimp.attack_report import HOW, WARNING, report_of, require_apart, words_of, write
    from scrimp.egress import examine

    require_apart(to, folder)
    if python is None:
        raise ScrimpError(f"the attack runs in an environment of its own: {HOW}")
    examined = examine(folder, trust_of(public_key, root, history, history_number, witness, dated))
    if not examined.holds:
        refusal = ScrimpError if examined.refuted else Undecided
        raise refusal(f"{folder} does not hold, so it is not attacked: {'; '.join(examined.faults)}")
    report = report_of(folder, examined, {"train": train, "holdout": holdout}, python)
    sha256 = write(report, to, folder)

    def told() -> None:
        session.console.print(Text(WARNING), soft_wrap=True)
        session.console.print(Text(words_of(report).partition("\n")[2].strip()), soft_wrap=True)
        session.console.print(Text(f"{to / 'report.json'}: SHA-256 {sha256}"), soft_wrap=True)

    session.result({"warning": WARNING, "sha256": sha256, "folder": str(to), "above": report["above"]}, told)
    if report["above"]:
        raise typer.Exit(FAILED)
