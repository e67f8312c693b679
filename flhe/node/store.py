"""One node's state directory: keys, claims and cached messages, for its owner only.

    identity.key                         the Ed25519 seed
    epochs/<id>                          an epoch's keys and the last attempt claimed (`KeyFile`)
    used/<id>/<round>-<attempt>-<step>   the last claim: masks up to it are never used again
    used/<id>/opened-<round>             SHA-256 of the one result opened in a round
    used/<id>/mean-squares-<round>       SHA-256 of the one sum of mean squares opened in it
    anything else                        what the caller writes

Directories are 0700, files 0600, written whole or not at all (`flhe/wire/files.py`). A claim is made
with O_EXCL and flushed, directory too, before anything is encrypted: a machine that loses power has
either claimed or not encrypted.

Claims are what keeps a mask from being used twice, so an epoch whose claims directory is missing (a
restored backup, a tidy administrator) loses its keys on the next access, attempts must rise beyond
the mark that is kept with the keys, and a directory that was copied or put back encrypts nothing. What
this cannot see is a snapshot of a whole machine, restored: see docs/protocol.md.
"""

from __future__ import annotations

import fcntl
import hmac
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from flhe.errors import ClaimedError, ConfigError, NoKeyError, ReuseError, StoreError
from flhe.keys.identity import Identity
from flhe.node.keyfile import KeyFile, Mark
from flhe.wire import files
from flhe.wire.files import Buffer
from flhe.wire.secret import Random

_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_OWN = frozenset({"used", "epochs", "identity.key"})  # only this module writes those
_RECORDS = {"opened": "opened", "ranged": "mean-squares"}
"""Mark in the key file -> what files are called."""
_POLL = 0.05  # seconds
_PATIENCE = 5.0  # seconds that a line of a log waits for its turn


class Store:
    """The state directory at `path`; made if it is missing, with its parents.

    `boot` names this start of the machine: keys from before another one encrypt nothing. "" asks for
    none of that. Raises StoreError if it is a link, is not ours, or others may look into it.
    """

    def __init__(self, path: str | Path, *, boot: str = "") -> None:
        self._root = Path(path)
        self.boot = boot
        with files.os_errors("make"):
            self._root.parent.mkdir(parents=True, exist_ok=True)
        files.make_private(self._root)

    def __repr__(self) -> str:
        return "Store(<state directory>)"

    @contextmanager
    def lock(self, timeout: float = 30.0, *, name: str = "lock") -> Iterator[None]:
        """Hold the directory alone, waiting `timeout` seconds at most; not reentrant.

        Locks of different names do not exclude each other: one a run, so runs can share a node.

        Raises StoreError if another process (or thread) still holds it then.
        """
        with files.os_errors("lock"):
            handle = os.open(self._root / name, os.O_RDWR | os.O_CREAT | files.SAFE, 0o600)
        holder = os.getpid()
        try:
            until = time.monotonic() + timeout
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= until:
                        raise StoreError(
                            f"another process has held the state directory for {timeout:g} s: give "
                            "each node a directory of its own, or end the other process"
                        ) from None
                    time.sleep(_POLL)
            files.sweep(self._root)
            yield
        finally:
            # Said aloud: a child that the app forked has a copy of the handle, which closing ours
            # would leave locked. And only by the one who locked: the child may come by here too.
            if os.getpid() == holder:
                fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)

    def log_path(self, name: str) -> str:
        """Where a file is, for this node's own log and nowhere else."""
        return str(self._at(name))

    def stamp(self, name: str) -> str | None:
        """What tells the file `name` from any copy of it; None if it is missing."""
        return files.stamp(self._at(name))

    def exists(self, name: str) -> bool:
        """Whether the file `name` is there."""
        return self._at(name).is_file()

    def count(self, folder: str, name: str) -> int:
        """How many directories in `folder` hold a file `name`."""
        with files.os_errors("read"):
            return sum(1 for _ in self._at(folder).glob(f"*/{name}"))

    def oldest(self, folder: str, *, having: str, lacking: str) -> list[str]:
        """Directories in `folder` that hold one file and not another, the oldest first."""
        with files.os_errors("read"):
            found = [p for p in self._at(folder).glob("*") if (p / having).is_file()]
            found = [p for p in found if not (p / lacking).exists()]
            return [p.name for p in sorted(found, key=lambda p: (p / having).stat().st_mtime_ns)]

    def read(self, name: str) -> bytes:
        """Return the content of `name`. Raises StoreError if missing, or open to others."""
        return files.read(self._at(name))

    def write(self, name: str, data: Buffer) -> None:
        """Write the file `name`, whole or not at all; replaces an older one.

        `name` is a relative path of up to four parts, each of letters, digits and `.`, `_`, `-`.
        Raises ConfigError for another name, StoreError if it cannot be written.
        """
        self.write_chunks(name, [data])

    def write_chunks(self, name: str, chunks: Iterable[Buffer]) -> None:
        """Write `name` like `write`, from buffers that come one at a time.

        If `chunks` raises, the older file stays.
        """
        path = self._at(name, writing=True)
        self._make_parents(path)
        files.replace(path, chunks)

    def move(self, name: str, to: str) -> None:
        """Give the file `name` the name `to`, in place of what had it."""
        source, target = self._at(name, writing=True), self._at(to, writing=True)
        files.move(source, target)

    def append(self, name: str, data: bytes, limit: int) -> None:
        """Add to the end of `name`; a file that would exceed `limit` bytes starts anew."""
        files.append(self._at(name, writing=True), data, limit)

    def append_line(self, name: str, line: bytes, limit: int) -> None:
        """Add a line to the log `name`, whole or not at all; a full one becomes `<name>.1`."""
        path = self._at(name, writing=True)
        with self.lock(_PATIENCE, name="lock-log"):  # runs share it, and one at a time may rotate
            files.append_line(path, line, limit)

    def erase(self, name: str) -> None:
        """Overwrite `name` with zeros and remove it; a missing file is no error.

        The overwriting is best effort: flash memory and journals keep old blocks.
        """
        files.erase(self._at(name, writing=True))

    def drop(self, folder: str) -> None:
        """Erase the files of a directory, and remove it."""
        place = self._at(folder, writing=True)
        with files.os_errors("remove"):
            for path in place.glob("*"):
                files.erase(path)
            place.rmdir()

    def identity(self, random: Random = secrets.token_bytes) -> Identity:
        """Load this node's identity, made on first use. Takes the lock then: call it outside one.

        Raises StoreError if the file is damaged: a new identity must be enrolled in the roster.
        """
        if not self.exists("identity.key"):
            with self.lock():
                if not self.exists("identity.key"):
                    files.replace(self._at("identity.key"), [random(32)])
        seed = self.read("identity.key")
        if len(seed) != 32:
            raise StoreError("identity.key is damaged: restore it, or enrol a new identity")
        return Identity(seed)

    def put_epoch(
        self, epoch_bytes: bytes, epoch_id: bytes, *, opened: int = 0, ranged: int = 0
    ) -> None:
        """Store the keys of a new epoch, with an empty claims directory made before them.

        `epoch_id` is 16 bytes; rounds up to `opened` are never opened in it, nor mean squares of rounds
        up to `ranged`. Raises ReuseError if the
        epoch was ever stored: its claims may be gone. A claims directory without claims or keys is
        what a crash in here leaves, and is taken.
        """
        keys, claims = self._epoch(epoch_id)
        with files.os_errors("read"):
            left = {p.name for p in claims.iterdir()} if claims.exists() else set()
            if keys.exists() or left - {KeyFile(b"", "").claim}:
                raise ReuseError("this epoch was stored before: agree on a new one")
        self._make_parents(keys)
        self._make_parents(claims)
        files.make_private(claims)
        first = KeyFile(epoch_bytes, "")
        files.create(claims / first.claim, b"")
        stamp = files.stamp(claims / first.claim)
        marks = {"opened": _number(opened), "ranged": _number(ranged)}
        kept = replace(first, stamp=stamp or "", boot=self.boot, **marks)  # type: ignore[arg-type]
        files.replace(keys, [kept.to_bytes()])

    def opened(self, epoch_id: bytes) -> int:
        """Last round whose sum was opened in an epoch; 0 if its keys are gone."""
        return self._mark(epoch_id, "opened")

    def ranged(self, epoch_id: bytes) -> int:
        """Last round whose mean squares were opened in an epoch; 0 if its keys are gone."""
        return self._mark(epoch_id, "ranged")

    def _mark(self, epoch_id: bytes, mark: str) -> int:
        keys, _ = self._epoch(epoch_id)
        if not keys.exists():
            return 0
        try:
            found: int = getattr(KeyFile.from_bytes(files.read(keys)), mark)
        except NoKeyError:  # the names of what was opened say it too
            found = self._last_named(epoch_id, f"{_RECORDS[mark]}-")
        return found

    def claimed_round(self, epoch_id: bytes) -> int:
        """Last round that was claimed in an epoch, by the names of its claims; 0 if there are none."""
        return self._last_named(epoch_id, "")

    def _last_named(self, epoch_id: bytes, prefix: str) -> int:
        """Largest round in the names of an epoch's claims that begin with `prefix`."""
        _, claims = self._epoch(epoch_id)
        with files.os_errors("read"):
            names = [path.name for path in claims.iterdir()] if claims.is_dir() else []
        pattern = re.compile(re.escape(prefix) + (r"(\d+)" if prefix else r"(\d+)-\d+-\d+"))
        return max((int(m[1]) for name in names if (m := pattern.fullmatch(name))), default=0)

    def peek_epoch(self, epoch_id: bytes) -> bytes:
        """Return an epoch's keys for opening a sealed model, never to encrypt: a backup will do."""
        return KeyFile.from_bytes(files.read(self._epoch(epoch_id)[0])).epoch

    def get_epoch(self, epoch_id: bytes) -> bytes:
        """Return the keys of an epoch. Raises StoreError if it has none, or no claims directory."""
        keys, _ = self._claims(epoch_id)
        return KeyFile.from_bytes(files.read(keys)).epoch

    def has_epoch(self, epoch_id: bytes, epoch_bytes: bytes) -> bool:
        """Whether exactly these keys are stored already: after a crash that came behind it."""
        keys, claims = self._epoch(epoch_id)
        if not (keys.exists() and claims.is_dir()):
            return False
        return hmac.compare_digest(KeyFile.from_bytes(files.read(keys)).epoch, epoch_bytes)

    def epochs(self) -> list[bytes]:
        """Ids of the epochs whose keys are here."""
        with files.os_errors("read"):
            folder = self._at("epochs")
            names = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []
        return [bytes.fromhex(name) for name in names if re.fullmatch("[0-9a-f]{32}", name)]

    def raise_opened(self, epoch_id: bytes, opened: int, ranged: int = 0) -> None:
        """Rounds up to `opened`, and mean squares of those up to `ranged`, are never opened here."""
        keys, _ = self._claims(epoch_id)
        kept = KeyFile.from_bytes(files.read(keys))
        marks = max(kept.opened, _number(opened)), max(kept.ranged, _number(ranged))
        if marks != (kept.opened, kept.ranged):
            files.replace(keys, [replace(kept, opened=marks[0], ranged=marks[1]).to_bytes()])

    def usable(self, epoch_id: bytes) -> bool:
        """Whether an epoch's keys are there and may encrypt: no copy, nothing put back."""
        keys, claims = self._epoch(epoch_id)
        if not (keys.exists() and claims.is_dir()):
            return False
        try:
            kept = KeyFile.from_bytes(files.read(keys))
        except NoKeyError:
            return False
        current = not self.boot or kept.boot == self.boot
        return current and files.stamp(claims / kept.claim) == kept.stamp

    def replace_epoch(self, epoch_id: bytes, epoch_bytes: bytes) -> None:
        """Put other secrets in the place of an epoch's; what was claimed and opened in it stays so.

        What was there is overwritten, as far as that helps.
        """
        keys, _ = self._claims(epoch_id)
        kept = KeyFile.from_bytes(files.read(keys))
        files.replace_erasing(keys, [replace(kept, epoch=epoch_bytes).to_bytes()])

    def erase_epoch(self, epoch_id: bytes) -> None:
        """Destroy the keys of an epoch; its claims stay, should a backup bring the keys back."""
        keys, claims = self._epoch(epoch_id)
        if claims.is_dir():
            files.create(claims / "erased", b"")
        files.erase(keys)

    def claim(
        self,
        epoch_id: bytes,
        round: int,  # noqa: A002
        attempt: int,
        note: bytes = b"",
        step: int = 0,
    ) -> None:
        """Claim the masks of one step of an attempt, for ever. Call it before encrypting, never after.

        Steps only rise: (round, attempt, step) must be beyond the last one claimed, which is kept with
        the keys themselves. `note` is kept in the claim, and durable with it. Raises ClaimedError if
        this step or a later one was claimed before: resend the cached message, or make a new attempt;
        StoreError in a copied state directory.
        """
        keys, claims, kept = self._checked(epoch_id)
        after = replace(kept, mark=(_number(round), _number(attempt), _number(step)))
        kept.check_rising(after.mark)
        if not files.create(claims / after.claim, note):
            # A crash came between this file and the mark; nothing was encrypted in between, but a new
            # attempt is as cheap.
            raise ClaimedError(
                f"round {round}, attempt {attempt} was claimed before: resend the cached message, "
                "or retry under a new attempt"
            )
        after = replace(after, stamp=files.stamp(claims / after.claim) or "")
        files.replace(keys, [after.to_bytes()])
        files.drop(claims / kept.claim)

    def claim_note(self, epoch_id: bytes, round: int, attempt: int) -> bytes | None:  # noqa: A002
        """The note of an attempt's last step; None if this attempt is not the last one claimed."""
        keys, claims = self._claims(epoch_id)
        kept = KeyFile.from_bytes(files.read(keys))
        if kept.mark[:2] != (_number(round), _number(attempt)):
            return None
        if files.stamp(claims / kept.claim) is None:
            kept.check_stamp(None)  # cleaned away: its keys are of no use here any more
        return files.read(claims / kept.claim)

    def last_claim(self, epoch_id: bytes) -> Mark:
        """Round, attempt and step that were claimed last; zeros before the first."""
        keys, _ = self._claims(epoch_id)
        return KeyFile.from_bytes(files.read(keys)).mark

    def record_opening(self, epoch_id: bytes, round: int, result_hash: bytes) -> None:  # noqa: A002
        """Record the one result that this reader opens in a round. Call it before decrypting.

        The same hash (SHA-256, 32 bytes) again is fine; another one raises ReuseError: two sums of
        one round would differ by single updates.
        """
        self._record(epoch_id, round, result_hash, "opened")

    def record_mean_squares(self, epoch_id: bytes, round: int, result_hash: bytes) -> None:  # noqa: A002
        """Record the one sum of mean squares that this reader opens in a round; as `record_opening`."""
        self._record(epoch_id, round, result_hash, "ranged")

    def _record(self, epoch_id: bytes, round_: int, result_hash: bytes, mark: str) -> None:
        if len(result_hash) != 32:
            raise ConfigError("record_opening: result_hash must be the 32 bytes of a SHA-256")
        keys, claims, kept = self._checked(epoch_id)
        path = claims / f"{_RECORDS[mark]}-{_number(round_)}"
        if round_ <= getattr(kept, mark) and not path.exists():
            raise ReuseError(f"what was opened in round {round_} is forgotten here: skip the round")
        if not files.create(path, result_hash):
            kept_hash = files.read(path)
            if len(kept_hash) != 32:  # a crash cut it short, and nothing was decrypted then
                files.replace(path, [result_hash])
            elif not hmac.compare_digest(kept_hash, result_hash):
                raise ReuseError(f"another result of round {round_} was opened before: skip it")
        if round_ > getattr(kept, mark):  # also when a crash came between the file and the mark
            files.replace(keys, [replace(kept, **{mark: round_}).to_bytes()])  # type: ignore[arg-type]

    def _at(self, name: str, *, writing: bool = False) -> Path:
        parts = name.split("/")
        if len(parts) > 4 or not all(_PART.fullmatch(part) for part in parts):
            raise ConfigError("Store: a name is up to four parts of letters, digits, '.', '_', '-'")
        if writing and (parts[0] in _OWN or parts[0].startswith("lock")):
            raise ConfigError(f"Store: {parts[0]} is the store's own, choose another name")
        path = self._root
        for part in parts:
            if path is not self._root and path.is_symlink():
                raise StoreError("a link inside the state directory: remove it")
            path /= part
        return path

    def _epoch(self, epoch_id: bytes) -> tuple[Path, Path]:
        if type(epoch_id) is not bytes or len(epoch_id) != 16:
            raise ConfigError("Store: an epoch id is 16 bytes")
        return self._at(f"epochs/{epoch_id.hex()}"), self._at(f"used/{epoch_id.hex()}")

    def _claims(self, epoch_id: bytes) -> tuple[Path, Path]:
        """Return the paths of an epoch that has both keys and claims, or raise StoreError."""
        keys, claims = self._epoch(epoch_id)
        if claims.is_symlink() or not claims.is_dir():
            had = keys.exists()
            files.erase(keys)
            raise NoKeyError(
                "the claims of this epoch are missing, its keys were destroyed: agree on a new one"
                if had
                else "this epoch is not in the state directory: agree on a new one"
            )
        if not keys.exists():
            raise NoKeyError("the keys of this epoch were erased: agree on a new one")
        return keys, claims

    def _checked(self, epoch_id: bytes) -> tuple[Path, Path, KeyFile]:
        """Paths and content of an epoch whose keys may be used: no copy, nothing put back."""
        keys, claims = self._claims(epoch_id)
        kept = KeyFile.from_bytes(files.read(keys))
        kept.check_stamp(files.stamp(claims / kept.claim))
        if self.boot:
            kept.check_boot(self.boot)
        return keys, claims, kept

    def _make_parents(self, path: Path) -> None:
        for parent in reversed(list(path.relative_to(self._root).parents)[:-1]):
            files.make_private(self._root / parent)


def _number(value: int) -> int:
    if type(value) is not int or not 0 <= value < 1 << 32:
        raise ConfigError("Store: round and attempt are unsigned 32-bit integers")
    return value
