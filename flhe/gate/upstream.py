"""The gate's way to the SuperLink: HTTP with bounded answers and waits, over verified TLS."""

from __future__ import annotations

import http.client
import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from flwr.supercore.constant import VERSION_INCOMPATIBILITY_MESSAGE_METADATA_KEY

from flhe.errors import ConfigError, logger
from flhe.gate.requests import PREFIX

MEDIA = "application/protobuf"
PASSED = ("content-type", VERSION_INCOMPATIBILITY_MESSAGE_METADATA_KEY)
"""Headers of an answer that pass down."""
MAX_ANSWER = 64 << 20
"""Most bytes of an answer."""
WAIT_S, WHOLE_S = 30.0, 300.0
"""Seconds without a byte, and of a whole answer, after which the gate gives up."""
_MOST_IDLE = 8
_CLOSED = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the SuperLink; status 502 also if there was none."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] | None = None

    @property
    def again(self) -> bool:
        """True if a SuperNode asks again."""
        return self.status in (502, 503, 504)


class Upstream:
    """The SuperLink at `address`, HOST:PORT; `root` is the file of the site's CA certificates.

    Threads may share it.

    Raises ConfigError: a file that cannot be used.
    """

    def __init__(self, address: str, root: Path) -> None:
        host, _, port = address.rpartition(":")
        self._at = host.strip("[]"), int(port)
        try:
            self._context = ssl.create_default_context(cafile=str(root))
        except OSError:  # includes ssl's own errors
            raise ConfigError(f"{root}: cannot be read as CA certificates in PEM") from None
        self._trouble = ""
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()

    def post(self, name: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Send a request; an answer of 502 says that no usable one came."""
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        try:
            if connection is not None:
                with suppress(*_CLOSED):  # the SuperLink may have closed it meanwhile
                    return self._exchange(connection, name, body, headers)
            host, port = self._at
            fresh = http.client.HTTPSConnection(host, port, timeout=WAIT_S, context=self._context)
            return self._exchange(fresh, name, body, headers)
        except (OSError, http.client.HTTPException) as error:
            self._say(getattr(error, "strerror", None) or type(error).__name__)
            return Answer(502)

    def _say(self, why: str) -> None:
        """Log why the SuperLink does not answer, once until it is another reason."""
        if why != self._trouble:
            logger.warning("the SuperLink %s:%d does not answer: %s", *self._at, why)
        self._trouble = why

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        name: str,
        body: bytes,
        headers: Mapping[str, str],
    ) -> Answer:
        until, kept = time.monotonic() + WHOLE_S, False
        try:
            said = {**headers, "content-type": MEDIA, "accept": MEDIA}
            connection.request("POST", PREFIX + name, body, said)
            response = connection.getresponse()
            parts, size = list[bytes](), 0
            while part := response.read1(1 << 20):
                parts.append(part)
                size += len(part)
                if size > MAX_ANSWER or time.monotonic() > until:
                    return Answer(502)
            if response.length:  # it was cut short
                return Answer(502)
            response.close()
            passed = {n: v for n in PASSED if (v := response.getheader(n)) is not None}
            kept, self._trouble = not response.will_close, ""
            return Answer(response.status, b"".join(parts), passed)
        finally:
            with self._lock:
                kept = kept and len(self._idle) < _MOST_IDLE
                if kept:
                    self._idle.append(connection)
            if not kept:
                connection.close()

    def close(self) -> None:
        """Close idle connections."""
        with self._lock:
            while self._idle:
                self._idle.pop().close()
