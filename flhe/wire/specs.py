"""Types of a record's fields: their valid values, and their encodings.

int, bytes, str, bool, float (as exact text), Literal, tuple, dict, records, `X | None`; and `As`
for all others. `Annotated` adds bounds and `SECRET` (`fields.py`).
"""

from __future__ import annotations

import math
import operator
import types
from collections.abc import Callable, Iterable
from functools import partial
from numbers import Real
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from flhe.errors import ConfigError, ProtocolError
from flhe.wire.fields import SECRET, As, Rule
from flhe.wire.secret import Secret


class UnfitError(Exception):
    """A value that does not fit its field."""


_Each = Callable[[Iterable[Any]], Iterable[Any]]
"""One of a Spec's calls, for all items of a row."""


class Spec(NamedTuple):
    """A field's type: `take` checks and completes a value, `write` encodes, `read` decodes it."""

    needs: str
    take: Callable[[Any], Any]
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


def _same(value: Any) -> Any:
    return value


def _if(ok: Callable[[Any], bool], of: Callable[[Any], Any] = _same) -> Callable[[Any], Any]:
    """Return a function that applies `of` to values that `ok` accepts; UnfitError for others."""

    def take(value: Any) -> Any:
        taken = of(value)
        if not ok(taken):
            raise UnfitError
        return taken

    return take


def _any(kind: type) -> Callable[[Any], Any]:
    return _if(lambda value: isinstance(value, kind))


def _exactly(kind: type, needs: str) -> Spec:
    def take(value: Any) -> Any:
        if type(value) is not kind:  # exactly: True is an int too, and a second encoding of 1
            raise UnfitError
        return value

    return Spec(needs, take, _same, take)


def _converted(own: As) -> Spec:
    def read(raw: Any) -> Any:
        try:
            value = own.read(raw)
        except ProtocolError:
            raise
        except (TypeError, ValueError, OverflowError, LookupError) as error:
            if own.refuses and isinstance(error, ConfigError):
                raise
            raise UnfitError from None  # also from a ConfigError, which is a ValueError
        if own.write(value) != raw:  # a second encoding of it
            raise UnfitError
        return value

    return Spec(own.needs, _same, own.write, read)


def _take_float(value: Any) -> float:
    if not isinstance(value, Real) or isinstance(value, bool):  # NumPy's numbers too
        raise UnfitError
    try:
        number = float(value)
    except OverflowError:  # an integer too large for a float
        raise UnfitError from None
    if not math.isfinite(number):
        raise UnfitError
    return number or 0.0  # one zero: -0.0 would be equal, but hash differently


_PLAIN = {
    int: _exactly(int, "an integer"),
    str: _exactly(str, "text"),
    bool: _exactly(bool, "true or false"),
    bytes: _exactly(bytes, "bytes")._replace(take=_any(bytes)),
    float: _converted(As(float.hex, float.fromhex, "a finite number"))._replace(take=_take_float),
}


def spec_of(hint: Any) -> Spec:
    """Return the encoding of a type, with its bounds."""
    marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    base = get_args(hint)[0] if marks else hint
    own = next((mark for mark in marks if isinstance(mark, As)), None)
    spec = _converted(own) if own else _plain_of(base)
    for mark in marks:
        if mark is SECRET:
            spec = spec._replace(take=_hidden(spec.take), write=bytes, read=_hidden(spec.read))
        elif isinstance(mark, Rule):
            needs = f"{spec.needs}, {mark.needs}" if get_origin(base) is tuple else mark.needs
            spec = spec._replace(needs=needs, take=_if(mark.ok, spec.take))
    return spec


def _plain_of(base: Any) -> Spec:
    origin, args = get_origin(base), get_args(base)
    if base in _PLAIN:
        return _PLAIN[base]
    if origin in (Union, types.UnionType) and len(args) == 2 and args[1] is type(None):
        return _optional(spec_of(args[0]))
    if origin is dict:
        return _by_key(*map(spec_of, args))
    if origin is tuple:
        return _many(spec_of(args[0])) if ... in args else _fixed(*map(spec_of, args))
    if hasattr(base, "FORM"):
        return _nested(base)
    if origin is not Literal:
        raise TypeError(f"{base} has no encoding in a record: declare one with As")
    return _literal(args)


def _hidden(take: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def hide(value: Any) -> Secret:
        taken = take(value)
        return taken if type(taken) is Secret else Secret(taken)

    return hide


def _literal(allowed: tuple[Any, ...]) -> Spec:
    types = [(type(one), one) for one in allowed]
    take = _if(lambda value: (type(value), value) in types)
    return Spec(f"one of {', '.join(map(str, allowed))}", take, _same, take)


def _optional(inner: Spec) -> Spec:
    def or_none(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda value: None if value is None else call(value)

    return Spec(f"{inner.needs}, or none", *map(or_none, inner[1:]))


def _many(item: Spec) -> Spec:
    return _row(f"a list, each item {item.needs}", [partial(map, of) for of in item[1:]])


def _fixed(*items: Spec) -> Spec:
    calls = zip(*(item[1:] for item in items), strict=True)
    each = [partial(map, operator.call, of) for of in calls]
    return _row(f"[{', '.join(item.needs for item in items)}]", each, len(items))


def _row(needs: str, of_items: Iterable[_Each], count: int | None = None) -> Spec:
    """Return a tuple's encoding as a list, of `count` items if given."""
    taken_of, written_of, read_of = of_items

    def each(of: _Each, kinds: Any, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, kinds) or count not in (None, len(value)):
            raise UnfitError
        return tuple(of(value))

    def take(value: Any) -> Any:
        taken = each(taken_of, (tuple, list), value)
        kept = isinstance(value, tuple) and all(map(operator.is_, taken, value))
        return value if kept else taken

    def write(value: Any) -> list[Any]:
        return list(each(written_of, tuple, value))

    return Spec(needs, take, write, partial(each, read_of, list))


def _by_key(key: Spec, item: Spec) -> Spec:
    """Return a mapping's encoding as pairs in order of its keys."""
    pair = _fixed(key, item)

    def take(value: Any) -> Any:
        if not isinstance(value, dict):
            raise UnfitError
        taken = dict(map(pair.take, value.items()))
        return value if taken == value else taken

    def write(value: Any) -> Any:
        return list(map(pair.write, sorted(value.items())))

    def read(raw: Any) -> Any:
        value = dict(_many(pair).read(raw))
        if list(value) != sorted(value) or len(value) != len(raw):
            raise UnfitError
        return value

    return Spec(f"a list of {pair.needs}, each first value once, ascending", take, write, read)


def _nested(cls: Any) -> Spec:
    if not cls.FORM.version:
        return Spec(f"a {cls.FORM.what}", _any(cls), cls.to_fields, cls.from_fields)

    def read(raw: Any) -> Any:
        return cls.from_bytes(_PLAIN[bytes].read(raw))

    return Spec(f"an encoded {cls.FORM.what}", _any(cls), cls.to_bytes, read)
