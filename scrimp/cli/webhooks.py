"""`scrimp webhooks`: messages about jobs to an address of one's own."""

from __future__ import annotations

from typing import Annotated

import typer

from scrimp.cli import show
from scrimp.cli.session import Session, command, first
from scrimp.models import Delivery, NewSecret, Webhook

app = typer.Typer(no_args_is_help=True)
WebhookId = Annotated[str, typer.Argument(help="A webhook's id.")]
Events = Annotated[list[str] | None, typer.Option("--event", help="Such as job.succeeded; may be repeated.")]


@command(app, "list")
def list_(session: Session) -> None:
    """List your webhooks; for admins, everybody's."""
    found = session.client.webhooks().rows()
    rows = [(each.id, each.url, ", ".join(each.events), each.dataset or "all", _state(each)) for each in found]
    head = ("id", "address", "events", "data set", "state")
    session.result(found, lambda: show.table(session.console, head, rows))


@command(app, "create")
def create(
    session: Session,
    address: Annotated[str, typer.Argument(help="Where the messages go: an https address.")],
    event: Events = None,
    dataset: Annotated[str | None, typer.Option(help="Only jobs on this data set (name or id).")] = None,
    description: Annotated[str, typer.Option(help="A note.")] = "",
) -> None:
    """Create a webhook. The secret that signs its messages is printed this once."""
    if not event:
        raise typer.BadParameter("give at least one --event, such as --event job.succeeded")
    made = session.client.create_webhook(address, event, dataset=dataset, description=description)
    session.result(made, lambda: _new(session, made))


@command(app, "show")
def show_(session: Session, webhook_id: WebhookId) -> None:
    """Show one webhook."""
    found = session.client.webhook(webhook_id)
    facts = [("id", found.id), ("address", found.url), ("events", ", ".join(found.events))]
    facts += [("data set", found.dataset or "all"), ("state", _state(found)), ("note", found.description)]
    session.result(found, lambda: show.facts(session.console, facts))


@command(app, "change")
def change(
    session: Session,
    webhook_id: WebhookId,
    address: Annotated[str | None, typer.Option(help="Another address.")] = None,
    event: Events = None,
    description: Annotated[str | None, typer.Option(help="Another note.")] = None,
    enabled: Annotated[bool | None, typer.Option("--enable/--disable", help="Send messages, or stop.")] = None,
) -> None:
    """Change a webhook; what is left out stays."""
    given = {"url": address, "events": event or None, "description": description, "enabled": enabled}
    changes = {name: value for name, value in given.items() if value is not None}
    if not changes:
        raise typer.BadParameter("give what to change: --address, --event, --description, --enable or --disable")
    found = session.client.change_webhook(webhook_id, **changes)
    session.result(found, lambda: session.console.print(f"{found.id} is {_state(found)}", markup=False))


@command(app, "rotate-secret")
def rotate_secret(session: Session, webhook_id: WebhookId) -> None:
    """Give a webhook a new secret, printed only once."""
    made = session.client.rotate_webhook_secret(webhook_id)
    session.result(made, lambda: _new(session, made))


@command(app, "test")
def test(session: Session, webhook_id: WebhookId) -> None:
    """Send a webhook a test message; `deliveries` shows how it went."""
    found = session.client.test_webhook(webhook_id)
    session.result(found, lambda: session.console.print(f"{found.id} is {found.status}", markup=False))


@command(app, "deliveries")
def deliveries(
    session: Session, webhook_id: WebhookId, limit: Annotated[int, typer.Option(min=1, help="The most to list.")] = 50
) -> None:
    """List a webhook's messages and the results of their tries, newest first."""
    found = first(session.client.deliveries(webhook_id), limit)
    rows = [(e.id, e.type, e.job or "", e.status, str(e.attempts), _result(e), show.when(e.created_at)) for e in found]
    head = ("id", "event", "job", "status", "tries", "last answer", "created (UTC)")
    session.result(found, lambda: show.table(session.console, head, rows))


@command(app, "delete")
def delete(session: Session, webhook_id: WebhookId) -> None:
    """Delete a webhook and what it had not sent."""
    session.client.delete_webhook(webhook_id)
    session.result({"id": webhook_id}, lambda: session.console.print(f"{webhook_id} is deleted", markup=False))


def _state(webhook: Webhook) -> str:
    return "on" if webhook.enabled else f"off: {webhook.disabled_because or 'disabled'}"


def _result(delivery: Delivery) -> str:
    return delivery.error or ("" if delivery.status_code is None else str(delivery.status_code))


def _new(session: Session, made: NewSecret) -> None:
    session.console.print(f"{made.webhook.id}  {made.webhook.url}", markup=False)
    session.console.print(made.secret, style="bold", markup=False, soft_wrap=True)
    session.console.print("The service does not show it again: store it now.", style="dim")
