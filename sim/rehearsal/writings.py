r"""What text may stand for: bytes, as logs, JSON, certificates and error messages write them.

hex           in either case, with colons, blanks, commas, dashes or 0x between the bytes, or in lines
base64        with either alphabet, in lines too
escapes       \x1f, \u001f, \037 and \n, as repr(), JSON and protobuf write them, or twice
numbers       lists of numbers below 256
decimals      numbers with a point, as `printed` rounds them

All of it at every alignment, one layer deep: hex of hex is not seen through.

And the forms that a vector may have before anybody writes it down: float32, float64, float16 and
printed decimals; an update also negated, in the other byte order and divided by the clipping threshold.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

_RUN = re.compile(rb"[\t\n\r -~]{10,}")
_HEX = re.compile(rb"[0-9A-Fa-f]{16,}")
_BASE64 = re.compile(rb"[0-9A-Za-z+/_-]{11,}")
_ESCAPE = re.compile(
    rb"\\(?:x([0-9A-Fa-f]{2})|u00([0-9A-Fa-f]{2})|([0-3]?[0-7]{1,2})|([abtnvfr\\'\"]))"
)
_LIST = re.compile(rb"(?:-?\d{1,3}[\s,;]+){7,}-?\d{1,3}")
_DECIMAL = re.compile(rb"[-+]?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][-+]?\d{1,3})?")
_BETWEEN = re.compile(rb"0x|[\s:,\-]")
_URL_SAFE = bytes.maketrans(b"-_", b"+/")
_LETTERS = dict(zip(b"abtnvfr\\'\"", b"\a\b\t\n\v\f\r\\'\"", strict=True))
_APART = b"\x00"
DIGITS = 6
"""Significant digits that a printed number is compared by."""


def decoded(data: bytes) -> Iterator[bytes]:
    """What the text in `data` may stand for, decoded."""
    text = _APART.join(_RUN.findall(data))
    if not text:
        return
    # All runs at once: alignments are tried on all of them together.
    unbroken = text.translate(None, b"\t\n\r ")
    for each in {text, _BETWEEN.sub(b"", text)}:
        digits = b"".join(_HEX.findall(each))
        for start in (0, 1):
            yield binascii.unhexlify(digits[start : len(digits) - (len(digits) - start) % 2])
    for each in {text, unbroken}:
        letters = b"".join(_BASE64.findall(each)).translate(_URL_SAFE)
        for part in (letters[start:] for start in range(4 if letters else 0)):
            yield base64.b64decode(part + b"A" * (-len(part) % 4))  # its last letters count as well
    if b"\\" in text:
        once = _ESCAPE.sub(_unescaped, text)
        yield once
        yield _ESCAPE.sub(_unescaped, once)
    for match in _LIST.finditer(text):
        numbers = map(int, re.findall(rb"-?\d+", match[0]))
        # Signed ones too, as Java writes them. What is larger stands as 0.
        yield bytes(n & 0xFF if -128 <= n < 256 else 0 for n in numbers)
    decimals = [float(number) for number in _DECIMAL.findall(text)]
    if len(decimals) > 1:
        yield printed(np.array(decimals))


def printed(values: NDArray[np.floating]) -> bytes:
    """Numbers as they are compared with printed ones: rounded to DIGITS digits, float32."""
    wide = values.astype(np.float64).reshape(-1)
    wide = wide[np.isfinite(wide)]
    exponent = np.floor(np.log10(np.abs(wide), where=wide != 0, out=np.zeros_like(wide)))
    scale = 10.0 ** (exponent - (DIGITS - 1))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return (np.rint(wide / scale) * scale).astype("<f4").tobytes()


def _unescaped(match: re.Match[bytes]) -> bytes:
    code, point, octal, letter = match.groups()
    if letter is not None:
        return bytes([_LETTERS[letter[0]]])
    if octal is not None:
        return bytes([int(octal, 8) & 0xFF])
    return bytes([int(code or point, 16)])


MOST = 1 << 14
"""Values of a vector that are looked for in all forms; the others as they are."""


def floats(array: NDArray[np.generic]) -> bytes:
    """An array's bytes as they would travel."""
    return np.ascontiguousarray(array).tobytes()


def of_vector(values: NDArray[Any]) -> Iterator[bytes]:
    """A model, or anything else of floats; of other numbers as they are."""
    yield floats(values)
    if values.dtype.kind != "f":
        return
    some = values.reshape(-1)[:MOST]
    yield floats(some.astype("<f8"))
    with np.errstate(over="ignore"):
        yield floats(some.astype("<f2"))
    yield printed(some)


def of_update(update: NDArray[np.float32], clip: float = 0.0) -> Iterator[bytes]:
    """An update: float32 differences, of either sign, and in units of the threshold `clip`."""
    for sign in (1, -1):
        yield from of_vector(np.multiply(update, sign, dtype=update.dtype))
    some = update.reshape(-1)[:MOST]
    yield floats(some.astype(">f4"))
    if clip:
        yield floats((some / clip).astype("<f4"))
