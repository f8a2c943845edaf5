"""The `scrimp` command: a thin client of the REST API, and the commands that start the service.

Exit codes: scrimp.cli.command_session.EXIT_CODES, and docs/cli.md.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from scrimp.cli import (
    attack,
    audit_commands,
    block_commands,
    budget_commands,
    bundle_commands,
    catalogue,
    certificate_commands,
    charge_commands,
    completion,
    dataset_commands,
    egress_commands,
    export,
    grants,
    graphs,
    job_commands,
    key_commands,
    ledger,
    page_commands,
    predict_command,
    privacy_audit,
    query_command,
    report_command,
    root,
    serving,
    token_commands,
    webhook_commands,
    witness_commands,
)
from scrimp.cli.command_session import command


def _print_version(flag: bool) -> None:
    if flag:
        print(f"scrimp {version('scrimp')}")
        raise typer.Exit


app = typer.Typer(
    name="scrimp",
    help="Differentially private training that is priced before it runs, with a ledger that cannot be overspent.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def scrimp(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and end.")
    ] = False,
) -> None:
    """Differentially private training that is priced before it runs, with a ledger that cannot be overspent."""


serving.register(app)
app.add_typer(dataset_commands.app, name="datasets", help="Register and show data sets.")
app.add_typer(block_commands.app, name="blocks", help="What a data set grows by, each with a budget of its own.")
command(app, "train")(job_commands.train)
command(app, "quote")(job_commands.quote)
job_commands.register_trials(app)
command(app, "predict")(predict_command.predict)
command(app, "query")(query_command.query)
catalogue.register(app)
command(job_commands.app, "export")(export.export)
app.add_typer(job_commands.app, name="jobs", help="Submit, watch and fetch training jobs.")
app.add_typer(
    ledger.app, name="ledger", help="What has been spent of a data set's budget, by which key and for which job."
)
app.add_typer(certificate_commands.app, name="certificates", help="The signed privacy certificates of finished jobs.")
command(app, "signing-key")(certificate_commands.signing_key)
command(certificate_commands.app, "page")(page_commands.page)
app.add_typer(graphs.app, name="graphs", help="Models of your own, uploaded for your jobs.")
app.add_typer(webhook_commands.app, name="webhooks", help="Messages about jobs to an address of your own.")
app.add_typer(key_commands.app, name="keys", help="API keys: admins make and revoke them, holders rotate their own.")
key_commands.app.add_typer(
    root.app, name="root", help="The offline root that signs which signing keys certificates may have."
)
key_commands.app.add_typer(
    token_commands.app, name="token", help="Keys that sign and stay in a PKCS #11 token: of the service, or the root's."
)
app.add_typer(grants.app, name="grants", help="Which keys may see a data set, train on it, or charge it.")
app.add_typer(budget_commands.app, name="budgets", help="What keys and teams may use of a cap, and requests for more.")
command(app, "egress")(egress_commands.egress)
command(app, "report")(report_command.report)
command(app, "verify-egress")(egress_commands.verify_egress)
command(app, "dpia")(egress_commands.dpia)
command(app, "threat-model")(egress_commands.threat_model)
command(app, "attack-report")(attack.attack_report)
app.add_typer(egress_commands.app, name="approvals", help="What two persons must agree to: larger caps, egresses.")
app.add_typer(charge_commands.app, name="charges", help="Budget for what other systems compute from the same records.")
app.add_typer(
    witness_commands.app, name="witness", help="An append-only witness of ledgers' checkpoints, for another machine."
)
completion.register(app)
command(app, "audit-bundle")(bundle_commands.audit_bundle)
command(audit_commands.app, "privacy")(privacy_audit.privacy)
app.add_typer(
    audit_commands.app, name="audit", help="Who did what (admins only); and tests of the certificates' claims."
)


def main() -> None:
    """The console script. An unforeseen error is one line, not a traceback; SCRIMP_DEBUG=1 shows all of it."""
    try:
        app()
    except Exception as error:
        if os.environ.get("SCRIMP_DEBUG"):
            raise
        print(f"scrimp: unexpected {type(error).__name__}: {error} (SCRIMP_DEBUG=1 shows where)", file=sys.stderr)
        sys.exit(1)
