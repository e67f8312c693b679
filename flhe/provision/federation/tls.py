"""The SuperLink's certificate, where the coordinator has none of an organisation's authority."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from flhe.errors import ConfigError
from flhe.wire.files import create

DAYS = 730
"""Days that an authority and its certificate are valid."""
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Files of a SuperLink's TLS in a directory."""

    directory: Path

    @property
    def authority(self) -> Path:
        """Certificate of the authority, which the sites get."""
        return self.directory / "ca.crt"

    @property
    def certificate(self) -> Path:
        """The SuperLink's certificate."""
        return self.directory / "superlink.pem"

    @property
    def key(self) -> Path:
        """The SuperLink's private key, 0600."""
        return self.directory / "superlink.key"


def make(directory: Path, name: str, host: str, days: int = DAYS) -> TlsFiles:
    """Make an authority, and a certificate for `host`, a DNS name or an IP address.

    The authority's private key is not kept: it signs this one certificate.
    """
    signer, key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    authority = _certificate(f"{name} authority", name, signer, signer, "", days)
    server = _certificate(f"{name} SuperLink", name, key, signer, host, days)
    found = TlsFiles(directory)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    keep(found, authority.public_bytes(Encoding.PEM), server.public_bytes(Encoding.PEM), private)
    return found


def keep(tls: TlsFiles, authority: bytes, certificate: bytes, key: bytes) -> None:
    """Write the files; ConfigError if one exists."""
    files = ((tls.authority, authority), (tls.certificate, certificate), (tls.key, key))
    for path, data in files:
        if not create(path, data):
            raise ConfigError(f"{path} exists already, and is not overwritten: name another one")


def _certificate(
    subject: str,
    name: str,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    host: str,
    days: int,
) -> x509.Certificate:
    """Return the certificate of a server at `host`, or without one of the authority itself."""
    now = datetime.datetime.now(datetime.UTC)
    owner, issuer = (
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
        for text in (subject, f"{name} authority")
    )
    signs, public = not host, key.public_key()
    unused = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    usage = dict.fromkeys((*unused, "encipher_only", "decipher_only"), False)
    usage |= {"digital_signature": not signs, "key_cert_sign": signs, "crl_sign": signs}
    extensions: list[tuple[x509.ExtensionType, bool]] = [
        (x509.BasicConstraints(ca=signs, path_length=0 if signs else None), True),
        (x509.KeyUsage(**usage), True),
        (x509.SubjectKeyIdentifier.from_public_key(public), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False),
    ]
    if host:
        purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        extensions += [
            # The SuperLink's own processes connect to 127.0.0.1.
            (x509.SubjectAlternativeName(list(map(_general, {host: 0, LOOPBACK: 0}))), False),
            (purpose, False),
        ]
    day = datetime.timedelta(days=1)  # clocks differ
    serial = x509.random_serial_number()
    until = now + days * day
    builder = x509.CertificateBuilder(issuer, owner, public, serial, now - day, until)
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(signer, SHA256())


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
