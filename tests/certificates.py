"""An authority for tests, and certificates that it signs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import tidegate as tg


class Authority:
    """Signs certificates for addresses and names."""

    def __init__(self, name: str = "tidegate tests") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        mark = x509.BasicConstraints(ca=True, path_length=None)
        unsigned = _unsigned(self._name, self._name, self._key).add_extension(mark, critical=True)
        self.pem = unsigned.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def tls(self, *made_out_to: str, name: str | None = None, subject: str = "node") -> tg.Tls:
        """A certificate with its key and this authority, as PEM bytes."""
        key = ec.generate_private_key(ec.SECP256R1())
        owner = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)] if subject else [])
        names = x509.SubjectAlternativeName(_general(made_out_to))
        unsigned = _unsigned(owner, self._name, key).add_extension(names, critical=False)
        certificate = unsigned.sign(self._key, hashes.SHA256())
        private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        return tg.Tls(certificate.public_bytes(serialization.Encoding.PEM), private, self.pem, name)


def _unsigned(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
    )


def _general(names: Sequence[str]) -> list[x509.GeneralName]:
    return [x509.IPAddress(ip_address(name)) if name[0].isdigit() or ":" in name else x509.DNSName(name) for name in names]
