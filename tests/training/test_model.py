"""Model: its bytes there and back, and a refusal for any others."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flhe.coding.support import Support
from flhe.errors import ConfigError, FlheError, ProtocolError
from flhe.training.model import MAGIC, VERSION, Memory, Model
from flhe.wire import canonical


def arrays() -> dict[str, NDArray[Any]]:
    return {
        "w": np.arange(6, dtype=np.float32).reshape(2, 3),
        "half": np.array([0.5], np.float16),
        "brain": np.array([0x3F80, 0xC040], np.uint16).view("V2"),
        "double": np.array([0.1]),
        "steps": np.array(41, np.int64),
        "bytes": np.array([[1], [255]], np.uint8),
        "empty": np.empty((0, 3), np.float32),
        "scalar": np.array(2.5, np.float32),
        "none": np.empty((2, 0), np.int16),
    }


def encoded(model: Model) -> bytes:
    return b"".join(model.chunks())


def same(one: Model, other: Model) -> bool:
    alike = (one.layout, one.round, one.history) == (other.layout, other.round, other.history)
    return alike and all(
        one.masters[e.name].dtype == other.masters[e.name].dtype
        and one.masters[e.name].shape == other.masters[e.name].shape
        and one.masters[e.name].tobytes() == other.masters[e.name].tobytes()
        for e in one.layout.entries
    )


def test_round_trip() -> None:
    first = Model.initial(arrays())
    model = Model(first.layout, 7, bytes(range(32)), first.masters)
    again = Model.from_bytes(encoded(model))
    assert same(again, model)
    assert encoded(again) == encoded(model)
    for name, array in again.arrays().items():
        assert array.tobytes() == arrays()[name].tobytes()


def test_of_nothing() -> None:
    model = Model.initial({})
    assert same(Model.from_bytes(encoded(model)), model)


def test_initial_is_a_copy_in_round_0() -> None:
    mine = arrays()
    model = Model.initial(mine)
    mine["w"][:] = 9
    assert model.round == 0
    assert model.masters["w"].max() == 5
    with pytest.raises(ConfigError, match="'flags' is bool"):
        Model.initial({"flags": np.array([True])})


def test_history_is_a_chain_over_the_initial_model_and_every_sum() -> None:
    mine = arrays()
    model = Model.initial(mine)
    others = [Model.initial({**mine, "w": mine["w"] + 1})]
    others.append(Model.initial({("v" if k == "w" else k): a for k, a in mine.items()}))
    one, other = bytes([1]) * 32, bytes([2]) * 32
    after = model.after(1, one, model.masters, {})
    others += [after, model.after(1, other, model.masters, {}), after.after(2, one, mine, {})]
    others.append(model.after(1, other, model.masters, {}).after(2, one, model.masters, {}))
    histories = {model.history, *(m.history for m in others)}
    assert len(histories) == len(others) + 1
    assert all(len(h) == 32 for h in histories)
    assert (after.round, after.layout) == (1, model.layout)
    same = {model.after(1, one, {}, {}).history, model.after(5, one, mine, moments(model)).history}
    assert same == {after.history}, "weights that were never public stay out, and rounds left out"


def test_a_secret_initial_model_has_a_history_that_says_nothing() -> None:
    mine, nonce = arrays(), bytes(range(32))
    model = Model.secret_initial(mine, nonce)
    other = Model.secret_initial({**mine, "w": mine["w"] + 1}, nonce)
    assert model.history == other.history, "the arrays are not in it"
    assert encoded(model) != encoded(other)
    histories = {model.history, Model.initial(mine).history}
    histories.add(Model.secret_initial(mine, bytes(32)).history)
    histories.add(Model.secret_initial({"w": mine["w"]}, nonce).history)
    assert len(histories) == 4
    assert (model.round, len(model.history)) == (0, 32)
    mine["w"][:] = 9
    assert model.masters["w"].max() == 5
    for bad in (b"", bytes(31), bytes(33)):
        with pytest.raises(ConfigError, match="32 random bytes"):
            Model.secret_initial(mine, bad)
    with pytest.raises(ConfigError, match="'flags' is bool"):
        Model.secret_initial({"flags": np.array([True])}, nonce)


def moments(model: Model, *names: str) -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(3)
    return {name: rng.random(model.layout.floats, np.float32) for name in names or ("m", "v")}


def test_moments_go_there_and_back() -> None:
    first = Model.initial(arrays())
    model = first.after(3, bytes(32), first.masters, moments(first, "v", "m"))
    again = Model.from_bytes(encoded(model))
    assert same(again, model)
    assert encoded(again) == encoded(model)
    assert list(again.moments) == ["v", "m"]
    for name, moment in again.moments.items():
        assert moment.dtype == np.float32
        assert moment.tobytes() == model.moments[name].tobytes()


def test_steps_count_sums_and_not_rounds() -> None:
    first = Model.initial(arrays())
    second = first.after(3, bytes(32), first.masters, {})
    third = second.after(9, bytes(32), first.masters, {})
    assert [(m.round, m.steps) for m in (first, second, third)] == [(0, 0), (3, 1), (9, 2)]
    again = Model.from_bytes(encoded(third))
    assert (again.round, again.steps) == (9, 2)
    assert encoded(dataclasses.replace(third, steps=1)) != encoded(third)


def memory(**lengths: int) -> Memory:
    rng = np.random.default_rng(4)
    return {name: rng.random(length) for name, length in (lengths or {"b": 9, "a": 2}).items()}


def test_memory_goes_there_and_back() -> None:
    first = Model.initial(arrays())
    for kept in (memory(), memory(clip=1), memory(none=0, one=1)):
        model = first.after(3, bytes(32), first.masters, moments(first), kept)
        again = Model.from_bytes(encoded(model))
        assert same(again, model)
        assert encoded(again) == encoded(model)
        assert list(again.memory) == list(kept)
        for name, numbers in again.memory.items():
            assert numbers.dtype == np.float64
            assert numbers.tobytes() == kept[name].tobytes()
        assert again.moments["m"].tobytes() == model.moments["m"].tobytes()


def test_a_mask_goes_there_and_back_and_stays() -> None:
    first = Model.initial(arrays())
    mask = Support.of(np.array([0, 2], np.uint32), first.layout.floats)
    chosen = first.masked(1, bytes(32), mask)
    again = Model.from_bytes(b"".join(chosen.chunks()))
    assert again.mask == mask
    assert (again.round, again.steps, again.history) == (1, 0, chosen.history)
    assert chosen.history == first.after(1, bytes(32), first.masters, {}).history
    assert again.after(2, bytes(32), first.masters, {}).mask == mask
    other = first.masked(1, bytes(32), Support.of(np.array([0, 1], np.uint32), mask.length))
    assert other.fingerprint() != chosen.fingerprint()
    assert first.mask is None


def test_memory_is_the_last_sums_alone() -> None:
    first = Model.initial(arrays())
    assert first.memory == {}
    kept = first.after(1, bytes(32), first.masters, {}, memory())
    assert list(kept.memory) == ["b", "a"]
    assert kept.after(2, bytes(32), first.masters, {}).memory == {}
    assert kept.history == first.after(1, bytes(32), first.masters, {}).history


def test_memory_is_in_the_encoding() -> None:
    first = Model.initial(arrays())
    other = memory()
    other["a"] = np.nextafter(other["a"], 2)
    swapped = {name: memory()[name] for name in ("a", "b")}
    made = [{}, memory(), other, swapped, {**memory(), "c": np.empty(0)}]
    encodings = {encoded(first.after(1, bytes(32), first.masters, {}, kept)) for kept in made}
    assert len(encodings) == len(made)


def test_repr_shows_no_weights() -> None:
    for name in ("masters", "moments", "memory"):
        assert name not in repr(Model.initial(arrays()))


def head(body: object, data: bytes = b"") -> bytes:
    text = canonical.dumps(body)
    return MAGIC + len(text).to_bytes(4, "big") + text + data


def layout(*entries: list[Any]) -> dict[str, Any]:
    return {
        "v": VERSION,
        "round": 0,
        "steps": 0,
        "layout": list(entries),
        "history": bytes(32),
        "moments": [],
        "memory": [],
        "mask": 0,
    }


def remembering(*sizes: list[Any]) -> dict[str, Any]:
    return {**GOOD, "memory": list(sizes)}


MASK = Support.of(np.array([1], np.uint32), 2).data
"""The second of two values."""

GOOD = layout(["w", [2], "float32"])
MALFORMED: dict[str, bytes] = {
    "empty": b"",
    "another magic": b"PK\x03\x04" + bytes(20),
    "magic alone": MAGIC,
    "no head": MAGIC + b"\x00\x00\x00\x00",
    "a head longer than the file": MAGIC + b"\xff\xff\xff\xff" + bytes(8),
    "no data": head(GOOD),
    "too little data": head(GOOD, bytes(7)),
    "too much data": head(GOOD, bytes(9)),
    "version 5": head({**GOOD, "v": 5}, bytes(8)),
    "mask without data": head({**GOOD, "mask": 6}, bytes(8)),
    "mask cut short": head({**GOOD, "mask": 6}, bytes(8) + MASK[:5]),
    "a mask that is too short": head({**GOOD, "mask": 4}, bytes(8) + MASK[:4]),
    "a mask that is too long": head({**GOOD, "mask": 7}, bytes(8) + MASK + b"\0"),
    "a mask of another layout": head({**GOOD, "mask": 6}, bytes(8) + MASK[:5] + b"\4"),
    "data of a mask that is not named": head(GOOD, bytes(8) + MASK),
    "more steps than rounds": head({**GOOD, "round": 3, "steps": 4}, bytes(8)),
    "a moment without data": head({**GOOD, "moments": ["m"]}, bytes(8)),
    "a moment cut short": head({**GOOD, "moments": ["m"]}, bytes(15)),
    "data of a moment that is not named": head(GOOD, bytes(16)),
    "a moment twice": head({**GOOD, "moments": ["m", "m"]}, bytes(24)),
    "many moments": head({**GOOD, "moments": list("abcdefghi")}, bytes(8 * 10)),
    "length of more than the layers": head(remembering(["c", 2]), bytes(24)),
    "memory twice": head(remembering(["c", 1], ["c", 1]), bytes(24)),
    "memory twice of nothing": head(remembering(["c", 0], ["c", 0]), bytes(8)),
    "much memory": head(remembering(*([name, 1] for name in "abcdefghi")), bytes(8 * 10)),
    "memory without data": head(remembering(["c", 1]), bytes(8)),
    "memory cut short": head(remembering(["c", 1]), bytes(15)),
    "memory and more": head(remembering(["c", 1]), bytes(17)),
    "data of memory that is not named": head(remembering(["c", 0]), bytes(16)),
    "memory in place of a moment": head({**remembering(["c", 1]), "moments": ["m"]}, bytes(16)),
    "a huge array": head(layout(["w", [1 << 62, 1 << 62], "float32"]), bytes(8)),
    "an empty array too large for numpy": head(layout(["w", [0, 1 << 62], "float32"])),
    "an empty array far too large": head(layout(["w", [0, (1 << 64) - 1], "float32"])),
    "too many dimensions": head(layout(["w", [1] * 70, "float32"]), bytes(4)),
}


SAYS = {
    "magic alone": "model head: it does not start like one",
    "a head longer than the file": "model head: cut short",
    "too little data": "model: cut short",
    "too much data": "shorter or longer than its head says",
    "version 5": "version 5, this flhe reads 4",
    "history of 31 bytes": "another version",
    "more steps than rounds": "malformed head$",
    "a field more": "malformed head$",
    "mask true": "malformed head$",
    "a mask that is too long": "malformed mask",
    "a mask that is too short": "malformed mask",
    "memory twice of nothing": "malformed head",
    "length of more than the layers": "malformed head",
}
"""What some of them are refused with, for the guards that others would stand in for."""


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed(name: str) -> None:
    assert Model.from_bytes(head(GOOD, bytes(8))).round == 0
    whole = head(remembering(*([name, 1] for name in "abcdefgh")), bytes(8 * 9))
    assert len(Model.from_bytes(whole).memory) == 8
    with pytest.raises(ProtocolError, match=SAYS.get(name)):
        Model.from_bytes(MALFORMED[name])


@pytest.mark.parametrize(
    "entries",
    [
        [["w", [1], "bool"]],
        [["w", [1], "object"]],
        [["w", [1], "float128"]],
        [["w", [-1], "float32"]],
        [["w", [1], "uint8"], ["w", [1], "uint8"]],
    ],
)
def test_layouts_that_cannot_be(entries: list[Any]) -> None:
    with pytest.raises(FlheError):
        Model.from_bytes(head(layout(*entries), bytes(4)))
