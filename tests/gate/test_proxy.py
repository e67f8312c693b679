"""The gate between Flower's own client and a SuperLink, over real sockets."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from flwr.app import Error, Message, RecordDict
from flwr.common.serde import message_from_proto
from flwr.proto.fleet_pb2 import RegisterNodeFleetRequest
from flwr.supercore.inflatable.inflatable_utils import push_object_contents_from_iterable
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supercore.run import RunNotRunningException
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.fleet_http_connection import http_request_response
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from flhe.errors import StoreError
from flhe.gate import proxy
from flhe.gate.run import Settings
from flhe.gate.spool import ANNOUNCED, Spool
from flhe.node import audit
from flhe.node.store import Store
from flhe.wire import files
from tests.gate.replies import PLANTED, Pushed, Recorded, clear
from tests.gate.superlink import FAB, KEYS, SuperLink
from tests.patience import PATIENCE_S, until


class Node:
    """Flower's own client of a SuperNode."""

    def __init__(self, connection: Any) -> None:
        self.id, self.receive, self.send, self.get_run, self.get_fab, *rest = connection
        self.pull_object, self.push_object, self.confirm = rest

    def take(self) -> str:
        """Pull a message as a SuperNode does; its id."""
        message, tree = self.receive()
        run = message.metadata.run_id
        self.get_run(run)
        self.get_fab(FAB, run)
        for part in ids(tree):
            self.pull_object(run, part)
        self.confirm(run, message.metadata.message_id)
        return str(message.metadata.message_id)

    def push(self, pushed: Pushed) -> None:
        """Push a reply as a SuperNode does."""
        wanted, session = self.send(message_from_proto(pushed.said), pushed.tree, 4711.0)
        contents = ((name, pushed.objects[name]) for name in wanted)
        one = partial(self.push_object, pushed.asked.run_id, session)
        push_object_contents_from_iterable(contents, one)


def ids(tree: Any) -> list[str]:
    return [part for child in tree.children for part in ids(child)] + [tree.object_id]


@dataclass
class Way:
    """A gate between a SuperNode and a SuperLink, and a site's replies."""

    link: SuperLink
    home: Path
    up: int
    """The gate's port."""
    site: Recorded

    @contextmanager
    def taken(self, stage: str, port: int = 0) -> Iterator[Node]:
        """A node that has pulled a stage's message, through the gate or else from a port."""
        asked, at = self.site.seen[stage][0], f"127.0.0.1:{port or self.up}"
        self.link.give(asked)
        with http_request_response(at, False, self.link.roots, KEYS) as connection:
            node = Node(connection)
            assert node.take() == asked.metadata.message_id
            yield node

    def push(self, stage: str) -> Message:
        """A node takes a stage's message and pushes its reply, which is returned."""
        with self.taken(stage) as node:
            node.push(self.site.pushed[stage])
        return self.site.seen[stage][1]

    def codes(self) -> list[tuple[str, int | None]]:
        """Answers and codes of the gate's log."""
        return [(e.answer, e.code) for e in audit.last(Store(self.home), 50) if e is not None]

    def spool(self) -> list[Path]:
        return list((self.home / "spool").iterdir())


@pytest.fixture
def way(link: SuperLink, settings: Settings, up: int, site: Recorded) -> Way:
    return Way(link, settings.home, up, site)


@pytest.mark.parametrize("stage", ["round", "status", "share"])
def test_a_signed_reply_arrives_whole(way: Way, stage: str) -> None:
    reply, arrived = way.push(stage), way.link.reply()
    assert arrived.content == reply.content
    said, expected = arrived.metadata, reply.metadata
    for name in ("run_id", "src_node_id", "dst_node_id", "reply_to_message_id", "group_id"):
        assert getattr(said, name) == getattr(expected, name)
    assert said.created_at != expected.created_at  # the gate's own clock
    assert not way.link.pushes[0].clientapp_runtime_list
    assert (way.codes(), way.spool()) == ([("passed", None)], [])


def _regroup(made: Message) -> None:
    made.metadata.__dict__["_group_id"] = PLANTED.tobytes().hex()


HIDDEN: dict[str, tuple[RecordDict | Error, Callable[[Message], None]]] = {
    "clear": (clear(), lambda _: None),
    "error": (Error(2, f"sorry {PLANTED.tobytes()!r}"), lambda _: None),
    "code": (Error(4711, PLANTED.tobytes().hex()), lambda _: None),
    "group": (RecordDict(), _regroup),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_nothing_in_clear_goes_beyond_the_gate(way: Way, name: str) -> None:
    """The same search finds it where there is no gate."""
    raw, text = PLANTED.tobytes(), repr(PLANTED.tobytes())[2:-1].encode()
    for port in (way.up, way.link.port):
        way.link.bytes_in.clear()
        with way.taken("round", port) as node:
            node.push(way.site.answering("round", *HIDDEN[name]))
        found = any(form in way.link.bytes_in for form in (raw, text, raw.hex().encode()))
        assert found == (port == way.link.port)
        reply = way.link.reply()
        if not found:
            assert reply.error.code == (2 if name == "error" else 1033)
            assert reply.error.reason in ("flower/2", "flhe/gate")
            assert way.codes() == [("refused", 1033)]


def test_a_second_answer_to_a_message_does_not_leave(way: Way) -> None:
    with way.taken("status") as node:
        node.push(way.site.pushed["status"])
        with pytest.raises(RunNotRunningException):
            node.push(way.site.answering("status", Error(1, "again")))
        node.push(way.site.pushed["status"])  # as after a lost answer
    assert len(way.link.pushes) == 1
    assert way.codes() == [("passed", None), ("refused", 1033)]


@pytest.mark.parametrize("how", ["fails for a while", "slow"])
def test_a_superlink_that_fails_for_a_while_or_is_slow_gets_the_reply(
    way: Way, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow delivery ends while the SuperNode comes again."""
    if how == "slow":
        monkeypatch.setattr(proxy, "PATIENCE_S", 0.0)
    else:
        way.link.failing.update({"push-messages": 1, "push-object": 1})
        way.link.losing = 1
    assert way.push("round").content == way.link.reply().content
    assert len(way.link.pushes) == 1  # a ServerApp that has pulled it takes no second announcement


def test_a_session_that_ended_before_the_gate_went_on_is_logged(
    way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    way.link.failing["push-object"] = 1 << 30

    def end() -> None:
        until(lambda: way.link.paths.count("push-object") > 0)
        way.link.pending.clear()
        way.link.failing.clear()

    ending = threading.Thread(target=end)
    ending.start()
    way.push("status")
    ending.join(PATIENCE_S)
    assert not way.link.objects
    assert "goes on without this site" in caplog.text


def test_a_reply_that_the_superlink_does_not_want_has_not_passed(way: Way) -> None:
    with way.taken("status") as node:
        way.link.answered.add(way.site.seen["status"][0].metadata.message_id)
        with pytest.raises(RunNotRunningException):
            node.push(way.site.pushed["status"])
    assert not way.link.objects
    assert way.codes() == [("refused", 1033)]
    assert "(status 403)" in (way.home / "errors.log").read_text()


def test_a_disk_that_is_full_for_a_moment_costs_no_reply(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the gate could not begin does not stand in the way when the SuperNode comes again."""
    honest, failed = files.create, list[Path]()

    def full(path: Path, data: bytes) -> bool:
        if path.name == ANNOUNCED and not failed:
            failed.append(path)
            raise StoreError("no space left")
        return honest(path, data)

    monkeypatch.setattr(files, "create", full)
    assert way.push("status").content == way.link.reply().content
    assert failed


def test_a_disk_that_stays_full_costs_no_message(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """The SuperLink gives each message once: the node must get it, and the answer must leave."""

    def full(*_: object) -> None:
        raise StoreError("No space left on device")

    monkeypatch.setattr(Store, "write", full)
    assert way.push("status").content == way.link.reply().content


@pytest.mark.parametrize(
    "data", [b"", b"\0", bytes(5000), b"\x82\x01\x42\xff\xff", b"\x82\x01\x40"]
)
def test_a_damaged_announcement_does_not_keep_the_gate_from_starting(
    tmp_path: Path, data: bytes
) -> None:
    """As a power cut may leave it: the SuperNode announces its reply again."""
    folder = tmp_path / "spool" / ("ab" * 32)
    Spool(tmp_path / "spool")
    folder.mkdir()
    (folder / ANNOUNCED).write_bytes(data)
    assert Spool(tmp_path / "spool").find(folder.name) is None
    assert not folder.exists()


SERVE = """
from pathlib import PosixPath
from flhe.gate.policy import GatePolicy
from flhe.gate.run import Settings, listening
with listening({settings}) as server:
    print(flush=True)
    server.serve_forever()
"""


@contextmanager
def process(settings: Settings) -> Iterator[subprocess.Popen[str]]:
    """A gate in a process of its own; killed at the end, as when a machine loses power."""
    words = [sys.executable, "-c", SERVE.format(settings=settings)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as made:
        try:
            assert made.stdout is not None
            assert made.stdout.readline() == "\n"
            yield made
        finally:
            made.kill()


@pytest.mark.parametrize("when", ["as it takes the reply", "as it pushes"])
def test_a_gate_that_is_killed_in_the_middle_of_a_reply_loses_nothing(
    link: SuperLink, settings: Settings, site: Recorded, when: str
) -> None:
    """The node is known, what was pushed is kept, and the session up goes on where it had begun."""
    pushed = site.pushed["round"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        way = Way(link, settings.home, int(free.getsockname()[1]), site)
    start = partial(process, replace(settings, listen=f"127.0.0.1:{way.up}"))
    with start() as first, way.taken("round") as node:
        wanted, session = node.send(message_from_proto(pushed.said), pushed.tree, 1.0)
        *early, last = sorted(wanted)
        for name in early:
            node.push_object(7, session, name, pushed.objects[name])
        end = (7, session, last, pushed.objects[last])
        rest = threading.Thread(target=node.push_object, args=end)
        if when == "as it pushes":
            link.failing["push-object"] = 1 << 30
            rest.start()
            until(lambda: link.paths.count("push-object") > 0)
        first.kill()
        first.wait(30)
        link.failing.clear()
        with start():
            if when != "as it pushes":
                rest.start()
            rest.join(PATIENCE_S)
    assert link.reply().content == site.seen["round"][1].content
    assert len(link.pushes) == 1
    assert way.codes() == [("passed", None)]


def test_a_reply_that_nobody_comes_for_is_erased(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    pushed = way.site.pushed["round"]
    with way.taken("round") as node:
        node.send(message_from_proto(pushed.said), pushed.tree, 1.0)
        assert len(way.spool()) == 1
        monkeypatch.setattr(proxy, "ABANDONED_S", 0.0)
        until(lambda: not way.spool())
    assert not way.link.pushes


def test_a_reply_on_its_way_up_is_not_erased(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    with way.taken("status") as node:
        pushing = threading.Thread(target=node.push, args=(way.site.pushed["status"],))
        with way.link.lock:  # the SuperLink takes its time
            pushing.start()
            until(lambda: [t for t in threading.enumerate() if t.name.startswith("flhe-gate")])
            monkeypatch.setattr(proxy, "ABANDONED_S", 0.0)
            time.sleep(0.3)  # the gate looks each 0.05 s
            assert len(way.spool()) == 1
        pushing.join(PATIENCE_S)
    assert way.link.reply().content == way.site.seen["status"][1].content


# --- requests ---


def test_a_request_that_goes_on_and_on_loses_its_place(
    up: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One byte before each wait is over would hold it for ever."""
    monkeypatch.setattr(proxy, "REQUEST_S", 0.2)
    plain = socket.create_connection(("127.0.0.1", up), PATIENCE_S)
    with ssl._create_unverified_context().wrap_socket(plain) as slow:
        slow.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\n")
        assert slow.recv(1) == b""


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        *(
            (path, b"", 404)
            for path in ("/v1/control/start-run", "/v1/fleet/other", "/", "/health")
        ),
        ("/v1/fleet/pull-messages", b"", 400),  # without a signature
        ("/v1/fleet/pull-messages", bytes(1 << 17), 413),
    ],
)
def test_another_endpoint_is_refused(
    link: SuperLink, up: int, path: str, body: bytes, status: int
) -> None:
    answer = httpx.post(f"https://127.0.0.1:{up}{path}", content=body, verify=False)
    assert answer.status_code == status
    assert not link.paths


def register(link: SuperLink, port: int, keys: Any) -> None:
    """One request of a SuperNode, without the client that ends its process on 401."""
    signing = [RuntimeVersionHttpInterceptor("SuperNode"), NodeAuthHttpInterceptor(*keys)]
    at = f"127.0.0.1:{port}", False, link.roots
    with FleetHttpClient.from_server_address(*at, interceptors=signing) as client:
        client.RegisterNode(RegisterNodeFleetRequest(public_key=public_key_to_bytes(keys[1])))


def test_another_caller_is_refused(link: SuperLink, up: int) -> None:
    """A process of the same machine that is not the SuperNode reaches nothing."""
    register(link, up, KEYS)
    with pytest.raises(httpx.HTTPStatusError, match="401"):
        register(link, up, generate_key_pairs())
    assert link.paths == ["register-node"]


def test_an_id_that_did_not_come_down_does_not_go_up(way: Way) -> None:
    named = PLANTED.tobytes().hex() * 2
    with way.taken("status") as node:
        before = len(way.link.paths)
        for ask in (
            partial(node.pull_object, 7, named),
            partial(node.confirm, 7, named),
            partial(node.get_run, 4711),
            partial(node.get_fab, named, 7),
        ):
            with pytest.raises(httpx.HTTPStatusError, match="400"):
                ask()
        assert len(way.link.paths) == before
    assert named.encode() not in way.link.bytes_in
