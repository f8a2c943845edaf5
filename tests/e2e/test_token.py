"""The service's key and its offline root stay in a PKCS #11 token, from the first certificate over a wrong PIN to the
next key, as both verifiers see it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import which

import pytest

from tests.e2e.conftest import SERVED, Service, job_of, until
from tests.e2e.test_spine import finished, register, submit
from tests.tokens import PIN, Token

# By day tests/ledger/test_token.py has keys and roots in a token, and test_signer.py a command that fails.
pytestmark = pytest.mark.nightly
SCRIPT = Path(__file__).resolve().parents[2] / "docs" / "verify.mjs"


@pytest.fixture
def token(tmp_path: Path) -> Token:
    return Token.new(tmp_path / "token")


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[dict[str, str]], Service]]:
    (tmp_path / "service").mkdir()
    running = Service(tmp_path / "service" / "home", SERVED)

    def start(settings: dict[str, str]) -> Service:
        if running.process is not None:
            assert running.stop() == 0
        running.environment |= settings
        return running.start()

    yield start
    if running.process is not None:
        running.stop()


def accepts(token: Token, certificate: Path, *words: object) -> None:
    """Both verifiers take a certificate under the root."""
    command = [sys.executable, "-m", "scrimp.cli", "certificates", "verify"]
    verifiers = [command, *([["node", str(SCRIPT)]] if which("node") else [])]
    for verifier in verifiers:
        done = subprocess.run(
            [*verifier, str(certificate), *map(str, words)],
            env=token.environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def certified(service: Service, job_id: str, path: Path) -> str:
    """Writes a job's certificate; returns the key that signed it."""
    with service.client() as client:
        document = client.certificate(job_id).model_dump(mode="json", by_alias=True)
    path.write_text(json.dumps(document))
    return str(document["public_key"])


def test_the_service_signs_in_a_token(token: Token, serve: Callable[[dict[str, str]], Service], tmp_path: Path) -> None:
    first, root = (token.said("token", "new", token.address(label)) for label in ("first", "root"))
    history = tmp_path / "history.json"
    files = ("--key-file", token.address("root"), "--history", history)
    token.said("root", "sign-rotation", *files, "--public-key", first, "--at", "2026-01-01")
    of_first = {"SCRIMP_SIGN_COMMAND": token.command("first"), "SCRIMP_SIGN_PUBLIC_KEY": first}
    under_root = {"SCRIMP_SIGNING_HISTORY": str(history), "SCRIMP_SIGNING_ROOT": root}
    service = serve(of_first | under_root)
    dataset = register(service, "in-a-token", tmp_path)
    job_id, certificate = submit(service, job_of(dataset)), tmp_path / "certificate.json"
    assert finished(service, job_id)["status"] == "succeeded"
    assert certified(service, job_id, certificate) == first
    trusted = ("--root", root, "--history", history)
    accepts(token, certificate, *trusted, "--require-checkpoint")

    token.write_pin("wrong-pin")
    later = submit(service, job_of(dataset, privacy={"target_epsilon": 1.5}))
    assert finished(service, later)["status"] == "succeeded", "jobs go on"
    until(lambda: "SCRIMP_SIGN_COMMAND failed" in relay_log(service))
    assert service.get(f"/v1/jobs/{later}/certificate")["type"].endswith("certificate-pending")
    verification = service.verification(dataset)
    assert verification["valid"] and PIN not in relay_log(service) and "wrong-pin" not in relay_log(service)
    train = service.get(f"/v1/datasets/{dataset}/ledger")["accounts"]["train"]
    quotes = [service.get(f"/v1/jobs/{each}")["quote"]["charge"]["train"] for each in (job_id, later)]
    assert (train["spent"], train["held"]) == (sum(quotes), 0), "each is charged once"
    token.write_pin(PIN)
    assert token.said("token", "show", token.address("first")) == first, "the token is not locked"
    assert certified(service, later, certificate) == first, "what waited is signed"

    second = token.said("token", "new", token.address("second"))
    token.said("root", "sign-rotation", *files, "--public-key", second, "--overlap-hours", 0)
    service = serve({"SCRIMP_SIGN_COMMAND": token.command("second"), "SCRIMP_SIGN_PUBLIC_KEY": second})
    newest, last = tmp_path / "newest.json", submit(service, job_of(dataset, privacy={"target_epsilon": 1.5}))
    assert finished(service, last)["status"] == "succeeded"
    assert certified(service, last, newest) == second
    assert [each["public_key"] for each in service.get("/v1/signing-keys")["items"]] == [second, first]
    for path in (certificate, newest):
        accepts(token, path, *trusted, "--require-checkpoint")


def relay_log(service: Service) -> str:
    return "".join(each.read_text(errors="replace") for each in (service.home / "logs").glob("*relay*"))
