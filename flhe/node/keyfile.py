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

from flhe.errors import ClaimedError, NoKeyError
from flhe.wire.fields import U32
from flhe.wire.record import Form, Record

VERSION = 3
MAX_BYTES = 64 << 20
Mark = tuple[U32, U32, U32]
UNUSED: Mark = (0, 0, 0)
"""The mark before the first claim; rounds count from 1."""


@dataclass(frozen=True, slots=True)
class KeyFile(Record):
    """Content of one epoch's file, as the module says; `boot` is "" where that cannot be known."""

    FORM = Form(
        "key file",
        MAX_BYTES,
        version=VERSION,
        damaged=NoKeyError("a key file is damaged, or of another version: agree on a new epoch"),
    )

    epoch: bytes = field(repr=False)
    stamp: str
    mark: Mark = UNUSED
    opened: U32 = 0
    ranged: U32 = 0
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
