"""Words for the telephone: a pronounceable word of five letters for each 16 bits.

    word = consonant vowel consonant vowel consonant,    4 + 2 + 4 + 2 + 4 bits, most significant first

Sixteen words encode 256 bits, in four lines of four. One changed bit changes a letter, so comparing
all words compares all bits.

Source: Wilkerson, "A Proposal for Proquints" (arXiv:0901.4016), whose letters these are.
"""

from __future__ import annotations

from flhe.errors import ConfigError

CONSONANTS = "bdfghjklmnprstvz"
VOWELS = "aiou"
A_LINE = 4

_ALPHABETS = (CONSONANTS, VOWELS, CONSONANTS, VOWELS, CONSONANTS)


def lines(data: bytes) -> list[str]:
    """Return a word for each two bytes, four a line. Raises ConfigError for an odd number of bytes."""
    if len(data) % 2:
        raise ConfigError(f"words need an even number of bytes, got {len(data)}")
    words = [_word(int.from_bytes(data[at : at + 2], "big")) for at in range(0, len(data), 2)]
    return [" ".join(words[at : at + A_LINE]) for at in range(0, len(words), A_LINE)]


def shown(label: str, data: bytes) -> str:
    """Return `data` in hexadecimal for pinning, and below it in words, which people compare."""
    return "\n".join((f"{label}  {data.hex()}", *(f"      {line}" for line in lines(data))))


def _word(number: int) -> str:
    letters = []
    for alphabet in reversed(_ALPHABETS):
        number, digit = divmod(number, len(alphabet))
        letters.append(alphabet[digit])
    return "".join(reversed(letters))
