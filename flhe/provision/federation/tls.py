"""The SuperLink's certificate, by an authority of the federation's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from flhe.gate.certificate import signed
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
    subject, own = f"{name} authority", key.public_key()
    authority = signed(subject, subject, signer.public_key(), signer, (), days, signs=True)
    # The SuperLink's own processes connect to 127.0.0.1.
    hosts = (host, LOOPBACK)
    server = signed(f"{name} SuperLink", subject, own, signer, hosts, days, signs=False)
    found = TlsFiles(directory)
    create(found.authority, authority.public_bytes(Encoding.PEM), f"{directory}")
    create(found.certificate, server.public_bytes(Encoding.PEM), f"{directory}")
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    create(found.key, private, f"{directory}")
    return found
