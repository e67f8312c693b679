"""`flhe doctor`: a node that may start, and each fault by itself, with its mend."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.common.config import parse_config_args

from flhe.errors import ConfigError
from flhe.gate.delivery import Delivery
from flhe.gate.judge import Verdict
from flhe.gate.objects import read_tree
from flhe.gate.spool import Waiting
from flhe.gate.upstream import Answer
from flhe.keys.agreement.dealt import deal
from flhe.keys.roster.roster import Roster
from flhe.node import federations
from flhe.node.store import Store
from flhe.provision import check_home as homes
from flhe.provision import check_machine
from flhe.provision.checks import Check
from flhe.provision.doctor import examine
from flhe.provision.flower_config import as_flower_reads
from flhe.schemes.esafl.scheme import Esafl
from tests.provision.site import good, made, run, text_of

ABC = ("site-a", "site-b", "site-c")
Config = dict[str, object]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A node with nothing wrong, but for where it lies."""
    pinned = made(tmp_path, *ABC)
    return {
        "flhe-home": str(tmp_path / "home-site-a"),
        "flhe-roster": str(tmp_path / "roster"),
        "flhe-roster-hash": pinned,
        "flhe-min-survivors": 3,
    }


def found(config: Mapping[str, object]) -> dict[str, Check]:
    """The worst of each check."""
    checks = sorted(examine(config), key=lambda check: ("ok", "warn", "fail").index(check.level))
    return {check.name: check for check in checks}


def fails(config: Mapping[str, object]) -> set[str]:
    return {name for name, check in found(config).items() if check.level == "fail"}


def test_a_node_that_may_start(config: Config, tmp_path: Path) -> None:
    """Looking changes nothing."""

    def state() -> dict[str, float]:
        return {str(p): p.stat().st_mtime for p in tmp_path.rglob("*") if p.name != "lock"}

    before = state()
    checks = found(config)
    found({**config, "flhe-home": str(tmp_path / "nowhere")})
    assert state() == before
    assert fails(config) == set()
    warned = {name for name, check in checks.items() if check.level == "warn"}
    assert warned <= {"path", "clock"}  # of this machine
    assert checks["member"].says == "site-a, one of 3 sites"
    for name in ("home", "identity", "roster", "schemes", "allows", "survivors", "gate"):
        assert checks[name].level == "ok", checks[name]


def test_the_command(config: Config) -> None:
    text = text_of(config)
    assert "site-a, one of" in good("doctor", "--node-config", text)
    listed = json.loads(run("doctor", "--node-config", text, "--json").stdout)
    assert all(set(one) == {"name", "level", "says", "mend"} for one in listed)
    result = run("doctor", "--node-config", text.replace("3", "4", 1), "--json")
    assert result.exit_code == 1
    assert any(one["level"] == "fail" for one in json.loads(result.stdout))
    broken = run("doctor", "--node-config", "flhe-home=/no/quotes")
    assert (broken.exit_code, broken.output.count("\n")) == (1, 1)
    assert "text in quotes" in broken.output


# --- faults, each by itself ---


HOME, KEY = "home-site-a", "home-site-a/identity.key"
SPOILT: dict[str, tuple[Callable[[Path], object], str, str, str]] = {
    "open key": (lambda tmp: (tmp / KEY).chmod(0o640), "home", "fail", "others may look into"),
    "no key for it": (lambda tmp: (tmp / KEY).chmod(0o640), "identity", "fail", "open to others"),
    "open home": (lambda tmp: (tmp / HOME).chmod(0o750), "home", "fail", "others may look into"),
    "above it": (lambda tmp: tmp.chmod(0o777), "path", "fail", "other users may write to"),
    "shared": (lambda tmp: tmp.chmod(0o1777), "path", "warn", "all users share"),
    "link": (lambda tmp: (tmp / HOME / "runs").symlink_to(tmp), "home", "fail", "runs is a link"),
    "pipe": (lambda tmp: homes.os.mkfifo(tmp / HOME / "runs", 0o600), "home", "fail", "runs is a"),
    "no home": (lambda tmp: (tmp / HOME).rename(tmp / "it"), "home", "fail", "flhe site init"),
    "no key": (lambda tmp: (tmp / KEY).unlink(), "identity", "fail", "flhe keys restore"),
    "short": (lambda tmp: (tmp / KEY).write_bytes(b"s"), "identity", "fail", "damaged"),
}


@pytest.mark.parametrize("what", SPOILT)
def test_a_directory_that_is_not_the_nodes_alone(config: Config, tmp_path: Path, what: str) -> None:
    spoil, name, level, says = SPOILT[what]
    spoil(tmp_path)
    check = found(config)[name]
    assert (check.level, says in f"{check.says}; {check.mend}") == (level, True), check


def test_a_link_on_the_way_that_others_can_change(tmp_path: Path) -> None:
    """Each place that the system passes counts, not only those of the path that it ends at."""
    real, shared, between = tmp_path / "real", tmp_path / "shared", tmp_path / "between"
    for folder in (real, real / "home", shared, between):
        folder.mkdir(mode=0o700)
    (shared / "link").symlink_to(real)
    (between / "chain").symlink_to("../shared/link")
    ways = (shared / "link" / "home", between / "chain" / "home")

    def path(home: Path) -> Check:
        return next(check for check in homes.check_home(home) if check.name == "path")

    assert {path(home).level for home in ways} == {path(real / "home").level}
    shared.chmod(0o777)
    for home in ways:
        assert (path(home).level, str(shared) in path(home).says) == ("fail", True), home
    assert path(between / ".." / "real" / "home").level == path(real / "home").level
    (between / "circle").symlink_to("../between/circle")  # a longer path each time round
    assert path(between / "circle" / "home").name == "path"
    (between / "loop").symlink_to("loop")
    assert path(between / "loop" / "home").level != "fail"  # `home` says that there is none
    shared.chmod(0o700)
    if homes.os.geteuid() == 0:  # only root makes somebody else's link
        homes.os.lchown(shared / "link", 12345, -1)
        assert "belongs to another user" in path(ways[0]).says


def test_somebody_elses(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    me = homes.os.geteuid()
    monkeypatch.setattr(homes.os, "geteuid", lambda: me + 1)
    assert {"home", "path" if me else "home"} <= fails(config)


def test_no_room(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    for free, level in ((1 << 20, "fail"), (1 << 29, "warn"), (1 << 31, "ok")):
        usage = type("Usage", (), {"free": free})
        monkeypatch.setattr(homes.shutil, "disk_usage", lambda _, usage=usage: usage)
        assert found(config)["disk"].level == level


def test_a_roster_that_is_not_the_agreed_one(config: Config, tmp_path: Path) -> None:
    pinned = made(tmp_path / "more", *ABC, out="../other")
    other = {**config, "flhe-roster": str(tmp_path / "other"), "flhe-roster-hash": pinned}
    assert fails(other) == {"member"}
    assert fails({"flhe-home": config["flhe-home"]}) == {"policy"}
    trial = {"flhe-home": config["flhe-home"], "flhe-trust": "first-use"}
    assert found(trial)["roster"].level == "warn"


@pytest.mark.parametrize(
    ("setting", "value", "check", "level", "says"),
    [
        ("flhe-server-reads", True, "allows", "warn", "the server to read sums"),
        ("flhe-min-select", 0.1, "allows", "warn", "up to 90% of each update in clear"),
        ("flhe-min-select", 0.996, "allows", "warn", "up to 0.4% of each update in clear"),
        ("flhe-unpermuted", True, "allows", "warn", "which values were chosen"),
        ("flhe-min-survivors", 0, "survivors", "warn", "each the other's"),
        ("flhe-min-survivors", 4, "survivors", "fail", "the roster has 3 sites"),
        ("flhe-roster-hash", "00" * 32, "policy", "fail", "checking it with the other sites"),
        ("flhe-roster", "/no/such/file", "policy", "fail", "cannot read the roster file"),
        ("flhe-roster", 7, "policy", "fail", "flhe-roster"),
        ("flhe-home", 7, "home", "fail", "is not set"),
        ("flhe-home", __file__, "home", "fail", "is not a directory"),
        ("flhe-schemes", 7, "policy", "fail", "flhe-schemes"),
        ("flhe-leave", True, "leave", "warn", "gives up its keys"),
        ("flhe-zzz", 1, "policy", "fail", "flhe-zzz"),
        ("flhe-min-surviors", 3, "policy", "fail", "did you mean flhe-min-survivors?"),
        ("flhe-schemes", "sash", "schemes", "fail", "none is allowed"),
        ("flhe-schemes", "", "policy", "fail", ""),
        ("flhe-schemes", "flashe,shas", "policy", "fail", "shas"),
        ("flhe-unpermuted", "true", "policy", "fail", "flhe-unpermuted"),
    ],
)
def test_settings_that_limit_nothing(
    config: Config, setting: str, value: object, check: str, level: str, says: str
) -> None:
    changed = found({**config, setting: value})[check]
    assert (changed.level, says in f"{changed.says}; {changed.mend}") == (level, True), changed
    assert level == "fail" or setting in changed.mend


def test_settings_that_flower_drops(config: Config) -> None:
    """Its parser takes what looks like a pair, and says nothing of the rest."""
    good("doctor", "--node-config", text_of(config) + " partition-id=0")
    text = text_of({k: v for k, v in config.items() if k != "flhe-min-survivors"})
    slips = {
        "flhe-min-survivors = 3": "silently drop",
        "flhe-min-survivors:3": "silently drop",
        "flhe-min-survivors": "silently drop",
        "#flhe-min-survivors=3": "silently drop",
        "partition-id=0#flhe-min-survivors=3": "silently drop",
        "--flhe-min-survivors=3": "did you mean flhe-min-survivors?",
        "FLHE_min_survivors=3": "did you mean flhe-min-survivors?",
        "fhle-min-survivors=3": "did you mean flhe-min-survivors?",
    }
    for slip, says in slips.items():
        result = run("doctor", "--node-config", f"{text} {slip}", "--json")
        assert (result.exit_code, says in result.output) == (1, True), slip


TEXTS = """\
a=1 b=2.5 c=true d='x y' e.f="z" e.g=-3
a = 1 b=2
a=1#b=2

=
a=x
a=[1]
a=1 a=2
a.b=1 a=2
a=1979-05-27
a='it''s'
flhe-home="/x"
node.toml
no.toml"""


@pytest.mark.parametrize("text", TEXTS.split("\n"))
def test_settings_are_read_as_flower_reads_them(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("node.toml").write_text('a = 1\n[b]\nc = "d"\n')
    try:
        theirs = parse_config_args([text])
    except Exception:
        with pytest.raises(ConfigError, match="cannot be read"):
            as_flower_reads(text)
    else:
        assert as_flower_reads(text) == theirs


def test_where_the_witness_is(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In memory, on another disk, on the same one, open to others, or nowhere; nothing is made."""
    place = tmp_path / "place"
    named = {**config, "flhe-witness": str(place)}
    for memory, level in ((True, "ok"), (False, "warn"), (None, "warn")):
        monkeypatch.setattr(homes.witness, "in_memory", lambda _, memory=memory: memory)
        check = found(named)["witness"]
        assert (check.level, str(place) in check.says) == (level, True)
    assert not place.exists()
    place.mkdir(0o755)
    assert "open to others" in found(named)["witness"].says
    monkeypatch.setattr(homes.witness, "is_apart", lambda place, home: False)
    place.chmod(0o700)
    check = found(named)["witness"]
    assert (check.level, "on the same disk" in check.says) == ("fail", True)
    monkeypatch.delenv("FLHE_WITNESS")
    check = found(config)["witness"]
    assert (fails(config), "last for one message" in check.says) == ({"witness"}, True)
    assert "flhe-witness" in check.mend
    for durable in (config, named):
        assert found({**durable, "flhe-durable": True})["witness"].level == "ok"


def test_keys_that_were_dealt(config: Config, tmp_path: Path) -> None:
    path = tmp_path / "dealt"
    with_key = {**config, "flhe-dealt-key": str(path)}
    assert "missing" in found(with_key)["dealt key"].says
    agreed = Roster.from_bytes((tmp_path / "roster").read_bytes())
    one = deal(agreed, Esafl(keys="dealt"))[agreed.publics[0]]
    path.touch(0o600)
    path.write_bytes(one.to_bytes())
    assert fails(with_key) == set()
    assert found(with_key)["dealt key"].says == f"{path}, for 3 sites"
    path.write_bytes(replace(one, roster_hash=bytes(32)).to_bytes())
    assert "another roster" in found(with_key)["dealt key"].says
    path.write_bytes(b"no key")
    assert fails(with_key) == {"dealt key"}
    path.chmod(0o644)
    assert "open to others" in found(with_key)["dealt key"].says


def test_the_clock(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    roster = tmp_path / "roster"
    written = roster.stat().st_mtime
    for state, level in ((5, "warn"), (0, "ok"), (-1, "ok")):
        monkeypatch.setattr(check_machine, "_kernel_state", lambda state=state: state)
        assert check_machine.check_clock(roster, written + 60).level == level
    assert check_machine.check_clock(roster, written - 86400).level == "fail"
    monkeypatch.undo()
    assert -1 <= check_machine._kernel_state() <= 5


@pytest.mark.parametrize(
    ("installed", "spec", "within"),
    [
        ("1.38.0", ">=1.38,<2", True),
        ("2.0.0", ">=1.38,<2", False),
        ("1.9.3", ">=1.38,<2", False),
        ("0.61.0rc1", ">=0.61", True),
    ],
)
def test_versions(installed: str, spec: str, within: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = [f"flwr{spec}", "x; extra == 'y'"]
    monkeypatch.setattr(check_machine.metadata, "requires", lambda _: needed)
    monkeypatch.setattr(check_machine, "_version", lambda name: installed)
    levels = [c.level for c in check_machine.check_versions(())]
    assert ("fail" not in levels) == within


@pytest.mark.parametrize(("scheme", "missing"), [("batchcrypt", "gmpy2"), ("fedml-he", "tenseal")])
def test_what_a_scheme_needs(scheme: str, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    warning, *_, rest = check_machine.check_versions((scheme,))
    assert warning.says == f"{missing} is missing, which {scheme} needs"
    assert f"pip install '{missing}>=" in warning.mend
    assert missing not in rest.says
    assert [c.level for c in check_machine.check_versions(("flashe",))] == ["ok"]


def open_judge(*given: Any) -> Verdict:
    """A judge that lets everything out."""
    return Verdict(read_tree(given[3], given[4]), 0)


def forwarding_send(self: Delivery, waiting: Waiting, message: Any, *rest: Any) -> Answer:
    """A delivery that hands on an error's text."""
    message.error.reason = waiting.request.messages_list[0].error.reason
    return SEND(self, waiting, message, *rest)


SEND = Delivery._send


@pytest.mark.parametrize(
    ("what", "broken", "says"),
    [
        ("flhe.gate.delivery.judge", open_judge, "an update in clear and an error's text"),
        ("flhe.gate.delivery.Delivery._send", forwarding_send, "an error's text"),
        ("flhe.gate.delivery.Delivery._send", lambda *_: Answer(403), "an update in clear and"),
    ],
)
def test_a_gate_that_lets_an_update_out(
    config: Config, monkeypatch: pytest.MonkeyPatch, what: str, broken: Any, says: str
) -> None:
    """So does one that delivers nothing: it has not shown that it stops anything."""
    monkeypatch.setattr(what, broken)
    check = found(config)["gate"]
    assert check.level == "fail"
    assert check.says.startswith(f"it did not stop {says}")
    assert run("doctor", "--node-config", text_of(config)).exit_code == 1


def test_a_flower_that_the_gate_cannot_speak_with(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "flhe.gate.probe", None)
    assert found(config)["gate"].level == "warn"


def test_federations_are_counted(config: Config) -> None:
    home = Path(str(config["flhe-home"]))
    assert found(config)["federations"].says == "0 federations have begun, 1 may"
    federations.check(Store(home), 7, 1, begin=True)
    assert "a further `flwr run` needs `flhe permit" in found(config)["federations"].says
    any_number = found({**config, "flhe-max-federations": 0})["federations"].says
    assert any_number == "1 federation has begun, any number may"
    good("permit", "--home", home)
    assert found(config)["federations"].says == "1 federation has begun, 2 may"
