"""Keys of a scheme that a trusted dealer makes offline: ESAFL's administration server.

The dealer draws s_i for each site, adds them up, and writes one file a site, {s_i, s} (`flhe keygen
--scheme`). It takes part in nothing else, and should erase all of it. Files go to the sites by
hand, or by another trusted channel, never through the server.

Keys are for exactly one set of sites. A file opens no epoch of another set, so no s_i is ever in
the sums of two. When a site drops out for good, the dealer deals fresh keys to the others.

Source: ESAFL, Sec. 3.1 and 5.2.1 (HE.KeyGen, by the AS).
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ConfigError, ProtocolError, StoreError, config_errors
from flhe.keys.agreement.states import Epoch
from flhe.keys.roster.roster import Roster
from flhe.schemes.base import Scheme
from flhe.schemes.keyed import JointKey
from flhe.schemes.registry import SchemeField
from flhe.wire import files
from flhe.wire.fields import Hash, ascending, size
from flhe.wire.record import Form, Record
from flhe.wire.secret import Random

MAX_FILE = 1 << 20
"""Maximum file size, bytes; 1024 members' keys and a key of the largest ring take 200 KiB."""


@dataclass(frozen=True, slots=True, eq=False)
class Dealt(Record):
    """One site's file: s_i and s, and the members that they are for.

    `members` are the identity keys of all sites that keys were dealt to, ascending. `member` is the
    one that this file is for. `serial` is 16 random bytes that all files of one dealing share, for
    sites to compare. Mixed dealings have different sums, so different names for them, and two such
    nodes' ciphertexts never add up.
    """

    FORM = Form(
        "dealt keys", MAX_FILE, "flhe-dealt-key", 1, origin="no file of `flhe keygen --scheme`"
    )

    scheme: SchemeField
    roster_hash: Hash
    members: Annotated[tuple[Hash, ...], ascending("members")]
    member: Hash
    serial: Annotated[bytes, size(16)]
    key: JointKey = field(repr=False)

    def _validate(self) -> None:
        if self.member not in self.members:
            raise ProtocolError("dealt keys: the member that they are for is not among the members")
        if not self.scheme.dealt:
            raise ProtocolError(f"dealt keys: {self.scheme.name} has no dealt keys")
        self.key.check(_adder(self.scheme, len(self.members)))

    @classmethod
    def read(cls, path: Path) -> Dealt:
        """Read a site's file. ConfigError: it is unreadable, open to others, or invalid."""
        try:
            data = files.read(path)
        except StoreError:
            raise ConfigError(
                "the file is missing, a link, another user's, or open to others: chmod 600"
            ) from None
        with config_errors("no file of `flhe keygen --scheme`, or a damaged one"):
            return cls.from_bytes(data)


def deal(
    roster: Roster,
    scheme: Scheme,
    without: Collection[bytes] = (),
    random: Random = secrets.token_bytes,
) -> dict[bytes, Dealt]:
    """Deal keys to the members of a roster, or to some of them; by identity key.

    `without` are identity keys of members that are left out.

    Raises ConfigError: fewer members than the roster's bounds need, or a key in `without` that is
    not a member's.
    """
    for public in without:
        if public not in roster.publics:
            raise ConfigError(f"the key {public.hex()[:16]} is not a member's in this roster")
    members = tuple(sorted(set(roster.publics) - set(without)))
    if len(members) < roster.min_members:
        raise ConfigError(
            f"keys for {len(members)} members, this roster's bounds need {roster.min_members} or more"
        )
    adder = _adder(scheme, len(members))
    keys = [adder.draw_own(random) for _ in members]
    total: NDArray[np.int32] = np.array(keys, np.int32).sum(axis=0, dtype=np.int32)
    serial = random(16)
    return {
        member: Dealt(scheme, roster.hash, members, member, serial, JointKey(own, total))
        for member, own in zip(members, keys, strict=True)
    }


def load(path: Path | None, agreed: Epoch, adder: Any) -> JointKey:
    """Return the keys in the file at `path`, if they are for exactly this epoch's members.

    Raises ConfigError: there is no such file, others may read it, or it is of another roster, ring,
    site or set of members.
    """
    if path is None:
        raise ConfigError(
            "this federation uses dealt keys, but this node has none: set flhe-dealt-key in its node "
            "config to the file that `flhe keygen --scheme` made for it"
        )
    with config_errors("flhe-dealt-key"):
        dealt = Dealt.read(path)
    for what, is_so in (
        ("another roster", dealt.roster_hash == agreed.roster.hash),
        ("another site", dealt.member == agreed.members[agreed.rank]),
        ("other parameters", dealt.scheme == adder.scheme),
    ):
        if not is_so:
            raise ConfigError(f"flhe-dealt-key: the keys were dealt for {what}")
    if dealt.members != agreed.members:
        raise ConfigError(
            f"flhe-dealt-key: the keys were dealt to {len(dealt.members)} sites, and "
            f"{agreed.size} take part that are not all of them: have keys dealt for those, or "
            "let members make their own"
        )
    return dealt.key


def _adder(scheme: Scheme, members: int) -> Any:
    return cast(Any, scheme.adder(members))
