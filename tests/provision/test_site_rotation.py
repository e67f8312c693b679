"""`flhe site rotate`: a site's other key, from its making to the join that puts it in use."""

from __future__ import annotations

from pathlib import Path

import pytest

from flhe.errors import StoreError
from flhe.node.store import Store
from flhe.provision import gates
from flhe.provision.federation.card import Card
from flhe.provision.flower_config import parse
from flhe.provision.site import start
from flhe.provision.site.commands import GATE
from flhe.provision.site.layout import Layout
from tests.provision.party import NAMES, Party
from tests.provision.site import bad, good, run


def test_a_key_is_rotated_and_the_old_one_works_until_then(party: Party) -> None:
    layout, where = party.layout("site-b"), ("cardio", "--dir", party.tmp / "site-b")
    old = Card.read(party.card("site-b")).public
    assert "nothing was written" in bad("site", "rotate", *where)
    card = party.rotate("site-b")
    assert "under way" in bad("site", "rotate", *where, "--yes")
    new = Card.read(card).public
    party.join("site-b")  # the old key, which the file lists
    assert Card.read(party.card("site-b")).public == old  # the gate's
    assert Store(Path(str(parse(f"{layout.settings}")["flhe-home"]))).identity().public == old
    assert "site-b" in run("federation", "add", party.desk, card).stderr
    good("federation", "add", party.desk, card, "--yes")
    roster = party.publish().roster
    assert (roster.name(new), roster.revoked) == ("site-b", (old,))
    assert "the old one is revoked" in run(*party.words("site-a")).stderr
    party.join(*NAMES)
    after = party.layout("site-b")
    assert (Store(after.home).identity().public, after.next_home()) == (new, None)
    assert (Card.read(party.card("site-b")).public, layout.rotated.exists()) == (new, False)
    assert Store(layout.home).identity().public == old  # models that it sealed open with it
    assert (after.home.stat().st_mode & 0o777) == 0o700
    checks = {check.name: check.level for check in start.examine(after, GATE)}
    assert {checks["member"], checks["roster"]} == {"ok"}


def test_a_rotation_that_was_cut_short_begins_again(party: Party) -> None:
    """Whatever is left of it, also readable by a node's user, is no reason to refuse."""
    layout = party.layout("site-b")
    layout.rotated.mkdir(mode=0o750)
    (layout.rotated / "site-b.card").write_bytes(b"half a card")
    layout.rotated.chmod(0o750)
    assert Card.read(party.rotate("site-b")).name == "site-b"
    assert layout.next_home() is not None


@pytest.mark.parametrize("at", ["joined.flhe", "site-b.card"])
def test_a_join_with_a_rotated_key_that_was_cut_short_is_finished(
    at: str, party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, card = Layout.write, party.rotate("site-b")
    new = Card.read(card).public
    good("federation", "add", party.desk, card, "--yes")
    party.publish()

    def full(self: Layout, path: Path, data: bytes) -> None:
        if path.name == at:
            raise StoreError("cannot write in the state directory: No space left on device")
        write(self, path, data)

    with monkeypatch.context() as patch:
        patch.setattr(Layout, "write", full)
        assert "No space left" in run(*party.words("site-b")).stderr
    party.join("site-b")
    after = party.layout("site-b")
    assert (Store(after.home).identity().public, after.next_home()) == (new, None)
    assert Card.read(party.card("site-b")).public == new
    assert gates.of_layout(after, None, GATE, 1, anywhere=False).policy.site == new
