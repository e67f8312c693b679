"""Pages, units and containers for administrators name what is there, and agree with each other."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import typer
import yaml

from flhe.cli import app
from flhe.gate import certificate
from flhe.keys.roster.limits import known
from flhe.node.policy import settings
from flhe.node.settings import OWN
from flhe.packages import EXTRA_OF, NEWEST_FLOWER
from flhe.provision import units
from flhe.provision.federation.commands import superlink
from flhe.provision.federation.office import Office, Terms
from flhe.provision.site import start
from flhe.provision.site.commands import GATE
from flhe.provision.site.layout import GATE_UNIT, GATE_USER, UNIT, USER, Layout
from flhe.wire import codes

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGE = (DOCS / "deploy.md").read_text(encoding="utf-8")
SHELL = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = SHELL.findall(PAGE)


def commands(page: str) -> list[list[str]]:
    """Words of each command of ours in a page's blocks, and of those in its text."""
    lines = [
        line for block in SHELL.findall(page) for line in block.replace("\\\n", " ").splitlines()
    ]
    lines += re.findall(r"`(flhe [^`]+)`", page)
    found = []
    for line in lines:
        for part in line.split("&&"):
            words = shlex.split(part, comments=True)
            if words[:1] in (["flhe"], [".venv/bin/flhe"]) and words[1:2] != ["..."]:
                found.append(words)
    return found


@pytest.mark.parametrize(
    ("page", "most"), [("deploy", 14), ("how-to/run-a-site", 6), ("migrate", 2)]
)
def test_commands_exist_with_these_options(page: str, most: int) -> None:
    whole: click.Command = typer.main.get_command(app)
    found = commands((DOCS / f"{page}.md").read_text(encoding="utf-8"))
    assert len(found) >= most
    for words in found:
        command, at = whole, 1
        while isinstance(command, click.Group) and at < len(words):
            assert words[at] in command.commands
            command, at = command.commands[words[at]], at + 1
        options = {
            name for each in command.get_params(click.Context(command)) for name in each.opts
        }
        assert {word for word in words[at:] if word.startswith("-")} <= options, words


STEPS = {
    int(number): text
    for number, text in re.findall(r"^## (\d)\. (.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL)
}


def test_no_step_needs_a_later_one() -> None:
    assert sorted(STEPS) == list(range(1, 7))
    for number, text in STEPS.items():
        needed = {int(each) for each in re.findall(r"steps? (\d)", text)}
        assert all(each <= number for each in needed), number


def test_the_page_is_short_and_its_settings_are_in_the_file() -> None:
    assert len(PAGE.splitlines()) <= 150
    assert sorted(OWN) == sorted(
        {name.removeprefix("flhe-") for name in settings()} - known().keys()
    )
    assert all(limit.help for limit in known().values())


def test_every_refusal_is_listed() -> None:
    page = (DOCS / "how-to" / "read-a-refusal.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d{4}) `(flhe/[a-z-]+)` \|", page, re.MULTILINE)
    known = [found for code in range(1000, 1100) if (found := codes.find(code))]
    assert rows == [(str(each.code), each.slug) for each in known]


def test_the_users_of_the_units_are_made() -> None:
    (superlink,) = re.findall(r"^User=(.*)$", units.read("flower-superlink.service"), re.MULTILINE)
    lines = [line for block in BLOCKS for line in block.splitlines()]
    assert any(line.startswith("useradd") and line.endswith(f" {superlink}") for line in lines)
    assert f"User={USER}\n" in units.read(UNIT)  # `flhe site init` makes it
    assert f"User={GATE_USER}\n" in units.read(GATE_UNIT)
    assert f"SupplementaryGroups={USER}\n" in units.read(GATE_UNIT)
    assert USER != GATE_USER


def test_a_node_starts_its_gate_and_reaches_nothing_else() -> None:
    lines = units.read(UNIT).splitlines()
    assert {"IPAddressDeny=any", "IPAddressAllow=127.0.0.1 ::1"} <= set(lines)
    assert any(re.match("InaccessiblePaths=.*-/run/systemd/resolve", line) for line in lines)
    gate = GATE_UNIT.replace("@", "@%i")
    assert [line for line in lines if line.startswith("Wants=") and gate in line]
    assert [line for line in lines if line.startswith("After=") and gate in line]
    both = [set(units.read(name).splitlines()) for name in (UNIT, GATE_UNIT)]
    assert [line for line in both[0] & both[1] if line.startswith("EnvironmentFile=")]
    confined = {
        line for line in both[0] if re.match("Protect|Restrict[A-Z]|Private|System|Lock", line)
    }
    assert confined <= both[1]
    assert not [line for line in both[1] if line.startswith("IPAddress")]
    assert f"PartOf={UNIT.replace('@', '@%i')}" in both[1]  # a restart after a join reaches both


@pytest.mark.parametrize("unit", ["flower-superlink.service", UNIT, GATE_UNIT])
def test_units_are_confined(unit: str, tmp_path: Path) -> None:
    lines = units.read(unit).splitlines()
    assert {"ProtectSystem=strict", "NoNewPrivileges=yes", "PrivateTmp=yes"} <= set(lines)
    assert {"UMask=0077", "LimitCORE=0", "StateDirectoryMode=0700"} <= set(lines)
    assert "--insecure" not in " ".join(lines)
    layout = Layout.of("cardio", tmp_path)
    assert "--trusted-entities" in start.options(layout, "h:1", start.FIRST_PORT)


# --- containers have the flags, files, ports and settings of the units and of the pages ---

DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, Any] = COMPOSE["services"]
SITES = ["site-a", "site-b", "site-c"]
GATES = ["gate-a", "gate-b", "gate-c"]
UNITS = {
    "superlink": "flower-superlink.service",
    **dict.fromkeys(SITES, "flower-supernode@.service"),
    **dict.fromkeys(GATES, "flhe-gate@.service"),
}
GUIDE = (ROOT / "docs/how-to/run-in-containers.md").read_text(encoding="utf-8")


def told(tmp: Path) -> list[str]:
    """The SuperLink's command line, as `flhe federation publish` says it."""
    office = Office(tmp)
    terms = Terms("cardio", "coordinator.example:8000", ("flashe",))
    office.settings.write_text(terms.to_toml(), encoding="utf-8")
    return [word.replace(str(tmp), "/etc/flhe/cardio") for word in superlink(office)]


def words(service: dict[str, Any]) -> list[str]:
    (line,) = re.findall(
        r"^exec (flower-super.*)", service["command"][0].replace("\\\n", " "), re.M
    )
    return shlex.split(line)


@pytest.mark.parametrize("name", UNITS)
def test_a_service_runs_what_its_unit_runs(name: str, tmp_path: Path) -> None:
    service, text = SERVICES[name], units.read(UNITS[name])
    if name in SITES + GATES:
        command = shlex.join(service["entrypoint"]).replace(" --dir /etc/flhe", "")
        assert f"/{command}\n".replace("cardio", "%i") in text
    else:
        assert words(service)[1:] == told(tmp_path)[1:]
        assert "ExecStart=@COMMAND@" in text
        assert service["entrypoint"] == ["/bin/sh", "-ec"]
        assert "umask 077\n" in service["command"][0]
    found = dict(re.findall(r"(\w+)=(\S+)", re.sub(r"#.*", "", DOCKERFILE.split("ENV ")[1])))
    found |= service["environment"]
    theirs = " ".join(re.findall(r"^Environment=(.*)$", text, re.MULTILINE)).replace("%i", "cardio")
    for key, value in (each.split("=") for each in theirs.split() if "UNBUFFERED" not in each):
        assert found[key] == value or key == "NUMBA_CACHE_DIR", key
    if name in SITES:  # where a unit is used, node.toml names it
        layout = Layout("cardio", Path("/etc/flhe"), Path("/var/lib/flhe"), unit=Path(UNIT))
        assert found["FLHE_WITNESS"] == f"{layout.witness}"


def test_a_supernode_reaches_its_gate_and_nothing_else() -> None:
    """The gate's port and name are those of the SuperNode's settings and of the certificate."""
    for site, gate in zip(SITES, GATES, strict=True):
        assert SERVICES[site]["networks"] == [site]
        network = COMPOSE["networks"][site]
        assert network["internal"] is True
        # Otherwise the bridge's own address leads to the machine's services.
        assert set(network["driver_opts"].values()) == {"isolated"}
        networks = SERVICES[gate]["networks"]
        assert networks == {"default": None, site: {"aliases": ["gate"]}}
        assert SERVICES[gate]["volumes"][0] == SERVICES[site]["volumes"][0]
        assert not set(SERVICES[gate]["volumes"][1:]) & set(SERVICES[site]["volumes"])
        host, port = SERVICES[site]["environment"]["FLHE_GATE"].split(":")
        assert host in certificate.NAMES
        assert SERVICES[gate]["environment"]["FLHE_GATE"] == f"0.0.0.0:{port}"
        assert GATE.endswith(f":{port}")


@pytest.mark.parametrize("command", ["flower-superlink", "flower-supernode"])
def test_flower_has_these_flags(command: str) -> None:
    script = Path(sys.executable).with_name(command)
    done = subprocess.run([script, "--help"], capture_output=True, text=True, check=True)
    known = set(re.findall(r"--[a-z-]+", done.stdout))
    flags = {word for word in words(SERVICES["superlink"]) if word.startswith("--")}
    if command == "flower-supernode":
        flags = {*start.options(Layout.of("cardio", Path("/etc/flhe")), "h:1", 9094)}
    assert len(flags) > 6
    assert flags <= known


def test_versions_are_those_of_the_lock() -> None:
    locked = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    [version] = [each["version"] for each in locked if each["name"] == "flwr"]
    assert re.findall(r"^ARG FLOWER=(.*)$", DOCKERFILE, re.MULTILINE) == [version]
    assert version.startswith(f"{NEWEST_FLOWER}.")
    ((_, python),) = re.findall(
        r"^FROM flwr/(\$\{ROLE\}:\$\{FLOWER\})-py(3\.\d+)-ubuntu", DOCKERFILE, re.M
    )
    assert f"Programming Language :: Python :: {python}" in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize("name", SERVICES)
def test_services_are_confined(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["ulimits"] == {"core": 0}
    assert not {"privileged", "user", "pid", "ipc", "cap_add", "devices"} & service.keys()
    for volume in service["volumes"]:
        source, target, *mode = volume.split(":")
        states = "/var/lib/flhe", "/var/lib/flower", "/run/flhe-cardio", "/var/lib/flhe-gate"
        assert target in ("/etc/flhe", *states)
        assert (mode == ["ro"]) == (target == "/etc/flhe")
        assert source.strip("./") in COMPOSE["volumes"] or source == f"/run/flhe-{name}" or mode


def test_each_site_has_its_own_files() -> None:
    mounts = [each for name in SITES for each in SERVICES[name]["volumes"]]
    assert len({each.split(":")[0] for each in mounts}) == len(mounts) == 9
    made = r"site-a flhe site init cardio --name site-a --dir /etc/flhe --home /var/lib/flhe/(\w+)"
    assert re.search(made, GUIDE.replace("--entrypoint flhe site-a ", "site-a flhe "))
    service = SERVICES["superlink"]
    (address,) = re.findall(r"--address (\S+)", GUIDE)
    host, port = address.split(":")
    assert service["networks"]["default"]["aliases"] == [host]
    assert service["ports"] == [f"${{LISTEN:-127.0.0.1}}:{port}:{port}"]
    assert f"https://{host}:{port}/health" in service["healthcheck"]["test"][-1]
    assert f":{start.FIRST_PORT}/health" in SERVICES["site-a"]["healthcheck"]["test"][-1]


def test_nothing_secret_is_built_in() -> None:
    """The context holds wheels alone; nothing else is copied, and keys stay out of git."""
    assert "COPY" not in DOCKERFILE
    assert "ADD " not in DOCKERFILE
    for service in SERVICES.values():
        assert service.get("build", {"context": "../dist"})["context"] == "../dist"
        assert "secret" not in str(service).lower()
    ignored = (ROOT / ".gitignore").read_text()
    assert {"/deploy/coordinator/", "/deploy/site-*/", "/deploy/mail/"} <= set(ignored.split())


def test_the_page_names_what_is_there() -> None:
    assert set(re.findall(r"--build-arg (\w+)=", GUIDE)) == {"EXTRAS", "ALSO", "ROLE"}
    assert set(re.findall(r"EXTRAS=([a-z]+)", GUIDE)) <= set(EXTRA_OF.values())
    for command in re.findall(r"docker compose (?:up|run|logs|exec|cp).*", GUIDE):
        named = set(re.findall(r"\b(superlink|shelf|site-\w)\b", command))
        assert named <= SERVICES.keys(), command
    assert set(re.findall(r"/run/flhe-site-\w", GUIDE)) == {f"/run/flhe-{name}" for name in SITES}
    assert "number 49999" in GUIDE
    assert "uid=49999" in SERVICES["site-a"]["tmpfs"][1]
