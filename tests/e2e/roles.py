"""Walks each role's path from end to end, in the browser, by plain REST and on the command line.

`python -m tests.e2e.roles` prints its steps.

The table is a hospital's: a rare outcome, missing cells, several stays of a person, and one typing error. A walk prints
its steps with their seconds; tests/e2e/test_roles.py takes the same steps.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from typer.testing import CliRunner

from scrimp.cli import app
from scrimp.declare import propose, read_sheet
from tests.dashboard.conftest import PATIENCE_MS, a_browser
from tests.e2e.conftest import SERVED, Service, until

COLUMNS = "patient_id,age,sex,ward,length_of_stay,crp,smoker,admitted,readmitted"
WARDS = {"surgery": 0.02, "internal": 0.03, "geriatric": 0.12}
PEOPLE, TYPING_ERROR = 600, 70  # the row with the error, counted from 1
EPSILON = 1.0


@dataclass
class Walk:
    """Steps of one role on one way, with their seconds."""

    role: str
    way: str
    steps: list[tuple[str, float]] = field(default_factory=list)

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.steps.append((title, time.monotonic() - began))


@dataclass
class Key:
    id: str
    token: str


@dataclass
class Table:
    """Two files of one table: with a typing error, and without."""

    name: str
    wrong: Path
    right: Path

    @classmethod
    def written(cls, folder: Path, name: str) -> Table:
        """A hospital's table of its own: no two of them have the same content."""
        draw = random.Random(name)
        rows = []
        for person in range(PEOPLE):
            for _ in range(draw.choice([1, 1, 2, 4])):
                ward, age = draw.choice(list(WARDS)), draw.randint(18, 96)
                crp = f"{draw.expovariate(1 / 30):.1f}" if draw.random() > 0.08 else ""
                day = f"2026-{draw.randint(1, 9):02}-{draw.randint(1, 28):02}"
                back = "yes" if draw.random() < WARDS[ward] + 0.05 * (age > 75) else "no"
                smoker = draw.choice(["yes", "no", ""])
                stay = draw.randint(1, 40)
                rows.append(f"P{name}{person:04},{age},{draw.choice('fm')},{ward},{stay},{crp},{smoker},{day},{back}")
        table = cls(name, folder / f"{name}-wrong.csv", folder / f"{name}.csv")
        table.right.write_text("\n".join([COLUMNS, *rows]) + "\n")
        cells = rows[TYPING_ERROR - 1].split(",")
        rows[TYPING_ERROR - 1] = ",".join([*cells[:5], "n/a", *cells[6:]])
        table.wrong.write_text("\n".join([COLUMNS, *rows]) + "\n")
        return table


def offline(*command: str) -> str:
    """What the command line says of files alone."""
    ran = CliRunner().invoke(app, list(command))
    assert ran.exit_code == 0, ran.output
    return ran.output


class Rest:
    """Each role with an HTTP client alone."""

    way = "REST"

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder

    def call(self, key: Key, method: str, path: str, status: int = 200, **request: Any) -> Any:
        """One request as curl sends it; its JSON."""
        headers = {"Authorization": f"Bearer {key.token}"} | request.pop("headers", {})
        answer = httpx.request(method, f"{self.url}{path}", headers=headers, timeout=300.0, **request)
        assert answer.status_code == status, (method, path, answer.text)
        return answer.json() if answer.content else None

    def signed(self, key: Key, path: str) -> bytes | None:
        """A document of the relay's signature; None before it is signed."""
        answer = httpx.get(f"{self.url}{path}", headers={"Authorization": f"Bearer {key.token}"}, timeout=300.0)
        assert answer.status_code in (200, 409), answer.text
        return answer.content if answer.is_success else None

    def operator(self, admin: Key) -> tuple[Walk, dict[str, Key]]:
        walk, keys = Walk("operator", self.way), {}
        with walk.step("is it ready?"):
            assert httpx.get(f"{self.url}/readyz", timeout=300.0).json()["status"] == "ready"
        with walk.step("a key for each of three persons"):
            for role in ("owner", "analyst", "viewer"):
                made = self.call(admin, "POST", "/v1/keys", 201, json={"name": f"{role}, REST", "role": role})
                keys[role] = Key(made["key"]["id"], made["token"])
        with walk.step("who works?"):
            until(lambda: any(each["alive"] for each in self.call(admin, "GET", "/v1/workers")["items"]))
        with walk.step("who did what, and is the log whole?"):
            actions = [each["action"] for each in self.call(admin, "GET", "/v1/audit?limit=50")["items"]]
            assert "key.created" in actions
            assert until(lambda: self.call(admin, "GET", "/v1/audit/verify")["valid"])
        return walk, keys

    def owner(self, keys: dict[str, Key], table: Table) -> tuple[Walk, str]:
        walk, owner = Walk("owner", self.way), keys["owner"]
        spec = propose(read_sheet(table.right), "readmitted", "patient_id").spec
        form = {"spec": (None, json.dumps(spec), "application/json")}
        with walk.step("check a file with a typing error"):
            parts = form | {"file": table.wrong.read_bytes()}
            problem = self.call(owner, "POST", "/v1/datasets/check", 422, files=parts)
            assert any((each.get("row"), each.get("value")) == (TYPING_ERROR, "n/a") for each in problem["errors"])
        with walk.step("register the mended file"):
            made = self.call(owner, "POST", "/v1/datasets", 201, files=form | {"file": table.right.read_bytes()})
            assert made["privacy"]["unit"] == "user"
        dataset = f"/v1/datasets/{made['id']}"
        with walk.step("grant an analyst and an auditor access"):
            for role, access in (("analyst", "train"), ("viewer", "view")):
                self.call(owner, "PUT", f"{dataset}/grants/{keys[role].id}", json={"access": access})
        with walk.step("raise the cap with a reason"):
            cap = {"epsilon": 6.0, "reason": "a second study"}
            self.call(owner, "POST", f"{dataset}/ledger/cap", json=cap, headers={"If-Match": "*"})
        return walk, made["id"]

    def analyst(self, keys: dict[str, Key], dataset: str) -> tuple[Walk, str]:
        walk, analyst = Walk("analyst", self.way), keys["analyst"]
        spec = {"dataset": dataset, "privacy": {"target_epsilon": EPSILON}}
        with walk.step("quote"):
            quote = self.call(analyst, "POST", "/v1/quotes", json=spec)
            assert quote["fits"] and quote["resolved"]["parts"]
        with walk.step("submit without what a retry needs"):
            problem = self.call(analyst, "POST", "/v1/jobs", 422, json=spec)
            assert "fresh random string" in problem["errors"][0]["detail"]
        with walk.step("submit, wait for the answer"):
            headers = {"Idempotency-Key": f"walk {dataset}"}
            job = f"/v1/jobs/{self.call(analyst, 'POST', '/v1/jobs', 201, json=spec, headers=headers)['id']}"
            done = until(lambda: (found := self.call(analyst, "GET", job))["status"] == "succeeded" and found)
            assert done["metrics"]["auc"]["std"] > 0.0 and len(done["warnings"]) <= 1
        with walk.step("predict a new patient, with a missing cell"):
            patient = dict(
                zip(COLUMNS.split(",")[1:8], (70, "f", "geriatric", 12, None, "", "2026-03-02"), strict=True)
            )
            asked = self.call(analyst, "POST", f"{job}/predict", 202, json={"records": [patient]})
            answer = f"{job}/predictions/{asked['id']}"
            found = until(lambda: (it := self.call(analyst, "GET", answer))["status"] == "succeeded" and it)
            assert set(found["predictions"][0]["probabilities"]) == {"no", "yes"}
        return walk, done["id"]

    def auditor(self, keys: dict[str, Key], dataset: str, job: str) -> Walk:
        walk, auditor = Walk("auditor", self.way), keys["viewer"]
        with walk.step("certificate and public key"):
            path = f"/v1/jobs/{job}/certificate"
            certificate = self.folder / f"{job}.json"
            certificate.write_bytes(until(lambda: self.signed(auditor, path)))
            public_key = self.call(auditor, "GET", "/v1/signing-keys")["items"][0]["public_key"]
        with walk.step("statement"):
            statement = self.folder / f"{dataset}.json"
            statement.write_bytes(until(lambda: self.signed(auditor, f"/v1/datasets/{dataset}/statement")))
        with walk.step("verify both, offline"):
            said = offline("audit-bundle", str(certificate), "--public-key", public_key)
            assert "one user" in said and "recomputed" in said
            said = offline("ledger", "statement", str(statement), "--public-key", public_key)
            assert "1 job" in said or "ε = 1" in said
        with walk.step("is the ledger whole?"):
            assert until(lambda: self.call(auditor, "GET", f"/v1/datasets/{dataset}/ledger/verify")["valid"])
            entries = self.call(auditor, "GET", f"/v1/datasets/{dataset}/ledger/entries")["items"]
            assert {each["kind"] for each in entries} == {"open", "cap", "hold", "post"}
        return walk


class CommandLine:
    """Each role with `scrimp …` alone."""

    way = "command line"

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder

    def run(self, key: Key, *command: str, status: int = 0) -> str:
        """What a command prints; a wide terminal breaks no line."""
        env = {"SCRIMP_URL": self.url, "SCRIMP_KEY": key.token, "COLUMNS": "300"}
        ran = CliRunner().invoke(app, list(command), env=env)
        assert ran.exit_code == status, (command, ran.output)
        return ran.output

    def json(self, key: Key, *command: str) -> Any:
        return json.loads(self.run(key, *command, "--json"))

    def operator(self, admin: Key) -> tuple[Walk, dict[str, Key]]:
        walk, keys = Walk("operator", self.way), {}
        with walk.step("a key for each of three persons"):
            for role in ("owner", "analyst", "viewer"):
                made = self.json(admin, "keys", "create", f"{role}, command line", "--role", role)
                keys[role] = Key(made["key"]["id"], made["token"])
        with walk.step("who works?"):
            until(lambda: any(each["alive"] for each in self.json(admin, "workers")))
        with walk.step("who did what, and is the log whole?"):
            assert "key.created" in self.run(admin, "audit", "list", "--limit", "20")
            assert until(lambda: self.json(admin, "audit", "verify")["valid"])
        return walk, keys

    def owner(self, keys: dict[str, Key], table: Table) -> tuple[Walk, str]:
        walk, owner, spec = Walk("owner", self.way), keys["owner"], self.folder / f"{table.name}.json"
        with walk.step("declare a file with a typing error"):
            first = str(self.folder / f"{table.name}-wrong.json")
            said = self.run(owner, "datasets", "init", str(table.wrong), "--label", "readmitted", "--to", first)
            assert f"record {TYPING_ERROR}, crp: 'n/a'" in said
        with walk.step("declare the mended file: people are protected"):
            right = ("datasets", "init", str(table.right), "--label", "readmitted", "--to", str(spec))
            assert "patient_id" in self.run(owner, *right)
        with walk.step("register"):
            made = self.json(owner, "datasets", "add", str(spec), "--file", str(table.right))
            assert made["privacy"]["unit"] == "user"
        with walk.step("grant an analyst and an auditor access"):
            for role, access in (("analyst", "train"), ("viewer", "view")):
                self.run(owner, "grants", "set", table.name, keys[role].id, "--access", access)
        with walk.step("raise the cap with a reason"):
            self.run(owner, "ledger", "cap", table.name, "--epsilon", "6", "--reason", "a second study")
        return walk, str(made["id"])

    def analyst(self, keys: dict[str, Key], dataset: str) -> tuple[Walk, str]:
        walk, analyst = Walk("analyst", self.way), keys["analyst"]
        name = self.json(analyst, "datasets", "show", dataset)["name"]
        with walk.step("a mistyped name"):
            assert f"did you mean '{name}'?" in self.run(analyst, "datasets", "show", f"{name}s", status=1)
        with walk.step("submit, wait for the answer"):
            done = self.run(analyst, "train", name, "--epsilon", f"{EPSILON:g}", "--watch")
            assert "succeeded" in done
            (job,) = self.json(analyst, "jobs", "list", "--dataset", name)
            assert job["name"] == f"{name}, ε = {EPSILON:g}" and len(job["warnings"]) <= 1
        with walk.step("predict new patients, with their ids beside the answers"):
            answers = self.folder / f"{name}-answers.csv"
            own = self.folder / f"{name}-own.csv"
            own.write_text(f"{COLUMNS.rpartition(',')[0]}\nnew-1,70,f,geriatric,12,,,2026-03-02\n")
            self.run(analyst, "predict", job["id"], str(own), "--keep", "patient_id", "--to", str(answers))
            assert "new-1" in answers.read_text()
        return walk, str(job["id"])

    def auditor(self, keys: dict[str, Key], dataset: str, job: str) -> Walk:
        walk, auditor = Walk("auditor", self.way), keys["viewer"]
        certificate, statement = self.folder / f"{job}.json", self.folder / f"{dataset}.json"
        with walk.step("certificate and public key"):
            until(lambda: "certificate_issued" in self.run(auditor, "jobs", "events", job))
            self.run(auditor, "certificates", "show", job, "--to", str(certificate))
            public_key = self.run(auditor, "signing-key").split()[0]
        with walk.step("statement"):
            said = self.run(auditor, "ledger", "statement", dataset, "--to", str(statement))
            assert "Guarantee" in said
        with walk.step("verify both, offline"):
            assert "one user" in offline("audit-bundle", str(certificate), "--public-key", public_key)
            assert "1 job" in offline("ledger", "statement", str(statement), "--public-key", public_key)
        with walk.step("is the ledger whole?"):
            until(lambda: self.json(auditor, "ledger", "verify", dataset)["valid"])
        return walk


class InBrowser:
    """Each role with a browser alone. `page_of` opens a page for a key."""

    way = "browser"

    def __init__(self, page_of: Callable[[], Any], folder: Path) -> None:
        self._page_of, self.folder = page_of, folder

    def signed_in(self, walk: Walk, key: Key) -> Any:
        page = self._page_of()
        with walk.step("sign in"):
            page.goto("/dashboard")
            page.get_by_label("API key").fill(key.token)
            page.get_by_role("button", name="Sign in").click()
            page.get_by_role("link", name="Sign out").or_(page.get_by_role("button", name="Sign out")).wait_for()
        return page

    def operator(self, admin: Key) -> tuple[Walk, dict[str, Key]]:
        walk, keys = Walk("operator", self.way), {}
        page = self.signed_in(walk, admin)
        with walk.step("a key for each of three persons"):
            for role in ("owner", "analyst", "viewer"):
                page.goto("/dashboard/keys")
                page.get_by_label("Name", exact=True).fill(f"{role}, browser")
                page.get_by_label("Role", exact=True).select_option(role)
                page.get_by_role("button", name="Make the key").click()
                token = page.locator("#token").inner_text()
                keys[role] = Key("key_" + token.split("_")[2], token)
        with walk.step("who works?"):
            page.get_by_role("link", name="Workers").click()
            page.get_by_role("heading", name="Workers", level=1).wait_for()
        with walk.step("who did what, and is the log whole?"):
            page.get_by_role("link", name="Audit").click()
            page.get_by_role("cell", name="key.created").first.wait_for()
            page.get_by_role("link", name="Check the chain").click()
            page.get_by_role("status").get_by_text("Valid.").wait_for()
        return walk, keys

    def owner(self, keys: dict[str, Key], table: Table) -> tuple[Walk, str]:
        walk = Walk("owner", self.way)
        page = self.signed_in(walk, keys["owner"])
        page.goto("/dashboard/register")
        with walk.step("a file with a typing error"):
            page.get_by_label("Data file").set_input_files(table.wrong)
            page.get_by_label("Which column is predicted?").select_option("readmitted")
            page.locator("#wrong-cells").get_by_text(f"record {TYPING_ERROR}, crp: “n/a”").wait_for()
        with walk.step("the mended file: its rows, people protected"):
            page.get_by_label("Data file").set_input_files(table.right)
            page.get_by_label("Which column is predicted?").select_option("readmitted")
            assert page.get_by_label("Who is protected?").input_value() == "patient_id"
            page.get_by_role("button", name="Use these rows").click()
            page.get_by_text("The declaration is complete").wait_for()
        with walk.step("register"):
            page.get_by_role("button", name="Register", exact=True).click()
            page.get_by_role("link", name=f"Open {table.name}").click()
            page.get_by_role("heading", name=table.name, level=1).wait_for()
            dataset = page.url.rsplit("/", 1)[1].partition("?")[0]
        with walk.step("grant an analyst and an auditor access"):
            for role, access in (("analyst", "train"), ("viewer", "view")):
                page.goto("/dashboard/keys")
                page.get_by_label("Data set", exact=True).select_option(dataset)
                page.get_by_label("Key", exact=True).fill(keys[role].id)
                page.get_by_label("May", exact=True).select_option(access)
                page.get_by_role("button", name="Grant", exact=True).click()
                page.get_by_title(keys[role].id).wait_for()
        with walk.step("raise the cap with a reason"):
            page.goto(f"/dashboard/datasets/{dataset}/manage")
            page.get_by_label("ε of the cap").fill("6")
            page.get_by_label("Reason").fill("a second study")
            page.get_by_role("button", name="Change the cap").click()
            page.goto(f"/dashboard/datasets/{dataset}")
            page.locator("#all-caps summary").click()
            page.get_by_role("cell", name="a second study").wait_for()
        return walk, dataset

    def analyst(self, keys: dict[str, Key], dataset: str) -> tuple[Walk, str]:
        walk = Walk("analyst", self.way)
        page = self.signed_in(walk, keys["analyst"])
        with walk.step("a new job on it, with its price"):
            page.goto(f"/dashboard/datasets/{dataset}")
            page.get_by_role("link", name="New job on it").click()
            page.get_by_label("Target ε").fill(f"{EPSILON:g}")
            page.get_by_role("status").get_by_text("of the budget").first.wait_for()
        with walk.step("submit, wait for the answer"):
            page.get_by_role("button", name="Submit: hold").click()
            page.get_by_role("status").filter(has_text="succeeded").wait_for()
            page.get_by_label("Answer").get_by_text("AUC on the hold-out part").wait_for()
            assert page.locator(".alert-warn").count() <= 1
            job = page.url.rsplit("/", 1)[1].partition("?")[0]
        with walk.step("what it learned of a column"):
            page.locator("#shape-0-fold > summary").click()
            page.locator("#shape-0 canvas").wait_for()
        with walk.step("check its certificate"):
            page.get_by_role("button", name="Check the certificate").click()
            page.get_by_role("status").get_by_text("✓").first.wait_for()
        return walk, job

    def auditor(self, keys: dict[str, Key], dataset: str, job: str) -> Walk:
        walk = Walk("auditor", self.way)
        page = self.signed_in(walk, keys["viewer"])
        page.goto(f"/dashboard/jobs/{job}")
        files = {"certificate": self.folder / f"{job}.json", "statement": self.folder / f"{dataset}.json"}
        with walk.step("certificate"):
            _saved(page, "Download (JSON)", files["certificate"])
        with walk.step("statement"):
            page.goto(f"/dashboard/datasets/{dataset}/statement")
            page.get_by_role("heading", name="What was spent").wait_for()
            _saved(page, "Evidence (JSON)", files["statement"])
        public_key = json.loads(files["certificate"].read_text())["public_key"]
        with walk.step("verify both, offline"):
            assert "one user" in offline("audit-bundle", str(files["certificate"]), "--public-key", public_key)
            said = offline("ledger", "statement", str(files["statement"]), "--public-key", public_key)
            assert "1 job" in said or "ε = 1" in said
        with walk.step("is the ledger whole?"):
            page.goto(f"/dashboard/datasets/{dataset}")
            page.locator("#chain summary").click()
            page.get_by_role("button", name="Show the last check").click()
            page.locator("#chain").get_by_role("status").wait_for()
        return walk


def _saved(page: Any, link: str, to: Path) -> None:
    with page.expect_download() as download:
        page.get_by_role("link", name=link).click()
    download.value.save_as(to)


def walked(way: Rest | CommandLine | InBrowser, admin: Key, folder: Path) -> list[Walk]:
    """All four roles, one after the other: who needs what another one makes."""
    table = Table.written(folder, f"stays-{way.way.replace(' ', '-')}")
    operator, keys = way.operator(admin)
    owner, dataset = way.owner(keys, table)
    analyst, job = way.analyst(keys, dataset)
    return [operator, owner, analyst, way.auditor(keys, dataset, job)]


@contextmanager
def pages(url: str) -> Iterator[Callable[[], Any]]:
    """Opens pages of a browser, each with cookies of its own."""
    with a_browser() as browser:

        def opened() -> Any:
            page = browser.new_context(base_url=url, viewport={"width": 1280, "height": 900}).new_page()
            page.set_default_timeout(PATIENCE_MS)
            return page

        yield opened


def main() -> None:
    """Prints each step of each role on all ways, over a service in a new home."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        service = Service(folder / "home", SERVED).start()
        try:
            url = f"http://127.0.0.1:{service.port}"
            admin = Key("", (service.home / "admin.key").read_text().strip())
            with pages(url) as page_of:
                ways = (Rest(url, folder), CommandLine(url, folder), InBrowser(page_of, folder))
                walks = [walk for way in ways for walk in walked(way, admin, folder)]
        finally:
            service.stop()
    for walk in walks:
        print(f"\n{walk.role}, {walk.way}: {len(walk.steps)} steps, {sum(each for _, each in walk.steps):.0f} s")
        for title, seconds in walk.steps:
            print(f"  {seconds:6.1f} s  {title}")


if __name__ == "__main__":
    main()
