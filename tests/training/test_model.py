"""Model: its bytes there and back, and a refusal for any others."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flhe.coding.support import Support
from flhe.errors import ConfigError, FlheError, ProtocolError
from flhe.training.chain import MAX_LINKS, Link
from flhe.training.model import MAGIC, VERSION, Model
from flhe.wire import canonical

ONE, OTHER = bytes([1]) * 32, bytes([2]) * 32
"""Digests of sums."""


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


FIRST = Model.initial(arrays())
MASK = Support.of(np.array([0, 2], np.uint32), FIRST.layout.floats)


def vectors(dtype: Any, **lengths: int) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(3)
    return {name: rng.random(length).astype(dtype) for name, length in lengths.items()}


def moments(*names: str) -> dict[str, NDArray[Any]]:
    return vectors(np.float32, **dict.fromkeys(names or ("v", "m"), FIRST.layout.floats))


def linked(model: Model, digest: bytes, before: bytes, senders: bytes = bytes(16)) -> Model:
    return model.linked(Link(model.round, before, digest, senders))


def after(
    model: Model, round_: int, moments: Any, memory: Any = None, digest: bytes = ONE, **how: Any
) -> Model:
    """A model once a sum with this digest has left its arrays as they are."""
    kept = {"moments": moments, "memory": memory or {}, "steps": model.steps + 1}
    then = dataclasses.replace(model, round=round_, **kept)
    return linked(then, digest, model.history, **how)


def masked(model: Model, round_: int, mask: Support) -> Model:
    return linked(dataclasses.replace(model, round=round_, mask=mask), ONE, model.history)


MEMORY = vectors(np.float64, b=9, a=2)
CHOSEN = masked(FIRST, 1, MASK)
MODELS: dict[str, Model] = {
    "of nothing": Model.initial({}),
    "first": FIRST,
    "secret": Model.secret_initial(arrays(), bytes(32)),
    "of round 7": dataclasses.replace(FIRST, round=7, history=bytes(range(32))),
    "with moments": after(FIRST, 3, moments()),
    "with memory": after(FIRST, 3, moments(), MEMORY),
    "memory by a bit": after(FIRST, 3, {}, MEMORY | {"a": np.nextafter(MEMORY["a"], 2)}),
    "with a mask": CHOSEN,
    "another mask": masked(FIRST, 1, Support.of(np.array([0, 1], np.uint32), MASK.length)),
    "after a mask": after(CHOSEN, 2, moments(), MEMORY),
    "another sum": after(FIRST, 3, moments(), digest=OTHER),
    "another sender": after(FIRST, 3, moments(), senders=bytes(8)),
}


def contents(model: Model) -> list[object]:
    """All that is in a model, to the last bit."""
    kept = [model.masters, model.moments, model.memory]
    arrays = [[(n, a.dtype, a.shape, a.tobytes()) for n, a in of.items()] for of in kept]
    return [model.layout, model.round, model.history, model.chain, model.steps, model.mask, *arrays]


@pytest.mark.parametrize("name", MODELS)
def test_round_trip(name: str) -> None:
    model = MODELS[name]
    again = Model.from_bytes(encoded(model))
    assert contents(again) == contents(model)
    assert encoded(again) == encoded(model)
    alike = [name for name, other in MODELS.items() if other.fingerprint() == model.fingerprint()]
    assert alike == [name]
    for hidden in ("masters", "moments", "memory"):
        assert hidden not in repr(model)


def test_history_is_a_chain_over_the_initial_model_and_every_sum() -> None:
    mine, nonce = arrays(), bytes(range(32))
    moved = mine | {"w": mine["w"] + 1}
    first = after(FIRST, 1, {})
    others = [
        Model.initial(moved),
        Model.initial({("v" if k == "w" else k): a for k, a in mine.items()}),
        first,
        after(FIRST, 2, {}),
        after(FIRST, 1, {}, digest=OTHER),
        after(FIRST, 1, {}, senders=bytes(8)),
        after(first, 2, {}),
        after(after(FIRST, 1, {}, digest=OTHER), 2, {}),
        Model.secret_initial(mine, nonce),
        Model.secret_initial(mine, bytes(32)),
        Model.secret_initial({"w": mine["w"]}, nonce),
    ]
    histories = {FIRST.history, *(m.history for m in others)}
    assert len(histories) == len(others) + 1
    assert all(len(h) == 32 for h in histories)
    # Weights that were never public stay out, and memory, a mask.
    assert {m.history for m in (after(FIRST, 1, moments(), MEMORY), CHOSEN)} == {first.history}
    secret = Model.secret_initial(moved, nonce)
    assert secret.history == Model.secret_initial(mine, nonce).history
    assert encoded(secret) != encoded(Model.secret_initial(mine, nonce))


# --- anything else ---


def head(change: dict[str, Any], data: bytes = bytes(8)) -> bytes:
    """A model of two numbers, with something else in its head."""
    body = {
        "v": VERSION,
        "round": 0,
        "steps": 0,
        "layout": [["w", [2], "float32"]],
        "history": bytes(32),
        "chain": [],
        "moments": [],
        "memory": [],
        "mask": 0,
        **change,
    }
    text = canonical.dumps(body)
    return MAGIC + len(text).to_bytes(4, "big") + text + data


def array(*entry: Any) -> dict[str, Any]:
    return {"layout": [list(entry)]}


BITS = Support.of(np.array([1], np.uint32), 2).data
LENGTH, HEAD = "its length differs from that in its head", "malformed head$"
MALFORMED: dict[str, tuple[bytes, str]] = {
    "another magic": (b"PK\x03\x04" + bytes(20), "it does not start like one"),
    "a head longer than the file": (MAGIC + b"\xff" * 4 + bytes(8), "model head: cut short"),
    "no data": (head({}, b""), LENGTH),
    "version 4": (head({"v": 4}), "version 4, this flhe reads 5"),
    "a link without senders": (head({"chain": [[1, bytes(32), bytes(32)]]}), "field chain"),
    "a link of another length": (head({"chain": [[1, bytes(31), bytes(32), b""]]}), "field chain"),
    "many links": (head({"chain": [[1, bytes(32), bytes(32), b""]] * (MAX_LINKS + 1)}), "links"),
    "mask cut short": (head({"mask": 6}, bytes(8) + BITS[:5]), LENGTH),
    "a mask that is too short": (head({"mask": 4}, bytes(8) + BITS[:4]), "malformed mask"),
    "a mask that is too long": (head({"mask": 7}, bytes(8) + BITS + b"\0"), "malformed mask"),
    "a mask of another layout": (head({"mask": 6}, bytes(8) + BITS[:5] + b"\4"), "support"),
    "data of a mask that is not named": (head({}, bytes(8) + BITS), LENGTH),
    "more steps than rounds": (head({"round": 3, "steps": 4}), HEAD),
    "a moment twice": (head({"moments": ["m", "m"]}, bytes(24)), HEAD),
    "many moments": (head({"moments": list("abcdefghi")}, bytes(8 * 10)), "names"),
    "memory twice of nothing": (head({"memory": [["c", 0], ["c", 0]]}), HEAD),
    "much memory": (head({"memory": [[n, 1] for n in "abcdefghi"]}, bytes(8 * 10)), "vectors"),
    "memory cut short": (head({"memory": [["c", 1]]}, bytes(15)), LENGTH),
    "a huge array": (head(array("w", [1 << 62, 1 << 62], "float32")), "layout"),
    "a type that does not average": (head(array("w", [1], "bool"), bytes(4)), "'w' is bool"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed(name: str) -> None:
    assert Model.from_bytes(head({})).round == 0
    most = head({"memory": [[n, 1] for n in "abcdefgh"]}, bytes(8 * 9))
    assert len(Model.from_bytes(most).memory) == 8
    data, says = MALFORMED[name]
    with pytest.raises(FlheError, match=says) as caught:
        Model.from_bytes(data)
    assert isinstance(caught.value, ProtocolError | ConfigError)
