"""`flhe gate`: certificates, settings, TLS on both sides, and a SuperNode's requests."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from cryptography import x509
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL
from flwr.proto import node_pb2
from flwr.proto.fleet_pb2 import ActivateNodeResponse, PullMessagesResponse, PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree
from flwr.proto.run_pb2 import GetRunResponse, Run
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supernode.fleet_http_connection import http_request_response

from flhe.errors import AuthenticationError, ConfigError, FlheError, ProtocolError
from flhe.gate import certificate
from flhe.gate.ledger import Ledger
from flhe.gate.requests import HEADERS, ROUTES, Caller, read
from flhe.gate.run import Settings, listening
from flhe.gate.spool import Spool
from flhe.gate.upstream import Upstream
from flhe.node.store import Store
from flhe.provision.federation import tls
from tests.fuzz.mutations import blind
from tests.gate.replies import Recorded
from tests.gate.superlink import KEYS, NODE, SuperLink
from tests.gate.test_judge import COUNTS
from tests.gate.test_proxy import Node, register


def test_a_reply_passes_over_tls_on_both_sides(
    settings: Settings, up: int, link: SuperLink, site: Recorded
) -> None:
    """Flower's own client verifies the gate's certificate, the gate the SuperLink's."""
    asked, reply = site.seen["round"]
    link.give(asked)
    root = (settings.keys / certificate.NAME).read_bytes()
    with http_request_response(f"127.0.0.1:{up}", False, root, KEYS) as connection:
        node = Node(connection)
        node.take()
        node.push(site.pushed["round"])
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://127.0.0.1:{up}/")
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(f"https://127.0.0.1:{up}/")
    assert link.reply().content == reply.content


def test_nothing_goes_to_a_superlink_of_another_authority(
    settings: Settings, link: SuperLink, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "other").mkdir()
    other = tls.make(tmp_path / "other", "test", "127.0.0.1", days=1)
    for roots, status in ((settings.root_certificates, 200), (other.authority, 502)):
        upstream = Upstream(settings.superlink, roots)
        assert upstream.post("send-node-heartbeat", b"", {}).status == status
        upstream.close()
    assert link.paths == ["send-node-heartbeat"]
    assert "CERTIFICATE_VERIFY_FAILED" in caplog.text


def test_a_certificate_lasts_and_a_cut_short_start_is_mended(tmp_path: Path) -> None:
    certificate.make(tmp_path)
    first = (tmp_path / certificate.NAME).read_bytes()
    certificate.make(tmp_path)
    assert (tmp_path / certificate.NAME).read_bytes() == first
    assert (tmp_path / certificate.KEY).stat().st_mode & 0o077 == 0
    made = x509.load_pem_x509_certificate(first)
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    found = {*names.get_values_for_type(x509.DNSName)}
    found |= {str(each) for each in names.get_values_for_type(x509.IPAddress)}
    assert found == {*certificate.NAMES}
    (tmp_path / certificate.NAME).unlink()
    with pytest.raises(ConfigError, match=r"gate\.crt and gate\.key cannot be read"):
        certificate.server_context(tmp_path)
    certificate.make(tmp_path)
    certificate.server_context(tmp_path)
    assert (tmp_path / certificate.NAME).read_bytes() != first


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"listen": "127.0.0.1"}, "must be ADDRESS:PORT"),
        ({"listen": "localhost:1"}, "must begin with an IP address"),
        ({"listen": "0.0.0.0:0"}, "other machines could reach it"),
        ({"root_certificates": Path("none.crt")}, "cannot be read as CA certificates"),
    ],
)
def test_settings_that_cannot_work(settings: Settings, change: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says), listening(replace(settings, **change)):
        pass


def test_a_taken_port_and_a_second_gate(settings: Settings, up: int, tmp_path: Path) -> None:
    other = replace(settings, home=tmp_path / "other", listen=f"127.0.0.1:{up}")
    for again, says in ((other, "name a free port"), (settings, "another process has held")):
        with pytest.raises(FlheError, match=says), listening(again):
            pass


# --- requests of a SuperNode: the honest one passes, and no mutant of it ---

OWN = public_key_to_bytes(KEYS[1])
RUN = 7
KEY = b"the SuperNode's"
MESSAGE, PART, FAB = "a" * 64, "b" * 64, "c" * 64
FIELDS: dict[str, dict[str, Any]] = {
    "register-node": {"public_key": KEY},
    "activate-node": {"public_key": KEY, "heartbeat_interval": HEARTBEAT_DEFAULT_INTERVAL},
    "deactivate-node": {"node_id": NODE},
    "unregister-node": {"node_id": NODE},
    "send-node-heartbeat": {"heartbeat_interval": HEARTBEAT_DEFAULT_INTERVAL},
    "pull-messages": {},
    "get-run": {"run_id": RUN},
    "get-fab": {"hash_str": FAB, "run_id": RUN},
    "pull-object": {"run_id": RUN, "object_id": PART},
    "confirm-message-received": {"run_id": RUN, "message_object_id": MESSAGE},
}
"""Fields of the requests that go up as they are; `node` is added where there is one."""
TREE = ObjectTree(object_id=MESSAGE, children=[ObjectTree(object_id=PART)])


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """What a SuperLink has named: a node, a run, an app, a message of two objects."""
    found = Ledger(Store(tmp_path / "gate"))
    found.note("activate-node", ActivateNodeResponse(node_id=NODE).SerializeToString())
    asked = Message(metadata=Metadata(run_id=RUN, message_id=MESSAGE))
    down = PullMessagesResponse(messages_list=[asked], message_object_trees=[TREE])
    found.note("pull-messages", down.SerializeToString())
    said = GetRunResponse(run=Run(run_id=RUN, fab_hash=FAB))
    found.note("get-run", said.SerializeToString())
    return found


def honest(name: str, **other: str) -> bytes:
    kind = ROUTES[name].kind
    node = {"node": node_pb2.Node(node_id=NODE)} if "node" in kind.DESCRIPTOR.fields_by_name else {}
    return bytes(kind(**node, **FIELDS[name] | other).SerializeToString(deterministic=True))


def passing(ledger: Ledger, name: str, seeds: range) -> set[bytes]:
    """The mutants of a request that pass."""
    samples = [honest(each) for each in FIELDS]
    found = set[bytes]()
    for seed in seeds:
        body = blind(honest(name), samples, Random(seed))
        try:
            read(ROUTES[name], body, ledger, KEY)
        except ProtocolError:
            continue
        found.add(body)
    return found


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", FIELDS)
def test_no_mutant_goes_up(ledger: Ledger, name: str, count: int) -> None:
    assert FIELDS.keys() | {"push-messages", "push-object"} == ROUTES.keys()
    read(ROUTES[name], honest(name), ledger, KEY)
    named = {honest(name)}  # all requests whose values the SuperLink has named
    if name == "pull-object":
        named.add(honest(name, object_id=MESSAGE))
    assert passing(ledger, name, range(count)) <= named


@pytest.mark.sweep
def test_the_spool_takes_no_mutant_that_is_not_a_tree(ledger: Ledger, tmp_path: Path) -> None:
    """A mutant of an announcement is refused, or waits for objects; nothing else is written."""
    spool = Spool(tmp_path / "spool")
    said = Message(metadata=Metadata(run_id=RUN, reply_to_message_id=MESSAGE))
    whole = {"messages_list": [said], "message_object_trees": [TREE]}
    sample = PushMessagesRequest(node=node_pb2.Node(node_id=NODE), **whole).SerializeToString(  # type: ignore[arg-type]
        deterministic=True
    )
    for seed in range(10_000):
        body = blind(sample, [sample], Random(seed))
        try:
            spool.announce(read(ROUTES["push-messages"], body, ledger, KEY))
        except ProtocolError:
            continue
    names = [path.name for path in (tmp_path / "spool").iterdir()]
    assert 1 <= len(names) <= 4
    assert all(len(name) == 64 for name in names)


@pytest.fixture
def headers(link: SuperLink) -> dict[str, str]:
    """Those that Flower's client writes."""
    register(link, link.port, KEYS)
    return dict(link.headers)


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_with_more_than_its_value_does_not_pass(
    headers: dict[str, str], name: str
) -> None:
    assert Caller(OWN).check(headers) == {each: headers[each] for each in HEADERS}
    own, other = headers[name], b64encode(public_key_to_bytes(generate_key_pairs()[1])).decode()
    for value in ("", own + "\n", own + " 4711", "\N{SNOWMAN}", "A" * 5000, "A", "A" * 400, other):
        with pytest.raises((ProtocolError, AuthenticationError)):
            Caller(OWN).check({**headers, name: value})


def test_the_name_and_version_of_flower_carry_no_data(headers: dict[str, str]) -> None:
    """An app that has the SuperNode's key may send requests, and so any headers that pass."""
    name, version = (f"flwr-package-{of}" for of in ("name", "version"))
    for good in ("1.40.0", "1.43.0.dev20261129", "2.0rc1"):
        assert Caller(OWN).check({**headers, version: good})[version] == good
    for header in (name, version):
        for value in ("patient-4711", "1.40.0+patient.4711", "1.40.0-4711", "flwr4711", "1." * 20):
            with pytest.raises(ProtocolError, match="not as a SuperNode writes it"):
                Caller(OWN).check({**headers, header: value})
