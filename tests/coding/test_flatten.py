"""Flatten: every type there and back, and a refusal that names the layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from flhe.coding import flatten
from flhe.coding.flatten import MAX_CHANGE, MAX_ENTRIES, Entry, Layout, layout_of
from flhe.errors import ConfigError, FlheError, RangeError, ReplyError

BF16 = np.dtype("V2")


def bfloat16(values: list[float]) -> NDArray[Any]:
    """The upper halves of float32, for values that have nothing in the lower one."""
    bits = np.array(values, np.float32).view(np.uint32)
    assert not (bits & 0xFFFF).any()
    return (bits >> 16).astype(np.uint16).view(BF16)


def model() -> dict[str, NDArray[Any]]:
    """One array of every kind that there is."""
    return {
        "conv.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "half": np.array([0.5, -2.0], np.float16),
        "brain": bfloat16([1.0, -3.0, 0.25, 0.0]).reshape(2, 2),
        "double": np.array([[1.0 + 2.0**-40]], np.float64),
        "scalar": np.array(4.0, np.float32),
        "brain_scalar": bfloat16([2.0]).reshape(()),
        "empty": np.empty((0, 7), np.float32),
        "bn.running_var": np.array([0.5, 0.25], np.float32),
        "bn.num_batches_tracked": np.array(41, np.int64),
        "index": np.array([250, 3], np.uint8),
        "no_index": np.empty((3, 0), np.int32),
    }


def same(ours: NDArray[Any], theirs: NDArray[Any]) -> bool:
    """Type, shape and every bit."""
    alike = ours.dtype == theirs.dtype and ours.shape == theirs.shape
    return alike and np.asarray(ours).tobytes() == np.asarray(theirs).tobytes()


def test_layout_of_every_kind() -> None:
    layout = layout_of(model())
    assert layout.floats == 6 + 2 + 4 + 1 + 1 + 1 + 0 + 2
    assert layout.integers == 1 + 2 + 0
    assert [e.dtype for e in layout.entries[:4]] == ["float32", "float16", "bfloat16", "float64"]
    assert Layout.from_fields(layout.to_fields()) == layout
    ends = [stop for _, _, stop in layout.segments()]
    assert [start for _, start, _ in layout.segments()] == [0, *ends][:-1]
    assert ends[-1] == layout.floats


def test_masters_are_wide_and_go_back_exactly() -> None:
    arrays = model()
    layout = layout_of(arrays)
    masters = layout.masters(arrays)
    assert {name: m.dtype.name for name, m in masters.items()} == {
        "conv.weight": "float32",
        "half": "float32",
        "brain": "float32",
        "double": "float64",
        "scalar": "float32",
        "brain_scalar": "float32",
        "empty": "float32",
        "bn.running_var": "float32",
        "bn.num_batches_tracked": "int64",
        "index": "uint8",
        "no_index": "int32",
    }
    assert masters["brain"].tolist() == [[1.0, -3.0], [0.25, 0.0]]
    back = layout.arrays(masters)
    assert list(back) == list(arrays)
    assert all(same(back[name], array) for name, array in arrays.items())


def test_masters_are_copies() -> None:
    arrays = model()
    masters = layout_of(arrays).masters(arrays)
    arrays["conv.weight"][:] = 9
    arrays["index"][:] = 9
    assert masters["conv.weight"].max() == 5
    assert masters["index"].max() == 250


def test_masters_of_what_nobody_writes_to_are_not_copies() -> None:
    data = np.arange(4, dtype=np.float32).tobytes()
    over_bytes = np.frombuffer(data, np.float32).reshape(2, 2)
    open_to_some = np.arange(4, dtype=np.float32)
    view = open_to_some.view()
    view.flags.writeable = False  # and yet open_to_some may change
    arrays = {"bytes": over_bytes, "view": view, "half": over_bytes.astype(np.float16)}
    masters = layout_of(arrays).masters(arrays)
    assert np.shares_memory(masters["bytes"], over_bytes)
    assert not np.shares_memory(masters["view"], open_to_some)
    assert masters["half"].dtype == np.float32


def test_arrays_are_views_of_masters_that_nobody_writes_to() -> None:
    arrays = model()
    layout = layout_of(arrays)
    masters = layout.masters(arrays)
    back = layout.arrays(masters)
    assert np.shares_memory(back["conv.weight"], masters["conv.weight"])
    for name in ("conv.weight", "double", "index"):
        with pytest.raises(ValueError, match="read-only"):
            back[name][...] = 0
    masters["conv.weight"][...] = 1  # only the view is closed


@pytest.mark.parametrize("piece", [1, 2, 5, 16, 100])
def test_a_change_in_parts(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = model(), model()
    new["conv.weight"] += 0.25
    new["half"] = np.array([1.5, -2.5], np.float16)
    new["index"] = np.array([0, 255], np.uint8)
    layout = layout_of(old)
    masters = layout.masters(old)
    whole, integers = layout.change(new, masters)
    assert integers.tolist() == layout.integer_change(new, masters).tolist()
    monkeypatch.setattr(flatten, "PIECE", piece)
    parts = [part.copy() for part in layout.float_change(new, masters)]
    assert [p.size for p in parts[:-1]] == [piece] * (len(parts) - 1)
    assert np.array_equal(np.concatenate(parts), whole)
    with pytest.raises(ReplyError, match="lacks array"):
        next(layout.float_change({}, masters))


@pytest.mark.parametrize("piece", [1, 2, 5, 100])
def test_gradients_are_taken_as_they_are(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    layout, masters = layout_of(model()), layout_of(model()).masters(model())
    sent = model()
    for at, (name, array) in enumerate(sent.items()):
        if array.dtype.kind == "f":
            sent[name] = (np.arange(array.size).reshape(array.shape) + at).astype(array.dtype)
    sent["brain"] = bfloat16([0.5, -3.5, 0.25, 8.0]).reshape(2, 2)
    sent["double"] = np.array([[0.1]])
    sent["index"] = np.array([0, 255], np.uint8)
    zeros = {name: np.zeros_like(master) for name, master in masters.items()}
    expected, _ = layout.change(sent, zeros)
    monkeypatch.setattr(flatten, "PIECE", piece)
    floats, integers = layout.change(sent, masters, gradients=True)
    assert floats.tobytes() == expected.tobytes()
    assert floats.dtype == np.float32
    assert integers.tolist() == layout.integer_change(sent, masters).tolist()  # as ever
    assert integers.tolist() != layout.integer_change(sent, zeros).tolist()
    parts = [part.copy() for part in layout.float_change(sent, masters, gradients=True)]
    assert [p.size for p in parts[:-1]] == [piece] * (len(parts) - 1)
    assert np.array_equal(np.concatenate(parts), expected)
    with pytest.raises(ReplyError, match="lacks array"):
        layout.change({}, masters, gradients=True)


def test_a_gradient_too_large_for_float32_is_not_finite() -> None:
    arrays = {"w": np.array([0.0, 0.0])}
    layout = layout_of(arrays)
    masters = layout.masters(arrays)
    floats, _ = layout.change({"w": np.array([1e300, -1.0])}, masters, gradients=True)
    assert floats.tolist() == [np.inf, -1.0]


def test_masters_in_the_place_of_the_change() -> None:
    old = model()
    layout = layout_of(old)
    masters = layout.masters(old)
    floats = np.arange(layout.floats, dtype=np.float32) - 5
    apart = layout.apply(masters, floats.copy(), [1, 2, 3])
    within = layout.apply(masters, floats, [1, 2, 3], reuse=True)
    assert all(same(within[name], apart[name]) for name in apart)
    assert np.shares_memory(within["conv.weight"], floats)
    assert not np.shares_memory(within["double"], floats)
    again = layout.masters(old)
    assert all(same(masters[name], array) for name, array in again.items())


def test_change_then_apply_gives_the_trained_model() -> None:
    old, new = model(), model()
    new["conv.weight"] += 0.25
    new["half"] = np.array([1.5, -2.5], np.float16)
    new["brain"] = bfloat16([0.5, -3.5, 0.25, 8.0]).reshape(2, 2)
    new["double"] = np.array([[2.0 + 2.0**-40]])
    new["scalar"] = np.array(5.0, np.float32)
    new["brain_scalar"] = bfloat16([-1.0]).reshape(())
    new["bn.num_batches_tracked"] = np.array(50, np.int64)
    new["index"] = np.array([0, 255], np.uint8)
    layout = layout_of(old)
    masters = layout.masters(old)
    floats, integers = layout.change(new, masters)
    assert (floats.dtype, floats.shape) == (np.float32, (layout.floats,))
    assert (integers.dtype, integers.tolist()) == (np.int64, [9, -250, 252])
    after = layout.arrays(layout.apply(masters, floats, integers.tolist()))
    assert all(same(after[name], array) for name, array in new.items())
    # What apply was given is untouched: a round that is refused later leaves the model as it was.
    again = layout.masters(old)
    assert all(same(masters[name], array) for name, array in again.items())


def test_small_updates_to_a_half_add_up_in_its_master() -> None:
    arrays = {"w": np.array([1.0], np.float16)}
    layout = layout_of(arrays)
    masters = layout.masters(arrays)
    for _ in range(100):
        masters = layout.apply(masters, np.array([1e-4], np.float32), [])
    assert layout.arrays(masters)["w"] == np.float16(1.01)


def test_running_var_stops_at_zero_and_nothing_else_does() -> None:
    arrays = {
        name: np.array([0.5, 0.5], np.float32)
        for name in ("bn.running_var", "bn.running_mean", "head")
    }
    layout = layout_of(arrays)
    step = np.array([-0.75, 0.25] * 3, np.float32)
    after = layout.apply(layout.masters(arrays), step, [])
    assert after["bn.running_var"].tolist() == [0.0, 0.75]
    assert after["bn.running_mean"].tolist() == after["head"].tolist() == [-0.25, 0.75]


def test_integers_stop_at_the_borders_of_their_type() -> None:
    arrays = {"n": np.array([250, 5], np.uint8)}
    layout = layout_of(arrays)
    after = layout.apply(layout.masters(arrays), np.empty(0, np.float32), [10, -10])
    assert after["n"].tolist() == [255, 0]


def test_an_integer_that_changes_too_much_is_refused() -> None:
    arrays = {"fine": np.array(0, np.int64), "hash": np.array([0], np.int64)}
    layout = layout_of(arrays)
    masters = layout.masters(arrays)
    _, integers = layout.change({**arrays, "hash": np.array([-MAX_CHANGE])}, masters)
    assert integers.tolist() == [0, -MAX_CHANGE]
    for change in (MAX_CHANGE + 1, -MAX_CHANGE - 1):
        with pytest.raises(RangeError, match="'hash'"):
            layout.change({**arrays, "hash": np.array([change])}, masters)


@pytest.mark.parametrize(
    ("before", "after"), [(-(2**63), 0), (-(2**63), 2**63 - 1), (2**63 - 1, -(2**63))]
)
def test_a_change_that_wraps_around_64_bits_is_refused(before: int, after: int) -> None:
    arrays = {"hash": np.array([before], np.int64)}
    layout = layout_of(arrays)
    with pytest.raises(RangeError, match="'hash'"):
        layout.change({"hash": np.array([after], np.int64)}, layout.masters(arrays))


@pytest.mark.parametrize("value", [-(2**63), 2**63 - 1, 2**62, -(2**62)])
def test_a_large_integer_that_does_not_change_is_fine(value: int) -> None:
    arrays = {"hash": np.array([value], np.int64)}
    layout = layout_of(arrays)
    _, integers = layout.change(arrays, layout.masters(arrays))
    assert integers.tolist() == [0]


@pytest.mark.parametrize(
    "array",
    [
        np.array([True]),
        np.array([1j], np.complex64),
        np.array([1j]),
        np.array([None]),
        np.array(["a"]),
        np.array([b"ab"]),
        np.array([1], np.uint64),
        np.array(["2020-01-01"], "datetime64[D]"),
        np.zeros(1, "V4"),
    ],
    ids=lambda a: a.dtype.name,
)
def test_what_does_not_average_is_refused_by_name(array: NDArray[Any]) -> None:
    with pytest.raises(ConfigError, match=r"array 'odd\.layer' is .* does not average"):
        layout_of({"fine": np.zeros(2), "odd.layer": array})


def test_a_model_that_differs_from_the_layout_is_refused_by_name() -> None:
    arrays = {"a": np.zeros((2, 3), np.float32), "b": np.zeros(2, np.float16)}
    layout = layout_of(arrays)
    masters = layout.masters(arrays)
    cases: list[tuple[dict[str, NDArray[Any]], str]] = [
        ({"a": arrays["a"]}, "lacks array 'b'"),
        ({**arrays, "c": np.zeros(1)}, "has a further array 'c'"),
        ({"b": arrays["b"], "a": arrays["a"]}, "in another order"),
        (
            {**arrays, "a": np.zeros((3, 2), np.float32)},
            r"array 'a' of the app's reply is float32 \(3, 2\)",
        ),
        (
            {**arrays, "a": np.zeros(6, np.float32)},
            r"array 'a' of the app's reply is float32 \(6,\)",
        ),
        (
            {**arrays, "b": np.zeros(2, np.float32)},
            r"array 'b' of .* is float32 .* the model's is float16",
        ),
        ({**arrays, "b": np.zeros(2, BF16)}, "array 'b' of the app's reply is bfloat16"),
    ]
    for odd, message in cases:
        with pytest.raises(ReplyError, match=message):
            layout.change(odd, masters)
        with pytest.raises(ReplyError, match=message):
            layout.masters(odd)


def test_layouts_that_cannot_be() -> None:
    entry = Entry("w", (2,), "float32")
    with pytest.raises(ConfigError, match="one name"):
        Layout((entry, entry))
    with pytest.raises(ConfigError, match="shape"):
        Entry("w", (2, -1), "float32")
    with pytest.raises(ConfigError, match=f"at most {MAX_ENTRIES}"):
        Layout(tuple(Entry(str(i), (), "float32") for i in range(MAX_ENTRIES + 1)))


def test_layout_hash_depends_on_everything_public() -> None:
    layout = Layout((Entry("a", (2, 3), "float32"), Entry("b", (1,), "int64")))
    others = [
        Layout((Entry("a", (3, 2), "float32"), Entry("b", (1,), "int64"))),
        Layout((Entry("a", (2, 3), "float16"), Entry("b", (1,), "int64"))),
        Layout((Entry("c", (2, 3), "float32"), Entry("b", (1,), "int64"))),
        Layout((Entry("b", (1,), "int64"), Entry("a", (2, 3), "float32"))),
    ]
    hashes = {layout.hash(), layout.hash(1), layout.hash([1]), *(other.hash() for other in others)}
    assert len(hashes) == 7
    assert all(len(h) == 32 for h in hashes)


JUNK = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 2**63), st.text(max_size=3), st.binary()),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)


@given(JUNK)
def test_fields_that_are_no_layout(fields: object) -> None:
    try:
        layout = Layout.from_fields(fields)
    except FlheError:
        return
    assert layout.to_fields() == fields


@given(st.lists(st.integers(0, 2**16 - 1), min_size=1, max_size=50))
def test_bfloat16_of_any_bits(bits: list[int]) -> None:
    arrays = {"w": np.array(bits, np.uint16).view(BF16)}
    layout = layout_of(arrays)
    back = layout.arrays(layout.masters(arrays))["w"].view(np.uint16)
    for one, other in zip(bits, back.tolist(), strict=True):
        nan = one & 0x7FFF > 0x7F80
        assert other == one or (nan and other & 0x7FFF > 0x7F80)


def test_bfloat16_rounds_to_nearest_with_ties_to_even() -> None:
    layout = Layout((Entry("w", (6,), "bfloat16"),))
    step = 2.0**-7  # of bfloat16, at 1
    values = [1, 1 + step / 2, 1 + step * 3 / 2, 1 + step * 0.51, -1 - step / 2, 3.4e38]
    rounded = layout.arrays({"w": np.array(values, np.float32)})["w"]
    wide = layout.masters({"w": rounded})["w"].tolist()
    assert wide == [1, 1, 1 + 2 * step, 1 + step, -1, float("inf")]


def test_arrays_of_any_order_and_byte_order() -> None:
    arrays = {
        "f": np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
        "b": bfloat16([1.0, 2.0, 3.0, 4.0]).reshape(2, 2).T,
        "s": np.arange(8, dtype=np.float32)[::2],
        "e": np.arange(3, dtype=">f4"),
    }
    layout = layout_of(arrays)
    zeros = {name: np.zeros_like(m) for name, m in layout.masters(arrays).items()}
    floats, _ = layout.change(arrays, zeros)
    assert floats.tolist() == [0, 1, 2, 3, 4, 5, 1, 3, 2, 4, 0, 2, 4, 6, 0, 1, 2]
