"""Flatten: every type there and back, and a refusal that names the layer."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from flhe.coding import flatten
from flhe.coding.flatten import BFLOAT16, MAX_CHANGE, Entry, Layout, layout_of, matches
from flhe.errors import FlheError, RangeError, ReplyError

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
        "brain_scalar": bfloat16([2.0]).reshape(()),
        "empty": np.empty((0, 7), np.float32),
        "bn.running_var": np.array([0.5, 0.25], np.float32),
        "bn.num_batches_tracked": np.array(41, np.int64),
        "index": np.array([250, 3], np.uint8),
        "no_index": np.empty((3, 0), np.int32),
    }


def trained() -> dict[str, NDArray[Any]]:
    """`model` after a round."""
    new = model()
    new["conv.weight"] += 0.25
    new["half"] = np.array([1.5, -2.5], np.float16)
    new["brain"] = bfloat16([0.5, -3.5, 0.25, 8.0]).reshape(2, 2)
    new["double"] = np.array([[2.0 + 2.0**-40]])
    new["brain_scalar"] = bfloat16([-1.0]).reshape(())
    new["bn.num_batches_tracked"] = np.array(50, np.int64)
    new["index"] = np.array([0, 255], np.uint8)
    return new


def changed(before: Any, after: Any, **how: Any) -> tuple[list[float], list[int]]:
    """What a model of one array sends."""
    arrays = {"hash": np.array(before)}
    layout = layout_of(arrays)
    sent = {"hash": np.array(after, arrays["hash"].dtype)}
    floats, integers = layout.change(sent, layout.masters(arrays), **how)
    return floats.tolist(), integers.tolist()


def same(ours: NDArray[Any], theirs: NDArray[Any]) -> bool:
    """Type, shape and every bit."""
    alike = ours.dtype == theirs.dtype and ours.shape == theirs.shape
    return alike and np.asarray(ours).tobytes() == np.asarray(theirs).tobytes()


def test_masters_are_wide_and_go_back_exactly() -> None:
    arrays = model()
    layout = layout_of(arrays)
    masters = layout.masters(arrays)
    kinds = [master.dtype.name for master in masters.values()]
    assert kinds == [*["float32"] * 3, "float64", *["float32"] * 3, "int64", "uint8", "int32"]
    assert masters["brain"].tolist() == [[1.0, -3.0], [0.25, 0.0]]
    back = layout.arrays(masters)
    assert list(back) == list(arrays)
    assert all(same(back[name], array) for name, array in arrays.items())
    assert np.shares_memory(back["conv.weight"], masters["conv.weight"])
    for name in ("conv.weight", "double", "index"):
        with pytest.raises(ValueError, match="read-only"):
            back[name][...] = 0
        arrays[name][...] = 9
        assert masters[name].max() != 9, "masters are copies"
    masters["conv.weight"][...] = 1  # only the view is closed


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


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("piece", [1, 2, 5, 16, 100])
def test_a_change_in_parts(piece: int, gradients: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients are taken as they are: as a change from zero. Integers change as ever."""
    layout = layout_of(model())
    masters, sent = layout.masters(model()), trained()
    zeros = {name: np.zeros_like(master) for name, master in masters.items()}
    expected, _ = layout.change(sent, zeros if gradients else masters)
    monkeypatch.setattr(flatten, "PIECE", piece)
    whole, integers = layout.change(sent, masters, gradients=gradients)
    assert (whole.dtype, whole.tobytes()) == (np.float32, expected.tobytes())
    assert integers.tolist() == layout.integer_change(sent, masters).tolist()
    assert integers.tolist() == [9, -250, 252]
    parts = [part.copy() for part in layout.float_change(sent, masters, gradients=gradients)]
    assert [p.size for p in parts[:-1]] == [piece] * (len(parts) - 1)
    assert np.array_equal(np.concatenate(parts), expected)
    with pytest.raises(ReplyError, match="has no array"):
        next(layout.float_change({}, masters, gradients=gradients))


def test_change_then_apply_gives_the_trained_model() -> None:
    layout, new = layout_of(model()), trained()
    masters = layout.masters(model())
    floats, integers = layout.change(new, masters)
    moved = layout.apply(masters, floats.copy(), integers.tolist())
    after = layout.arrays(moved)
    assert all(same(after[name], array) for name, array in new.items())
    within = layout.apply(masters, floats, integers.tolist(), reuse=True)
    assert all(same(within[name], moved[name]) for name in moved)
    assert np.shares_memory(within["conv.weight"], floats)
    assert not np.shares_memory(within["double"], floats)
    # What apply was given is untouched: a round that is refused later leaves the model as it was.
    again = layout.masters(model())
    assert all(same(masters[name], array) for name, array in again.items())


@pytest.mark.parametrize(
    ("name", "before", "floats", "integers", "after"),
    [
        ("bn.running_var", np.float32([0.5, 0.5]), [-0.75, 0.25], [], [0.0, 0.75]),
        ("norm/moving_variance", np.float32([0.5, 0.5]), [-0.75, 0.25], [], [0.0, 0.75]),
        ("bn.running_mean", np.float32([0.5, 0.5]), [-0.75, 0.25], [], [-0.25, 0.75]),
        ("n", np.uint8([250, 5]), [], [10, -10], [255, 0]),
        ("half", np.float16([1.0]), [1e-4], [], [float(np.float32(1) + np.float32(1e-4))]),
    ],
)
def test_what_a_change_makes_of_an_array(
    name: str, before: Any, floats: list[float], integers: list[int], after: list[Any]
) -> None:
    """Variances stop at zero, integers at the borders of their type, and halves have wide masters."""
    arrays = {name: np.array(before)}
    layout = layout_of(arrays)
    moved = layout.apply(layout.masters(arrays), np.array(floats, np.float32), integers)
    assert moved[name].tolist() == after


LEAST, MOST = -(2**63), 2**63 - 1


@pytest.mark.parametrize(
    ("before", "after"),
    [(0, MAX_CHANGE + 1), (0, -MAX_CHANGE - 1), (LEAST, 0), (LEAST, MOST), (MOST, LEAST)],
)
def test_an_integer_that_changes_too_much_is_refused(before: int, after: int) -> None:
    with pytest.raises(RangeError, match="'hash'"):
        changed([before], [after])


@pytest.mark.parametrize("value", [LEAST, MOST, 2**62, -(2**62)])
def test_a_large_integer_that_changes_little_is_fine(value: int) -> None:
    step = 1 if value < 0 else -1
    assert changed([value, 0], [value + step, -MAX_CHANGE]) == ([], [step, -MAX_CHANGE])


@pytest.mark.parametrize("dtype", ["float16", BFLOAT16])
def test_steps_smaller_than_sixteen_bits_add_up(dtype: str) -> None:
    """One of three members moves a weight by one step of its type, each round; two do not."""
    made = {"w": np.ones(1, np.float16) if dtype == "float16" else bfloat16([1.0])}
    layout = layout_of(made)
    master, step = layout.masters(made), 2**-10 if dtype == "float16" else 2**-7
    for _ in range(30):
        told = layout.masters(layout.arrays(master))["w"]
        moved = [told + step, told, told]
        replies = [bfloat16(w.tolist()) if dtype == BFLOAT16 else w.astype(dtype) for w in moved]
        changes = [layout.change({"w": reply}, master)[0] for reply in replies]
        master = layout.apply(master, np.mean(changes, axis=0, dtype=np.float32), [])
    assert abs(float(master["w"][0]) - (1 + 10 * step)) < 1e-5
    assert changed([0.0, 0.0], [1e300, -1.0], gradients=True) == ([np.inf, -1.0], [])


A, B = np.zeros((2, 3), np.float32), np.zeros(2, np.float16)


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        ({"a": A}, "has no array 'b'"),
        ({"a": A, "b": B, "c": B}, "has a further array 'c'"),
        ({"b": B, "a": A}, "in another order"),
        ({"a": A.T, "b": B}, r"array 'a' of the app's reply is float32 \(3, 2\)"),
        ({"a": A.ravel(), "b": B}, r"array 'a' of the app's reply is float32 \(6,\)"),
        ({"a": A, "b": A[0, :2]}, "array 'b' of .* is float32 .* the model's is float16"),
        ({"a": A, "b": B.view(BF16)}, "array 'b' of the app's reply is bfloat16"),
    ],
)
def test_a_model_that_differs_from_the_layout_is_refused_by_name(
    odd: dict[str, NDArray[Any]], message: str
) -> None:
    layout = layout_of({"a": A, "b": B})
    for act in (layout.masters, lambda arrays: layout.change(arrays, {"a": A, "b": A})):
        with pytest.raises(ReplyError, match=message):
            act(odd)


def test_layouts_that_cannot_be() -> None:
    for fields in (None, {}, [["w"]], [["w", [2], "bool"]], [[1, [2], "float32"]]):
        with pytest.raises(FlheError):
            Layout.from_fields(fields)


def test_layout_hash_depends_on_everything_public() -> None:
    one, other = Entry("a", (2, 3), "float32"), Entry("b", (1,), "int64")
    changes = ({"shape": (3, 2)}, {"dtype": "float16"}, {"name": "c"})
    others = [Layout((dataclasses.replace(one, **change), other)) for change in changes]
    others.append(Layout((other, one)))
    layout = Layout((one, other))
    hashes = {layout.hash(), layout.hash(1), layout.hash([1]), *(each.hash() for each in others)}
    assert {len(h) for h in hashes} == {32}
    assert len(hashes) == 7


@given(st.lists(st.integers(0, 2**16 - 1), min_size=1, max_size=50))
def test_bfloat16_of_any_bits(bits: list[int]) -> None:
    arrays = {"w": np.array(bits, np.uint16).view(BF16)}
    layout = layout_of(arrays)
    back = layout.arrays(layout.masters(arrays))["w"].view(np.uint16)
    for one, other in zip(bits, back.tolist(), strict=True):
        nan = one & 0x7FFF > 0x7F80
        subnormal = 0 < one & 0x7FFF < 0x80
        assert other == (0 if subnormal else one) or (nan and other & 0x7FFF > 0x7F80)


def test_subnormal_numbers_of_a_model_are_zeros() -> None:
    """A processor that flushes them, at one member, would come to another model than the others'."""
    tiny = np.finfo(np.float32).tiny
    values = [1e-40, -1e-45, tiny / 2, tiny, -tiny, 0.0, -0.0, 1.0, np.inf]
    arrays = {"w": np.array(values, np.float32), "wide": np.array([5e-324])}
    masters = layout_of(arrays).masters(arrays)
    expected = np.array([0, 0, 0, *values[3:]], np.float32)
    assert masters["w"].tobytes() == expected.tobytes()
    assert masters["wide"].tolist() == [5e-324]
    assert arrays["w"][0] == np.float32(1e-40)


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


# --- arrays of one weight, and names ---


def test_arrays_that_change_alike_are_found() -> None:
    """Tied weights; not copies that were trained apart, nor what was not trained at all."""
    rng = np.random.default_rng(1)
    one, copy = rng.random((2, 16, 4)).astype(np.float32)
    old = {"in": one, "a": copy, "steps": np.array([1]), "b": copy, "out": one, "ones": one * 0 + 1}
    old |= {"more ones": old["ones"], "half": one.astype(np.float16)}
    layout = layout_of(old)
    masters = layout.masters(old)
    new = {**old, "in": one + 1, "out": one + 1, "a": copy + 1, "b": copy + 2}
    small = {"slope": np.array([0.25]), "other slope": np.array([0.25])}  # equal by chance
    slopes = layout_of(small)
    assert slopes.tied({n: s + 1 for n, s in small.items()}, slopes.masters(small)) == []
    places = {name: slice(start, stop) for name, start, stop in layout.segments()}
    assert layout.tied(new, masters) == [(places["in"], places["out"])]
    assert layout.tied(old, masters) == []
    none = {name: array * 0 for name, array in old.items()}
    assert layout.tied(none, masters, gradients=True) == []
    gradients = {**none, "in": one, "out": one, "a": one}
    assert layout.tied(gradients, masters, gradients=True) == [(places["in"], places["out"])]


@pytest.mark.parametrize(
    ("name", "pattern", "fits"),
    [
        ("fc.weight", "fc.*", True),
        ("fc.weight", "FC.*", False),
        ("['Dense_0']['kernel']", "['Dense_0']['kernel']", True),
        ("['Dense_0']['kernel']", "*['kernel']", True),
        ("a", "[ab]", False),
        ("[ab]", "[??]", True),
    ],
)
def test_brackets_of_a_name_stand_for_themselves(name: str, pattern: str, fits: bool) -> None:
    assert matches(name, pattern) == fits
