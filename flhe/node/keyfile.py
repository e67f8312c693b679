"""KeyFile: an epoch's keys, and how far they have been used.

    CBOR {v, epoch, mark: [round, attempt, step], opened: round, ranged: round, stamp, boot}

`mark` is the last step of an attempt that was claimed under these keys, `opened` the last round whose
sum was opened, `ranged` the last whose mean squares were; all of them only rise. They are in the very
file that holds the keys, so whoever loses them has lost the keys as well: claims that a cleaner removed
do not make a mask free again, nor a round unopened.

`stamp` is the inode and the change time of the last claim's own file, which no copy or restore
can reproduce: a state directory that was put back opens a sealed model, and encrypts nothing. Older
claim files are removed, so none of them can vouch for an older mark.

A disk that was put back as a whole, inodes and all, is another matter: what shows it is that the
machine has started since. `boot` is the start of the machine under which the keys were made. After
another one they encrypt nothing, and the group agrees anew, unless the node's config says that its
disk is never put back (`flhe-durable`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from flhe.errors import ClaimedError, NoKeyError, ProtocolError
from flhe.wire.canonical import dumps, loads

VERSION = 3
MAX_BYTES = 64 << 20
Mark = tuple[int, int, int]
UNUSED: Mark = (0, 0, 0)
"""The mark before the first claim; rounds count from 1."""


@dataclass(frozen=True, slots=True)
class KeyFile:
    """Content of one epoch's file.

    Parameters
    ----------
    epoch : bytes
        The encoded epoch; secret.
    stamp : str
        What tells the last claim's file from any other.
    mark : tuple[int, int, int]
        Last (round, attempt, step) claimed.
    opened : int
        Last round opened.
    ranged : int
        Last round whose sum of mean squares was opened.
    boot : str
        Start of the machine under which the keys were made; "" where that cannot be known.
    """

    epoch: bytes = field(repr=False)
    stamp: str
    mark: Mark = UNUSED
    opened: int = 0
    ranged: int = 0
    boot: str = ""

    @property
    def claim(self) -> str:
        """Name of the last claim's file; before the first one, of a file that stands in for it."""
        return ".unused" if self.mark == UNUSED else "-".join(map(str, self.mark))

    def check_rising(self, mark: Mark) -> None:
        """Refuse a step of an attempt that is not beyond the last one; ClaimedError."""
        if mark <= self.mark:
            raise ClaimedError(
                f"round {mark[0]}, attempt {mark[1]} or a later one was claimed before: resend the "
                "cached message, or retry under a new attempt"
            )

    def check_stamp(self, stamp: str | None) -> None:
        """Refuse a state directory that is a copy, was put back or cleaned; NoKeyError."""
        if stamp != self.stamp:
            raise NoKeyError(
                "this state directory was copied, restored or cleaned: its keys may have been used "
                "since and encrypt nothing here; agree on a new epoch"
            )

    def check_boot(self, boot: str) -> None:
        """Refuse keys from before this start of the machine, `boot`; NoKeyError."""
        if boot != self.boot:
            raise NoKeyError(
                "this machine has started anew since these keys were made, perhaps from an older disk: "
                "they encrypt nothing here; agree on a new epoch (flhe-durable=true in the node config "
                "where the disk is never put back)"
            )

    def to_bytes(self) -> bytes:
        """Encode; the bytes are secret."""
        return dumps(
            {
                "v": VERSION,
                "epoch": self.epoch,
                "mark": list(self.mark),
                "opened": self.opened,
                "ranged": self.ranged,
                "stamp": self.stamp,
                "boot": self.boot,
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> KeyFile:
        """Decode. Raises NoKeyError for anything else than `to_bytes` writes."""
        try:
            fields = loads(data, MAX_BYTES, "key file")
        except ProtocolError:
            fields = None
        match fields:
            case {
                "v": 3,
                "epoch": bytes(epoch),
                "mark": [int(round_), int(attempt), int(step)],
                "opened": int(opened),
                "ranged": int(ranged),
                "stamp": str(stamp),
                "boot": str(boot),
                **rest,
            } if not rest:
                return cls(epoch, stamp, (round_, attempt, step), opened, ranged, boot)
        raise NoKeyError("a key file is damaged, or of another version: agree on a new epoch")
