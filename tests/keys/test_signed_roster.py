"""The roster file: signatures of all its members, one hash whoever has signed, and the pin."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from flhe.errors import AuthenticationError, ConfigError, ProtocolError
from flhe.keys.identity import Identity
from flhe.keys.roster.roster import Roster
from flhe.keys.roster.signed_roster import SignedRoster, load_pinned
from flhe.wire.canonical import dumps
from tests.keys.agreement import roster_of, sites

SITES, OTHER = sites(5), Identity(b"x" * 32)


def roster(size: int = 4) -> Roster:
    return roster_of(SITES[:size], 0, ("flashe",))


def by(*ranks: int, of: Roster | None = None) -> SignedRoster:
    signed = SignedRoster(of or roster())
    for rank in ranks:
        signed = signed.signed(SITES[rank])
    return signed


FULL = by(0, 1, 2, 3)


def test_what_is_signed() -> None:
    """Written out once more, by `cryptography` alone."""
    body = roster().to_bytes()
    message = dumps(["flhe/v1/site/roster", hashlib.sha512(body).digest()])
    for public, signature in FULL.signatures.items():
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    assert list(FULL.signatures) == list(roster().publics)


@given(st.permutations(range(4)), st.integers(0, 4))
def test_signed_apart_and_united(order: list[int], cut: int) -> None:
    left, right = by(*order[:cut]), by(*order[cut:])
    assert left.merged(right) == right.merged(left) == FULL
    assert left.roster.hash == FULL.roster.hash
    assert {m.public for m in left.missing} == {SITES[i].public for i in order[cut:]}
    assert SignedRoster.from_bytes(left.to_bytes()) == left
    if cut < 4:
        with pytest.raises(ConfigError, match="not signed by site-"):
            left.check_complete()
    FULL.check_complete()
    assert FULL.signed(SITES[0]) == FULL


def test_only_members_sign() -> None:
    with pytest.raises(ProtocolError, match="not in the roster"):
        by(0).signed(OTHER)
    gone = roster().removed(SITES[3].public)
    with pytest.raises(ProtocolError, match="was revoked"):
        SignedRoster(gone).signed(SITES[3])
    body = roster().to_bytes()
    with pytest.raises(ProtocolError, match="not in the roster"):
        SignedRoster(roster(), {OTHER.public: OTHER.state("roster", body)})


def test_a_signature_is_on_one_roster() -> None:
    for other in (roster(5), replace(roster(), min_survivors=3), replace(roster(), schemes=("*",))):
        with pytest.raises(AuthenticationError, match="of site-0 is not on this roster"):
            SignedRoster(other, by(0).signatures)
        with pytest.raises(ConfigError, match="two rosters"):
            FULL.merged(SignedRoster(other))


def test_another_statement_is_no_signature() -> None:
    body = roster().to_bytes()
    others = SITES[0].state("enrol", body), SITES[0].state("replace", body)
    for made in (*others, FULL.signatures[SITES[1].public]):
        with pytest.raises(AuthenticationError, match="not on this roster"):
            SignedRoster(roster(), {SITES[0].public: made})


def test_load_pinned(tmp_path: Path) -> None:
    path = tmp_path / "hospital-names.roster"
    path.write_bytes(FULL.to_bytes())
    assert load_pinned(str(path), roster().hash.hex()) == roster()
    with pytest.raises(ConfigError, match="pin the new hash") as caught:
        load_pinned(path, roster(5).hash.hex())
    assert "\n" not in str(caught.value)
    assert "hospital" not in str(caught.value)
    for pin in ("", "zz" * 32, "ab" * 31):
        with pytest.raises(ConfigError, match="64 hex digits"):
            load_pinned(path, pin)
    with pytest.raises(ConfigError, match="cannot read") as caught:
        load_pinned(tmp_path / "missing", roster().hash.hex())
    assert "missing" not in str(caught.value)


def test_a_roster_that_not_all_have_signed_is_not_pinned(tmp_path: Path) -> None:
    path = tmp_path / "roster"
    path.write_bytes(by(0, 2).to_bytes())
    with pytest.raises(ConfigError, match="not signed by site-1, site-3: each site signs"):
        load_pinned(path, roster().hash.hex())
    with pytest.raises(ProtocolError, match="no file of `flhe roster new`"):
        SignedRoster.from_bytes(roster().to_bytes())
    for bare in (roster().to_bytes(), b"", b"not a roster", FULL.to_bytes()[:-1]):
        path.write_bytes(bare)
        with pytest.raises(ConfigError, match="the roster file cannot be used"):
            load_pinned(path, roster().hash.hex())
