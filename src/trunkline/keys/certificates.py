"""Certificates: a private certificate authority, and certificates that it signs.

Needed to make keys, not to use them.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from trunkline.errors import InvalidSettings, MissingExtra
from trunkline.keys import files

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as error:  # pragma: no cover  # depends on what is installed
    raise MissingExtra("hub,keys", "making keys") from error

AUTHORITY = "trunkline"
AUTHORITY_DAYS = 7300
_HOST = re.compile(r"[A-Za-z0-9_*]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?")
SKEW = timedelta(minutes=5)
"""Certificates are valid from this long before now, because the clock of another machine may be slightly behind."""


def make_authority(certificate: Path, private: Path, now: datetime) -> None:
    """A new certificate authority.

    Its private key can sign any key, so it never leaves the machine where keys are made.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    made = (
        _begin(_name(AUTHORITY), key, key, now, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    files.write(private, _private(key))
    files.write(certificate, made.public_bytes(serialization.Encoding.PEM), 0o644)


def sign(authority: Path, name: str, hosts: Sequence[str], now: datetime, days: int) -> tuple[bytes, bytes, int]:
    """A certificate, its private key, and its serial number. With `hosts` it is for a hub, otherwise for a client."""
    secret = serialization.load_pem_private_key(files.private(authority).read_bytes(), None)
    assert isinstance(secret, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    # A hub's certificate is also valid for a client, but a client's is never valid for a hub.
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH] + ([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])
    usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
    builder = (
        _begin(_name(name), key, secret, now, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=True)
    )
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
    made = builder.sign(secret, hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM), _private(key), made.serial_number


def _begin(
    name: x509.Name, key: ec.EllipticCurvePrivateKey, issuer_key: ec.EllipticCurvePrivateKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    signer = x509.SubjectKeyIdentifier.from_public_key(issuer_key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(_name(AUTHORITY))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(signer), critical=False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if not _HOST.fullmatch(host):
            raise InvalidSettings(f"{host!r} is neither an IP address nor a valid host name") from None
        return x509.DNSName(host)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
