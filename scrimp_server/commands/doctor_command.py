"""`scrimp doctor`: examines a deployment, where it runs."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from scrimp_server.commands.service import Home, settings_of

MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "fault": ("✗", "red")}


def doctor(
    home: Home = None, as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False
) -> None:
    """Examine this deployment: versions, secrets, database, storage, clocks, workers, queue, ledgers, this machine.

    Changes no data. Run it with the settings of the service, as its user. Exit code 1 if there is a fault.
    """
    settings = settings_of(home)
    from scrimp_server.doctor import examine

    findings = examine(settings)
    if as_json:
        print(json.dumps([asdict(each) for each in findings], indent=2, ensure_ascii=False))
    else:
        console = Console(highlight=False, soft_wrap=True)
        for finding in findings:
            mark, colour = MARKS[finding.state]
            console.print(Text(f"{mark} ", colour), Text(f"{finding.part:11}"), Text(finding.says), sep="", end="\n")
            if finding.advice:
                console.print(Text(f"{'':13}→ {finding.advice}", "dim"))
    if any(each.state == "fault" for each in findings):
        raise typer.Exit(1)
