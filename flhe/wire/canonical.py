"""Canonical CBOR: one value, one encoding.

All data that is hashed, signed, derived from or bound as associated data is encoded here, so two
machines never disagree about the bytes. The subset is small on purpose: integers that fit 64 bits,
byte and text strings, arrays, maps with text keys, true, false and null. There are no floats, no
indefinite lengths, and no tags: from an untrusted tag cbor2 would build dates, regular expressions
and shared references.

Source: RFC 8949, Sec. 4.2.1 (core deterministic encoding). With text keys only, its key order and
the length-first order of RFC 7049 are the same, and a map cannot be filled with colliding hashes.
"""

from __future__ import annotations

from typing import Any

import cbor2

from flhe.errors import ConfigError, ProtocolError

MAX_DEPTH = 16
"""Maximum depth of nested arrays and maps."""

_BYTES, _TEXT, _ARRAY, _MAP, _TAG, _SIMPLE = 2, 3, 4, 5, 6, 7  # CBOR major types
_SIMPLES = (20, 21, 22)  # false, true, null
_LEAVES = frozenset({bytes, str, bool, type(None)})
_UNPLAIN = (
    "cannot encode this value as canonical CBOR: use 64-bit integers, bytes, text, booleans, None, "
    f"and lists or text-keyed dicts of them, at most {MAX_DEPTH} deep"
)


def dumps(obj: object) -> bytes:
    """Encode `obj`: int, bytes, str, bool, None, and lists, tuples or str-keyed dicts of them.

    Raises ConfigError, without the value in its text, for anything that `loads` would refuse.
    """
    _plain(obj, MAX_DEPTH)  # before cbor2, whose stack overflows on deep nesting
    try:
        return cbor2.dumps(obj, canonical=True)
    except Exception:  # text with lone surrogates
        raise ConfigError(_UNPLAIN) from None


def loads(data: bytes, max_bytes: int, what: str) -> Any:
    """Decode `data`, at most `max_bytes` bytes long, into ints, bytes, str, bool, None, list, dict.

    `what` names the message in errors. Raises ProtocolError, without a byte of the data in its
    text, unless `data` is exactly the output of `dumps`.
    """
    if len(data) > max_bytes:
        raise ProtocolError(f"{what}: {len(data)} bytes, at most {max_bytes} are accepted")
    data = bytes(data)
    _scan(data, what)  # before cbor2: lengths are checked before memory is allocated
    try:
        obj = cbor2.loads(data)
        again = cbor2.dumps(obj, canonical=True)
    except Exception:  # text that is not UTF-8
        raise ProtocolError(f"{what}: malformed CBOR") from None
    if again != data:  # long-form numbers, unsorted keys, keys given twice
        raise ProtocolError(f"{what}: CBOR is not canonical, encode it with flhe.wire.canonical")
    return obj


def _plain(obj: object, depth: int) -> None:
    """Raise ConfigError unless `obj` is in the subset above, at most `depth` levels deep."""
    if obj is None or isinstance(obj, bool | bytes | str):
        return
    if isinstance(obj, int) and -(1 << 64) <= obj < 1 << 64:
        return
    if isinstance(obj, list | tuple | dict) and depth > 0:
        if isinstance(obj, dict) and not all(isinstance(key, str) for key in obj):
            raise ConfigError(_UNPLAIN)
        for item in obj.values() if isinstance(obj, dict) else obj:
            if type(item) not in _LEAVES:
                _plain(item, depth - 1)
        return
    raise ConfigError(_UNPLAIN)


def _scan(data: bytes, what: str) -> None:
    """Walk over one item without building it; ProtocolError for an encoding outside the subset."""
    at, size = 0, len(data)
    left, in_map = 1, False  # items still to come at this level; is it a map's?
    above: list[tuple[int, bool]] = []  # the same of the levels around it
    while left or above:
        if not left:
            left, in_map = above.pop()
            continue
        if at >= size:
            raise ProtocolError(f"{what}: CBOR ends early")
        major, value = data[at] >> 5, data[at] & 31
        at += 1
        if value > 23 or major > _MAP:
            value, at = _rest(data, at, major, value, what)
        if in_map and left % 2 == 0 and major != _TEXT:
            raise ProtocolError(f"{what}: a map key that is not text")
        left -= 1
        if major in (_BYTES, _TEXT):
            at += value
            if at > size:
                raise ProtocolError(f"{what}: a string longer than the message")
        elif major in (_ARRAY, _MAP):
            items = value if major == _ARRAY else 2 * value
            if items > size - at:  # every item takes a byte at least
                raise ProtocolError(f"{what}: more items than the message has bytes")
            above.append((left, in_map))
            if len(above) > MAX_DEPTH:
                raise ProtocolError(f"{what}: CBOR nested deeper than {MAX_DEPTH}")
            left, in_map = items, major == _MAP
    if at != size:
        raise ProtocolError(f"{what}: {size - at} bytes after the end")


def _rest(data: bytes, at: int, major: int, value: int, what: str) -> tuple[int, int]:
    """Read the head whose first byte says `major` and `value`: its number, and where it ends."""
    if major == _TAG or (major == _SIMPLE and value not in _SIMPLES):
        raise ProtocolError(f"{what}: CBOR tags, floats and special values are not accepted")
    if value < 24:
        return value, at
    if value > 27:
        raise ProtocolError(f"{what}: indefinite or reserved CBOR length")
    end = at + (1 << (value - 24))
    if end > len(data):
        raise ProtocolError(f"{what}: CBOR ends early")
    return int.from_bytes(data[at:end], "big"), end
