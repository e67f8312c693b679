"""The gate's own certificate, by which its site's SuperNode knows it."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from flhe.errors import ConfigError
from flhe.wire.files import create

NAME, KEY = "gate.crt", "gate.key"
YEARS = 20
"""How long it holds: nobody else trusts it, and a new directory makes a new one."""
NAMES = ("localhost", "gate", "127.0.0.1", "::1")
"""Where it may be used; `gate` is a container's name."""


def make(home: Path, host: str = NAMES[0]) -> None:
    """Make certificate and key in `home`, unless they are there."""
    if (home / NAME).exists():
        return
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (home / KEY).unlink(missing_ok=True)  # of a start that was cut short
    create(home / KEY, pem)
    create(home / NAME, _self_signed(key, host).public_bytes(Encoding.PEM))
    (home / NAME).chmod(0o644)


def server_context(home: Path) -> ssl.SSLContext:
    """Return the server's TLS, with the certificate in `home`; ConfigError if it cannot be read."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(home / NAME, home / KEY)
    except OSError as error:  # includes ssl's own errors
        raise ConfigError(
            f"{home}: {NAME} and {KEY} cannot be read ({error.strerror}); remove both, and have them "
            "made again"
        ) from None
    return context


def _self_signed(key: ec.EllipticCurvePrivateKey, host: str) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "flhe gate")])
    now = datetime.datetime.now(datetime.UTC)
    names: list[x509.GeneralName] = []
    for address in dict.fromkeys((*NAMES, host)):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(address)))
        except ValueError:
            names.append(x509.DNSName(address))
    public = key.public_key()
    usage = dict.fromkeys(
        (
            *("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
            *("crl_sign", "encipher_only", "decipher_only"),
        ),
        False,
    )
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=365 * YEARS))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.KeyUsage(digital_signature=True, key_cert_sign=True, **usage), critical=True
        )
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
        .sign(key, SHA256())
    )
