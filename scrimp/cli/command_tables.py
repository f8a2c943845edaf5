"""Commands that are one call of the client: a table of what is typed, what is called, and what is printed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from scrimp.cli import show
from scrimp.cli.command_session import Session, command, first, read_json
from scrimp.rows import Pages

# A column: `head=member.member:format`, `member` alone where it is the head too, or a head with a function of the item.
Columns = tuple[str | tuple[str, Callable[[Any], str]], ...]
Shows = Columns | str | Callable[[Console, Any], object]


@dataclass(frozen=True)
class Parameter:
    """A parameter of a command.

    Attributes:
        typed: its type with typer's own words.
        default: what it is where it is left out; without one it must be given.
        taken: what the client takes for it.
    """

    typed: Any
    default: Any = inspect.Parameter.empty
    taken: Callable[[Session, Any], Any] = lambda _session, given: given

    def optional(self, typed: Any) -> Parameter:
        """The same parameter, which may be left out; typed otherwise."""
        return Parameter(typed, None, lambda session, given: None if given is None else self.taken(session, given))


@dataclass(frozen=True)
class Call:
    """A command.

    Attributes:
        name: as it is typed.
        method: the client's, with dots.
        said: what its help says.
        shows: columns of a table, a row for each item; a line with `{0.member}` of the answer; or a function that
            prints the answer.
        takes: its parameters, by the names of the client's; `limit` is the most items of a list.
    """

    name: str
    method: str
    said: str
    shows: Shows
    takes: Mapping[str, Parameter] = field(default_factory=dict)


DATASET = Parameter(Annotated[str, typer.Argument(help="A data set's name or id.")])
ANY_DATASET = DATASET.optional(Annotated[str | None, typer.Argument(help="A data set's name or id; default: all.")])
JobId = Annotated[str, typer.Argument(metavar="JOB", help="A job's id, or its name if no other job has it.")]
JOB = Parameter(JobId, taken=Session.job)
KEY = Parameter(
    Annotated[str, typer.Argument(metavar="KEY", help="Its id or name.")],
    taken=lambda session, given: session.client.key_id_of(given),
)
SPEC = Parameter(
    Annotated[Path, typer.Argument(help="A JobSpec (JSON); - reads standard input.")],
    taken=lambda _session, given: read_json(given),
)


def option(said: str, kind: Any = str, name: str | None = None) -> Parameter:
    """An option that may be left out."""
    return Parameter(Annotated[kind | None, typer.Option(*([name] if name else []), help=said)], None)


def limit(said: str, most: int | None = None) -> Parameter:
    """The most items that a command lists."""
    return Parameter(Annotated[int, typer.Option(min=1, max=most, help=said)], 50)


def register(app: typer.Typer, *calls: Call) -> None:
    """Adds the commands of a table."""
    for call in calls:
        command(app, call.name)(_function(call))


def _function(call: Call) -> Callable[..., None]:
    def run(session: Session, **typed: Any) -> None:
        taken = {name: call.takes[name].taken(session, value) for name, value in typed.items()}
        limit_wanted = taken.pop("limit", None)
        answer = attrgetter(call.method)(session.client)(**taken)
        if isinstance(answer, Pages):
            answer = list(answer) if limit_wanted is None else first(answer, limit_wanted)
        # What has no answer says what was named.
        answer = taken if answer is None else answer
        session.result(answer, lambda: _print(session.console, call.shows, answer))

    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=each.typed)
        for name, each in call.takes.items()
    ]
    session_parameter = inspect.Parameter("session", inspect.Parameter.POSITIONAL_ONLY, annotation=Session)
    vars(run)["__signature__"] = inspect.Signature([session_parameter, *parameters])
    run.__doc__ = call.said
    return run


def _print(console: Console, shows: Shows, answer: Any) -> None:
    if isinstance(shows, tuple):
        table(console, shows, answer)
    elif isinstance(shows, str):
        line = shows.format(**answer) if isinstance(answer, dict) else shows.format(answer)
        console.print(Text(line), soft_wrap=True)  # a name is not markup
    else:
        shows(console, answer)


def table(console: Console, columns: Columns, items: Iterable[Any]) -> None:
    """Prints a row for each item."""
    cells = dict(map(_column, columns))
    show.table(console, tuple(cells), [[cell(each) for cell in cells.values()] for each in items])


def _column(column: str | tuple[str, Callable[[Any], str]]) -> tuple[str, Callable[[Any], str]]:
    if not isinstance(column, str):
        return column
    head, _, member_name = column.partition("=")
    member, _, form = (member_name or head).partition(":")
    reader = attrgetter(member)
    return head if member_name else member, lambda item: _cell(reader(item), form, is_moment=member.endswith("_at"))


def _cell(value: Any, form: str, *, is_moment: bool) -> str:
    if value is None or is_moment:
        return show.when(value)
    return ", ".join(value) if isinstance(value, list) else format(value, form)
