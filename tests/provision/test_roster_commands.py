"""`flhe keygen --home`, `flhe roster ...` and `flhe keys rotate`: from nothing to a pinned roster."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from flhe.keys.identity import Identity
from flhe.keys.roster import fingerprint
from flhe.keys.roster.enrolment import Enrolment
from flhe.keys.roster.signed_roster import load_pinned
from flhe.node.policy import Policy
from flhe.provision.roster_commands import DEFAULT_COLLUSION
from tests.provision.site import bad, good, keygen, load, made, requests, run, sign, signed

ABC = ("site-a", "site-b", "site-c")


def public(tmp: Path, name: str) -> bytes:
    return Identity((tmp / f"home-{name}" / "identity.key").read_bytes()).public


# --- identities ---


def test_an_identity_is_made_once(tmp_path: Path) -> None:
    home, out = tmp_path / "new" / "home", tmp_path / "a.site"
    said = good("keygen", "--home", home, "--name", "site-a", "--out", out)
    seed = (home / "identity.key").read_bytes()
    assert home.stat().st_mode & 0o777 == 0o700
    assert (home / "identity.key").stat().st_mode & 0o777 == 0o600
    key = Identity(seed).public
    assert key.hex() in said
    assert all(line in said for line in fingerprint.lines(key))
    assert seed.hex() not in said
    assert Enrolment.from_bytes(out.read_bytes()).member.public == key
    assert "has an identity already" in good(
        "keygen", "--home", home, "--name", "site-a", "--out", out
    )
    again = ("keygen", "--home", tmp_path / "other", "--name", "site-a", "--out", out)
    assert "not overwritten" in bad(*again)  # a request goes where nothing is
    rotated = ("keys", "rotate", "--home", home, "--name", "site-a", "--out", tmp_path / "x.site")
    assert "exists already" in bad(*rotated, "--new-home", home)
    assert (home / "identity.key").read_bytes() == seed
    assert Enrolment.from_bytes(out.read_bytes()).member.public == key


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--name", "site-a"], "takes --home DIR and --name NAME"),
        (["--home", "h", "--name", "a", "--scheme", "esafl"], "dealt keys take neither"),
        (["--home", "h", "--name", "../a"], "name must be"),
    ],
)
def test_an_identity_that_is_not_made(
    options: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert says in bad("keygen", *options)
    assert not list(tmp_path.iterdir())


# --- rosters ---


def test_from_nothing_to_a_pinned_roster(tmp_path: Path) -> None:
    more = ("--scheme", "sash", "--allow", "min-members=3", "--allow", "server-reads=false")
    pinned = made(tmp_path, *ABC, more=more)
    roster = tmp_path / "roster"
    for name in ABC:
        shutil.copy(roster, tmp_path / f"copy-{name}")
        assert f"not signed by {', '.join(ABC)}" in bad(
            "roster", "check", tmp_path / f"copy-{name}", "--roster-hash", pinned
        )
        assert pinned in sign(tmp_path / f"copy-{name}", tmp_path / f"home-{name}")
    copies = [tmp_path / f"copy-{name}" for name in ABC]
    good("roster", "merge", *copies, "--out", tmp_path / "signed")
    assert "all 3 sites have signed" in good(
        "roster", "check", tmp_path / "signed", "--roster-hash", pinned
    )
    shown = good("roster", "show", tmp_path / "signed")
    for name in ABC:
        assert name in shown
        assert all(line in shown for line in fingerprint.lines(public(tmp_path, name)))
    assert all(line in shown for line in fingerprint.lines(bytes.fromhex(pinned)))
    assert "Schemes: flashe, sash." in shown
    assert "min-members=3, server-reads=false" in shown

    config = {"flhe-roster": str(tmp_path / "signed"), "flhe-roster-hash": pinned}
    policy = Policy.of_node(config, run_id=1, node_id=2, simulated=False, environ={})
    assert {m.name: m.public for m in policy.roster.members} == {
        n: public(tmp_path, n) for n in ABC
    }
    assert (policy.limits["min-members"], policy.limits["server-reads"]) == (3, False)


def test_who_signs_what(tmp_path: Path) -> None:
    pinned = made(tmp_path, *ABC)
    roster = tmp_path / "roster"
    before = roster.read_bytes()
    for home, hash_, says in (
        ("home-site-a", "00" * 32, "roster-hash"),
        ("nobody", pinned, "no identity in it"),
    ):
        how = ("--home", tmp_path / home, "--roster-hash", hash_)
        assert says in bad("roster", "sign", roster, *how)
    blind = run("roster", "sign", roster, "--home", tmp_path / "home-site-a")
    assert (blind.exit_code, "--roster-hash" in blind.output) == (2, True)
    assert not (tmp_path / "nobody").exists()
    assert roster.read_bytes() == before
    sign(roster, tmp_path / "home-site-a")
    assert {member.name for member in load(roster).missing} == {"site-b", "site-c"}


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--scheme", "rot13"), "--scheme rot13: no scheme"),
        (("--allow", "speed=3"), "--allow speed=3: unknown parameter"),
        (("--collusion", "1"), "need 4 to 1024"),
        (("--site", "no-such.site"), "cannot be read"),
    ],
)
def test_rosters_that_are_not_made(tmp_path: Path, more: tuple[str, ...], says: str) -> None:
    keygen(tmp_path, *ABC)
    out = ("--out", tmp_path / "roster", "--scheme", "flashe")
    command = ["roster", "new", *requests(tmp_path, *ABC), *out]
    assert says in bad(*command, *more)
    assert not (tmp_path / "roster").exists()


def test_the_default_bound_is_what_help_and_docs_say(tmp_path: Path) -> None:
    size = 7
    names = [f"site-{i}" for i in range(size)]
    keygen(tmp_path, *names)
    command = ["roster", "new", *requests(tmp_path, *names), "--scheme", "flashe"]
    told = good(*command, "--out", tmp_path / "roster")
    bound = load(tmp_path / "roster").roster.collusion
    assert bound == (size - 1) // 3
    assert f"The bound of {bound} that may conspire is the default, {DEFAULT_COLLUSION}" in told
    assert f"{bound} of {size}" in DEFAULT_COLLUSION
    chosen = good(*command, "--out", tmp_path / "chosen", "--collusion", 0)
    assert "is the default" not in chosen
    page = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text(encoding="utf-8")
    assert f"The default is {DEFAULT_COLLUSION}." in page


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    made(tmp_path, *ABC)
    roster = tmp_path / "roster"
    before = roster.read_bytes()
    for command in (
        ("new", "--out", roster, "--site", tmp_path / "site-a.site", "--scheme", "flashe"),
        ("merge", roster, roster, "--out", roster),
        ("add", roster, "--site", tmp_path / "site-a.site", "--out", roster),
        ("remove", roster, "site-a", "--out", roster),
        ("replace", roster, "--site", tmp_path / "site-a.site", "--out", roster),
    ):
        assert "exists already" in bad("roster", *command)
    assert roster.read_bytes() == before


def test_a_site_more_and_a_site_less(tmp_path: Path) -> None:
    pinned = signed(tmp_path, *ABC)
    keygen(tmp_path, "site-d")
    roster, more, less = tmp_path / "roster", tmp_path / "more", tmp_path / "less"
    good("roster", "add", roster, "--site", tmp_path / "site-d.site", "--out", more)
    assert load(more).roster.hash.hex() != pinned
    assert len(load(more).missing) == 4  # signatures do not carry over
    said = good("roster", "remove", more, "site-a", "--out", less)
    gone = public(tmp_path, "site-a")
    assert f"Revoked keys, which never take part again: {gone.hex()[:16]}" in said
    assert load(less).roster.revoked == (gone,)
    assert {m.name for m in load(less).roster.members} == {"site-b", "site-c", "site-d"}
    hash_ = ("--roster-hash", load(less).roster.hash.hex())
    assert "was revoked" in bad("roster", "sign", less, "--home", tmp_path / "home-site-a", *hash_)
    out = ("--out", tmp_path / "x")
    assert "was revoked" in bad("roster", "add", less, "--site", tmp_path / "site-a.site", *out)
    assert "no site of this roster" in bad("roster", "remove", less, "site-a", *out)


def test_what_was_revoked_is_not_signed_back_in(tmp_path: Path) -> None:
    """By a roster made anew of the old requests, which never expire."""
    abcd = (*ABC, "site-d")
    signed(tmp_path, *abcd)
    first, less, anew = tmp_path / "roster", tmp_path / "less", tmp_path / "anew"
    old = public(tmp_path, "site-c").hex()[:16]
    assert "Nothing differs" in sign(first, tmp_path / "home-site-a", "--previous", first)
    good("roster", "remove", first, "site-d", "--collusion", "0", "--out", less)
    home = tmp_path / "home-site-a"
    assert "Revoked keys, which never take part again: none." in good("roster", "show", first)
    said = sign(less, home, "--previous", first)
    gone = public(tmp_path, "site-d").hex()[:16]
    assert "- site-d leaves and is revoked\n" in said
    assert f"* Revoked keys, which never take part again: {gone}." in said
    assert "+ " not in said

    schemes = ("--scheme", "flashe", "--scheme", "sash")
    good("roster", "new", "--out", anew, *requests(tmp_path, *abcd), *schemes)
    hash_ = load(anew).roster.hash.hex()
    command = ("roster", "sign", anew, "--home", home, "--roster-hash", hash_, "--previous")
    before = anew.read_bytes()
    assert "name the roster that is in force so far" in bad(*command, less)  # signed by one alone
    for name in ("site-b", "site-c"):
        sign(less, tmp_path / f"home-{name}")
    refused = run(*command, less)
    assert refused.exit_code == 1
    assert f"{gone} (listed as site-d); do not sign it" in refused.output
    for line in (
        "+ site-d joins, with the key " + gone,
        f"! the key {gone} was revoked, and is no longer",
        "* Schemes: flashe, sash.",
    ):
        assert line in refused.output
    assert anew.read_bytes() == before
    assert "Schemes" in sign(anew, home, "--previous", first)

    swapped = tmp_path / "swapped"
    keygen(tmp_path / "other", "site-c")
    listed = [*requests(tmp_path, *ABC[:2]), *requests(tmp_path / "other", "site-c")]
    good("roster", "new", "--out", swapped, *listed, "--scheme", "flashe")
    said = sign(swapped, home, "--previous", first)
    new = public(tmp_path / "other", "site-c").hex()[:16]
    assert f"* site-c has another key, {new}; the old one IS NOT REVOKED" in said
    assert old not in said


# --- rotation ---


def rotate(tmp: Path, home: str = "home-site-b", name: str = "site-b") -> Path:
    out = tmp / "new.site"
    where = ("--home", tmp / home, "--new-home", tmp / "new", "--out", out)
    good("keys", "rotate", *where, "--name", name)
    return out


def test_a_key_is_rotated(tmp_path: Path) -> None:
    signed(tmp_path, *ABC)
    old = public(tmp_path, "site-b")
    request = rotate(tmp_path)
    keygen(tmp_path, "site-d")
    how = (tmp_path / "roster", "--site", tmp_path / "site-d.site", "--out", tmp_path / "next")
    assert "old key has not signed" in bad("roster", "replace", *how)
    how = (tmp_path / "roster", "--site", request, "--out", tmp_path / "next")
    assert "use flhe roster replace" in bad("roster", "add", *how)
    new = Identity((tmp_path / "new" / "identity.key").read_bytes()).public
    good("roster", "replace", tmp_path / "roster", "--site", request, "--out", tmp_path / "next")
    roster = load(tmp_path / "next").roster
    assert (roster.name(new), roster.revoked) == ("site-b", (old,))
    assert len(load(tmp_path / "next").missing) == 3
    for home in ("home-site-a", "new", "home-site-c"):
        sign(tmp_path / "next", tmp_path / home)
    assert load_pinned(tmp_path / "next", roster.hash.hex()) == roster
    how = ("--home", tmp_path / "home-site-b", "--roster-hash", roster.hash.hex())
    assert "was revoked" in bad("roster", "sign", tmp_path / "next", *how)
    assert (tmp_path / "home-site-b" / "identity.key").exists()  # in use until all have pinned
