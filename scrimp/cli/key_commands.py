"""`scrimp keys`: admins make, list, change and revoke keys; each key may show and rotate itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer
from rich.console import Console

from scrimp.cli import show
from scrimp.cli.command_session import Session, command
from scrimp.cli.command_tables import KEY, Call, Parameter, register
from scrimp.models import Key, NewKey

app = typer.Typer(no_args_is_help=True)

Role = Annotated[
    str,
    typer.Option(help="admin | owner (registers data) | analyst (trains on what it is granted) | viewer (looks at it)"),
]
Count = Annotated[int | None, typer.Option(min=1, help="This key's own limit; default: the service's setting.")]
Weight = Annotated[
    int | None, typer.Option(min=1, max=100, help="Turns of its jobs for each of a key of weight 1; default: 1.")
]
Highest = Annotated[
    int | None, typer.Option(min=-10, max=10, help="The highest priority of its jobs among themselves; default: 10.")
]
Expires = Annotated[str | None, typer.Option("--expires", help="When it expires: 90d, 12h or a time; default: never.")]
Own = Annotated[str | None, typer.Argument(metavar="KEY", help="Its id or name; default: the key that is sent.")]
Overlap = Annotated[int, typer.Option("--overlap", min=0, max=86_400, help="Seconds that the old token still works.")]
COUNTS = ("requests_per_minute", "max_queued_jobs", "max_running_jobs", "max_job_s", "max_stored_bytes")
UNITS = {"h": timedelta(hours=1), "d": timedelta(days=1)}


def moment(text: str) -> datetime:
    """`30d` or `12h` from now, or a time (ISO 8601; without a zone: UTC)."""
    number, unit = text[:-1], text[-1:]
    if number.isdigit() and unit in UNITS and len(number) <= 5:
        return datetime.now(UTC) + int(number) * UNITS[unit]
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither a time (2030-01-31) nor a duration (90d, 12h)") from None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


@command(app, "set")
def set_(
    session: Session,
    key_id: Annotated[str, typer.Argument(metavar="KEY", help="Its id or name.")],
    requests_per_minute: Count = None,
    max_queued_jobs: Count = None,
    max_running_jobs: Count = None,
    max_job_s: Count = None,
    max_stored_bytes: Count = None,
    weight: Weight = None,
    max_priority: Highest = None,
    default: Annotated[
        list[str] | None, typer.Option(metavar="LIMIT", help="Back to the service's setting: such as max-job-s.")
    ] = None,
) -> None:
    """Change a key's limits or its weight; what is not given stays."""
    settings = {
        "requests_per_minute": requests_per_minute,
        "max_queued_jobs": max_queued_jobs,
        "max_running_jobs": max_running_jobs,
        "max_job_s": max_job_s,
        "max_stored_bytes": max_stored_bytes,
        "weight": weight,
        "max_priority": max_priority,
    }
    changes: dict[str, int | None] = {name: value for name, value in settings.items() if value is not None}
    for default_text in default or ():
        name = default_text.replace("-", "_")
        if name not in settings or name in changes:
            raise typer.BadParameter(f"{default_text!r} is no limit, or is given too: one of {', '.join(settings)}")
        changes[name] = None
    if not changes:
        raise typer.BadParameter("say what to change, such as --weight 3")
    key = session.client.change_key(session.client.key_id_of(key_id), **changes)
    session.result(key, lambda: _limits(session.console, key))


def _limits(console: Console, key: Key) -> None:
    limits = [
        (name.replace("_", " "), "any number" if value is None else str(value)) for name, value in key.limits.items()
    ]
    facts = [("id", key.id), ("name", key.name), ("role", key.role), ("expires", show.when(key.expires_at)), *limits]
    show.facts(console, facts)


def _new(console: Console, key: NewKey) -> None:
    console.print(f"{key.key.id}  {key.key.role}  {key.key.name}")
    console.print(f"[bold]{key.token}[/]", soft_wrap=True)
    console.print("The service keeps only a keyed hash of it: store it now.", style="dim")


def _weight(key: Key) -> str:
    return str(key.limits.get("weight", 1))


KEYS = ("id", "name", "role", ("weight", _weight), "created=created_at", "expires=expires_at", "revoked=revoked_at")
NEW = {
    "name": Parameter(Annotated[str, typer.Argument(help="Its holder's name.")]),
    "role": Parameter(Role, "analyst"),
    "expires_at": Parameter(Expires, None, lambda _session, given: None if given is None else moment(given)),
    **{name: Parameter(Count, None) for name in COUNTS},
    "weight": Parameter(Weight, None),
    "max_priority": Parameter(Highest, None),
}
ROTATED = {"key_id": KEY.optional(Own), "overlap_s": Parameter(Overlap, 0)}
ROTATE = "Give a key a new token, printed only once; its grants and jobs stay."
REVOKED = "{0.id} ({0.name}) is revoked"
register(
    app,
    Call("list", "keys", "List all keys, including revoked ones.", KEYS),
    Call("create", "create_key", "Make a key. Its token is printed this once.", _new, NEW),
    Call("rotate", "rotate_key", ROTATE, _new, ROTATED),
    Call("self", "own_key", "Show the key that is sent, and its limits.", _limits),
    Call("revoke", "revoke_key", "Revoke a key, at once and for good. Its jobs continue.", REVOKED, {"key_id": KEY}),
)
