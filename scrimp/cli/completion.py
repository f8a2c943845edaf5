"""`scrimp completion SHELL`: what a shell needs to complete commands and options."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from typer.completion import completion_init, get_completion_script  # type: ignore[attr-defined] # not in __all__

COMPLETE = "_SCRIMP_COMPLETE"  # with it in the environment, the command prints completions


class Shell(StrEnum):
    """The shells that can be completed."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def register(root: typer.Typer) -> None:
    """Adds `completion`; makes the program answer the shells' questions."""
    completion_init()

    @root.command("completion")
    def completion(shell: Annotated[Shell, typer.Argument(help="bash, zsh or fish.")]) -> None:
        """Print a script that makes a shell complete `scrimp`: eval "$(scrimp completion bash)"."""
        print(get_completion_script(prog_name="scrimp", complete_var=COMPLETE, shell=shell.value))
