"""The coordinator's directory, and its steps: new, add, remove, publish.

    federation.toml          name, address and the bounds of the roster; for the coordinator to edit
    state/                   the coordinator's key, which signs what it publishes
    tls/                     ca.crt, superlink.pem, superlink.key
    sites/NAME.card          each site's card
    reviewers/*.pub          keys of the reviewers of apps
    supernodes/NAME.pub      for `flwr supernode register`
    NAME.flhe                the file for the sites, as published last

The directory is 0700. Nobody needs to trust the coordinator with an update or a key.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flhe.errors import ConfigError, config_errors
from flhe.keys.identity import Identity
from flhe.keys.roster.limits import Limits
from flhe.keys.roster.roster import Roster
from flhe.node.store import Store
from flhe.provision import node_key, public_files
from flhe.provision.federation import published
from flhe.provision.federation.card import Card
from flhe.provision.federation.published import (
    ADDRESS,
    MAX_AUTHORITY,
    NAME,
    SUFFIX,
    Published,
)
from flhe.provision.federation.reviewers import read_public
from flhe.provision.federation.tls import TlsFiles
from flhe.provision.sites import has_identity
from flhe.schemes import PLAIN
from flhe.schemes.registry import SCHEMES
from flhe.wire import files

SETTINGS = """\
# The federation, for its coordinator. `flhe federation publish` makes the roster of this file and of
# the sites' cards. A change makes another roster, which all sites compare and join.
name = {name}
# SuperLink, as the sites reach it.
address = {address}
# Schemes that may run.
schemes = {schemes}
# Sites that may conspire with the server; -1 for (N - 1) // 3 of N sites.
collusion = {collusion}
# Fewest sites in a sum. Of a sum of two, each site sees the other's update.
min-survivors = {min_survivors}
# Limits that hold at every site, such as "min-members=3". A site's stricter setting counts.
limits = {limits}
"""


@dataclass(frozen=True, slots=True)
class Terms:
    """Content of federation.toml."""

    name: str
    address: str
    schemes: tuple[str, ...]
    collusion: int = -1
    min_survivors: int = 2
    limits: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise ConfigError for a name, a scheme or a limit that cannot be."""
        numbers = (self.collusion, self.min_survivors)
        texts = (self.name, self.address, *self.schemes, *self.limits)
        if not all(type(n) is int for n in numbers) or not all(type(t) is str for t in texts):
            raise ConfigError("collusion and min-survivors are whole numbers, all else is text")
        if not re.fullmatch(NAME, self.name):
            raise ConfigError(f"{self.name}: expected 1 to 32 of a-z, 0-9 and '-'")
        fits = re.fullmatch(ADDRESS, self.address)
        if not fits or int(self.address.rpartition(":")[2]) > 65535:
            raise ConfigError(f"--address {self.address}: expected HOST:PORT, as sites reach it")
        known = (*SCHEMES.names(), PLAIN)
        if unknown := [name for name in self.schemes if name not in known]:
            raise ConfigError(f"--scheme {unknown[0]}: no scheme; there are {', '.join(known)}")
        Limits.parse(self.limits)

    def to_toml(self) -> str:
        """Return the file."""
        said = {n: json.dumps(getattr(self, n)) for n in self.__dataclass_fields__}
        return SETTINGS.format(**said)

    @classmethod
    def read(cls, path: Path) -> Terms:
        """Read the file; ConfigError for one that is missing or damaged."""
        try:
            found: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
            fields = {name.replace("-", "_"): value for name, value in found.items()}
            lists = {n: tuple(v) for n, v in fields.items() if isinstance(v, list)}
            terms = cls(**{**fields, **lists})
            terms.check()
        except OSError:
            raise ConfigError(
                f"{path.parent}: no federation in it; `flhe federation new` makes one"
            ) from None
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigError(f"{path}: cannot be used: {error}") from None
        return terms

    def roster(self, cards: Sequence[Card], before: Roster | None) -> Roster:
        """Return the roster of the cards, with the keys that the roster before it has revoked."""
        members = tuple(card.enrolment.member for card in cards)
        bound = Roster.default_collusion(len(members)) if self.collusion < 0 else self.collusion
        said = Limits.parse(self.limits)
        now = {member.public for member in members}
        gone = () if before is None else (*before.revoked, *(set(before.publics) - now))
        return Roster(members, bound, self.min_survivors, self.schemes, gone, said)


@dataclass(frozen=True, slots=True)
class Office:
    """A coordinator's directory."""

    root: Path

    @property
    def settings(self) -> Path:
        """The file that the coordinator edits."""
        return self.root / "federation.toml"

    @property
    def tls(self) -> TlsFiles:
        """Files of the SuperLink's TLS."""
        return TlsFiles(self.root / "tls")

    @property
    def terms(self) -> Terms:
        """Content of the settings."""
        return Terms.read(self.settings)

    def folder(self, name: str) -> Path:
        """Return a directory inside, 0700, made if missing."""
        path = self.root / name
        files.make_private(path)
        return path

    def identity(self) -> Identity:
        """Return the coordinator's key; ConfigError if it is gone."""
        home = self.root / "state"
        if not has_identity(home):
            raise ConfigError(f"{home}: no key of the coordinator in it; restore it from a backup")
        return Store(home).identity()

    def cards(self) -> list[Card]:
        """Return the sites' cards, in order of names."""
        return [Card.read(path) for path in sorted(self.folder("sites").glob("*.card"))]

    def reviewers(self) -> tuple[bytes, ...]:
        """Return the reviewers' keys."""
        paths = sorted(self.folder("reviewers").glob("*.pub"))
        return tuple(read_public(path).public_bytes_raw() for path in paths)

    def last(self) -> Published | None:
        """Return the file that was published last, if any."""
        path = self.file
        return Published.read(path) if path.exists() else None

    @property
    def file(self) -> Path:
        """The file for the sites."""
        return self.root / f"{self.terms.name}{SUFFIX}"

    def check_card(self, card: Card) -> None:
        """Refuse a card whose site has another key in force; ConfigError."""
        kept = {old.name.casefold(): old for old in self.cards()}.get(card.name.casefold())
        if kept is not None and kept.public not in (card.public, card.enrolment.replaces):
            raise ConfigError(
                f"{card.name} has another key here, and its old key has not signed this card: call "
                f"the site. If its key is lost: flhe federation remove {self.root} {card.name}, "
                "publish, and add the site again"
            )

    def keep(self, card: Card) -> None:
        """Keep a card, in place of the site's earlier one."""
        self.check_card(card)
        files.replace(self.folder("sites") / f"{card.name}.card", [card.to_bytes()])
        key = node_key.openssh(card.node_key) + f" {card.name}\n".encode()
        files.replace(self.folder("supernodes") / f"{card.name}.pub", [key])

    def remove(self, name: str) -> None:
        """Drop a site's card; the next roster revokes its key. ConfigError if there is none."""
        path = self.root / "sites" / f"{name}.card"
        if not path.is_file():
            raise ConfigError(f"{name}: no site of this federation")
        files.drop(path)
        files.drop(self.root / "supernodes" / f"{name}.pub")

    def publish(self) -> Published:
        """Write the file for the sites, with one number more than the last.

        Raises ConfigError: fewer sites than the bounds need, or no reviewer.
        """
        terms, cards, last = self.terms, self.cards(), self.last()
        roster = terms.roster(cards, None if last is None else last.roster)
        authority = public_files.read(self.tls.authority, MAX_AUTHORITY, "the authority")
        serial = 1 if last is None else last.serial + 1
        reviewers, own = self.reviewers(), self.identity()
        with config_errors(f"{self.root}"):
            made = published.make(
                terms.name, serial, terms.address, authority, reviewers, roster, own
            )
        files.replace(self.file, [made.to_bytes()])
        return made
