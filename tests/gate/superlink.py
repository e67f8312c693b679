"""A fake SuperLink over real sockets: it writes down every byte, and holds what it was pushed."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from flwr.app.message.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fab_pb2 import Fab, GetFabResponse
from flwr.proto.fleet_pb2 import (
    ActivateNodeResponse,
    DeactivateNodeResponse,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
    RegisterNodeFleetResponse,
    UnregisterNodeFleetResponse,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatResponse
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedResponse,
    ObjectTree,
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
    PushObjectResponse,
)
from flwr.proto.run_pb2 import GetRunResponse, Run
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.primitives.asymmetric import generate_key_pairs

FAB = "ab" * 32
NODE = 100
KEYS = generate_key_pairs()
"""Those of the SuperNode."""


@dataclass
class SuperLink:
    """Its answers, and what it has received."""

    roots: bytes = b""
    ask: list[Any] = field(default_factory=list)
    down: dict[str, bytes] = field(default_factory=dict)
    pushes: list[PushMessagesRequest] = field(default_factory=list)
    objects: dict[str, bytes] = field(default_factory=dict)
    bytes_in: bytearray = field(default_factory=bytearray)
    paths: list[str] = field(default_factory=list)
    failing: dict[str, int] = field(default_factory=dict)
    lock: Any = field(default_factory=threading.Lock)
    port: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)
    pending: dict[str, set[str]] = field(default_factory=dict)
    losing: int = 0
    """Answers to pushed objects that are lost on their way."""

    def give(self, message: Any) -> None:
        """Let the node pull a message."""
        self.answered.discard(message.metadata.message_id)
        parts = get_all_nested_objects(message)
        self.down.update({name: part.deflate() for name, part in parts.items()})
        self.ask.append((message, get_object_tree(message)))

    def reply(self, at: int = -1) -> Any:
        """A whole reply, as a ServerApp gets it."""
        request = self.pushes[at]
        tree = request.message_object_trees[0]
        made: Any = inflate_object_from_contents(tree.object_id, dict(self.objects))
        announced = message_from_proto(request.messages_list[0])
        assert announced.metadata.message_id == tree.object_id
        return made

    def pull_messages(self, _: bytes) -> Any:
        if not self.ask:
            return PullMessagesResponse()
        message, tree = self.ask.pop(0)
        said = message_to_proto(remove_content_from_message(message))
        return PullMessagesResponse(messages_list=[said], message_object_trees=[tree])

    def pull_object(self, body: bytes) -> Any:
        content = self.down[PullObjectRequest.FromString(body).object_id]
        found = {"object_found": True, "object_available": True}
        return PullObjectResponse(object_content=content, **found)

    def push_messages(self, body: bytes) -> Any:
        request = PushMessagesRequest.FromString(body)
        self.pushes.append(request)
        session, answered = f"up{len(self.pushes)}", request.messages_list[0].metadata
        if answered.reply_to_message_id in self.answered:  # a ServerApp has pulled it meanwhile
            return PushMessagesResponse(session_id=session)
        self.answered.add(answered.reply_to_message_id)
        self.pending[session] = _ids(request.message_object_trees[0])
        wanted = sorted(self.pending[session])
        return PushMessagesResponse(objects_to_push=wanted, session_id=session)

    def push_object(self, body: bytes) -> Any:
        pushed = PushObjectRequest.FromString(body)
        pending = self.pending.get(pushed.session_id, set())
        if pushed.object_id not in pending:
            return PushObjectResponse(stored=False)
        pending.remove(pushed.object_id)
        self.objects[pushed.object_id] = pushed.object_content
        return PushObjectResponse(stored=True)


ANSWERS: dict[str, Callable[[SuperLink, bytes], Any]] = {
    "register-node": lambda *_: RegisterNodeFleetResponse(node_id=NODE),
    "activate-node": lambda *_: ActivateNodeResponse(node_id=NODE),
    "deactivate-node": lambda *_: DeactivateNodeResponse(),
    "unregister-node": lambda *_: UnregisterNodeFleetResponse(),
    "send-node-heartbeat": lambda *_: SendNodeHeartbeatResponse(success=True),
    "get-run": lambda *_: GetRunResponse(run=Run(run_id=7, fab_hash=FAB)),
    "get-fab": lambda *_: GetFabResponse(fab=Fab(hash_str=FAB, content=b"fab")),
    "pull-messages": SuperLink.pull_messages,
    "pull-object": SuperLink.pull_object,
    "push-messages": SuperLink.push_messages,
    "push-object": SuperLink.push_object,
    "confirm-message-received": lambda *_: ConfirmMessageReceivedResponse(),
}


def _ids(tree: ObjectTree) -> set[str]:
    return {tree.object_id}.union(*map(_ids, tree.children))


@contextmanager
def superlink(context: ssl.SSLContext) -> Iterator[SuperLink]:
    """A fake SuperLink that listens."""
    state = SuperLink()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 30
        wbufsize, disable_nagle_algorithm = -1, True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            name = self.path.rpartition("/")[2]
            with state.lock:
                state.paths.append(name)
                state.headers = {k.lower(): v for k, v in self.headers.items()}
                state.bytes_in += str(self.headers).encode() + self.path.encode() + body
                status, data = 200, b""
                if state.failing.get(name, 0):
                    state.failing[name] -= 1
                    status = 503
                else:
                    data = ANSWERS[name](state, body).SerializeToString()
                    if name == "push-object" and state.losing:
                        state.losing -= 1
                        status, data = 503, b""
            self.send_response(status)
            self.send_header("content-type", "application/protobuf")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.socket = context.wrap_socket(server.socket, server_side=True)
    state.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
