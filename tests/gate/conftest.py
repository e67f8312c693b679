"""Replies are recorded once for all tests of the gate."""

from __future__ import annotations

from pathlib import Path

import pytest
from flwr.app import Message
from flwr.common.serde_utils import metadata_to_proto

from flhe.gate.policy import GatePolicy
from tests.gate.replies import Pushed, record

Seen = dict[str, tuple[Message, Message]]


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the sites are."""
    return tmp_path_factory.mktemp("gate")


@pytest.fixture(scope="session")
def recorded(place: Path) -> tuple[GatePolicy, Seen]:
    """A gate's policy, and requests and replies by stage."""
    return record(place)


@pytest.fixture(scope="session")
def policy(recorded: tuple[GatePolicy, Seen]) -> GatePolicy:
    """The policy of that site's gate."""
    return recorded[0]


@pytest.fixture(scope="session")
def seen(recorded: tuple[GatePolicy, Seen]) -> Seen:
    """That site's messages."""
    return recorded[1]


@pytest.fixture(scope="session")
def pushed(seen: Seen) -> dict[str, Pushed]:
    """Its replies, as its SuperNode pushes them."""
    return {
        stage: Pushed.of(metadata_to_proto(asked.metadata), reply)
        for stage, (asked, reply) in seen.items()
    }
