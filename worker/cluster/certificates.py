"""Certificates for Ray's own connections: an authority of the cluster's own, and a key of each machine.

`python -m worker.cluster.certificates authority FOLDER` makes FOLDER/ca.crt and ca.key, once for each cluster.
`python -m worker.cluster.certificates machine AUTHORITY FOLDER HOST...` makes FOLDER/machine.crt and machine.key for
these addresses and names, signed by the authority of the folder AUTHORITY, and copies ca.crt. Ray checks by which
address it reached a machine. An authority is never replaced; a machine's key is, as its addresses may be others now.

Whoever has the authority's key, or the cluster's token, owns the cluster.
"""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

LIFE = timedelta(days=3650)
SKEW = timedelta(days=1)  # clocks of machines differ


def make_authority(folder: Path) -> None:
    """Makes an authority's key and certificate.

    Raises:
        FileExistsError: the folder has one.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("Ray cluster of Scrimp")
    usage = x509.BasicConstraints(ca=True, path_length=0)
    certificate = _builder(name, name, key.public_key()).add_extension(usage, critical=True).sign(key, hashes.SHA256())
    _write(folder / "ca.key", _private(key), os.O_EXCL)
    _write(folder / "ca.crt", certificate.public_bytes(serialization.Encoding.PEM), os.O_EXCL)


def make_machine(authority: Path, folder: Path, hosts: Sequence[str]) -> None:
    """Makes a machine's key and certificate, in place of those that the folder has.

    Args:
        hosts: the addresses and names by which others reach it.
    """
    ca_pem = (authority / "ca.crt").read_bytes()
    ca = x509.load_pem_x509_certificate(ca_pem)
    ca_key = serialization.load_pem_private_key((authority / "ca.key").read_bytes(), password=None)
    if not isinstance(ca_key, ec.EllipticCurvePrivateKey):
        raise ValueError("ca.key: not a key of this program's")
    key = ec.generate_private_key(ec.SECP256R1())
    reached = x509.SubjectAlternativeName([_host(each) for each in hosts])
    builder = _builder(_name(hosts[0]), ca.subject, key.public_key()).add_extension(reached, critical=False)
    _write(folder / "machine.key", _private(key))
    _write(folder / "machine.crt", builder.sign(ca_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    _write(folder / "ca.crt", ca_pem)


def hosts_of(certificate: Path) -> set[str]:
    """The addresses and names in a machine's certificate."""
    loaded = x509.load_pem_x509_certificate(certificate.read_bytes())
    names = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(each.value) for each in names}


def _builder(subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return x509.CertificateBuilder(issuer, subject, public_key, x509.random_serial_number(), now - SKEW, now + LIFE)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common[:64])])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)


def _write(path: Path, content: bytes, flag: int = os.O_TRUNC) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | flag, 0o600), "wb") as file:
        file.write(content)


def main(arguments: Sequence[str]) -> int:
    """Runs one command. Returns the exit status."""
    try:
        match arguments:
            case ["authority", folder]:
                make_authority(Path(folder))
            case ["machine", authority, folder, _, *_]:
                make_machine(Path(authority), Path(folder), arguments[3:])
            case _:
                sys.stderr.write(str(__doc__))
                return 2
    except (OSError, ValueError) as error:
        sys.stderr.write(f"worker.cluster.certificates: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
