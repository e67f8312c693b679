"""KeyFile: an epoch's keys, and how far they have been used.

    CBOR {v, epoch, mark: [round, attempt], opened: round, place: [device, inode]}

`mark` is the last attempt that was claimed under these keys, `opened` the last round whose sum was
opened; both only rise. They are in the very file that holds the keys, so whoever loses them has lost
the keys as well: claims that a cleaner removed do not make a mask free again, nor a round unopened.
`place` is the claims directory that the keys were stored with. A copied or restored state directory has
another one: its keys still open a sealed model, and encrypt nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from flhe.errors import ReuseError, StoreError
from flhe.keys.canonical import dumps, loads

VERSION = 1
MAX_BYTES = 64 << 20
UNUSED = (0, 0)
"""The mark before the first claim; rounds count from 1."""


@dataclass(frozen=True, slots=True)
class KeyFile:
    """Content of one epoch's file.

    Parameters
    ----------
    epoch : bytes
        The encoded epoch; secret.
    place : tuple[int, int]
        Device and inode of the claims directory.
    mark : tuple[int, int]
        Last (round, attempt) claimed.
    opened : int
        Last round opened.
    """

    epoch: bytes = field(repr=False)
    place: tuple[int, int]
    mark: tuple[int, int] = UNUSED
    opened: int = 0

    def claimed(self, round_: int, attempt: int, place: tuple[int, int]) -> KeyFile:
        """The content after a claim.

        Raises
        ------
        StoreError
            The claims directory at hand is another one than the keys were stored with.
        ReuseError
            This attempt, or a later one, was claimed before.
        """
        self.check_place(place)
        if (round_, attempt) <= self.mark:
            raise ReuseError(
                f"round {round_}, attempt {attempt} or a later one was claimed before: resend the "
                "cached message, or retry under a new attempt"
            )
        return replace(self, mark=(round_, attempt))

    def check_place(self, place: tuple[int, int]) -> None:
        """Refuse a state directory that is a copy."""
        if place != self.place:
            raise StoreError(
                "this state directory was copied or restored: its keys may be in use elsewhere and "
                "encrypt nothing here; agree on a new epoch"
            )

    def to_bytes(self) -> bytes:
        """Encode; the bytes are secret."""
        return dumps(
            {
                "v": VERSION,
                "epoch": self.epoch,
                "mark": list(self.mark),
                "opened": self.opened,
                "place": [str(n) for n in self.place],  # an inode may take 64 bits or more
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> KeyFile:
        """Decode. Raises StoreError for anything else than `to_bytes` writes."""
        match loads(data, MAX_BYTES, "key file"):
            case {
                "v": 1,
                "epoch": bytes(epoch),
                "mark": [int(round_), int(attempt)],
                "opened": int(opened),
                "place": [str(device), str(inode)],
                **rest,
            } if not rest and device.isdigit() and inode.isdigit():
                return cls(epoch, (int(device), int(inode)), (round_, attempt), opened)
        raise StoreError("a key file is damaged, or of another version: agree on a new epoch")
