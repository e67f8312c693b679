"""Sealed boxes: vectors of a second implementation, any buffers, no change goes unseen."""

from __future__ import annotations

import dataclasses
import itertools
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flhe import errors
from flhe.errors import AuthenticationError, FlheError, ProtocolError
from flhe.keys import seal
from flhe.keys.seal import CHUNK, MAX_HEAD, Head, ModelKey, peek, unseal
from flhe.wire.canonical import dumps
from tests.keys import make_vectors
from tests.keys.make_vectors import unhex

KEY = ModelKey(bytes(16), 1, b"r" * 32, b"k" * 32)
ROUND, RANK = 4, 2


def sealed(
    plaintext: Any, key: ModelKey = KEY, round_: int = ROUND, rank: int = RANK, **how: Any
) -> bytes:
    return b"".join(seal.seal(key, round_, rank, plaintext, **how))


def opened(data: Any, key: ModelKey = KEY) -> tuple[int, int, bytes]:
    head, chunks = unseal(key, data)
    return head.round, head.rank, b"".join(chunks)


@pytest.mark.parametrize("case", make_vectors.cases("seal"), ids=lambda case: case["name"])
def test_vector(case: dict[str, Any]) -> None:
    box = bytes.fromhex(case["box"])
    key = ModelKey(
        bytes([0x33]) * 16, (1 << 64) - 1, bytes([0x11]) * 32, bytes.fromhex(case["key"])
    )
    if "error" not in case:
        assert case | make_vectors.seal(case) == case
        salt, plain = bytes.fromhex(case["salt"]), bytes.fromhex(case["plaintext"])
        head, size = unhex(case["head"]), case["chunk_bytes"]
        of = head["round"], head["rank"]
        assert sealed(plain, key, *of, random=lambda n: salt[:n], chunk_bytes=size) == box
        assert opened(box, key) == (*of, plain)
        return
    error = getattr(errors, case["error"])
    if case["at"] == "parse":
        with pytest.raises(error):
            peek(box)
    else:
        peek(box)
        with pytest.raises(error):
            opened(box, key)


def test_a_model_of_another_epoch_run_or_roster() -> None:
    for name, other in (("epoch", b"e" * 16), ("run_id", 2), ("roster_hash", bytes(32))):
        key: Any = dataclasses.replace(KEY, **{name: other})  # type: ignore[arg-type]
        with pytest.raises(ProtocolError, match=name):
            unseal(key, sealed(b"x"))
    with pytest.raises(FlheError, match="salt must be"):
        sealed(b"x", random=lambda n: bytes(n - 1))


FIELDS: Any = Head(KEY.epoch, KEY.run_id, KEY.roster_hash, ROUND, RANK, bytes(32), 9).to_fields()


def boxed(length: int, *fields: dict[str, Any]) -> bytes:
    """The start of a box with a head of `fields`, which says that it has `length` bytes more."""
    head = dumps({**FIELDS, **dict(*fields)})
    return b"flhe-seal/3\n" + (len(head) + length).to_bytes(4, "big") + head


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "does not start like one"),
        (b"flhe-seal/3\n", "does not start like one"),
        (b"flhe-seal/3\n\x00\x00\x00\x00", "CBOR ends early"),
        (boxed(MAX_HEAD) + bytes(MAX_HEAD), "cut short"),
        (boxed(0, {"chunk_bytes": 0}), "chunk_bytes must be an integer, 1 to"),
        (boxed(0, {"chunk_bytes": CHUNK + 1}), "chunk_bytes must be an integer, 1 to"),
    ],
)
def test_no_box_at_all(data: bytes, message: str) -> None:
    """Vectors have more of them."""
    for read in (peek, lambda data: unseal(KEY, data)):
        with pytest.raises(ProtocolError, match=message):
            read(data)


# --- chunk by chunk, from pieces ---


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """Cut `data` at those places, in any order and as often as they come: some pieces are empty."""
    at = sorted(place % (len(data) + 1) for place in places)
    return [data[i:j] for i, j in zip([0, *at], [*at, len(data)], strict=True)]


@given(st.binary(max_size=60), st.integers(1, 20), st.lists(st.integers(0, 10**6), max_size=8))
def test_pieces_cut_anywhere(plain: bytes, size: int, places: list[int]) -> None:
    """To seal or to open; and a box that is cut short raises, in any pieces."""
    box = sealed(plain, random=bytes, chunk_bytes=size)
    for given_ in (cut(plain, places), memoryview(plain), map(bytearray, cut(plain, places))):
        assert sealed(given_, random=bytes, chunk_bytes=size) == box
    pieces = cut(box, places)
    assert peek(pieces) == peek(box)
    whole = box, bytearray(box), memoryview(box)
    for data in (*whole, pieces, tuple(map(bytearray, pieces)), [memoryview(p) for p in pieces]):
        head, chunks = unseal(KEY, data)
        assert head == peek(box)
        assert (head.round, head.rank) == (ROUND, RANK)
        assert list(chunks) == [plain[i : i + size] for i in range(0, len(plain) or 1, size)]
    with pytest.raises(ProtocolError):
        list(unseal(KEY, cut(box[: places[0] % len(box) if places else -1], places))[1])


def test_what_was_changed_gives_nothing_out_of_place() -> None:
    """Each bit, and each order of so many chunks: what comes out before an error is the beginning."""
    plain = bytes(range(48))
    head, *chunks = seal.seal(KEY, ROUND, RANK, plain, chunk_bytes=16)

    def flipped(data: bytes, place: int) -> bytes:
        return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]

    def until_refused(*pieces: bytes) -> bytes:
        got = b""
        try:
            for chunk in unseal(KEY, pieces)[1]:
                got += chunk
        except AuthenticationError:
            return got
        return pytest.fail("it was not found out")

    for place in range(len(head)):  # before anything comes out, header included
        with pytest.raises(ProtocolError):
            unseal(KEY, [flipped(head, place), *chunks])
    for i, place in itertools.product(range(3), range(32)):  # 16 bytes of ciphertext, 16 of tag
        altered = [*chunks[:i], flipped(chunks[i], place), *chunks[i + 1 :]]
        assert until_refused(head, *altered) == plain[: 16 * i]
    for count in range(5):
        for order in itertools.product(range(3), repeat=count):
            if order != (0, 1, 2):
                assert plain.startswith(until_refused(head, *(chunks[i] for i in order)))


def test_a_stream_is_never_held_as_a_whole() -> None:
    size, count = 1 << 16, 64
    box = sealed(bytes(size * count), chunk_bytes=size)
    pieces = [memoryview(box)[at : at + size] for at in range(0, len(box), size)]
    tracemalloc.start()
    try:
        total = sum(len(chunk) for chunk in unseal(KEY, pieces)[1])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total == size * count
    assert peak < 5 * size  # a chunk joined of two pieces, its plaintext, and the one before
