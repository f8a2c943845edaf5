"""`scrimp webhooks`: messages about jobs to an address of one's own."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from scrimp.cli import show
from scrimp.cli.command_session import Session, command
from scrimp.cli.command_tables import Call, Parameter, limit, register
from scrimp.models import Delivery, NewSecret, Webhook

app = typer.Typer(no_args_is_help=True)
WebhookId = Annotated[str, typer.Argument(help="A webhook's id.")]
Events = Annotated[list[str] | None, typer.Option("--event", help="Such as job.succeeded; may be repeated.")]


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
    webhook = session.client.create_webhook(address, event, dataset=dataset, description=description)
    session.result(webhook, lambda: _new(session.console, webhook))


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
    changes_given = {"url": address, "events": event or None, "description": description, "enabled": enabled}
    changes = {name: value for name, value in changes_given.items() if value is not None}
    if not changes:
        raise typer.BadParameter("give what to change: --address, --event, --description, --enable or --disable")
    webhook = session.client.change_webhook(webhook_id, **changes)
    session.result(webhook, lambda: session.console.print(f"{webhook.id} is {_state(webhook)}", markup=False))


@command(app, "delete")
def delete(session: Session, webhook_id: WebhookId) -> None:
    """Delete a webhook and what it had not sent."""
    session.client.delete_webhook(webhook_id)
    session.result({"id": webhook_id}, lambda: session.console.print(f"{webhook_id} is deleted", markup=False))


def _state(webhook: Webhook) -> str:
    return "on" if webhook.enabled else f"off: {webhook.disabled_because or 'disabled'}"


def _result(delivery: Delivery) -> str:
    return delivery.error or ("" if delivery.status_code is None else str(delivery.status_code))


def _facts(console: Console, webhook: Webhook) -> None:
    facts = [("id", webhook.id), ("address", webhook.url), ("events", ", ".join(webhook.events))]
    facts += [("data set", webhook.dataset or "all"), ("state", _state(webhook)), ("note", webhook.description)]
    show.facts(console, facts)


def _new(console: Console, webhook: NewSecret) -> None:
    console.print(f"{webhook.webhook.id}  {webhook.webhook.url}", markup=False)
    console.print(webhook.secret, style="bold", markup=False, soft_wrap=True)
    console.print("The service does not show it again: store it now.", style="dim")


WEBHOOK = {"webhook_id": Parameter(WebhookId)}
WEBHOOKS = ("id", "address=url", "events", ("data set", lambda webhook: webhook.dataset or "all"), ("state", _state))
DELIVERIES = (
    "id",
    "event=type",
    "job",
    "status",
    "tries=attempts",
    ("last answer", _result),
    "created (UTC)=created_at",
)
MESSAGES = "List a webhook's messages and the results of their tries, newest first."
TESTED = "Send a webhook a test message; `deliveries` shows how it went."
ROTATED = "Give a webhook a new secret, printed only once."
register(
    app,
    Call("list", "webhooks", "List your webhooks; for admins, everybody's.", WEBHOOKS),
    Call("show", "webhook", "Show one webhook.", _facts, WEBHOOK),
    Call("rotate-secret", "rotate_webhook_secret", ROTATED, _new, WEBHOOK),
    Call("test", "test_webhook", TESTED, "{0.id} is {0.status}", WEBHOOK),
    Call("deliveries", "deliveries", MESSAGES, DELIVERIES, WEBHOOK | {"limit": limit("The most to list.")}),
)
