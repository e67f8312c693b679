"""Places of a site's files: the system's directories for root, a directory of one's own otherwise.

    /etc/flhe/NAME   0750 root:flhe    node.toml  node.key  SITE.card  and what `site join` writes
    /var/lib/flhe/NAME   0700 flhe     the state directory: identity, journals, budget
    /var/lib/flhe-gate/NAME   0700 flhe-gate   the gate's directory
    /run/flhe-NAME   0700 flhe         the witness, in memory; systemd makes it

Where root owns the settings, the app that runs as `flhe` cannot change them, and what runs as `flhe`
reads nothing of the gate's.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from flhe.errors import ConfigError
from flhe.gate import certificate
from flhe.provision.federation.card import Card
from flhe.provision.flower_config import parse
from flhe.wire import files

USER = "flhe"
"""User of a system's SuperNodes."""
GATE_USER = "flhe-gate"
"""User of a system's gates."""
UNIT, GATE_UNIT = "flower-supernode@.service", "flhe-gate@.service"
CARD = ".card"


class _Inside:
    """Place of a file in the directory of settings."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, layout: Layout, _owner: type[Layout]) -> Path:
        return layout.config / self.name


@dataclass(frozen=True, slots=True)
class Layout:
    """Places of the files of one site in one federation.

    `user` owns the state directory and the SuperNode's key: None for the user who runs the command.
    `unit` is the systemd unit's file, None where the site has none.
    """

    name: str
    config: Path
    home: Path
    user: str | None = None
    unit: Path | None = None

    @classmethod
    def of(cls, name: str, directory: Path | None = None, home: Path | None = None) -> Layout:
        """Return the layout in a directory; its state is in `home`, or where its settings say.

        The default is the system's for root and for the node's user, and otherwise a user's own.
        """
        if directory is None and (os.geteuid() == 0 or current_user() in (USER, GATE_USER)):
            units = Path("/etc/systemd/system")
            at = Path("/etc/flhe") / name
            layout = cls(name, at, Path("/var/lib/flhe") / name, USER, units / UNIT)
        else:
            at = (directory or files.home() / ".flhe" / name).absolute()
            layout = cls(name, at, at / "state")
        if home is None and layout.settings.is_file():
            home = Path(str(parse(f"{layout.settings}").get("flhe-home", layout.home)))
        return layout if home is None else replace(layout, home=home.absolute())

    settings = _Inside("node.toml")
    """The node config."""
    node_key = _Inside("node.key")
    """Private key of the SuperNode."""
    gate_certificate = _Inside(certificate.NAME)
    """Certificate by which the SuperNode knows its gate; the key is beside it."""
    roster = _Inside("roster")
    """The roster that all sites have agreed on."""
    authority = _Inside("ca.crt")
    """Certificates that verify the SuperLink's."""
    reviewers = _Inside("reviewers.yaml")
    """Keys whose signature lets an app run."""
    joined = _Inside("joined.flhe")
    """The coordinator's file that this site has agreed to."""
    rotated = _Inside("rotated")
    """Directory of `site rotate`, until the site joins with the other key: its card, its home."""

    @property
    def gate_user(self) -> str | None:
        """User of the gate; None for the user who runs the command."""
        return GATE_USER if self.user else None

    @property
    def gate_home(self) -> Path:
        """Directory of the gate."""
        return Path("/var/lib/flhe-gate") / self.name if self.user else self.config / "gate"

    @property
    def witness(self) -> Path | None:
        """The unit's RuntimeDirectory, for the witness; None where the site has no unit."""
        return Path("/run") / f"flhe-{self.name}" if self.unit else None

    def next_home(self) -> Path | None:
        """Return the state directory that `site rotate` made, until the site joins with it."""
        path = self.rotated / "home"
        return Path(path.read_text(encoding="utf-8")) if path.exists() else None

    def card(self) -> tuple[Path, Card]:
        """Return this site's card and its file; ConfigError unless there is one."""
        found = sorted(self.config.glob(f"*{CARD}")) if self.config.is_dir() else []
        if len(found) != 1:
            raise ConfigError(
                f"{self.config}: expected one card of this site, got {len(found)}; "
                f"make it with `flhe site init {self.name} --name SITE`"
            )
        return found[0], Card.read(found[0])

    def make_config(self, path: Path) -> None:
        """Make a directory of settings: the node reads it, and only its owner changes it."""
        files.make_private(path)
        if self.user is not None:
            os.chown(path, 0, pwd.getpwnam(self.user).pw_gid)
            path.chmod(0o750)

    def write(self, path: Path, data: bytes) -> None:
        """Write a file of the config directory that the node reads and only its owner changes."""
        files.replace(path, [data])
        if self.user is not None:
            os.chown(path, 0, pwd.getpwnam(self.user).pw_gid)
            path.chmod(0o640)

    def check_user(self, user: str | None, command: str) -> None:
        """Raise ConfigError unless that user runs this, where there is one."""
        if user is not None and current_user() != user:
            raise ConfigError(
                f"expected user {user}, got another one: sudo -u {user} flhe {command} {self.name}"
            )

    @contextmanager
    def as_user(self) -> Iterator[None]:
        """Act as the node's user, whose private files nobody else opens, root included."""
        if self.user is None or current_user() == self.user:
            yield
            return
        entry, groups = pwd.getpwnam(self.user), os.getgroups()
        os.setgroups([])
        os.setegid(entry.pw_gid)
        os.seteuid(entry.pw_uid)
        try:
            yield
        finally:
            os.seteuid(0)
            os.setegid(0)
            os.setgroups(groups)


def current_user() -> str:
    """Return the name of the user who runs this; "" for one without a name."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return ""
