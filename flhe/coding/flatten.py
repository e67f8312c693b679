"""Arrays <-> one float32 vector, plus the integers that must not pass through a float.

Floating arrays form the float lane, in order, as float32. Integer arrays (a batch counter, an index
buffer) form the integer lane, where their changes stay exact. Other arrays are refused by name. The
float lane carries the changes of training or, if clients send gradients, the gradients.

Masters are a client's arrays between rounds: float32 for float16, bfloat16 and float32, and the
array's own type for float64 and integers. A change is counted from the rounded array that an app
was given. So repeated rounding to 16 bits does not lose small updates.
"""

from __future__ import annotations

import fnmatch
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ConfigError, NotFiniteError, ProtocolError, RangeError, ReplyError
from flhe.math.buffers import let_go
from flhe.math.prg import PIECE
from flhe.wire.derive import hash_of
from flhe.wire.record import Form, Record

BFLOAT16 = "bfloat16"
"""Name of a type that NumPy does not have: its arrays arrive as two-byte voids with this name."""

FLOATS = {"float16": np.float32, BFLOAT16: np.float32, "float32": np.float32, "float64": np.float64}
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")
MAX_CHANGE = (1 << 31) - 1
"""Maximum change of one integer in a round, by the room in `extras`."""

VARIANCES = ("running_var", "moving_variance")
"""Ends of the names of batch norm's variances, as PyTorch and Keras have them."""

MIN_TIED = 64
"""Values from which arrays that change alike pass for one weight under two names."""

MAX_DIMS = 32
MAX_SIZE = 1 << 40
MAX_ENTRIES = 100_000
MAX_LAYOUT_BYTES = 32 << 20

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Entry(Record):
    """One array of a model: its name, shape and type name."""

    FORM = Form("layout", row=True)

    name: str
    shape: tuple[int, ...]
    dtype: str

    def _validate(self) -> None:
        if self.dtype not in FLOATS and self.dtype not in INTEGERS:
            raise ConfigError(
                f"array {self.name!r} is {self.dtype}, which does not average; "
                f"convert it to one of {', '.join((*FLOATS, *INTEGERS))} or leave it out"
            )
        extent = math.prod(n for n in self.shape if n)
        if len(self.shape) > MAX_DIMS or min(self.shape, default=0) < 0 or extent > MAX_SIZE:
            raise ConfigError(
                f"array {self.name!r}: its shape must have at most {MAX_DIMS} dimensions and "
                f"{MAX_SIZE} values"
            )

    @property
    def size(self) -> int:
        """Number of values; 1 for a 0-d array, 0 for an empty one."""
        return math.prod(self.shape)

    @property
    def is_float(self) -> bool:
        """True if it belongs to the float lane."""
        return self.dtype in FLOATS

    @property
    def master(self) -> Any:
        """NumPy type of the copy kept between rounds."""
        return FLOATS[self.dtype] if self.is_float else np.dtype(self.dtype).type


@dataclass(frozen=True, slots=True)
class Layout:
    """Names, shapes and types of a model's arrays, in order: public."""

    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        names = [e.name for e in self.entries]
        if len(set(names)) != len(names):
            raise ConfigError("Layout: two arrays have one name")
        if len(names) > MAX_ENTRIES:
            raise ConfigError(f"Layout: {len(names)} arrays, at most {MAX_ENTRIES} are taken")

    @property
    def floats(self) -> int:
        """Length of the float lane."""
        return sum(e.size for e in self.entries if e.is_float)

    @property
    def integers(self) -> int:
        """Length of the integer lane."""
        return sum(e.size for e in self.entries if not e.is_float)

    @property
    def nbytes(self) -> int:
        """Size of a model's masters."""
        return sum(e.size * np.dtype(e.master).itemsize for e in self.entries)

    def to_fields(self) -> list[Any]:
        """Return plain lists, for canonical CBOR."""
        return [e.to_fields() for e in self.entries]

    @classmethod
    def from_fields(cls, fields: object) -> Layout:
        """Invert `to_fields`; ProtocolError if malformed."""
        if not isinstance(fields, list):
            raise ProtocolError("layout: not a list")
        return cls(tuple(map(Entry.from_fields, fields)))

    def hash(self, *parameters: object) -> bytes:
        """Return the SHA-256 over this layout and public parameters: `layout_hash`, 32 bytes."""
        return hash_of("layout", self.to_fields(), *parameters)

    def masters(self, arrays: Arrays) -> dict[str, NDArray[Any]]:
        """Return copies of `arrays` in their master types; views of arrays over read-only memory.

        Raises ProtocolError: arrays that do not match this layout, naming the first that differs.
        """
        return {e.name: _to_master(e, a) for e, a in self._match(arrays)}

    def arrays(self, masters: Arrays) -> dict[str, NDArray[Any]]:
        """Return arrays in their own types, from masters; read-only views if already in them."""
        return dict(self.each(masters))

    def each(self, masters: Arrays) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield the names and arrays of `arrays`, one at a time."""
        for e in self.entries:
            yield e.name, _from_master(e, masters[e.name])

    def change(
        self, new: Arrays, old: Arrays, *, gradients: bool = False
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return the float lane of new - old, and the integer lane, exactly.

        `new` are a model's own arrays, `old` the masters of those that it had before: what rounding
        took from them is no change. Shapes (floats,) and (integers,). With
        `gradients`, the floats of `new` are gradients, and nothing is subtracted from them.

        Raises ReplyError: `new` does not match this layout; RangeError: an integer changed by 2**31
        or more.
        """
        floats = joined(self.float_change(new, old, gradients=gradients), self.floats)
        return floats, self.integer_change(new, old)

    def float_change(
        self, new: Arrays, old: Arrays, *, gradients: bool = False
    ) -> Iterator[NDArray[np.float32]]:
        """Yield the float lane of `change` in parts of PIECE, each overwritten by the next.

        So no vector as large as the model is needed. Raises as `change` does.
        """
        scratch = np.empty(PIECE, np.float32)
        filled = 0
        for e, array in self._match(new):
            if not e.is_float:
                continue
            after, before = _flat(array), _flat(_told(e, old[e.name]))
            at = 0
            while at < e.size:
                take = min(PIECE - filled, e.size - at)
                wide = _widen(e, after[at : at + take])
                out = scratch[filled : filled + take]
                # Overflow here gives a value that is not finite, and is refused by name before
                # encryption.
                with np.errstate(over="ignore", invalid="ignore"):
                    if gradients:
                        np.copyto(out, wide, casting="same_kind")
                    else:
                        np.subtract(wide, before[at : at + take], out=out, casting="same_kind")
                at, filled = at + take, filled + take
                if filled == PIECE:
                    yield scratch
                    filled = 0
            let_go(old[e.name])
        if filled:
            yield scratch[:filled]

    def tied(
        self, new: Arrays, old: Arrays, *, gradients: bool = False
    ) -> list[tuple[slice, slice]]:
        """Return places in the float lane of arrays that change alike, as tied weights do.

        Arguments as of `change`. A pair holds two arrays of one shape, of MIN_TIED values or more:
        smaller ones may be equal by chance. What no training changed is in none.
        """
        places: dict[Any, list[tuple[Entry, int]]] = {}
        at = 0
        for e, array in self._match(new):
            if not e.is_float:
                continue
            start, at = at, at + e.size
            if e.size < MIN_TIED:
                continue
            still = not np.any(_widen(e, array)) if gradients else self._still(e, array, old)
            if not still:
                some = _flat(array)[:: e.size // MIN_TIED].tobytes()  # tells most arrays apart
                places.setdefault((e.shape, e.dtype, some), []).append((e, start))
        return [
            (slice(start, start + one.size), slice(begin, begin + one.size))
            for like in places.values()
            for (one, start), (other, begin) in itertools.combinations(like, 2)
            if _same(new[one.name], new[other.name]) and _same(old[one.name], old[other.name])
        ]

    @staticmethod
    def _still(entry: Entry, array: NDArray[Any], old: Arrays) -> bool:
        return _same(_told(entry, old[entry.name]), _widen(entry, array))

    def integer_change(self, new: Arrays, old: Arrays) -> NDArray[np.int64]:
        """Return the exact integer lane of new - old, shape (integers,); raises as `change`."""
        integers = np.empty(self.integers, np.int64)
        at = 0
        for e, array in self._match(new):
            if e.is_float:
                continue
            after, before = array.reshape(-1), old[e.name].reshape(-1)
            delta = after.astype(np.int64) - before.astype(np.int64)
            wraps = np.any((delta > 0) != (after > before))
            if wraps or max(delta.max(initial=0), -int(delta.min(initial=0))) > MAX_CHANGE:
                raise RangeError(f"array {e.name!r}: an integer changed by 2**31 or more")
            integers[at : at + e.size] = delta
            at += e.size
        return integers

    def apply(
        self,
        old: Arrays,
        floats: NDArray[np.float32],
        integers: Sequence[int],
        *,
        reuse: bool = False,
    ) -> dict[str, NDArray[Any]]:
        """Return masters after adding a mean change. Shapes as `change` gives them.

        With `reuse`, float32 masters overwrite `floats`. Variances that batch norm keeps
        (`VARIANCES`) clamp at 0, because quantization noise may make a small one negative.
        Integers clamp to their type.
        """
        out: dict[str, NDArray[Any]] = {}
        at = at_int = 0
        for e in self.entries:
            if e.is_float:
                step = floats[at : at + e.size].reshape(e.shape)
                fits = reuse and step.dtype == e.master
                value = np.add(old[e.name], step, out=step if fits else np.empty(e.shape, e.master))
                if e.name.endswith(VARIANCES):
                    np.maximum(value, 0, out=value)
                at += e.size
            else:
                info = np.iinfo(e.dtype)
                after = [
                    min(max(int(v) + int(d), info.min), info.max)
                    for v, d in zip(
                        old[e.name].reshape(-1), integers[at_int : at_int + e.size], strict=True
                    )
                ]
                value = np.array(after, e.dtype).reshape(e.shape)
                at_int += e.size
            out[e.name] = value
            let_go(old[e.name])
        return out

    def segments(self) -> Iterable[tuple[str, int, int]]:
        """Yield the name, start and stop of every array of the float lane."""
        at = 0
        for e in self.entries:
            if e.is_float:
                yield e.name, at, at + e.size
                at += e.size

    def _match(self, arrays: Arrays) -> Iterable[tuple[Entry, NDArray[Any]]]:
        expected = [e.name for e in self.entries]
        if list(arrays) != expected:
            known = set(expected)
            what = "has the model's arrays in another order"
            if missing := [name for name in expected if name not in arrays]:
                what = f"has no array {missing[0]!r}"
            elif beyond := [name for name in arrays if name not in known]:
                what = f"has a further array {beyond[0]!r}"
            raise ReplyError(
                f"the app's reply {what}: reply with all of the model's arrays, under their own names"
            )
        for e in self.entries:
            array = arrays[e.name]
            if tuple(array.shape) != e.shape or _dtype_name(array) != e.dtype:
                raise ReplyError(
                    f"array {e.name!r} of the app's reply is {_dtype_name(array)} "
                    f"{tuple(array.shape)}, the model's is {e.dtype} {e.shape}: reply with the "
                    "model's own shapes and types"
                )
            yield e, array


def raise_not_finite() -> NoReturn:
    """Refuse NaN and infinity: coercing them would silently send a wrong update."""
    raise NotFiniteError(
        "the update holds NaN or infinity; lower the learning rate or clip gradients"
    )


def joined(parts: Iterable[NDArray[np.float32]], length: int) -> NDArray[np.float32]:
    """Join parts of a vector of `length`, shape (length,)."""
    out = np.empty(length, np.float32)
    at = 0
    for part in parts:
        out[at : at + part.size] = part
        at += part.size
    return out


def layout_of(arrays: Arrays) -> Layout:
    """Return the layout of a model's arrays; ConfigError names one that cannot be averaged."""
    return Layout(tuple(Entry(name, tuple(a.shape), _dtype_name(a)) for name, a in arrays.items()))


def _dtype_name(array: NDArray[Any]) -> str:
    # Without ml_dtypes a bfloat16 array is loaded as two-byte voids.
    return BFLOAT16 if array.dtype == np.dtype("V2") else array.dtype.name


def _flat(array: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(array).reshape(-1)


def _widen(entry: Entry, array: NDArray[Any]) -> NDArray[Any]:
    """Return an array, or a part of one, in its master type; the array itself if already in it."""
    if entry.dtype == BFLOAT16:
        bits = np.ascontiguousarray(array).view(np.uint16).astype(np.uint32) << 16
        return bits.view(np.float32).reshape(array.shape)
    return array.astype(entry.master, copy=False)


def _same(one: NDArray[Any], other: NDArray[Any]) -> bool:
    return bool(np.array_equal(_flat(one), _flat(other)))


def matches(name: str, pattern: str) -> bool:
    """Return whether an array's name fits a pattern; `*` and `?` stand for other characters."""
    return fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))


def _told(entry: Entry, master: NDArray[Any]) -> NDArray[Any]:
    """Return a master as its app was given it, which for 16-bit types is rounded."""
    narrow = entry.dtype in ("float16", BFLOAT16)
    return _widen(entry, _from_master(entry, master)) if narrow else master


def _to_master(entry: Entry, array: NDArray[Any]) -> NDArray[Any]:
    wide = _widen(entry, array)
    small = wide.dtype == np.float32 and any(_subnormal(p).any() for p in _pieces(wide))
    if small or (np.may_share_memory(wide, array) and not _frozen(array)):
        wide = wide.copy()
    for part in _pieces(wide) if small else ():
        # Some programs make the processor flush these: members' sums, and models, would differ.
        part[_subnormal(part)] = 0
    return wide


def _pieces(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    flat = _flat(array)
    return (flat[at : at + PIECE] for at in range(0, flat.size, PIECE))


def _subnormal(part: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return which float32 values are subnormal, also where the processor flushes them."""
    return np.asarray((part.view(np.uint32) & 0x7FFFFFFF) - np.uint32(1) < 0x7FFFFF)


def _frozen(array: NDArray[Any]) -> bool:
    """Return whether an array lies over bytes, which are immutable; read-only ones may be views."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, bytes)


def _from_master(entry: Entry, master: NDArray[Any]) -> NDArray[Any]:
    if entry.dtype == BFLOAT16:
        bits = np.ascontiguousarray(master, np.float32).view(np.uint32)
        # Round to nearest, ties to even; NaN keeps a bit so that it does not become infinity.
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        nan = np.isnan(master)
        rounded = np.where(nan.reshape(rounded.shape), 0x7FC0, rounded)
        return rounded.astype(np.uint16).view("V2").reshape(entry.shape)
    with np.errstate(over="ignore"):  # beyond float16's range is infinity, as in the app itself
        array = np.asarray(master, entry.dtype).view()
    array.flags.writeable = False
    return array
