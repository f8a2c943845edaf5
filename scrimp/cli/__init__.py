"""The `scrimp` command: a thin client of the REST API, and the commands that start the service.

Exit codes: scrimp.cli.session.EXIT_CODES, and docs/cli.md.
"""

from __future__ import annotations

import os
import sys

import typer

from scrimp.cli import (
    attack,
    audit,
    audit_bundle,
    blocks,
    budgets,
    catalogue,
    certificate_page,
    certificates,
    charges,
    completion,
    datasets,
    egress,
    export,
    grants,
    graphs,
    jobs,
    keys,
    ledger,
    predict,
    privacy_audit,
    query,
    report,
    root,
    serving,
    webhooks,
    witness,
)
from scrimp.cli.session import command

app = typer.Typer(
    name="scrimp",
    help="Differentially private training that is priced before it runs, with a ledger that cannot be overspent.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
serving.register(app)
app.add_typer(datasets.app, name="datasets", help="Register and show data sets.")
app.add_typer(blocks.app, name="blocks", help="What a data set grows by, each with a budget of its own.")
command(app, "train")(jobs.train)
command(app, "quote")(jobs.quote)
jobs.register_trials(app)
command(app, "predict")(predict.predict)
command(app, "query")(query.query)
catalogue.register(app)
command(jobs.app, "export")(export.export)
app.add_typer(jobs.app, name="jobs", help="Submit, watch and fetch training jobs.")
app.add_typer(
    ledger.app, name="ledger", help="What has been spent of a data set's budget, by which key and for which job."
)
app.add_typer(certificates.app, name="certificates", help="The signed privacy certificates of finished jobs.")
command(app, "signing-key")(certificates.signing_key)
command(certificates.app, "page")(certificate_page.page)
app.add_typer(graphs.app, name="graphs", help="Models of your own, uploaded for your jobs.")
app.add_typer(webhooks.app, name="webhooks", help="Messages about jobs to an address of your own.")
app.add_typer(keys.app, name="keys", help="API keys: admins make and revoke them, holders rotate their own.")
keys.app.add_typer(root.app, name="root", help="The offline root that signs which signing keys certificates may have.")
app.add_typer(grants.app, name="grants", help="Which keys may see a data set, train on it, or charge it.")
app.add_typer(budgets.app, name="budgets", help="What keys and teams may use of a cap, and requests for more.")
command(app, "egress")(egress.egress)
command(app, "report")(report.report)
command(app, "verify-egress")(egress.verify_egress)
command(app, "dpia")(egress.dpia)
command(app, "threat-model")(egress.threat_model)
command(app, "attack-report")(attack.attack_report)
app.add_typer(egress.app, name="approvals", help="What two persons must agree to: larger caps, egresses.")
app.add_typer(charges.app, name="charges", help="Budget for what other systems compute from the same records.")
app.add_typer(witness.app, name="witness", help="An append-only witness of ledgers' checkpoints, for another machine.")
completion.register(app)
command(app, "audit-bundle")(audit_bundle.audit_bundle)
command(audit.app, "privacy")(privacy_audit.privacy)
app.add_typer(audit.app, name="audit", help="Who did what (admins only); and tests of the certificates' claims.")


def main() -> None:
    """The console script. An unforeseen error is one line, not a traceback; SCRIMP_DEBUG=1 shows all of it."""
    try:
        app()
    except Exception as error:
        if os.environ.get("SCRIMP_DEBUG"):
            raise
        print(f"scrimp: unexpected {type(error).__name__}: {error} (SCRIMP_DEBUG=1 shows where)", file=sys.stderr)
        sys.exit(1)
