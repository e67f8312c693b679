"""The journal and its witness: no mask and no opening is used twice, whatever becomes of the disk."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flhe.errors import ClaimedError, ConfigError, NoKeyError, ReuseError, StoreError
from flhe.node import witness
from flhe.node.journal import KEPT, UNUSED, Book, Change, Journal, Note
from flhe.node.store import Store
from flhe.node.witness import Witness, find, in_memory, is_apart
from flhe.schemes.sealed import Slot
from flhe.wire import canonical
from flhe.wire import files as files_
from tests.mods.harness import dying, put_back
from tests.node.conftest import together

EPOCH, OTHER = bytes(range(16)), bytes(16)
A, B = b"a" * 32, b"b" * 32
NAME = "runs/7/journal"
NOTHING = Note()


def claim(*mark: int, epoch: bytes = EPOCH, note: Note = NOTHING) -> Change:
    return lambda now: now.claimed(epoch, mark, note)  # type: ignore[arg-type]


def opening(round_: int, digest: bytes = A, purpose: str = "update") -> Change:
    return lambda now: now.recorded(EPOCH, purpose, round_, digest)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    """Stands for a place outside the disk."""
    place = tmp_path / "memory"
    place.mkdir(0o700)
    return place


@pytest.fixture
def book(root: Path, memory: Path) -> Book:
    """With one epoch in use."""
    made = book_at(root, memory)
    made.begin(lambda now: now)
    made.enter(lambda now: now.begun(EPOCH, 0))
    return made


def book_at(root: Path, place: Path | None, *, durable: bool = False) -> Book:
    """As another process finds it."""
    return Book(Store(root, Witness(place, durable)), NAME)


def read(book: Book) -> Journal:
    journal = book.read()
    assert journal is not None
    return journal


USES = [claim(9, 0, 2), claim(9, 1, 0), opening(9), opening(9, A, "mean-squares"), lambda now: now]


def refused(book: Book, says: str = "copied or rolled back") -> None:
    """Nothing is claimed, opened or begun."""
    for use in (*USES, lambda now: now.begun(OTHER, 0)):
        with pytest.raises(NoKeyError, match=says):
            book.enter(use)


# --- what is claimed and opened ---

SMALL = st.integers(0, 2)


@settings(max_examples=60)
@given(st.lists(st.tuples(SMALL, SMALL, SMALL, st.booleans()), min_size=1, max_size=8))
def test_a_claim_is_taken_if_it_rises_and_is_for_ever(
    claims: list[tuple[int, int, int, bool]],
) -> None:
    """By round, then attempt, then step; the same in a process that knows the directory alone."""
    with tempfile.TemporaryDirectory() as path, pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        root, place, last = Path(path, "state"), Path(path), UNUSED
        book = book_at(root, place)
        book.begin(lambda now: now.begun(EPOCH, 0))
        for number, (*mark, restart) in enumerate(claims):
            if restart:
                book = book_at(root, place)
            note = Note(bytes([number]))
            if tuple(mark) <= last:
                with pytest.raises(ClaimedError, match=f"round {mark[0]}, attempt {mark[1]}"):
                    book.enter(claim(*mark, note=note))
                continue
            book.enter(claim(*mark, note=note))
            last = tuple(mark)  # type: ignore[assignment]
            assert (read(book).mark, read(book).note) == (last, note)


def test_one_opening_of_each_purpose_a_round(book: Book, root: Path, memory: Path) -> None:
    for purpose, other in (("update", "mean-squares"), ("mean-squares", "evaluation")):
        book.enter(opening(3, A, purpose))
        book.enter(opening(3, B, other))  # another sum
        again = read(book)
        book.enter(opening(3, A, purpose))
        assert read(book) == again
        for one in (book, book_at(root, memory)):
            with pytest.raises(ReuseError, match="another result of round 3"):
                one.enter(opening(3, B, purpose))
        book.enter(lambda now: now.begun(os.urandom(16), 0))  # nor in another epoch
        book.enter(lambda now: now.begun(OTHER, 3))
        with pytest.raises(ReuseError, match="another result of round 3"):
            book.enter(lambda now, of=purpose: now.recorded(OTHER, of, 3, B))
        with pytest.raises(NoKeyError, match="is over"):
            book.enter(lambda now: now.begun(EPOCH, 3))
        book.begin(lambda now: Journal(now.witness, now.entry, epoch=EPOCH))  # another federation


def test_a_query_has_a_later_number_than_all_before() -> None:
    def asked(now: Journal, number: int, query: bytes) -> Journal:
        slot = Slot(7, bytes(32), EPOCH, number, 0, bytes(32), query)
        return now.with_query(slot, 9, again=False)

    now = asked(Journal(bytes(16), bytes(16)), 5, A)
    assert asked(now, 5, A) == now
    for number in (4, 5):  # a sum under an earlier number would be another one's
        with pytest.raises(ReuseError, match="query 5 was answered here"):
            asked(now, number, B)
    assert asked(now, 6, B).queries == {5: A, 6: B}


def test_openings_are_not_forgotten(book: Book) -> None:
    for round_ in (*range(2, KEPT + 3), 3, 4):  # the last ones again, after a crash
        book.enter(opening(round_))
    assert read(book).last_opened("update") == KEPT + 2
    assert len(read(book).opened["update"]) == KEPT
    for round_ in (1, 2):  # what was opened then is not known any more
        with pytest.raises(ReuseError, match="no longer recorded here"):
            book.enter(opening(round_))
    book.enter(opening(1, A, "mean-squares"))
    book.enter(lambda now: now.skipped(500))
    for round_ in (400, 500):
        with pytest.raises(ReuseError, match="no longer recorded here"):
            book.enter(opening(round_))
    book.enter(lambda now: now.skipped(5))
    assert read(book).last_opened("mean-squares") == 500
    assert (
        read(book).last_opened("evaluation") == 499
    )  # of the model that was taken, one may be told


def test_an_epoch_begins_once(book: Book) -> None:
    """Again for the same one it forgets no claim; the next one begins with what is over."""
    book.enter(claim(5, 1, 2))
    book.enter(opening(4))
    book.enter(lambda now: now.begun(EPOCH, 3))
    with pytest.raises(ClaimedError):
        book.enter(claim(5, 1, 2))
    book.enter(lambda now: now.begun(OTHER, 0))
    found = read(book)
    assert (found.mark, found.over, found.reached) == (UNUSED, 3, 5)
    for use in USES[:-1]:  # the keys of the one before are not used any more
        with pytest.raises(NoKeyError, match="may not be used"):
            book.enter(use)
    book.enter(claim(1, 0, 0, epoch=OTHER))


def test_a_journal_is_read_exactly(book: Book, root: Path) -> None:
    body = canonical.loads((root / NAME).read_bytes(), 1 << 18, "journal")
    for change in (["2", *body[1:]], body[:-1], [1, *body[1:]], [*body, 0]):
        (root / NAME).write_bytes(canonical.dumps(change))
        with pytest.raises(StoreError, match="record of finished rounds is damaged"):
            book.enter()


# --- on disk ---


def test_a_claim_is_on_disk_before_its_witness_follows(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    replace, fsync, pwrite = files_.replace, os.fsync, os.pwrite
    for name, real in (("fsync", fsync), ("pwrite", pwrite)):
        call = lambda *args, name=name, real=real: (seen.append(name), real(*args))[1]  # noqa: E731
        monkeypatch.setattr(os, name, call)
    monkeypatch.setattr(files_, "replace", lambda *a: (seen.append("journal"), replace(*a))[1])
    book.enter(claim(1, 0, 0))
    assert seen == ["journal", "fsync", "fsync", "pwrite", "fsync"]
    seen.clear()
    book.enter(lambda now: now)
    assert seen == []


@pytest.mark.parametrize("at", ["before the journal", "before the witness"])
def test_a_crash_between_both_writes(book: Book, at: str) -> None:
    """The claim counts once it is in the journal, and the witness follows when it is used again."""
    book.enter(claim(1, 0, 0))
    for use, once in ((claim(1, 0, 1), True), (opening(1), False)):
        with dying(*((files_, "replace") if at == "before the journal" else (os, "pwrite"))):
            book.enter(use)
        if once and at == "before the witness":
            with pytest.raises(ClaimedError):
                book.enter(use)
        else:
            book.enter(use)
    for attempt in (1, 2):  # nor does a second one in a row shut the journal
        with dying(os, "pwrite"):
            book.enter(claim(1, attempt, 0))
    with pytest.raises(ClaimedError):
        book.enter(claim(1, 2, 0))
    book.enter(claim(1, 3, 0))


# --- disks that are rolled back, copies, and machines that start anew ---


def test_of_two_copies_the_first_one_goes_on(
    book: Book, root: Path, memory: Path, tmp_path: Path
) -> None:
    shutil.copytree(root, tmp_path / "copy")
    other = book_at(tmp_path / "copy", memory)
    other.enter(claim(1, 0, 0))
    refused(book)
    other.enter(claim(1, 1, 0))
    book.note(lambda now: now.skipped(9))  # what is over may be noted, and makes it no better
    assert read(book).over == 9
    refused(book)
    book.close()  # the other one's witness stays
    other.enter(claim(1, 2, 0))


def test_copies_that_claim_at_one_time(
    book: Book, root: Path, memory: Path, tmp_path: Path
) -> None:
    """No lock of theirs is common; the witness's is."""
    copies = [tmp_path / f"copy-{i}" for i in range(8)]
    for copy in copies:
        shutil.copytree(root, copy)
    won: list[Path] = []

    def race(copy: Path) -> None:
        try:
            book_at(copy, memory).enter(claim(1, 0, 0))
        except NoKeyError:
            return
        won.append(copy)

    together([lambda copy=copy: race(copy) for copy in copies])  # type: ignore[misc]
    assert len(won) == 1


@pytest.mark.parametrize("noted", ["by a copy", "twice"])
def test_a_copy_that_a_crash_left_ahead_is_refused(
    book: Book, root: Path, memory: Path, tmp_path: Path, noted: str
) -> None:
    """What was noted in the journal alone is witnessed before it is used."""
    shutil.copytree(root, tmp_path / "copy")
    with dying(os, "pwrite"):
        book.enter(opening(1))
    if noted == "twice":
        book.enter(opening(1))
        put_back(root, tmp_path / "copy")
    else:
        book_at(tmp_path / "copy", memory).enter(claim(1, 0, 0))
    refused(book)


@pytest.mark.parametrize("how", ["restart", "another machine", "no place"])
def test_without_its_witness_nothing_is_used(
    book: Book, root: Path, memory: Path, tmp_path: Path, how: str
) -> None:
    book.enter(claim(1, 0, 0))
    place: Path | None = memory
    if how == "restart":
        for left in memory.iterdir():
            left.unlink()
    else:
        (tmp_path / "elsewhere").mkdir()
        place = tmp_path / "elsewhere" if how == "another machine" else None
    after = book_at(root, place)
    refused(after, "set flhe-witness" if place is None else "flhe-durable=true")
    if place is None:
        return
    durable = book_at(root, place, durable=True)  # whose administrator vouches for the disk
    with pytest.raises(ClaimedError):
        durable.enter(claim(1, 0, 0))
    durable.enter(claim(1, 1, 0))
    after.enter(claim(1, 2, 0))


def test_a_new_agreement_is_a_new_witness_and_forgets_nothing(
    book: Book, root: Path, memory: Path, tmp_path: Path
) -> None:
    """It begins on what the directory was rolled back to; the keys there stay unused."""
    book.enter(claim(4, 0, 0))
    book.enter(opening(3))
    shutil.copytree(root, tmp_path / "image")
    book.enter(claim(4, 1, 0))
    put_back(root, tmp_path / "image")
    book.begin(lambda now: now)
    with pytest.raises(NoKeyError, match="may not be used"):
        book.enter(claim(4, 2, 0))
    book.enter(lambda now: now.begun(OTHER, 0))
    assert (read(book).reached, read(book).last_opened("update")) == (4, 3)
    book.enter(claim(4, 0, 0, epoch=OTHER))
    book.begin(lambda now: now)  # where nothing is wrong, it goes on
    with pytest.raises(ClaimedError):
        book.enter(claim(4, 0, 0, epoch=OTHER))


def test_a_journal_that_is_gone(book: Book, root: Path) -> None:
    """Somebody tidied up: its keys are of no use."""
    (root / NAME).unlink()
    refused(book, "is missing")
    book.note(lambda now: now.skipped(3))
    book.close()
    assert book.read() is None


def test_what_is_closed_leaves_no_witness(book: Book, memory: Path) -> None:
    book.enter(claim(4, 0, 0))
    assert len([*memory.iterdir()]) == 1
    for _ in range(2):
        book.close()
    assert [*memory.iterdir()] == []
    refused(book, "witness of these keys' last use is missing")
    assert read(book).last_reached() == 4


# --- where witnesses are: outside the disk of what they witness, and nobody else's ---


ENTRY = bytes(range(16))
MINE = f"flhe-{os.geteuid()}"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir(0o700)
    return tmp_path / "home"


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """All there is is one disk, which is not in memory."""
    monkeypatch.setattr(witness, "is_apart", is_apart)
    monkeypatch.setattr(witness, "_device", lambda path: 1 if Path(path).name else 2)
    monkeypatch.setattr(witness, "_defaults", lambda environ: [Path(environ["BASE"]) / MINE])
    monkeypatch.setattr(witness, "in_memory", lambda place: False)


def test_a_place_of_its_own(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first default that will do, in a directory of this user alone."""
    run = tmp_path / "run"
    run.mkdir()
    environ = {"XDG_RUNTIME_DIR": str(run)}
    assert find(None, home, environ=environ) == Witness(run / MINE)
    assert (run / MINE).stat().st_mode & 0o777 == 0o700
    (run / MINE).chmod(0o755)  # somebody else may look into it: another place
    assert find(None, home, environ=environ, make=False).place != run / MINE
    (run / MINE).rmdir()
    (run / MINE).symlink_to(tmp_path)
    assert find(None, home, environ=environ, make=False).place != run / MINE
    named = tmp_path / "named"
    assert find(named, home, make=False) == Witness(named)
    assert not named.exists()
    assert find(named, home, durable=True) == Witness(named, durable=True)
    named.chmod(0o750)
    with pytest.raises(StoreError, match="the witness's directory is open to others"):
        find(named, home)
    with pytest.raises(StoreError, match="cannot make a directory in the witness's directory"):
        find(tmp_path / "missing" / "place", home)
    # As a service's directory before its first start: an error, and no other place.
    monkeypatch.setattr(os, "access", lambda *_: False)
    for make in (True, False):
        with pytest.raises(StoreError, match="it exists once the service has been started"):
            find(tmp_path / "other", home, make=make)
    assert not (tmp_path / "other").exists()


@pytest.mark.usefixtures("disk")
def test_a_place_on_the_same_disk_is_no_witness(home: Path, tmp_path: Path) -> None:
    environ = {"BASE": str(tmp_path)}
    with pytest.raises(ConfigError, match="on the same disk as the state directory"):
        find(tmp_path / "named", home)
    assert find(None, home, environ=environ) == Witness(None)
    # A disk that is never rolled back may hold its own witness.
    assert find(None, home, durable=True, environ=environ).place == tmp_path / MINE
    (tmp_path / MINE).chmod(0o777)
    assert find(None, home, durable=True, environ=environ).place == home / "witness"
    assert (home / "witness").is_dir()


def test_what_is_apart(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another device, or one that is in memory and so never rolled back."""
    devices = {home: os.makedev(8, 1), tmp_path: os.makedev(8, 1), Path("/"): os.makedev(0, 30)}
    mounts = tmp_path / "mountinfo"
    monkeypatch.setattr(witness, "_device", devices.__getitem__)
    monkeypatch.setattr(witness, "_MOUNTS", mounts)
    line = "24 1 {} / /x rw,nosuid shared:2 - {} dev rw\n"
    mounts.write_text(line.format("8:1", "ext4") + line.format("0:30", "tmpfs"))
    assert (in_memory(tmp_path), in_memory(Path("/"))) == (False, True)
    assert not is_apart(tmp_path, home)
    assert is_apart(Path("/"), home)
    mounts.write_text(line.format("8:1", "tmpfs"))
    assert is_apart(tmp_path, home)
    assert in_memory(Path("/")) is None
    mounts.unlink()
    assert in_memory(tmp_path) is None
    assert not is_apart(tmp_path, home)


def test_a_witness_of_somebody_elses(tmp_path: Path) -> None:
    kept = Witness(tmp_path)
    kept.follow(ENTRY, lambda _: b"one", new=True)
    file = tmp_path / ENTRY.hex()
    file.chmod(0o644)
    with pytest.raises(StoreError, match="open to others"):
        kept.follow(ENTRY, lambda before: before)
    file.unlink()
    file.symlink_to(tmp_path / "target")
    with pytest.raises(StoreError, match="cannot use a file in the witness's directory"):
        kept.follow(ENTRY, lambda before: before, new=True)
    assert not (tmp_path / "target").exists()


def test_without_a_place_keys_last_as_long_as_their_process(home: Path) -> None:
    """The error of the next process says how to mend it."""
    book = Book(Store(home), "runs/7/journal")
    book.begin(lambda now: now.begun(ENTRY, 0))
    book.enter(lambda now: now.claimed(ENTRY, (1, 0, 0), Note()))
    code = (
        "import sys; from flhe.node.journal import Book; from flhe.node.store import Store\n"
        "Book(Store(sys.argv[1]), 'runs/7/journal').enter()"
    )
    next_one = [sys.executable, "-c", code, str(home)]
    said = subprocess.run(next_one, capture_output=True, check=False).stderr.decode()
    assert "NoKeyError: keys last as long as one process here" in said
    assert "set flhe-witness in the node config" in said
    book.enter(lambda now: now.claimed(ENTRY, (1, 1, 0), Note()))
    book.close()
    refused(book, "keys last as long as one process here")
