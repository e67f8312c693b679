"""SuperNode key: ECDSA on P-384, which authenticates a machine to its SuperLink."""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
)

from flhe.errors import ConfigError
from flhe.wire.files import create, read

POINT = 97
"""Bytes of a public key: an uncompressed point of P-384."""


def make(path: Path) -> None:
    """Write a new private key as `flower-supernode` reads it, 0600, unless the file exists."""
    key = ec.generate_private_key(ec.SECP384R1())
    data = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    create(path, data, f"{path.parent}")


def public_of(path: Path) -> bytes:
    """Return the point of the private key in a file; ConfigError for another kind of file."""
    try:
        key = load_ssh_private_key(read(path), None)
    except ValueError:
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp384r1":
        raise ConfigError(
            f"{path}: expected an OpenSSH private key on P-384; move the file away, and "
            "`flhe site init` makes another one"
        )
    return key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)


def pem(point: bytes) -> bytes:
    """Return a public key as a SuperNode sends it; ValueError unless it is on the curve."""
    key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP384R1(), point)
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def openssh(point: bytes) -> bytes:
    """Return a public key as `flwr supernode register` reads it."""
    key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP384R1(), point)
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
