"""The relay as a process sends webhooks and seals the audit log; TLS checks the certificate of the name."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from sqlalchemy import select

from app.db.database import Database
from app.db.models import AuditEntry
from app.settings import Settings
from app.webhooks.sending import Result, send, trust
from app.webhooks.targets import parse
from core.ids import now
from tests import servers
from tests.e2e.conftest import until
from tests.webhooks.conftest import Hook, Receiver, deliveries, send_a_test


def test_the_relays_process_sends_and_seals(
    db: Database, settings: Settings, hook: Hook, receiver: Receiver, tmp_path: Path
) -> None:
    slow, quick = hook("/drip"), hook("/ok")
    environment = {"SCRIMP_HOME": str(settings.home), "SCRIMP_WEBHOOKS_PORTS": "[]"}
    environment |= {"SCRIMP_WEBHOOKS_ALLOW_PRIVATE": '["127.0.0.0/8"]'}
    with (tmp_path / "relay.log").open("w") as log:
        relay = subprocess.Popen(
            [sys.executable, "-m", "app.lifecycle.relay"], env=os.environ | environment, stdout=log, stderr=log
        )
    try:
        for webhook in (slow, quick):
            send_a_test(db, webhook)
        until(lambda: [each for each in deliveries(db) if each.webhook_id == quick.id and each.status == "delivered"])

        def unsealed() -> list[AuditEntry]:
            with db.read() as session:
                return list(session.scalars(select(AuditEntry).where(AuditEntry.seq.is_(None))))

        until(lambda: not unsealed())
    finally:
        relay.send_signal(signal.SIGTERM)
        assert relay.wait(300) == 0, (tmp_path / "relay.log").read_text()
    assert [each["message"]["type"] for each in receiver.received() if each["path"] == "/ok"] == ["webhook.test"]


class Answers(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_arguments: object) -> None:
        pass


def self_signed(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate for one name, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    made = (
        x509.CertificateBuilder()
        .subject_name(who)
        .issuer_name(who)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now() - timedelta(days=1))
        .not_valid_after(now() + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate, private = folder / "certificate.pem", folder / "key.pem"
    certificate.write_bytes(made.public_bytes(Encoding.PEM))
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return certificate, private


@pytest.mark.parametrize(
    ("host", "trusted", "result"),
    [
        ("hooks.test", True, Result(204, None)),
        ("other.test", True, Result(None, "tls-failed")),
        ("hooks.test", False, Result(None, "tls-failed")),
    ],
)
def test_tls_checks_the_certificate_of_the_name(tmp_path: Path, host: str, trusted: bool, result: Result) -> None:
    """The connection goes to an address; the name of the URL is what is asked for and checked."""
    certificate, private = self_signed(tmp_path, "hooks.test")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, private)
    made = HTTPServer(("127.0.0.1", 0), Answers)
    made.socket = context.wrap_socket(made.socket, server_side=True)
    with servers.answering(made) as server:
        target = parse(f"https://{host}:{server.server_port}/")
        assert send(target, ["127.0.0.1"], {}, b"{}", trust(certificate if trusted else None)) == result
