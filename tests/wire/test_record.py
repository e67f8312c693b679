"""Records: what is declared is written, read and refused; each class of flhe's is in tests/fuzz."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flhe.errors import ConfigError, FlheError, ProtocolError, StoreError
from flhe.wire.canonical import dumps, loads
from flhe.wire.fields import (
    BIG,
    SECRET,
    U32,
    As,
    Hash,
    Rule,
    array,
    ascending,
    at_most,
    matching,
    size,
    within,
)
from flhe.wire.record import Form, Record, frame, unframe
from flhe.wire.record import Kept as KeptRecord
from flhe.wire.secret import Secret


@dataclass(frozen=True, slots=True)
class Point(Record):
    FORM = Form("point", row=True)

    x: Annotated[int, within(-9, 9)] = 0
    y: float = 0.0


@dataclass(frozen=True, slots=True)
class Inner(Record):
    FORM = Form("inner", most=200, kind="inner", version=3, origin="no inner file")

    name: Annotated[str, matching("[a-z]+", "small letters")] = "a"


@dataclass(frozen=True, slots=True)
class Thing(Record):
    FORM = Form("thing", most=4000, kind="thing", version=2, advice="upgrade flhe")

    key: Annotated[Hash, SECRET] = bytes(32)
    count: U32 = 0
    share: Annotated[float, Rule("a number, 0 to 1", lambda share: 0 <= share <= 1)] = 0.5
    mode: Literal["one", "two"] = "one"
    on: bool = False
    point: Point = Point()
    inner: Inner = Inner()
    points: Annotated[tuple[Point, ...], at_most(3, "points")] = ()
    names: Annotated[tuple[str, ...], ascending("names")] = ()
    pair: tuple[U32, str] = (1, "x")
    kept: tuple[tuple[U32, Annotated[bytes, size(0, 2)]], ...] = ()
    by_round: Annotated[Any, As(dict, dict, "a map")] = ()
    large: Annotated[int, BIG] = 1 << 70
    maybe: Inner | None = None

    def _validate(self) -> None:
        if self.count == 13:
            raise ConfigError("thing: 13 brings no luck")


@dataclass(frozen=True, slots=True)
class Kept(Record):
    FORM = Form("kept", damaged=StoreError("a kept file is damaged"))

    one: int | None = None
    rounds: dict[U32, bytes] | None = None


@dataclass(frozen=True, slots=True)
class Held(Record):
    FORM = Form("held", version=1)

    numbers: Annotated[Any, array(np.int16)]


THING = Thing(by_round={"a": 1}, inner=Inner("b"), points=(Point(1, 2.5),), names=("a", "b"))
THINGS = st.builds(
    Thing,
    key=st.binary(min_size=32, max_size=32),
    count=st.integers(14, 2**32 - 1),
    share=st.floats(0, 1),
    mode=st.sampled_from(["one", "two"]),
    on=st.booleans(),
    point=st.builds(Point, st.integers(-9, 9), st.floats(allow_nan=False, allow_infinity=False)),
    points=st.lists(st.builds(Point, st.integers(-9, 9)), max_size=3).map(tuple),
    names=st.sets(st.text(max_size=3)).map(lambda names: tuple(sorted(names))),
    kept=st.lists(st.tuples(st.integers(0, 9), st.sampled_from([b"", b"ab"]))).map(tuple),
    by_round=st.dictionaries(st.text(max_size=2), st.integers(0, 9)),
    large=st.integers(0, 1 << 90),
    maybe=st.none() | st.just(Inner("z")),
)


@given(THINGS)
def test_what_is_written_is_read_again(thing: Thing) -> None:
    again = Thing.from_bytes(thing.to_bytes())
    assert again == thing
    assert again.to_bytes() == thing.to_bytes()
    assert type(again.key) is Secret
    assert bytes(again.key).hex() not in repr(again)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"count": -1}, "count must be an unsigned 32-bit integer"),
        ({"count": True}, "count must be"),
        ({"key": bytes(31)}, "key must be 32 bytes"),
        ({"share": 1.5}, "share must be a number, 0 to 1"),
        ({"share": float("nan")}, "share must be"),
        ({"mode": "three"}, "mode must be one of one, two"),
        ({"points": (Point(),) * 4}, "points must be .*at most 3 points"),
        ({"names": ("b", "a")}, "names must be .*ascend, each once"),
        ({"names": ("a", "a")}, "names must be"),
        ({"pair": (1, 2)}, "pair must be"),
        ({"point": Inner()}, "point must be a point"),
        ({"kept": ((1, b"x"),)}, "kept must be"),
    ],
)
def test_values_out_of_bounds_are_never_made(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ProtocolError, match=f"thing: field {says}"):
        replace(THING, **change)


BODY = loads(THING.to_bytes(), 4000, "thing")
STRANGER = "whatever a stranger likes"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({**BODY, "v": 3}, "thing: version 3, this flhe reads 2: upgrade flhe"),
        ({**BODY, "kind": STRANGER}, "thing: this is another kind of encoding"),
        ({**BODY, STRANGER: 1}, "thing: 1 unknown fields: upgrade flhe"),
        ({**BODY, "count": STRANGER}, "thing: field count must be an unsigned"),
        ({**BODY, "count": 13}, "thing: thing: 13 brings no luck"),
        ({k: v for k, v in BODY.items() if k != "count"}, "thing: field count is missing"),
        ({**BODY, "share": "0.5"}, "thing: field share must be"),
        ({**BODY, "share": "nan"}, "thing: field share must be"),
        ({**BODY, "point": [0, "-0x0.0p+0"]}, "point: not written as flhe writes it"),
        ({**BODY, "point": [10, "0x0.0p+0"]}, "point: field x must be"),
        ({**BODY, "point": [0]}, "point: field y is missing"),
        ({**BODY, "large": b"\0\1"}, "thing: field large must be"),
        ({**BODY, "inner": dumps([])}, "inner: this is no inner file"),
        ({**BODY, "inner": BODY["inner"] + bytes(200)}, "inner: 2.. bytes, at most 200"),
        ([], "thing: got list, needs a map of named fields"),
    ],
)
def test_errors_name_the_field_and_repeat_nothing(body: Any, says: str) -> None:
    with pytest.raises(ProtocolError, match=f"^{says}") as caught:
        Thing.from_bytes(dumps(body))
    assert STRANGER not in str(caught.value)


def test_a_damaged_record_says_what_its_form_says() -> None:
    some = Kept(1, {2: b"b", 1: b"a"})
    assert loads(some.to_bytes(), 99, "") == {"one": 1, "rounds": [[1, b"a"], [2, b"b"]]}
    assert Kept.from_bytes(some.to_bytes()) == some
    for rounds in ([[2, b""], [1, b""]], [[1, b""], [1, b""]], [[1]], 1):
        with pytest.raises(StoreError, match="a kept file is damaged"):
            Kept.from_bytes(dumps({"one": 1, "rounds": rounds}))
    for bad in ({"one": 1}, {"two": 1}, []):
        with pytest.raises(StoreError, match="a kept file is damaged"):
            Kept.from_bytes(dumps(bad))


def test_arrays() -> None:
    held = Held(np.array([1, -2], np.int16))
    assert Held.from_bytes(held.to_bytes()).numbers.tolist() == [1, -2]
    for numbers in (b"abc", b"", "ab", 1):
        with pytest.raises(ProtocolError, match="numbers must be int16 numbers"):
            Held.from_bytes(dumps({"v": 1, "numbers": numbers}))


def test_frames() -> None:
    data = frame(THING, b"magic") + b"data"
    head, at = unframe(Thing, data, b"magic")
    assert (head, data[at:]) == (THING, b"data")
    for size_ in range(at):
        with pytest.raises(FlheError):
            unframe(Thing, data[:size_], b"magic")
    with pytest.raises(StoreError, match="damaged"):
        unframe(Kept, b"\0\0\0\1")


def test_a_type_without_an_encoding_is_a_mistake_of_ours() -> None:
    @dataclass(frozen=True)
    class Odd(Record):
        FORM = Form("odd")
        value: complex = 0j

    with pytest.raises(TypeError, match="has no encoding in a record"):
        Odd()


@dataclass(frozen=True, slots=True)
class Named(KeptRecord):
    FORM = Form("named", most=200, kind="named", version=1)

    name: str = ""


def test_what_is_kept_is_one_object_and_still_bounded() -> None:
    data = Named("a").to_bytes()
    made = Named.from_bytes(data)
    assert made == Named("a")
    assert Named.from_bytes(bytearray(data)) is made  # type: ignore[arg-type]
    assert replace(made, name="b").to_bytes() == Named("b").to_bytes() != data
    for _ in range(2):
        with pytest.raises(ProtocolError, match="at most 3 are accepted"):
            Named.from_bytes(data, 3)
        with pytest.raises(ProtocolError, match="after the end"):
            Named.from_bytes(data + b"\0")
        with pytest.raises(ProtocolError, match="named: 201 bytes, at most 200 are accepted"):
            Named.from_bytes(b"\xff" * 201)
