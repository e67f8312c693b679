"""Check of the connection to the SuperLink: it answers, and proves its identity."""

from __future__ import annotations

import socket
import ssl
import time
from pathlib import Path

from flhe.provision.checks import Check

TIMEOUT = 10.0
"""Seconds to wait for an answer."""
SOON = 21
"""Days before the end of a certificate when the warning begins."""

_EXPIRED, _NOT_YET = 10, 9  # X509_V_ERR_CERT_HAS_EXPIRED, X509_V_ERR_CERT_NOT_YET_VALID
_NAMES = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH


def check_tls(address: str, roots: Path | None) -> Check:
    """Connect to HOST:PORT over TLS; `roots` are the certificates that verify the server's."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdigit():
        return _fail(f"--superlink {address} is not HOST:PORT", "write it as for flower-supernode")
    try:
        context = ssl.create_default_context(cafile=roots)
    except OSError:  # includes ssl's own errors
        mend = "name the file of certificates (PEM) that the SuperLink's administrator has sent"
        return _fail(f"--root-certificates {roots} cannot be read as certificates", mend)
    context.set_alpn_protocols(["h2"])  # gRPC's; its servers refuse others
    try:
        ends, protocol = _connect(context, host, int(port))
    except (OSError, OverflowError) as error:
        return _trouble(error, address, host)
    days = int((ends - time.time()) // 86400)
    says = f"{protocol}, chain and name verified, {days} days left"
    if days < SOON:
        return Check("tls", "warn", says, "ask the SuperLink's administrator for a new certificate")
    return Check("tls", "ok", says)


def _connect(context: ssl.SSLContext, host: str, port: int) -> tuple[int, str]:
    """Connect; return the end of the certificate, Unix time, and the version of TLS."""
    with (
        socket.create_connection((host, port), TIMEOUT) as plain,
        context.wrap_socket(plain, server_hostname=host) as tls,
    ):
        certificate = tls.getpeercert() or {}
        return ssl.cert_time_to_seconds(str(certificate["notAfter"])), tls.version() or "TLS"


def _trouble(error: OSError | OverflowError, address: str, host: str) -> Check:
    if not isinstance(error, ssl.SSLError):
        mend = "check the address, the firewall, and that the SuperLink runs"
        why = getattr(error, "strerror", None) or type(error).__name__
        return _fail(f"{address} cannot be reached ({why})", mend)
    if not isinstance(error, ssl.SSLCertVerificationError):
        mend = "check that this is the SuperLink's Fleet API, and that it runs with --ssl-certfile"
        return _fail(f"{address} answers without TLS", mend)
    if error.verify_code in _NAMES:
        mend = "use the name or address of the certificate, or have one made for this name"
        return _fail(f"its certificate is not for {host}", mend)
    if error.verify_code in (_EXPIRED, _NOT_YET):
        when = "has expired" if error.verify_code == _EXPIRED else "is not valid yet"
        mend = "check this machine's clock; if it is right, the SuperLink needs a new certificate"
        return _fail(f"its certificate {when}", mend)
    mend = (
        "pass the CA's certificate as --root-certificates, received from the SuperLink's "
        "administrator by another way; if you did, the connection may be intercepted"
    )
    return _fail(f"its certificate cannot be verified ({error.verify_message})", mend)


def _fail(says: str, mend: str) -> Check:
    return Check("tls", "fail", says, mend)
