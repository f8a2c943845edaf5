"""The command line covers every route of the API; what it leaves out has a reason."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from scrimp.cli import app
from scrimp.cli.session import EXIT_CODES

ROOT = Path(__file__).resolve().parents[2]
# Route → its command.
COMMANDS = {
    "GET /v1/audit": "audit list",
    "GET /v1/audit/verify": "audit verify",
    "GET /v1/budget-requests": "budgets requests",
    "POST /v1/budget-requests": "budgets request",
    "GET /v1/budget-requests/{request_id}": "budgets approve",
    "POST /v1/budget-requests/{request_id}/approve": "budgets approve",
    "POST /v1/budget-requests/{request_id}/deny": "budgets deny",
    "GET /v1/datasets/{dataset_id}/budgets": "budgets list",
    "GET /v1/datasets/{dataset_id}/budgets/{budget}": "budgets show",
    "PUT /v1/datasets/{dataset_id}/budgets/{budget}": "budgets set",
    "GET /v1/datasets/{dataset_id}/blocks": "blocks list",
    "POST /v1/datasets/{dataset_id}/blocks": "blocks add",
    "POST /v1/datasets/{dataset_id}/blocks/{label}/retire": "blocks retire",
    "PATCH /v1/keys/{key_id}": "keys set",
    "DELETE /v1/datasets/{dataset_id}/budgets/{budget}": "budgets close",
    "GET /v1/charges": "charges list",
    "POST /v1/charges": "charges reserve",
    "GET /v1/charges/{charge_id}": "charges show",
    "POST /v1/charges/{charge_id}/post": "charges post",
    "POST /v1/charges/{charge_id}/void": "charges void",
    "GET /v1/datasets": "datasets list",
    "POST /v1/datasets": "datasets add",
    "POST /v1/datasets/check": "datasets check",
    "GET /v1/datasets/{dataset_id}": "datasets show",
    "GET /v1/datasets/{dataset_id}/events": "datasets add",
    "DELETE /v1/datasets/{dataset_id}/content": "datasets delete-content",
    "POST /v1/datasets/{dataset_id}/declarations": "datasets declare",
    "GET /v1/datasets/{dataset_id}/grants": "grants list",
    "PUT /v1/datasets/{dataset_id}/grants/{key_id}": "grants set",
    "DELETE /v1/datasets/{dataset_id}/grants/{key_id}": "grants remove",
    "GET /v1/datasets/{dataset_id}/ledger": "ledger show",
    "POST /v1/datasets/{dataset_id}/ledger/cap": "ledger cap",
    "GET /v1/datasets/{dataset_id}/ledger/entries": "ledger entries",
    "POST /v1/datasets/{dataset_id}/ledger/forecast": "ledger forecast",
    "POST /v1/datasets/{dataset_id}/ledger/join": "ledger join",
    "GET /v1/datasets/{dataset_id}/ledger/verify": "ledger verify",
    "POST /v1/datasets/{dataset_id}/ledger/verify": "ledger verify",
    "POST /v1/datasets/{dataset_id}/retire": "datasets retire",
    "GET /v1/extractors": "extractors",
    "GET /v1/hpo-strategies": "strategies",
    "GET /v1/jobs": "jobs list",
    "POST /v1/jobs": "jobs submit",
    "GET /v1/jobs/{job_id}": "jobs show",
    "PATCH /v1/jobs/{job_id}": "jobs label",
    "DELETE /v1/jobs/{job_id}/artifacts": "jobs delete-artifacts",
    "GET /v1/jobs/{job_id}/artifacts/{name}": "jobs fetch",
    "POST /v1/jobs/{job_id}/cancel": "jobs cancel",
    "POST /v1/jobs/{job_id}/pause": "jobs pause",
    "POST /v1/jobs/{job_id}/resume": "jobs resume",
    "GET /v1/jobs/{job_id}/certificate": "certificates show",
    "GET /v1/jobs/{job_id}/events": "jobs events",
    "GET /v1/jobs/{job_id}/metrics": "jobs metrics",
    "POST /v1/jobs/{job_id}/predict": "predict",
    "GET /v1/jobs/{job_id}/predictions/{prediction_id}": "predict",
    "GET /v1/jobs/{job_id}/trials": "trials",
    "GET /v1/keys": "keys list",
    "POST /v1/keys": "keys create",
    "GET /v1/keys/self": "keys self",
    "DELETE /v1/keys/{key_id}": "keys revoke",
    "POST /v1/keys/{key_id}/rotate": "keys rotate",
    "GET /v1/ledger/checkpoint": "ledger checkpoint",
    "GET /v1/ledger/proof": "ledger proof",
    "GET /v1/models": "models",
    "GET /v1/optimizers": "optimizers",
    "GET /v1/presets": "presets",
    "POST /v1/quotes": "quote",
    "POST /v1/quotes/sweep": "quote",
    "GET /v1/signing-keys": "signing-key",
    "POST /v1/uploads": "datasets add",
    "GET /v1/uploads/{upload_id}": "datasets add",
    "PATCH /v1/uploads/{upload_id}": "datasets add",
    "GET /v1/webhooks": "webhooks list",
    "POST /v1/webhooks": "webhooks create",
    "GET /v1/webhooks/{webhook_id}": "webhooks show",
    "PATCH /v1/webhooks/{webhook_id}": "webhooks change",
    "DELETE /v1/webhooks/{webhook_id}": "webhooks delete",
    "GET /v1/webhooks/{webhook_id}/deliveries": "webhooks deliveries",
    "POST /v1/webhooks/{webhook_id}/rotate-secret": "webhooks rotate-secret",
    "POST /v1/webhooks/{webhook_id}/test": "webhooks test",
    "GET /v1/workers": "workers",
}
# Routes without a command, and why.
EXCEPTIONS = {
    "GET /healthz": "for monitors",
    "GET /readyz": "for monitors",
    "GET /metrics": "for Prometheus",
    "DELETE /v1/uploads/{upload_id}": "an upload that nobody registers is deleted after a day",
}


def routes() -> set[str]:
    document = json.loads((ROOT / "docs" / "openapi.json").read_text())
    return {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods}


def commands() -> set[str]:
    """Every command, as it is typed."""

    def below(group: object, typed: str) -> set[str]:
        found = getattr(group, "commands", None)
        if found is None:
            return {typed}
        return {each for name, one in found.items() for each in below(one, f"{typed} {name}".strip())}

    return below(get_command(app), "")


def test_every_route_has_a_command_or_a_reason() -> None:
    assert routes() == COMMANDS.keys() | EXCEPTIONS.keys()
    assert not COMMANDS.keys() & EXCEPTIONS.keys()
    assert set(COMMANDS.values()) <= commands()


def test_every_command_is_on_a_page() -> None:
    pages = "".join(path.read_text() for path in (ROOT / "docs").glob("*.md"))
    assert [each for each in sorted(commands()) if f"scrimp {each}" not in pages] == []


# A command as pages write it: alone on its line, after a prompt or a pipe, or between backticks.
WRITTEN = re.compile(r"(?:^(?:\$ )?|`|\| )scrimp ([a-z][^`\n|#>]*)", flags=re.MULTILINE)


def unknown(line: str) -> str | None:
    """The first word of a written command that `scrimp` does not know: a command, or an option."""
    group, words = get_command(app), line.split()
    while (found := getattr(group, "commands", None)) is not None:
        if not words or not re.fullmatch(r"[a-z-]+,?", words[0]):
            return None  # prose about a group of commands
        if (one := found.get(words.pop(0).rstrip(","))) is None:
            return line
        group = one
    options = {name for each in group.params for name in (*each.opts, *each.secondary_opts)} | {"--help"}
    asked = (found[0] for each in words if (found := re.match(r"--[a-z-]+", each.lstrip("[("))))
    return next((each for each in asked if each not in options), None)


@pytest.mark.parametrize("page", ["README.md", *sorted(f"docs/{each.name}" for each in (ROOT / "docs").glob("*.md"))])
def test_what_a_page_types_is_a_command_with_its_options(page: str) -> None:
    written = WRITTEN.findall((ROOT / page).read_text())
    assert [(each, wrong) for each in written if (wrong := unknown(each)) is not None] == []


def test_a_command_or_an_option_that_is_not_there_is_found() -> None:
    assert unknown("jobs submit job.json --watch") is None and unknown("budgets list visits") is None
    assert unknown("jobs subm job.json") == "jobs subm job.json"
    assert unknown("jobs submit job.json [--wach]") == "--wach"


def test_the_exit_codes_are_documented() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    table = page.partition("| exit code | |")[2].partition("\n\n")[0]
    rows = {int(code): said for code, said in re.findall(r"^\| (\d+) \| (.*) \|$", table, flags=re.MULTILINE)}
    assert rows == EXIT_CODES


@pytest.mark.parametrize("option", ["--url", "--key", "--json"])
def test_no_command_hides_the_connection_s_options(option: str) -> None:
    shown = CliRunner().invoke(app, ["jobs", "spec", "--help"], env={"COLUMNS": "200"})
    assert option in shown.output
