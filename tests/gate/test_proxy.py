"""The gate between Flower's own client and a SuperLink, over real sockets."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from flhe.gate.delivery import Delivery
from flhe.gate.ledger import Ledger
from flhe.gate.policy import GatePolicy
from flhe.gate.proxy import Gate, GateServer
from flhe.gate.requests import Caller
from flhe.gate.spool import ANNOUNCED, Spool
from flhe.gate.upstream import Upstream
from flhe.node import audit
from flhe.node.store import Store
from flhe.wire import files
from tests.gate.conftest import Seen
from tests.gate.replies import PLANTED, Pushed, answering, clear
from tests.gate.superlink import FAB, SuperLink, superlink
from tests.patience import PATIENCE_S, until

NODE = 100
KEYS = generate_key_pairs()
Replies = dict[str, Pushed]


@contextmanager
def gate(home: Path, policy: GatePolicy, port: int, pinned: bytes | None = None) -> Iterator[int]:
    """The port of a gate that listens."""
    store = Store(home)
    delivery = Delivery(policy, Ledger(store), Upstream(f"127.0.0.1:{port}", None), store)
    made = Gate(delivery, Caller(pinned), Spool(home / "spool"))
    server = GateServer(("127.0.0.1", 0), made, None)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()


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


@contextmanager
def node(port: int, keys: Any = KEYS) -> Iterator[Node]:
    with http_request_response(f"127.0.0.1:{port}", True, None, keys) as connection:
        yield Node(connection)


@contextmanager
def taken(link: SuperLink, at: int, asked: Message) -> Iterator[Node]:
    """A node that has pulled a message."""
    link.give(asked)
    with node(at) as site:
        assert site.take() == asked.metadata.message_id
        yield site


@pytest.fixture
def link() -> Iterator[SuperLink]:
    with superlink(NODE) as made:
        yield made


@pytest.fixture
def up(tmp_path: Path, policy: GatePolicy, link: SuperLink) -> Iterator[int]:
    with gate(tmp_path / "gate", policy, link.port) as at:
        yield at


def codes(home: Path) -> list[tuple[str, int | None]]:
    return [(e.answer, e.code) for e in audit.last(Store(home), 50) if e is not None]


@pytest.mark.parametrize("stage", ["round", "status", "share"])
def test_a_signed_reply_arrives_whole(
    link: SuperLink, up: int, seen: Seen, pushed: Replies, tmp_path: Path, stage: str
) -> None:
    asked, reply = seen[stage]
    with taken(link, up, asked) as site:
        site.push(pushed[stage])
    arrived = link.reply()
    assert arrived.content == reply.content
    said, expected = arrived.metadata, reply.metadata
    for name in ("run_id", "src_node_id", "dst_node_id", "reply_to_message_id", "group_id"):
        assert getattr(said, name) == getattr(expected, name)
    assert said.created_at != expected.created_at  # the gate's own clock
    assert not link.pushes[0].clientapp_runtime_list
    assert codes(tmp_path / "gate") == [("passed", None)]
    assert not list((tmp_path / "gate" / "spool").iterdir())


HIDDEN: dict[str, Callable[[Message], Pushed]] = {
    "clear": lambda asked: answering(asked, clear()),
    "error": lambda asked: answering(asked, Error(2, f"sorry {PLANTED.tobytes()!r}")),
    "code": lambda asked: answering(asked, Error(4711, PLANTED.tobytes().hex())),
    "group": lambda asked: answering(asked, RecordDict(), _regroup),
}


def _regroup(made: Message) -> None:
    made.metadata.__dict__["_group_id"] = PLANTED.tobytes().hex()


@pytest.mark.parametrize("name", HIDDEN)
def test_nothing_in_clear_goes_beyond_the_gate(
    link: SuperLink, up: int, seen: Seen, tmp_path: Path, name: str
) -> None:
    """The same search finds it where there is no gate."""
    asked = seen["round"][0]
    found = []
    for port in (up, link.port):
        link.bytes_in.clear()
        with taken(link, port, asked) as site:
            site.push(HIDDEN[name](asked))
        raw, text = PLANTED.tobytes(), repr(PLANTED.tobytes())[2:-1].encode()
        forms = raw, text, raw.hex().encode()
        found.append(any(form in link.bytes_in for form in forms))
        reply = link.reply()
        if not found[1:]:
            assert reply.error.code == (2 if name == "error" else 1033)
            assert reply.error.reason in ("flower/2", "flhe/gate")
            assert codes(tmp_path / "gate") == [("refused", 1033)]
    assert found == [False, True]


def test_a_second_answer_to_a_message_does_not_leave(
    link: SuperLink, up: int, seen: Seen, pushed: Replies, tmp_path: Path
) -> None:
    asked, _ = seen["status"]
    with taken(link, up, asked) as site:
        site.push(pushed["status"])
        with pytest.raises(RunNotRunningException):
            site.push(answering(asked, Error(1, "again")))
        site.push(pushed["status"])  # as after a lost answer
    assert len(link.pushes) == 1
    assert codes(tmp_path / "gate") == [("passed", None), ("refused", 1033)]


@pytest.mark.parametrize("how", ["fails for a while", "slow"])
def test_a_superlink_that_fails_for_a_while_or_is_slow_gets_the_reply(
    link: SuperLink,
    up: int,
    seen: Seen,
    pushed: Replies,
    how: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A slow delivery ends while the SuperNode comes again."""
    asked, reply = seen["round"]
    with taken(link, up, asked) as site:
        if how == "slow":
            monkeypatch.setattr(proxy, "PATIENCE_S", 0.0)
        else:
            link.failing.update({"push-messages": 1, "push-object": 1})
            link.losing = 1
        site.push(pushed["round"])
    assert link.reply().content == reply.content
    assert len(link.pushes) == 1  # a ServerApp that has pulled it takes no second announcement


def test_a_session_that_ended_before_the_gate_went_on_is_logged(
    link: SuperLink, up: int, seen: Seen, pushed: Replies, caplog: pytest.LogCaptureFixture
) -> None:
    link.failing["push-object"] = 1 << 30

    def end() -> None:
        until(lambda: link.paths.count("push-object") > 0)
        link.pending.clear()
        link.failing.clear()

    ending = threading.Thread(target=end)
    ending.start()
    with taken(link, up, seen["status"][0]) as site:
        site.push(pushed["status"])
    ending.join(PATIENCE_S)
    assert not link.objects
    assert "goes on without this site" in caplog.text


def test_a_disk_that_is_full_for_a_moment_costs_no_reply(
    link: SuperLink, up: int, seen: Seen, pushed: Replies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the gate could not begin does not stand in the way when the SuperNode comes again."""
    honest, failed = files.create, list[Path]()

    def full(path: Path, data: bytes) -> bool:
        if path.name == ANNOUNCED and not failed:
            failed.append(path)
            raise StoreError("no space left")
        return honest(path, data)

    monkeypatch.setattr(files, "create", full)
    with taken(link, up, seen["status"][0]) as site:
        site.push(pushed["status"])
    assert failed
    assert link.reply().content == seen["status"][1].content


def test_a_reply_that_the_superlink_does_not_want_has_not_passed(
    link: SuperLink, up: int, seen: Seen, pushed: Replies, tmp_path: Path
) -> None:
    asked, _ = seen["status"]
    with taken(link, up, asked) as site:
        link.answered.add(asked.metadata.message_id)
        with pytest.raises(RunNotRunningException):
            site.push(pushed["status"])
    assert not link.objects
    assert codes(tmp_path / "gate") == [("refused", 1033)]
    assert "(status 403)" in (tmp_path / "gate" / "errors.log").read_text()


def test_a_disk_that_stays_full_costs_no_message(
    link: SuperLink, up: int, seen: Seen, pushed: Replies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SuperLink gives each message once: the node must get it, and the answer must leave."""

    def full(*_: object) -> None:
        raise StoreError("No space left on device")

    monkeypatch.setattr(Store, "write", full)
    with taken(link, up, seen["status"][0]) as site:
        site.push(pushed["status"])
    assert link.reply().content == seen["status"][1].content


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


@contextmanager
def process(home: Path, site: Path, port: int, at: int) -> Iterator[subprocess.Popen[str]]:
    """`flhe gate` in a process of its own; killed at the end, as when a machine loses power."""
    words = ["gate", "--home", str(home), "--site", str(site), "--insecure"]
    words += ["--superlink", f"127.0.0.1:{port}", "--listen", f"127.0.0.1:{at}"]
    command = [sys.executable, "-m", "flhe.cli", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as made:
        try:
            assert made.stderr is not None
            assert "listens" in made.stderr.readline()
            yield made
        finally:
            made.kill()


@pytest.mark.parametrize("when", ["as it takes the reply", "as it pushes"])
def test_a_gate_that_is_killed_in_the_middle_of_a_reply_loses_nothing(
    link: SuperLink, place: Path, seen: Seen, pushed: Replies, tmp_path: Path, when: str
) -> None:
    """The node is known, what was pushed is kept, and the session up goes on where it had begun."""
    (asked, reply), objects = seen["round"], pushed["round"].objects
    with socket.create_server(("127.0.0.1", 0)) as free:
        at, home = int(free.getsockname()[1]), tmp_path / "gate"
    start = partial(process, home, place / "site-a.site", link.port, at)
    with start() as first, taken(link, at, asked) as site:
        said = message_from_proto(pushed["round"].said)
        wanted, session = site.send(said, pushed["round"].tree, 1.0)
        *early, last = sorted(wanted)
        for name in early:
            site.push_object(7, session, name, objects[name])
        rest = threading.Thread(target=site.push_object, args=(7, session, last, objects[last]))
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
    assert link.reply().content == reply.content
    assert len(link.pushes) == 1
    assert codes(home) == [("passed", None)]


# --- requests ---


def post(port: int, path: str, body: bytes, **headers: str) -> int:
    return httpx.post(f"http://127.0.0.1:{port}{path}", content=body, headers=headers).status_code


@pytest.mark.parametrize("path", ["/v1/control/start-run", "/v1/fleet/other", "/", "/health"])
def test_another_endpoint_is_refused(link: SuperLink, up: int, path: str) -> None:
    assert post(up, path, b"") == 404
    assert not link.paths


def test_a_request_without_a_signature_is_refused(link: SuperLink, up: int) -> None:
    assert post(up, "/v1/fleet/pull-messages", b"") == 400
    assert post(up, "/v1/fleet/pull-messages", b"0" * (1 << 17)) == 413
    assert not link.paths


def register(port: int, keys: Any) -> None:
    """One request of a SuperNode, without the client that ends its process on 401."""
    signing = [RuntimeVersionHttpInterceptor("SuperNode"), NodeAuthHttpInterceptor(*keys)]
    at = f"127.0.0.1:{port}", True, None
    with FleetHttpClient.from_server_address(*at, interceptors=signing) as client:
        client.RegisterNode(RegisterNodeFleetRequest(public_key=public_key_to_bytes(keys[1])))


def test_another_caller_is_refused(link: SuperLink, policy: GatePolicy, tmp_path: Path) -> None:
    """A process of the same machine that is not the SuperNode reaches nothing."""
    pinned = public_key_to_bytes(KEYS[1])
    with gate(tmp_path / "gate", policy, link.port, pinned) as at:
        register(at, KEYS)
        with pytest.raises(httpx.HTTPStatusError, match="401"):
            register(at, generate_key_pairs())
    assert link.paths == ["register-node"]


def test_an_id_that_did_not_come_down_does_not_go_up(link: SuperLink, up: int, seen: Seen) -> None:
    named = PLANTED.tobytes().hex() * 2
    with taken(link, up, seen["status"][0]) as site:
        before = len(link.paths)
        for ask in (
            lambda: site.pull_object(7, named),
            lambda: site.confirm(7, named),
            lambda: site.get_run(4711),
            lambda: site.get_fab(named, 7),
        ):
            with pytest.raises(httpx.HTTPStatusError, match="400"):
                ask()
        assert len(link.paths) == before
    assert named.encode() not in link.bytes_in
