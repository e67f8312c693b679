"""Keys that somebody trusted deals offline: one file a site, for one set of sites."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flhe.errors import ConfigError, ProtocolError
from flhe.keys.agreement import dealt
from flhe.keys.agreement.dealt import Dealt
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.identity import Identity
from flhe.keys.roster.roster import Roster
from flhe.schemes.esafl.scheme import Esafl
from flhe.schemes.keyed import JointKey
from flhe.wire.canonical import dumps, loads
from tests.keys.agreement import agreed, roster_of, sites

IDS = sites(5)
ROSTER = roster_of(IDS, 1)
DEALT = Esafl(keys="dealt")
FILES = dealt.deal(ROSTER, DEALT)


def epoch_of(rank: int, ids: list[Identity], roster: Roster = ROSTER) -> Epoch:
    return agreed(ids, 7, 0, roster)[rank]


def written(path: Path, file: Dealt) -> Path:
    path.touch(0o600)
    path.write_bytes(file.to_bytes())
    return path


def test_what_is_not_for_this_epoch_is_refused(tmp_path: Path) -> None:
    epoch = epoch_of(2, IDS)
    own = FILES[IDS[2].public]
    smaller = dealt.deal(ROSTER, DEALT, [IDS[0].public])
    other_roster = dataclasses.replace(ROSTER, collusion=0)
    cases = [
        (FILES[IDS[1].public], DEALT.adder(5), "another site"),
        (own, Esafl(ring="rns-4096", keys="dealt").adder(5), "other parameters"),
        (dealt.deal(other_roster, DEALT)[IDS[2].public], DEALT.adder(5), "another roster"),
        (smaller[IDS[2].public], DEALT.adder(5), "dealt to 4 sites, and 5 take part"),
    ]
    for i, (file, scheme, why) in enumerate(cases):
        with pytest.raises(ConfigError, match=why):
            dealt.load(written(tmp_path / str(i), file), epoch, scheme)
    fewer = epoch_of(1, IDS[1:])
    with pytest.raises(ConfigError, match="dealt to 5 sites, and 4 take part"):
        dealt.load(written(tmp_path / "all", own), fewer, DEALT.adder(4))
    key = dealt.load(written(tmp_path / "four", smaller[IDS[2].public]), fewer, DEALT.adder(4))
    assert not np.array_equal(key.own, own.key.own)  # no s_i is in two sums


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    epoch, own = epoch_of(2, IDS), FILES[IDS[2].public]
    assert "JointKey" not in repr(own)
    written(tmp_path / "open", own).chmod(0o644)
    (tmp_path / "link").symlink_to(written(tmp_path / "key", own))
    (tmp_path / "garbage").touch(0o600)
    (tmp_path / "garbage").write_bytes(b"\xa0")
    for name, says in (
        ("nowhere", "missing"),
        ("open", "chmod 600"),
        ("link", "a link"),
        ("garbage", "no file of"),
    ):
        with pytest.raises(ConfigError, match=says) as caught:
            dealt.load(tmp_path / name, epoch, DEALT.adder(5))
        assert str(tmp_path) not in str(caught.value)
    with pytest.raises(ConfigError, match="set flhe-dealt-key"):
        dealt.load(None, epoch, DEALT.adder(5))
    key = dealt.load(tmp_path / "key", epoch, DEALT.adder(5))
    assert np.array_equal(key.own, own.key.own)


def test_too_few_or_strange_members() -> None:
    with pytest.raises(ConfigError, match="keys for 3 members, this roster's bounds need 4"):
        dealt.deal(ROSTER, DEALT, [IDS[0].public, IDS[1].public])
    with pytest.raises(ConfigError, match="not a member's"):
        dealt.deal(ROSTER, DEALT, [bytes(32)])
    with pytest.raises(ProtocolError, match="esafl has no dealt keys"):
        dealt.deal(ROSTER, Esafl(keys="joint"))


BODY = loads(FILES[IDS[0].public].to_bytes(), dealt.MAX_FILE, "")
ZERO = JointKey(np.zeros(4096, np.int8), FILES[IDS[0].public].key.total)


def of(**change: str) -> list[Any]:
    """A scheme as files name it."""
    name, own = BODY["scheme"]
    return [name, own | change]


MALFORMED: dict[str, tuple[dict[str, Any], str]] = {
    "members out of order": ({"members": BODY["members"][::-1]}, "members that ascend"),
    "a stranger": ({"member": bytes(32)}, "not among the members"),
    "a key of zeros": ({"key": ZERO.to_bytes()}, "too small, too few or too large"),
    "a ring that nobody knows": ({"scheme": of(ring="rns-2048")}, "ESHE has"),
    "a ring of another dimension": ({"scheme": of(ring="rns-8192")}, "8192"),
    "keys that are not dealt": ({"scheme": of(keys="joint")}, "has no dealt keys"),
    "a scheme that nobody has": ({"scheme": ["rot13", {}]}, "there are flashe, sash"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_files_are_refused(name: str) -> None:
    change, says = MALFORMED[name]
    with pytest.raises((ProtocolError, ConfigError), match=says):
        Dealt.from_bytes(dumps(BODY | change))
