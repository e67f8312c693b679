"""The gate's own certificate, by which its site's SuperNode knows it."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import Iterable
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


def make(home: Path) -> None:
    """Make certificate and key in `home`, unless they are there."""
    if (home / NAME).exists():
        return
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (home / KEY).unlink(missing_ok=True)  # of a start that was cut short
    create(home / KEY, pem, f"{home}")
    name = "flhe gate"
    made = signed(name, name, key.public_key(), key, NAMES, 365 * YEARS, signs=True)
    create(home / NAME, made.public_bytes(Encoding.PEM), f"{home}")
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


def signed(
    subject: str,
    issuer: str,
    public: ec.EllipticCurvePublicKey,
    signer: ec.EllipticCurvePrivateKey,
    hosts: Iterable[str],
    days: int,
    *,
    signs: bool,
) -> x509.Certificate:
    """Return a certificate: of a server at `hosts`, of an authority that `signs`, or of both."""
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)  # clocks differ
    by, owner = (
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in (issuer, subject)
    )
    names = list(map(_general, dict.fromkeys(hosts)))
    unused = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    usage = dict.fromkeys((*unused, "encipher_only", "decipher_only"), False)
    usage |= {"digital_signature": bool(names), "key_cert_sign": signs}
    extensions: list[tuple[x509.ExtensionType, bool]] = [
        (x509.BasicConstraints(ca=signs, path_length=0 if signs else None), True),
        (x509.KeyUsage(**usage, crl_sign=not names), True),
        (x509.SubjectKeyIdentifier.from_public_key(public), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False),
    ]
    if names:
        extensions.append((x509.SubjectAlternativeName(names), False))
        extensions.append((x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False))
    serial, until = x509.random_serial_number(), now + days * day
    builder = x509.CertificateBuilder(by, owner, public, serial, now - day, until)
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(signer, SHA256())


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
