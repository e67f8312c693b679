"""The gate's server: a SuperNode's requests come in on loopback, and those that pass go up.

A reply is announced by `push-messages` and comes object by object. The gate answers for itself until
the reply is whole; then it judges and delivers it, in a thread of its own. Meanwhile the SuperNode
that waits for its last object is asked to come again, and its newer signature is used.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYetError
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from flwr.proto.fleet_pb2 import PushMessagesRequest, PushMessagesResponse
from flwr.proto.message_pb2 import PushObjectRequest, PushObjectResponse

from flhe.errors import AuthenticationError, FlheError, ProtocolError, logger
from flhe.gate.delivery import DONE, REJECTED, Delivery
from flhe.gate.requests import PREFIX, ROUTES, Caller, StrangeNodeError, read
from flhe.gate.spool import Spool, Waiting
from flhe.gate.upstream import MEDIA, Answer

PATIENCE_S = 20.0
"""Seconds that a SuperNode waits for a delivery before it is asked to come again; it gives 30."""
IDLE_S = 60.0
"""Seconds without a byte after which a connection is closed."""
REQUEST_S = 600.0
"""Seconds of a whole request after which a connection is closed: a byte a minute is not idle."""
ABANDONED_S = 1800.0
"""Seconds after which a reply is erased whose SuperNode has not come again."""
MOST = 32
"""Most connections at a time."""


class Gate:
    """Answers of the gate to requests; `spool` keeps replies on their way up."""

    def __init__(self, delivery: Delivery, caller: Caller, spool: Spool) -> None:
        self._delivery, self._caller, self._spool = delivery, caller, spool
        self._headers: Mapping[str, str] = {}
        self._lock = threading.Lock()
        self._under_way: dict[str, Future[Answer]] = {}
        self._delivered: dict[str, Answer] = {}
        # One thread: of two replies to one message the second must see that the first has left.
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="flhe-gate")

    def answer(self, name: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Answer one request of ROUTES; never raises."""
        try:
            passed = self._caller.check(headers)
            request = read(ROUTES[name], body, self._delivery.ledger, self._caller.key)
            self._headers = passed
            return self._answer(name, request, body)
        except (AuthenticationError, StrangeNodeError) as error:
            why, status = str(error), 401  # the SuperNode ends, and begins anew
        except ProtocolError as error:
            why, status = str(error), 400
        except FlheError as error:
            why, status = str(error), 503
        except Exception as error:
            why, status = type(error).__name__, 503
        logger.warning("%s refused: %s", name, why)
        return Answer(status)

    def _answer(self, name: str, request: Any, body: bytes) -> Answer:
        if name == "push-messages":
            return self._announce(request)
        if name == "push-object":
            return self._take(request)
        answer = self._delivery.upstream.post(name, body, self._headers)
        if answer.status == DONE.status:
            self._delivery.ledger.note(name, answer.body)
        return answer

    def _announce(self, request: PushMessagesRequest) -> Answer:
        named = request.message_object_trees[0].object_id
        if named in self._delivered:
            return _announced(named, ())
        waiting = self._spool.announce(request)
        return _announced(named, waiting.ids - waiting.sizes.keys() or waiting.ids)

    def _take(self, request: PushObjectRequest) -> Answer:
        name = request.session_id
        if (done := self._delivered.get(name)) is not None:
            return _stored(done)
        waiting = self._spool.find(name)
        if waiting is None:
            return REJECTED  # displaced, or announced to another gate
        self._spool.put(waiting, request.object_id, request.object_content)
        if waiting.size > self._delivery.policy.max_bytes or waiting.whole:
            return self._deliver(waiting)
        return _stored(DONE)

    def _deliver(self, waiting: Waiting) -> Answer:
        with self._lock:
            if (done := self._delivered.get(waiting.name)) is not None:
                return _stored(done)
            under_way = self._under_way.get(waiting.name)
            if under_way is None:
                under_way = self._threads.submit(
                    self._delivery.deliver, waiting, lambda: self._headers
                )
                self._under_way[waiting.name] = under_way
        try:
            answer = under_way.result(PATIENCE_S)
        except NotYetError:
            return Answer(503)
        except Exception as error:
            why = str(error) if isinstance(error, FlheError) else type(error).__name__
            logger.error("a delivery failed: %s", why)
            answer = Answer(502)
        with self._lock:
            if self._under_way.get(waiting.name) is under_way:
                del self._under_way[waiting.name]
            if not answer.again and answer.status != 401:
                self._delivered[waiting.name] = answer
                while len(self._delivered) > MOST:
                    del self._delivered[next(iter(self._delivered))]
                self._spool.drop(waiting.name)
        return _stored(answer)

    def tidy(self) -> None:
        """Erase replies whose SuperNode has not come again, but for one that is on its way up."""
        with self._lock:
            busy = [name for name, answer in self._under_way.items() if not answer.done()]
            for name in self._spool.abandoned(ABANDONED_S):
                if name not in busy:
                    self._under_way.pop(name, None)
                    self._spool.drop(name)

    def close(self) -> None:
        """End deliveries; what waits stays in the spool."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._delivery.upstream.close()


def _announced(named: str, wanted: Any) -> Answer:
    response = PushMessagesResponse(
        results={named: 0}, objects_to_push=sorted(wanted), session_id=named
    )
    response.reconnect.reconnect = 5
    return Answer(200, response.SerializeToString(), {"content-type": MEDIA})


def _stored(answer: Answer) -> Answer:
    if answer.status != DONE.status:
        return answer
    body = PushObjectResponse(stored=True).SerializeToString()
    return Answer(200, body, {"content-type": MEDIA})


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = IDLE_S
    wbufsize, disable_nagle_algorithm = -1, True  # an answer is one packet, sent at once
    server: GateServer

    def handle_one_request(self) -> None:
        """Wait for one request and answer it, for REQUEST_S at most."""
        timer = threading.Timer(REQUEST_S, self._end)
        timer.daemon = True
        timer.start()
        try:
            super().handle_one_request()
        finally:
            timer.cancel()

    def _end(self) -> None:
        with suppress(OSError):
            # Of the socket itself: one of TLS would go on in clear.
            socket.socket.shutdown(self.connection, socket.SHUT_RDWR)

    def do_POST(self) -> None:
        """Answer one request."""
        before, name = self.path[: len(PREFIX)], self.path[len(PREFIX) :]
        route = ROUTES.get(name) if before == PREFIX else None
        length = self.headers.get("content-length", "")
        if not length.isdecimal() or len(length) > 12 or "transfer-encoding" in self.headers:
            self._refuse(411)
        elif route is None:
            self._refuse(404)
        elif int(length) > route.most:
            self._refuse(413)
        else:
            body = self.rfile.read(int(length))
            if len(body) == int(length):
                self._send(self.server.gate.answer(name, self.headers, body))  # type: ignore[arg-type]

    def _refuse(self, status: int) -> None:
        self.close_connection = True  # its body is not read
        self._send(Answer(status))

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in (answer.headers or {"content-type": "application/json"}).items():
            self.send_header(name, value)
        body = answer.body if answer.status == DONE.status or answer.body else b"{}"
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Leave requests out of the log: `Gate` logs refusals."""


class GateServer(ThreadingHTTPServer):
    """Serves `gate` at an address of this machine; `context` is its TLS."""

    daemon_threads = True
    request_queue_size = MOST

    def __init__(self, address: tuple[str, int], gate: Gate, context: ssl.SSLContext) -> None:
        self.gate = gate
        self._free = threading.Semaphore(MOST)
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)
        # The handshake is the connection's own thread's.
        self.socket = context.wrap_socket(
            self.socket, server_side=True, do_handshake_on_connect=False
        )

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection, unless there are too many."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection in its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def service_actions(self) -> None:
        """Erase what nobody comes for, between two connections."""
        self.gate.tidy()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Leave broken connections out of the log: the SuperNode comes again."""

    def server_close(self) -> None:
        """Close the socket, then end deliveries."""
        with suppress(FlheError):
            super().server_close()
        self.gate.close()
