"""The gate between Flower's own client and a SuperLink, over real sockets."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
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
from tests.gate.conftest import Seen
from tests.gate.replies import PLANTED, Pushed, answering, clear
from tests.gate.superlink import FAB, KEYS, SuperLink
from tests.patience import PATIENCE_S, until

Replies = dict[str, Pushed]


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
def taken(link: SuperLink, at: int, asked: Message) -> Iterator[Node]:
    """A node that has pulled a message."""
    link.give(asked)
    with http_request_response(f"127.0.0.1:{at}", False, link.roots, KEYS) as connection:
        site = Node(connection)
        assert site.take() == asked.metadata.message_id
        yield site


@pytest.fixture
def home(settings: Settings) -> Path:
    """The gate's directory."""
    return settings.home


@pytest.fixture
def push(link: SuperLink, up: int, seen: Seen, pushed: Replies) -> Callable[[str], Message]:
    """A node takes a stage's message and pushes its reply, which is returned."""

    def push(stage: str) -> Message:
        with taken(link, up, seen[stage][0]) as site:
            site.push(pushed[stage])
        return seen[stage][1]

    return push


Push = Callable[[str], Message]


def codes(home: Path) -> list[tuple[str, int | None]]:
    return [(e.answer, e.code) for e in audit.last(Store(home), 50) if e is not None]


@pytest.mark.parametrize("stage", ["round", "status", "share"])
def test_a_signed_reply_arrives_whole(link: SuperLink, push: Push, home: Path, stage: str) -> None:
    reply, arrived = push(stage), link.reply()
    assert arrived.content == reply.content
    said, expected = arrived.metadata, reply.metadata
    for name in ("run_id", "src_node_id", "dst_node_id", "reply_to_message_id", "group_id"):
        assert getattr(said, name) == getattr(expected, name)
    assert said.created_at != expected.created_at  # the gate's own clock
    assert not link.pushes[0].clientapp_runtime_list
    assert codes(home) == [("passed", None)]
    assert not list((home / "spool").iterdir())


def _regroup(made: Message) -> None:
    made.metadata.__dict__["_group_id"] = PLANTED.tobytes().hex()


HIDDEN: dict[str, Callable[[Message], Pushed]] = {
    "clear": lambda asked: answering(asked, clear()),
    "error": lambda asked: answering(asked, Error(2, f"sorry {PLANTED.tobytes()!r}")),
    "code": lambda asked: answering(asked, Error(4711, PLANTED.tobytes().hex())),
    "group": lambda asked: answering(asked, RecordDict(), _regroup),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_nothing_in_clear_goes_beyond_the_gate(
    link: SuperLink, up: int, seen: Seen, home: Path, name: str
) -> None:
    """The same search finds it where there is no gate."""
    asked = seen["round"][0]
    raw, text = PLANTED.tobytes(), repr(PLANTED.tobytes())[2:-1].encode()
    for port in (up, link.port):
        link.bytes_in.clear()
        with taken(link, port, asked) as site:
            site.push(HIDDEN[name](asked))
        found = any(form in link.bytes_in for form in (raw, text, raw.hex().encode()))
        assert found == (port == link.port)
        reply = link.reply()
        if not found:
            assert reply.error.code == (2 if name == "error" else 1033)
            assert reply.error.reason in ("flower/2", "flhe/gate")
            assert codes(home) == [("refused", 1033)]


def test_a_second_answer_to_a_message_does_not_leave(
    link: SuperLink, up: int, seen: Seen, pushed: Replies, home: Path
) -> None:
    asked, _ = seen["status"]
    with taken(link, up, asked) as site:
        site.push(pushed["status"])
        with pytest.raises(RunNotRunningException):
            site.push(answering(asked, Error(1, "again")))
        site.push(pushed["status"])  # as after a lost answer
    assert len(link.pushes) == 1
    assert codes(home) == [("passed", None), ("refused", 1033)]


@pytest.mark.parametrize("how", ["fails for a while", "slow"])
def test_a_superlink_that_fails_for_a_while_or_is_slow_gets_the_reply(
    link: SuperLink, push: Push, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow delivery ends while the SuperNode comes again."""
    if how == "slow":
        monkeypatch.setattr(proxy, "PATIENCE_S", 0.0)
    else:
        link.failing.update({"push-messages": 1, "push-object": 1})
        link.losing = 1
    assert push("round").content == link.reply().content
    assert len(link.pushes) == 1  # a ServerApp that has pulled it takes no second announcement


def test_a_session_that_ended_before_the_gate_went_on_is_logged(
    link: SuperLink, push: Push, caplog: pytest.LogCaptureFixture
) -> None:
    link.failing["push-object"] = 1 << 30

    def end() -> None:
        until(lambda: link.paths.count("push-object") > 0)
        link.pending.clear()
        link.failing.clear()

    ending = threading.Thread(target=end)
    ending.start()
    push("status")
    ending.join(PATIENCE_S)
    assert not link.objects
    assert "goes on without this site" in caplog.text


def test_a_reply_that_the_superlink_does_not_want_has_not_passed(
    link: SuperLink, up: int, seen: Seen, pushed: Replies, home: Path
) -> None:
    asked, _ = seen["status"]
    with taken(link, up, asked) as site:
        link.answered.add(asked.metadata.message_id)
        with pytest.raises(RunNotRunningException):
            site.push(pushed["status"])
    assert not link.objects
    assert codes(home) == [("refused", 1033)]
    assert "(status 403)" in (home / "errors.log").read_text()


def test_a_disk_that_is_full_for_a_moment_costs_no_reply(
    link: SuperLink, push: Push, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the gate could not begin does not stand in the way when the SuperNode comes again."""
    honest, failed = files.create, list[Path]()

    def full(path: Path, data: bytes) -> bool:
        if path.name == ANNOUNCED and not failed:
            failed.append(path)
            raise StoreError("no space left")
        return honest(path, data)

    monkeypatch.setattr(files, "create", full)
    assert push("status").content == link.reply().content
    assert failed


def test_a_disk_that_stays_full_costs_no_message(
    link: SuperLink, push: Push, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SuperLink gives each message once: the node must get it, and the answer must leave."""

    def full(*_: object) -> None:
        raise StoreError("No space left on device")

    monkeypatch.setattr(Store, "write", full)
    assert push("status").content == link.reply().content


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
    link: SuperLink, settings: Settings, seen: Seen, pushed: Replies, when: str
) -> None:
    """The node is known, what was pushed is kept, and the session up goes on where it had begun."""
    (asked, reply), objects = seen["round"], pushed["round"].objects
    with socket.create_server(("127.0.0.1", 0)) as free:
        at = int(free.getsockname()[1])
    start = partial(process, replace(settings, listen=f"127.0.0.1:{at}"))
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
    assert codes(settings.home) == [("passed", None)]


def test_a_reply_that_nobody_comes_for_is_erased(
    link: SuperLink,
    up: int,
    seen: Seen,
    pushed: Replies,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with taken(link, up, seen["round"][0]) as site:
        site.send(message_from_proto(pushed["round"].said), pushed["round"].tree, 1.0)
        assert len(list((home / "spool").iterdir())) == 1
        monkeypatch.setattr(proxy, "ABANDONED_S", 0.0)
        until(lambda: not list((home / "spool").iterdir()))
    assert not link.pushes


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


def test_an_id_that_did_not_come_down_does_not_go_up(link: SuperLink, up: int, seen: Seen) -> None:
    named = PLANTED.tobytes().hex() * 2
    with taken(link, up, seen["status"][0]) as site:
        before = len(link.paths)
        for ask in (
            partial(site.pull_object, 7, named),
            partial(site.confirm, 7, named),
            partial(site.get_run, 4711),
            partial(site.get_fab, named, 7),
        ):
            with pytest.raises(httpx.HTTPStatusError, match="400"):
                ask()
        assert len(link.paths) == before
    assert named.encode() not in link.bytes_in
