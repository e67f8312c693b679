"""Records: Flower's forms and ours, and a ciphertext that nobody takes for a model."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from flhe.coding.support import Support
from flhe.errors import ProtocolError
from flhe.mods import records
from flhe.schemes.sealed import Sealed
from tests.laws import SLOT
from tests.source import ROOT


def sealed(size: int) -> Sealed:
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    return Sealed("flashe", SLOT, (0, 3), size, data)


def test_arrays_of_every_type_there_and_back() -> None:
    arrays: dict[str, Any] = {
        "w": np.arange(6, dtype=np.float32).reshape(2, 3),
        "half": np.array([0.5], np.float16),
        "double": np.array([[0.1]]),
        "brain": np.array([[0x3F80, 0xC040]], np.uint16).view("V2"),
        "scalar": np.array(3, np.int64),
        "empty": np.empty((0, 4), np.float32),
    }
    record = records.from_numpy(arrays)
    assert record["brain"].dtype == "bfloat16"
    back = records.to_numpy(record)
    assert list(back) == list(arrays)
    for name, array in arrays.items():
        assert (back[name].dtype, back[name].shape) == (array.dtype, array.shape)
        assert not back[name].flags.writeable
        assert back[name].tobytes() == array.tobytes()


def test_arrays_in_other_forms() -> None:
    fortran = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    big = np.arange(3, dtype=">f4")
    arrays = records.to_numpy(records.from_numpy({"fortran": fortran, "big": big}))
    assert arrays["fortran"].tolist() == fortran.tolist()
    assert arrays["big"].tolist() == big.tolist()
    assert not arrays["fortran"].flags.writeable
    good = records.from_numpy({"w": np.ones(4)})["w"].data
    for broken in (b"", b"x", good[:-1], b"\x93NUMPY\x09\x00" + good[8:]):
        array = Array("float64", (4,), "numpy.ndarray", broken)
        with pytest.raises(ProtocolError, match=r"must be an \.npy file"):
            records.to_numpy(ArrayRecord({"w": array}))
    with pytest.raises(ProtocolError, match="of another stype"):
        records.to_numpy(ArrayRecord({"w": Array("float64", (4,), "other", good)}))
    for shape in (b"(-1,),", b"(99,),"):
        evil = Array(np.zeros(1))
        evil.data = evil.data.replace(b"(1,), ", shape)
        with pytest.raises(ProtocolError, match="cut short"):
            records.to_numpy(ArrayRecord({"w": evil}))
    large = Array(np.zeros((2, 3), order="F"))  # nothing is allocated by what a header claims
    large.data = large.data.replace(b"(2, 3), }         ", b"(2, 3000000000), }")
    assert b"3000000000" in large.data
    with pytest.raises(ProtocolError, match="cut short"):
        records.to_numpy(ArrayRecord({"w": large}))


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "PIECE", 10)


@pytest.mark.usefixtures("_short")
@pytest.mark.parametrize("size", [0, 10, 11, 35])
def test_ciphertext_in_pieces(size: int) -> None:
    whole = sealed(size)
    record = records.from_sealed(whole)
    assert list(record) == [f"{i:04d}" for i in range(max(-(-size // 10), 1))]
    assert {array.stype for array in record.values()} == {"flhe.sealed/1"}
    again = records.to_sealed(whole.header(), record)
    assert (again.digest(), again.data.dtype) == (whole.digest(), np.uint8)
    one_piece = np.frombuffer(record["0000"].data, np.uint8)
    assert np.shares_memory(again.data, one_piece) == (0 < size <= 10)  # and is not copied
    assert records.to_sealed(whole.header(), record, take=True).digest() == whole.digest()
    assert len(record) == (size <= 10)  # pieces are gone once they are joined


def sparse(size: int) -> Sealed:
    supports = tuple(Support.of(np.arange(n, dtype=np.uint32), 99) for n in (3, 50))
    return dataclasses.replace(sealed(size), mode="single", supports=supports)


@pytest.mark.usefixtures("_short")
@pytest.mark.parametrize("size", [0, 10, 35])
def test_supports_travel_behind_the_ciphertext_or_before_it(size: int) -> None:
    whole = sparse(size)
    record = records.from_sealed(whole)
    assert {array.stype for array in record.values()} == {"flhe.sealed/1"}
    assert max(len(array.data) for array in record.values()) <= 10
    again = records.to_sealed(whole.header(), record)
    assert (again.digest(), again.supports) == (whole.digest(), whole.supports)
    alone = records.from_sealed(whole, supports=False)
    assert sum(len(array.data) for array in alone.values()) == size
    again = records.to_sealed(whole.header(), alone, supports=whole.supports)
    assert (again.digest(), again.supports) == (whole.digest(), whole.supports)
    for supports in (None, (), whole.supports[::-1], whole.supports[:1]):
        with pytest.raises(ProtocolError):
            records.to_sealed(whole.header(), alone, supports=supports)
    with pytest.raises(ProtocolError):
        records.to_sealed(sealed(size).header(), alone, supports=whole.supports)


@pytest.mark.usefixtures("_short")
def test_pieces_that_do_not_belong() -> None:
    whole = sealed(35)
    pieces = dict(records.from_sealed(whole))
    broken: list[dict[str, Array]] = [
        {},
        {k: v for k, v in pieces.items() if k != "0001"},
        dict(reversed(pieces.items())),
        {**pieces, "extra": pieces["0000"]},
        {"w": pieces["0000"]},
    ]
    for odd in broken:
        with pytest.raises(ProtocolError, match="missing or out of order"):
            records.to_sealed(whole.header(), ArrayRecord(odd))
    for stype in ("numpy.ndarray", "flhe.checkpoint/1", "flhe.sealed/2", "", "4711"):
        odd = {**pieces, "0002": dataclasses.replace(pieces["0002"], stype=stype)}
        with pytest.raises(ProtocolError, match="expected a ciphertext") as raised:
            records.to_sealed(whole.header(), ArrayRecord(odd))
        assert "4711" not in str(raised.value)  # a node's words
    with pytest.raises(ProtocolError):
        records.to_sealed(b"", ArrayRecord(pieces))


def test_fields_are_of_exactly_one_type() -> None:
    record = records.stage_record("round", round=3, terms=b"t", flag=True, a=[b"1"], b=["1"])
    for name, value in (("stage", "round"), ("v", records.PROTOCOL), ("terms", b"t")):
        assert records.field(record, name, type(value)) == value
    for name, kind in (("round", str), ("flag", int), ("missing", int), ("terms", str)):
        with pytest.raises(ProtocolError, match=f"field '{name}' of a stage must be"):
            records.field(record, name, kind)
    assert (records.bytes_list(record, "a"), records.bytes_list(record, "missing")) == ([b"1"], [])
    for name in ("b", "terms", "round"):
        with pytest.raises(ProtocolError, match=f"field '{name}'.* list of bytes"):
            records.bytes_list(record, name)


def test_the_page_says_the_protocols_version() -> None:
    page = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    assert re.findall(r"the protocol's version \((\d+),", page) == [f"{records.PROTOCOL}"]


def test_a_reply_of_another_version_is_none(caplog: pytest.LogCaptureFixture) -> None:
    reply = records.reply(step="update")
    ours = records.find_reply(reply)
    assert ours is not None
    assert ours == reply[records.REPLY]
    assert records.find_reply(RecordDict()) is None
    assert not caplog.records
    for spoken in (records.PROTOCOL - 1, records.PROTOCOL + 1, str(records.PROTOCOL)):
        other = ConfigRecord({**ours, "v": spoken})
        assert records.find_reply(RecordDict({records.REPLY: other})) is None
    assert "another version of flhe's protocol" in caplog.text
