"""Three sites and a coordinator, by `flhe site` and `flhe federation` alone; and what they refuse."""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import tempfile
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography import x509
from flwr.cli.supernode.register import try_load_public_key
from flwr.supernode.cli.flower_supernode import (
    _parse_args_run_supernode,
    _try_obtain_trusted_entities,
)

from flhe.errors import AuthenticationError, ConfigError
from flhe.gate import certificate
from flhe.gate.policy import GatePolicy
from flhe.keys.roster.pinned import load_pinned
from flhe.keys.roster.roster import Member, Roster
from flhe.node.policy import METRICS, Policy, settings
from flhe.node.store import Store
from flhe.provision import gates, node_key, rosters, units
from flhe.provision.checks import Check
from flhe.provision.federation.card import Card
from flhe.provision.federation.office import Office
from flhe.provision.federation.published import Published
from flhe.provision.flower_config import parse
from flhe.provision.site import node_file, rotation, setup, start, status
from flhe.provision.site.commands import GATE
from flhe.provision.site.layout import GATE_UNIT, UNIT, Layout
from tests.keys.agreement import sites
from tests.provision.party import NAMES, Party
from tests.provision.site import bad, good, run


def checks(layout: Layout) -> dict[str, Check]:
    return {check.name: check for check in start.examine(layout, GATE)}


# --- all of it ---


def test_the_doctor_finds_every_site_in_order(party: Party) -> None:
    for name in NAMES:
        layout = party.layout(name)
        found = checks(layout)
        failed = [check.name for check in found.values() if check.level == "fail"]
        assert failed == ["tls"]  # no gate runs here
        assert f"{name}, one of 3" in found["member"].says
        config = parse(str(layout.settings))
        roster = load_pinned(layout.roster, str(config["flhe-roster-hash"]))
        assert {member.name for member in roster.members} == {*NAMES}


def test_nothing_secret_is_in_what_is_exchanged_or_open_to_others(party: Party) -> None:
    for path in (party.tmp / name for name in (*NAMES, "desk")):
        for inside in (path, *path.rglob("*")):
            assert inside.stat().st_mode & 0o077 == 0, inside
    homes = [*(party.layout(n).home for n in NAMES), party.desk / "state"]
    secrets = [(home / "identity.key").read_bytes() for home in homes]
    for key in (*(party.layout(n).node_key for n in NAMES), Office(party.desk).tls.key):
        secrets.append(b"".join(key.read_bytes().splitlines()[1:-1]))
    for sent in (party.file, *map(party.card, NAMES)):
        data = sent.read_bytes()
        for secret in secrets:
            assert not any(s in data for s in (secret[:32], secret[-32:], secret.hex().encode()))
        assert b"PRIVATE" not in data


def test_the_node_starts_with_exactly_these_files(
    party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[list[str]] = []
    monkeypatch.setattr(start, "become", lambda words, env: began.append(words))
    where = ("site", "start", "cardio", "--dir", party.tmp / "site-a")
    monkeypatch.setattr(start, "GATE_S", 0.0)
    refused = run(*where)
    assert refused.exit_code == 1  # the gate cannot be reached
    assert "flhe gate cardio" in refused.stdout
    monkeypatch.setattr("flhe.provision.doctor.check_tls", lambda *_: Check("tls", "ok", ""))
    assert not began
    good(*where)
    said = _parse_args_run_supernode().parse_args(began[0][1:])
    layout = party.layout("site-a")
    assert said.superlink == GATE
    assert said.root_certificates == str(layout.gate_certificate)
    assert said.node_config == str(layout.settings)
    assert said.trusted_entities == layout.reviewers
    assert said.auth_supernode_private_key == str(layout.node_key)
    assert not said.insecure


def test_two_nodes_on_one_directory(party: Party, monkeypatch: pytest.MonkeyPatch) -> None:
    """What became of the first `flhe site start` holds the directory until it ends."""
    home = party.layout("site-a").home
    held: list[int] = []
    hold = start.files.hold
    with monkeypatch.context() as patch:
        patch.setattr(start.files, "hold", lambda h, **how: hold(h, **how) or held.append(h))
        start._hold(home)
    assert os.get_inheritable(held[0])
    with pytest.raises(ConfigError, match="another SuperNode works on this directory"):
        start._hold(home)
    os.close(held[0])
    start._hold(home)


def test_flower_takes_the_keys_and_the_certificate(party: Party) -> None:
    office = Office(party.desk)
    for name in NAMES:
        assert try_load_public_key(party.desk / "supernodes" / f"{name}.pub")
    assert _try_obtain_trusted_entities(party.layout("site-a").reviewers)
    signer = x509.load_pem_x509_certificate(office.tls.authority.read_bytes())
    server = x509.load_pem_x509_certificate(office.tls.certificate.read_bytes())
    server.verify_directly_issued_by(signer)
    said = json.loads(good("federation", "publish", party.desk, "--json"))
    assert "--enable-supernode-auth" in said["superlink"]
    assert len(said["register"]) == 3
    assert "@COMMAND@" not in (party.desk / "flower-superlink.service").read_text()


def test_status_says_who_where_and_what_and_asks_for_no_witness(party: Party) -> None:
    where = ("site", "status", "cardio", "--dir", party.tmp / "site-b")
    said = json.loads(good(*where, "--json"))
    assert (said["site"], said["state"], said["sites"]) == ("site-b", "joined", 3)
    assert (said["refusals"], said["roster"]["collusion"]) == (0, 0)
    assert "site-b" in good(*where)
    layout = party.layout("site-a")
    text = layout.settings.read_text()
    layout.settings.write_text(node_file.pin(text, "flhe-witness", f"{party.tmp}/missing/place"))
    assert status.state_of(layout)["budget"].startswith("epsilon 0 of")


# --- a site's setup ---


def test_init_shows_its_plan_and_repeats_nothing(tmp_path: Path) -> None:
    words = ("site", "init", "cardio", "--name", "site-a", "--dir", tmp_path / "a")
    assert "nothing was written" in run(*words).output
    assert "name must be" in bad("site", "init", "cardio", "--name", "../a", *words[-2:], "--yes")
    assert not (tmp_path / "a").exists()
    shown = run(*words, "--yes")
    assert "identity" in shown.stderr
    before = {path: path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file()}
    assert "set up already" in bad(*words, "--yes")
    assert all(path.read_bytes() == data for path, data in before.items())
    other = ("site", "init", "cardio", "--name", "site-b", "--dir", tmp_path / "a", "--yes")
    assert "is site-a there" in bad(*other)
    public = Card.read(tmp_path / "a" / "site-a.card").public
    (tmp_path / "a" / "site-a.card").unlink()
    good(*words, "--yes")  # an identity is never made twice
    assert Card.read(tmp_path / "a" / "site-a.card").public == public


@pytest.mark.skipif(os.geteuid() != 0, reason="only root sets up a system")
def test_root_owns_the_settings_and_the_nodes_user_its_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nobody = pwd.getpwnam("nobody")
    monkeypatch.setattr("flhe.provision.site.layout.GATE_USER", nobody.pw_name)
    with tempfile.TemporaryDirectory() as scratch:  # which the user reaches, unlike pytest's
        base = Path(scratch)
        base.chmod(0o755)
        (base / "var").mkdir()
        os.chown(base / "var", nobody.pw_uid, nobody.pw_gid)
        unit = base / UNIT
        layout = Layout("cardio", base / "etc" / "cardio", base / "var" / "cardio", "nobody", unit)
        setup.init(layout, "site-a", yes=True)
        owners = {
            layout.config: (0, 0o750),
            layout.settings: (0, 0o640),
            layout.card()[0]: (0, 0o640),
            layout.node_key: (nobody.pw_uid, 0o600),
            layout.config / certificate.KEY: (nobody.pw_uid, 0o600),
            layout.home: (nobody.pw_uid, 0o700),
            layout.home / "identity.key": (nobody.pw_uid, 0o600),
            unit: (0, 0o644),
            unit.with_name(GATE_UNIT): (0, 0o644),
        }
        for path, (owner, mode) in owners.items():
            found = path.stat()
            assert (found.st_uid, found.st_mode & 0o777) == (owner, mode), path
        assert parse(f"{layout.settings}")["flhe-witness"] == "/run/flhe-cardio"
        with pytest.raises(ConfigError, match="set up already"):
            setup.init(layout, "site-a", yes=True)
        with pytest.raises(ConfigError, match="expected user nobody"):
            status.serve(layout, 0)
        assert status.state_of(layout)["site"] == "site-a"
        rotation.rotate(layout, yes=True)
        home = layout.next_home()
        assert home is not None
        assert (home.stat().st_uid, home.stat().st_mode & 0o777) == (nobody.pw_uid, 0o700)
    assert os.geteuid() == 0


def test_every_setting_is_in_the_file_with_its_default(tmp_path: Path) -> None:
    text = node_file.render(tmp_path / "state", tmp_path / "roster")
    assert re.findall(r"^#? ?(flhe-[a-z-]+) = ", text, re.MULTILINE) == list(settings())
    path, trial = tmp_path / "node.toml", 'flhe-trust = "first-use"\n'
    policies = []
    for content in (text, re.sub(r"^# (flhe-(?!trust))", r"\1", text, flags=re.MULTILINE)):
        rest = re.sub(r"^flhe-roster.*$", "", content, flags=re.MULTILINE)
        path.write_text(trial + rest)
        config = parse(str(path))
        config.setdefault("flhe-max-federations", 1)  # as with a roster
        policies.append(Policy.of_node(config, run_id=0, node_id=0, simulated=False, environ={}))
    assert policies[0] == policies[1]


def test_join_keeps_the_settings_that_the_site_wrote(party: Party) -> None:
    path = party.layout("site-a").settings
    own = path.read_text().replace("# flhe-min-survivors = 0", "flhe-min-survivors = 3")
    path.write_text(own + "partition-id = 0\n")
    before = path.read_text()
    party.join("site-a")
    assert path.read_text() == before


def test_a_system_has_its_own_places() -> None:
    here = Layout("cardio", Path("/etc/flhe/cardio"), Path("/var/lib/flhe/cardio"))
    if os.geteuid() == 0:
        found = Layout.of("cardio")
        assert (found.config, found.home, found.user) == (here.config, here.home, "flhe")
    for name, command in ((UNIT, "site start %i --foreground"), (GATE_UNIT, "gate %i")):
        unit = units.read(name)
        assert f"/flhe {command}\n" in unit
        assert "@BIN@" not in unit
    unit = units.read(UNIT)
    assert {"RuntimeDirectory=flhe-%i", "RuntimeDirectoryPreserve=yes"} <= set(unit.splitlines())
    assert "FLHE_WITNESS" not in unit  # the settings name it, for an administrator's shell too
    assert replace(here, unit=Path(UNIT)).witness == Path("/run/flhe-cardio")
    assert here.witness is None


# --- its gate ---


def test_the_gate_has_the_sites_own_settings(party: Party) -> None:
    layout = party.layout("site-a")
    _, card = layout.card()
    found = gates.of_layout(layout, None, GATE, 1 << 20, anywhere=False)
    assert found.policy == GatePolicy(card.public, METRICS, 1 << 20)
    assert (found.superlink, found.root_certificates) == ("localhost:8000", layout.authority)
    assert found.supernode == node_key.pem(card.node_key)
    assert (found.home, found.keys) == (layout.config / "gate", layout.config)
    certificate.server_context(layout.config)
    text = layout.settings.read_text().replace("# flhe-metrics = ", 'flhe-metrics = "auc" # ')
    layout.settings.write_text(text)
    assert gates.of_layout(layout, None, GATE, 1, anywhere=False).policy.metrics == ("auc",)
    with pytest.raises(ConfigError, match="expected user flhe-gate"):
        gates.of_layout(replace(layout, user="flhe"), None, GATE, 1, anywhere=False)
    layout.joined.unlink()
    with pytest.raises(ConfigError, match="has not joined"):
        gates.of_layout(layout, None, GATE, 1, anywhere=False)


def test_a_gate_says_what_is_wrong_with_the_superlinks_certificate(
    party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = SimpleNamespace(server_address=("127.0.0.1", 9093), serve_forever=lambda: None)
    monkeypatch.setattr(gates, "listening", lambda _: nullcontext(server))
    asked = []
    for check in (Check("tls", "ok", "fine"), Check("tls", "warn", "9 days", "renew")):
        monkeypatch.setattr(gates, "check_tls", lambda *w, c=check: asked.append(w) or c)
        said = run("gate", "cardio", "--dir", party.tmp / "site-a").stderr
        assert ("9 days; renew" in said) == (check.level == "warn")
        assert "The gate listens on 127.0.0.1:9093" in said
    assert asked == [("localhost:8000", party.layout("site-a").authority)] * 2


def test_a_card_of_another_identity_keeps_the_node_from_starting(party: Party) -> None:
    """As after a restored backup: the gate, which knows the card's key, would stop each reply."""
    layout = party.layout("site-a")
    shutil.rmtree(layout.home)
    made = Store(layout.home).identity()
    found = checks(layout)["card"]
    assert (found.level, "flhe site init cardio" in found.mend) == ("fail", True)
    party.card("site-a").unlink()
    party.init("site-a")
    assert layout.card()[1].public == made.public
    assert "card" not in checks(layout)


# --- refusals of a site ---


def test_join_needs_a_comparison(party: Party) -> None:
    shutil.rmtree(party.tmp / "site-a")
    party.init("site-a")
    assert "does not list this site" in bad(*party.words("site-a"))
    fresh = party.layout("site-b")
    fresh.joined.unlink()
    *asked, _ = party.words("site-b")
    said = run(*asked[:-1])
    assert said.exit_code == 1
    assert "nothing was written" in said.stderr
    assert "hash of the roster" in said.stderr  # shown before anything is asked
    assert "--terms" in run(*asked, "00" * 32).stderr
    assert not fresh.joined.exists()


def test_the_hash_of_other_terms_consents_to_nothing(party: Party) -> None:
    """The roster is the same, and a reviewer's key lets code run: a script must know of it."""
    agreed, joined = party.words("site-a"), party.layout("site-a").joined
    party.review()
    assert party.publish().roster == Published.read(joined).roster
    said = run(*agreed)
    assert said.exit_code == 1
    assert "+ reviewer" in said.stderr
    assert "compare the words again" in said.stderr
    assert len(Published.read(joined).reviewers) == 1
    party.join("site-a")
    assert len(Published.read(joined).reviewers) == 2


def test_join_refuses_other_files(party: Party) -> None:
    """An older one, two of one number, another coordinator's, none, and damage."""
    assert "older file" in bad(*party.words("site-a", party.tmp / "first.flhe"))
    before = party.file.read_bytes()
    party.publish()
    party.join("site-a")
    party.file.write_bytes(before)
    party.review()
    party.publish()
    assert "two different files" in bad(*party.words("site-a"))
    shutil.rmtree(party.desk / "state")
    Store(party.desk / "state").identity()
    party.publish()
    assert "coordinator's key" in bad(*party.words("site-a"))
    where = ("site", "join", party.file, "--dir", party.tmp / "site-a")
    assert "cannot be read" in bad("site", "join", party.tmp / "none.flhe", *where[-2:])
    data = party.file.read_bytes()
    party.file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert "signature" in bad(*where)
    party.file.write_bytes(party.card("site-a").read_bytes())
    assert "no file of `flhe federation publish`" in bad(*where)


def test_a_removed_site_is_revoked_and_a_change_is_shown(party: Party) -> None:
    party.init("site-d")
    party.add("site-d")
    party.publish()
    first = run(*party.words("site-a"))
    assert "+ site-d joins" in first.stderr
    pinned = parse(str(party.layout("site-a").settings))["flhe-roster-hash"]
    assert pinned == Published.read(party.file).roster.hash.hex()
    party.join("site-d")
    good("federation", "remove", party.desk, "site-d")
    gone = party.publish().roster
    assert gone.revoked == (Card.read(party.card("site-d")).public,)
    assert "revoked" in bad(*party.words("site-d"))
    assert "- site-d leaves and is revoked" in run(*party.words("site-a")).stderr
    party.file.unlink()  # a coordinator that forgets whom it revoked
    party.add("site-d")
    while party.publish().serial <= 6:
        continue
    said = run(*party.words("site-a"))
    assert said.exit_code == 1
    assert "expected all revoked keys" in said.stderr
    assert "(listed as site-d)" in said.stderr


def test_a_key_that_changes_without_a_revocation_is_shown() -> None:
    one, two, three, new = (Member(n, k.public) for n, k in zip("abca", sites(4), strict=True))
    before = Roster((one, two, three), 0, 2, ("flashe",))
    shown = rosters.difference(before, Roster((new, two, three), 0, 2, ("flashe", "sash")))
    assert f"* a has another key, {new.public.hex()[:16]}; the old one IS NOT REVOKED" in shown
    assert "* Schemes: flashe, sash." in shown
    assert rosters.difference(before, before).startswith("Nothing differs")


# --- and of the coordinator ---


def test_the_coordinator_takes_no_other_key_for_a_site(party: Party) -> None:
    thief = party.tmp / "thief"
    good("site", "init", "cardio", "--name", "site-a", "--dir", thief, "--yes")
    card = thief / "site-a.card"
    before = (party.desk / "sites" / "site-a.card").read_bytes()
    add = ("federation", "add", party.desk)
    assert "another key" in bad(*add, card, "--yes")
    assert (party.desk / "sites" / "site-a.card").read_bytes() == before
    forged = Card.read(card)
    with pytest.raises(AuthenticationError, match="signature"):
        replace(forged, node_key=Card.read(party.card("site-b")).node_key)
    assert "no file of `flhe site init`" in bad(*add, party.tmp / "first.flhe")


def test_the_coordinator_is_asked_about_new_sites_alone(party: Party) -> None:
    good("federation", "add", party.desk, *map(party.card, NAMES))  # known: nothing to compare
    party.init("site-d")
    said = run("federation", "add", party.desk, party.card("site-d"))
    assert said.exit_code == 1
    assert "site-d" in said.stderr
    assert not (party.desk / "sites" / "site-d.card").exists()


@pytest.mark.parametrize(
    ("name", "address", "more", "says"),
    [
        ("Cardio", "h:1", (), "a-z, 0-9"),
        *(
            ("cardio", address, (), "expected HOST:PORT")
            for address in ("h", "https://fl.example.org:8000", "h/x:8000", "h:99999")
        ),
        ("cardio", "h:1", ("--scheme", "none"), "no scheme"),
        ("cardio", "h:1", ("--allow", "min-none=1"), "unknown parameter"),
    ],
)
def test_a_federation_that_no_site_could_join_is_not_founded(
    name: str, address: str, more: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    party = Party(tmp_path)
    assert says in bad(*party.founding(name, address), *more)
    assert not party.desk.exists()


def test_publish_needs_three_sites_and_a_directory_is_founded_once(tmp_path: Path) -> None:
    party = Party(tmp_path)
    good(*party.founding(), "--min-survivors", "3")
    party.init("site-a", "site-b")
    party.add("site-a", "site-b")
    assert "need 3 to" in bad("federation", "publish", party.desk)
    party.init("site-c")
    party.add("site-c")
    (party.desk / "reviewers" / "reviewer.pub").unlink()
    assert "no reviewer's key" in bad("federation", "publish", party.desk)
    Office(party.desk).tls.authority.unlink()
    assert "cannot be read" in bad("federation", "publish", party.desk)
    assert "exists already" in bad(*party.founding())
    assert "no federation in it" in bad("federation", "publish", tmp_path)
