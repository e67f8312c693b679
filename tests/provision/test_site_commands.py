"""Three sites and a coordinator, by `flhe site` and `flhe federation` alone; and what they refuse."""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509

from flhe.errors import ConfigError
from flhe.gate import certificate
from flhe.gate.policy import GatePolicy
from flhe.keys.identity import Identity
from flhe.keys.roster.pinned import load_pinned
from flhe.keys.roster.roster import Member, Roster
from flhe.node.policy import METRICS, Policy, settings
from flhe.node.store import Store
from flhe.provision import gates, node_key, rosters, units
from flhe.provision.federation.card import Card
from flhe.provision.federation.office import Office
from flhe.provision.federation.published import Published
from flhe.provision.flower_config import parse
from flhe.provision.site import node_file, rotation, setup, start, status
from flhe.provision.site.commands import GATE
from flhe.provision.site.layout import GATE_UNIT, UNIT, Layout
from tests.deploy.test_shelf import key_files
from tests.keys.agreement import sites
from tests.provision.party import FILE, NAMES, Party
from tests.provision.site import bad, good, run

# --- all of it ---


def test_the_doctor_finds_every_site_in_order(party: Party) -> None:
    for name in NAMES:
        layout = party.layout(name)
        found = {check.name: check for check in start.examine(layout, GATE)}
        failed = [check for check in found.values() if check.level == "fail"]
        assert [check.name for check in failed] == ["tls"]  # no gate runs here
        assert f"{name}, one of 3" in found["member"].says
        config = parse(str(layout.settings))
        roster = load_pinned(layout.roster, str(config["flhe-roster-hash"]))
        assert {member.name for member in roster.members} == {*NAMES}


def test_only_the_owner_reads_what_is_written(party: Party) -> None:
    for path in (party.tmp / name for name in (*NAMES, "desk")):
        for inside in (path, *path.rglob("*")):
            assert inside.stat().st_mode & 0o077 == 0, inside


def test_nothing_secret_is_in_what_is_exchanged(party: Party) -> None:
    secrets = [party.layout(n).home / "identity.key" for n in NAMES]
    secrets.append(party.desk / "state" / "identity.key")
    keys = [party.layout(n).node_key for n in NAMES] + [Office(party.desk).tls.key]
    bodies = [b"".join(key.read_bytes().splitlines()[1:-1]) for key in keys]
    for sent in (party.file, *map(party.card, NAMES)):
        data = sent.read_bytes()
        for secret in (*(path.read_bytes() for path in secrets), *bodies):
            assert secret[:32] not in data
            assert secret[-32:] not in data
            assert secret.hex().encode() not in data
        assert b"PRIVATE" not in data


def test_the_node_starts_with_exactly_these_files(
    party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode

    began: list[list[str]] = []
    monkeypatch.setattr(start, "become", lambda words, env: began.append(words))
    where = ("site", "start", "cardio", "--dir", party.tmp / "site-a")
    monkeypatch.setattr(start, "GATE_S", 0.0)
    refused = run(*where)
    assert refused.exit_code == 1  # the gate cannot be reached
    assert "flhe site gate cardio" in refused.stdout
    monkeypatch.setattr("flhe.provision.doctor.check_tls", lambda *_: start.Check("tls", "ok", ""))
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


def test_flower_takes_the_keys_and_the_certificate(party: Party) -> None:
    from flwr.cli.supernode.register import try_load_public_key
    from flwr.supernode.cli.flower_supernode import _try_obtain_trusted_entities

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


def test_status_says_who_where_and_what(party: Party) -> None:
    where = ("site", "status", "cardio", "--dir", party.tmp / "site-b")
    said = json.loads(good(*where, "--json"))
    assert (said["site"], said["state"], said["sites"]) == ("site-b", "joined", 3)
    assert said["refusals"] == 0
    assert "site-b" in good(*where)


# --- a site's setup ---


def test_init_shows_its_plan_and_repeats_nothing(tmp_path: Path) -> None:
    words = ("site", "init", "cardio", "--name", "site-a", "--dir", tmp_path / "a")
    assert "nothing was written" in run(*words).output
    assert not (tmp_path / "a").exists()
    shown = run(*words, "--yes")
    assert "identity" in shown.stderr
    before = {path: path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file()}
    assert "set up already" in bad(*words, "--yes")
    assert all(path.read_bytes() == data for path, data in before.items())
    other = ("site", "init", "cardio", "--name", "site-b", "--dir", tmp_path / "a", "--yes")
    assert "is site-a there" in bad(*other)


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
    for name, command in ((UNIT, "start %i --foreground"), (GATE_UNIT, "gate %i")):
        unit = units.read(name)
        assert f"flhe site {command}\n" in unit
        assert "@BIN@" not in unit
    unit = units.read(UNIT)
    assert {"RuntimeDirectory=flhe-%i", "RuntimeDirectoryPreserve=yes"} <= set(unit.splitlines())
    assert "FLHE_WITNESS" not in unit  # the settings name it, for an administrator's shell too
    assert replace(here, unit=Path(UNIT)).witness == Path("/run/flhe-cardio")
    assert here.witness is None


def test_a_status_asks_for_no_witness(party: Party) -> None:
    layout = party.layout("site-a")
    place = party.tmp / "missing" / "place"
    text = layout.settings.read_text()
    layout.settings.write_text(node_file.pin(text, "flhe-witness", f"{place}"))
    assert status.state_of(layout)["budget"].startswith("epsilon 0 of")


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


# --- refusals ---


def test_join_needs_a_comparison(party: Party) -> None:
    shutil.rmtree(party.tmp / "site-a")
    party.init("site-a")
    assert "does not list this site" in bad(*party.words("site-a"))
    fresh = party.layout("site-b")
    fresh.joined.unlink()
    said = run("site", "join", party.file, "--dir", party.tmp / "site-b")
    assert said.exit_code == 1
    assert "nothing was written" in said.stderr
    assert "hash of the roster" in said.stderr  # shown before anything is asked
    wrong = ("site", "join", party.file, "--dir", party.tmp / "site-b", "--terms", "00" * 32)
    assert "--terms" in run(*wrong).stderr
    assert not fresh.joined.exists()


def test_the_hash_of_other_terms_consents_to_nothing(party: Party) -> None:
    """The roster is the same, and a reviewer's key lets code run: a script must know of it."""
    agreed = party.words("site-a")
    shutil.copy(key_files(party.tmp, "other").with_name("other.pub"), party.desk / "reviewers")
    assert party.publish().roster == Published.read(party.layout("site-a").joined).roster
    said = run(*agreed)
    assert said.exit_code == 1
    assert "+ reviewer" in said.stderr
    assert "compare the words again" in said.stderr
    assert len(Published.read(party.layout("site-a").joined).reviewers) == 1
    party.join("site-a")
    assert len(Published.read(party.layout("site-a").joined).reviewers) == 2


def test_a_card_of_another_identity_keeps_the_node_from_starting(party: Party) -> None:
    """As after a restored backup: the gate, which knows the card's key, would stop each reply."""
    layout = party.layout("site-a")
    shutil.rmtree(layout.home)
    made = Store(layout.home).identity()
    found = {check.name: check for check in start.examine(layout, GATE)}
    assert (found["card"].level, "flhe site init cardio" in found["card"].mend) == ("fail", True)
    party.card("site-a").unlink()
    good("site", "init", "cardio", "--name", "site-a", "--dir", party.tmp / "site-a", "--yes")
    assert layout.card()[1].public == made.public
    assert "card" not in {check.name for check in start.examine(layout, GATE)}


def test_a_gate_says_what_is_wrong_with_the_superlinks_certificate(
    party: Party, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = gates.of_layout(party.layout("site-a"), None, GATE, 1, anywhere=False)
    monkeypatch.setattr(gates, "serve", lambda *_: None)
    asked = []
    for check in (start.Check("tls", "ok", "fine"), start.Check("tls", "warn", "9 days", "renew")):
        monkeypatch.setattr(gates, "check_tls", lambda *w, c=check: asked.append(w) or c)
        gates.run(settings)
        said = capsys.readouterr().err
        assert ("9 days; renew" in said) == (check.level == "warn")
    assert asked == [("localhost:8000", party.layout("site-a").authority)] * 2


@pytest.mark.parametrize(
    "address", ["https://fl.example.org:8000", "fl.example.org/x:8000", "fl.example.org:99999", "x"]
)
def test_an_address_that_no_site_could_join_is_refused_first(tmp_path: Path, address: str) -> None:
    reviewer = key_files(tmp_path, "reviewer").with_name("reviewer.pub")
    words = ("new", "cardio", "--address", address, "--reviewer", reviewer, "--scheme", "flashe")
    assert "expected HOST:PORT" in bad("federation", *words, "--dir", tmp_path / "desk")
    assert not (tmp_path / "desk" / "tls").exists()


def test_join_refuses_an_older_file_and_another_coordinator(party: Party) -> None:
    assert "older file" in bad(*party.words("site-a", party.tmp / "first.flhe"))
    shutil.rmtree(party.desk / "state")
    Store(party.desk / "state").identity()
    party.publish()
    assert "coordinator's key" in bad(*party.words("site-a"))


def test_join_refuses_two_files_of_one_number(party: Party) -> None:
    before = party.file.read_bytes()
    party.publish()
    party.join("site-a")
    party.file.write_bytes(before)
    reviewer = key_files(party.tmp, "other").with_name("other.pub")
    shutil.copy(reviewer, party.desk / "reviewers" / "other.pub")
    party.publish()
    assert "two different files" in bad(*party.words("site-a"))


def test_join_refuses_another_federation_and_damage(party: Party) -> None:
    party.init("site-d")
    other = ("site", "init", "neuro", "--name", "site-n", "--dir", party.tmp / "n", "--yes")
    good(*other)
    where = ("site", "join", party.file, "--dir")
    assert "does not list" in bad(*where, party.tmp / "site-d", "--terms", "00" * 32)
    data = bytearray(party.file.read_bytes())
    data[-1] ^= 1
    party.file.write_bytes(data)
    assert "signature" in bad(*where, party.tmp / "site-a")
    party.file.write_bytes(party.card("site-a").read_bytes())
    assert "no file of `flhe federation publish`" in bad(*where, party.tmp / "site-a")


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
    (party.desk / FILE).unlink()  # a coordinator that forgets whom it revoked
    party.add("site-d")
    while party.publish().serial <= 6:
        continue
    said = run(*party.words("site-a"))
    assert said.exit_code == 1
    assert "expected all revoked keys" in said.stderr
    assert "(listed as site-d)" in said.stderr


def test_a_key_that_changes_without_a_revocation_is_shown() -> None:
    one, two, three, new = (Member(n, k.public) for n, k in zip("abca", sites(4), strict=True))
    before = Roster((one, two, three), 0, 2, ("flashe",), revoked=(bytes(32),))
    shown = rosters.difference(before, Roster((new, two, three), 0, 2, ("flashe", "sash")))
    assert f"* a has another key, {new.public.hex()[:16]}; the old one IS NOT REVOKED" in shown
    assert f"! the key {bytes(8).hex()} was revoked, and is no longer" in shown
    assert "* Schemes: flashe, sash." in shown
    assert rosters.difference(before, before).startswith("Nothing differs")


def test_the_default_bound_is_what_the_page_says(party: Party) -> None:
    page = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text(encoding="utf-8")
    said = re.search(r"The default is \(N - 1\) // 3 of N sites: ([^.]*)\.", page)
    assert said
    for pair in said[1].split(", "):
        bound, size = pair.split(" of ")
        assert Roster.default_collusion(int(size)) == int(bound)
    assert Published.read(party.file).roster.collusion == 0


def test_the_coordinator_takes_no_other_key_for_a_site(party: Party) -> None:
    thief = party.tmp / "thief"
    good("site", "init", "cardio", "--name", "site-a", "--dir", thief, "--yes")
    card = thief / "site-a.card"
    before = (party.desk / "sites" / "site-a.card").read_bytes()
    assert "another key" in bad("federation", "add", party.desk, card, "--yes")
    assert (party.desk / "sites" / "site-a.card").read_bytes() == before
    forged = Card.read(card)
    with pytest.raises(Exception, match="signature"):
        Card(forged.enrolment, Card.read(party.card("site-b")).node_key, forged.signature)
    shutil.copy(party.tmp / "first.flhe", party.tmp / "no.card")
    assert "no file of `flhe site init`" in bad(
        "federation", "add", party.desk, party.tmp / "no.card"
    )


def test_the_coordinator_is_asked_about_new_sites_alone(party: Party) -> None:
    good("federation", "add", party.desk, *map(party.card, NAMES))  # known: nothing to compare
    party.init("site-d")
    said = run("federation", "add", party.desk, party.card("site-d"))
    assert said.exit_code == 1
    assert "site-d" in said.stderr
    assert not (party.desk / "sites" / "site-d.card").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("Cardio", "--address", "h:1"), "a-z, 0-9"),
        (("cardio", "--address", "h"), "HOST:PORT"),
        (("cardio", "--address", "h:1", "--scheme", "none"), "no scheme"),
        (("cardio", "--address", "h:1", "--allow", "min-none=1"), "unknown parameter"),
        (("cardio", "--address", "h:1", "--ca", "x"), "together"),
    ],
)
def test_a_federation_that_is_not_founded(
    words: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    reviewer = key_files(tmp_path, "reviewer").with_name("reviewer.pub")
    where = ("--reviewer", reviewer, "--scheme", "sash", "--dir", tmp_path / "desk")
    assert says in bad("federation", "new", *words, *where)
    assert not (tmp_path / "desk").exists()


def test_publish_needs_three_sites_and_a_directory_is_founded_once(tmp_path: Path) -> None:
    party = Party(tmp_path)
    party.new("--min-survivors", "3")
    party.init("site-a", "site-b")
    party.add("site-a", "site-b")
    assert "need 3 to" in bad("federation", "publish", party.desk)
    reviewer = tmp_path / "reviewer.pub"
    again = ("federation", "new", "cardio", "--address", "h:1", "--reviewer", reviewer)
    assert "exists already" in bad(*again, "--scheme", "sash", "--dir", party.desk)
    assert "no federation in it" in bad("federation", "publish", tmp_path)


def test_an_identity_is_never_made_twice(party: Party) -> None:
    seed = (party.layout("site-a").home / "identity.key").read_bytes()
    party.card("site-a").unlink()
    party.init("site-a")
    assert Identity(seed).public == Card.read(party.card("site-a")).public
