"""The vectors of ESHE, made by a second implementation (`tests.schemes.eshe_second`).

python -m tests.schemes.test_eshe_vectors
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flhe import errors
from flhe.coding.base import Plain
from flhe.coding.support import Support
from flhe.math.prg import AesCtr, FieldElements
from flhe.math.ring import add
from flhe.math.sampling import Gaussian
from flhe.schemes.esafl.keys import EsheKey, draw_own, from_elements
from flhe.schemes.esafl.scheme import Eshe, EsheOpener, EsheSealer
from flhe.schemes.sealed import Sealed, Slot
from flhe.wire.derive import hkdf as derive
from tests.coding.test_support_vectors import cbor, coded
from tests.math.test_permutation_vectors import FAR, NEAR, context
from tests.schemes.eshe_second import (
    FILE,
    GOLDILOCKS,
    RINGS,
    Q,
    Rows,
    Second,
    added,
    coefficient,
    columns,
    drawn,
    drawn_again,
    gaussian,
    hashed,
    key_of,
    key_seed,
    little,
    noise_seed,
    ordered,
    own,
    product,
    root,
    thresholds,
    uniform,
    values_of,
)

# --- vectors ---


def numbers(count: int, bits: int, salt: int) -> list[int]:
    """Values that fill the space, its ends first."""
    most = 2 ** (bits - 1) - 1
    spread = [((i + salt) * 0x9E3779B97F4A7C15 >> 11) % (2 * most + 1) - most for i in range(count)]
    return [most, -most, *spread][:count]


def positive(
    name: str,
    second: Second,
    ranks: list[int],
    length: int,
    extras: int = 0,
    sums: Rows | None = None,
    value: Callable[[int], list[int]] | None = None,
) -> dict[str, Any]:
    """One case of the file; a long one has hashes instead of lists."""
    long, size, n = length > 1000, length + extras, second.n
    everyone = ranks if second.keys == "round" else range(second.cohort)
    whole = key_of(everyone, n)
    plains: dict[int, list[int]] = {}
    sealed: dict[int, Rows] = {}
    parts = []
    for rank in ranks:
        plain = plains[rank] = value(rank) if value else numbers(size, second.bits, rank)
        s = own(rank, n)
        sealed[rank] = second.encrypt(s, noise_seed(rank), plain)
        data = second.wire(sealed[rank])
        part = {
            "rank": rank,
            "key_seed": key_seed(rank).hex(),
            "noise_seed": noise_seed(rank).hex(),
            "own": hashed(little(s, 1)),
            "values": "numbers(length + extras, bits, rank), by tests/schemes/test_eshe_vectors.py",
            "header": second.header([rank], size).hex(),
            "ciphertext": hashed(data) if long else data.hex(),
        }
        if not long:
            part["values"] = plain
        if second.keys == "round":
            part["elements"] = hashed(little(second.elements(s)))
        else:
            fields = [1, "eshe-key", little(s, 1), little(whole, 4)]
            part["file"] = hashed(cbor(fields))
        parts.append(part)
    told_sums = []
    for senders in sums or [ranks]:
        total = added(second, [sealed[rank] for rank in senders])
        s = key_of(senders, n)
        opened, noise = second.open(total, s, len(senders), size)
        assert opened == columns([plains[rank] for rank in senders])
        assert noise == columns([gaussian(noise_seed(r), len(total[0])) for r in senders])
        header, data = second.header(senders, size), second.wire(total)
        told_sums.append(
            {
                "senders": senders,
                "data": hashed(data) if long else data.hex(),
                "header": header.hex(),
                "digest": hashed(header + data),
                "key": hashed(little(s, 4)),
                "noise_bound": second.noise_bound(len(senders)),
                "opened": hashed(json.dumps(opened).encode()) if long else opened,
                "noise": hashed(json.dumps(noise).encode()) if long else noise,
            }
        )
    blocks = [
        (second.a_key(limb), j, n, q)
        for limb, q in enumerate(second.moduli)
        for j in range(second.blocks(second.count(size)))
    ]
    return {
        "name": name,
        **({"hashed": True} if long else {}),
        **second.told(),
        "width": second.width,
        "slots": second.per,
        "limb_bits": second.sizes[1],
        "moduli": [f"{q:x}" for q in second.moduli],
        "a": [
            {
                "key": block_[0].hex(),
                "block": block_[1],
                "drawn_again": drawn_again(*block_),
                "values": hashed(little(drawn(*block_))),
            }
            for block_ in blocks
        ],
        "length": length,
        "extras": extras,
        "parts": parts,
        "sums": told_sums,
    }


def positives() -> list[dict[str, Any]]:
    three = Second(3)
    few = Second(1000, keys="round", slot=FAR)
    fresh = [[0], [1, 2], [0, 1, 2]]

    def ends(rank: int) -> list[int]:
        return [three.b, -three.b, 0, three.b if rank else -three.b]

    return [
        positive("three members", three, [0, 1, 2], 20, 3),
        positive("all ten", Second(10), list(range(10)), 12, 2),
        positive("two bits, dealt", Second(3, 2, keys="dealt"), [0, 1, 2], 40, 1),
        positive("eight bits, dealt", Second(3, 8, keys="dealt"), [0, 1, 2], 20, 2),
        positive("thirty-two bits", Second(3, 32), [0, 1, 2], 9, 2),
        positive("no values", three, [0, 1, 2], 0),
        positive("extras alone", three, [0, 1, 2], 0, 3),
        positive("ends of the space", three, [0, 1, 2], 4, value=ends),
        positive("fresh keys", Second(3, keys="round"), [0, 1, 2], 11, 2, fresh),
        positive("ranks far apart", few, [1, 511, 999], 7, 2, [[1, 511, 999], [511]]),
        positive("two limbs", Second(3, 16, "rns-4096"), [0, 1, 2], 11, 2),
        positive("three limbs", Second(10, 16, "rns-8192", "round"), [3, 9], 18, 1, [[3], [3, 9]]),
        positive("into the second block", Second(2), [0, 1], 8190, 5),
    ]


def slow() -> list[dict[str, Any]]:
    """Large rings and many blocks: each takes the second implementation a second."""
    again = hashlib.sha256(b"eshe 1060").digest()  # in blocks 1 and 2, words are drawn again
    packed_ = Second(2, 32, "rns-4096", group_key=again)
    return [
        positive("into the second block, limbs", Second(2, 32, "rns-8192"), [0, 1], 40_970, 2),
        positive("beyond what is packed at a time", packed_, [0, 1], 32_768, 3),
        positive("many limbs", Second(3, 16, "rns-16384"), [0, 1, 2], 31),
        positive("the paper's ring", Second(2, 24, "paper-32768"), [0, 1], 20, 2),
    ]


def sizes() -> list[list[Any]]:
    """Ring, cohort, bits: width, slots, bits of a residue, moduli."""
    found = []
    for ring, cohort, bits in itertools.product(RINGS, (2, 10, 16, 100, 1024), (2, 8, 16, 24, 32)):
        second = Second(cohort, bits, ring)
        per, limb_bits, moduli = second.sizes
        found.append([ring, cohort, bits, second.width, per, limb_bits, [f"{q:x}" for q in moduli]])
    return found


# --- what must fail ---

THREE = Second(3)
RNS = Second(3, 16, "rns-4096")
TEN = Second(10, keys="round")
ALL = [0, 1, 2]

Wrong = list[tuple[str, str, str, dict[str, Any]]]
"""Name, error, words of the library, and what is wrong."""

PROTOCOL, CONFIG, RANGE, REUSE = "ProtocolError", "ConfigError", "RangeError", "ReuseError"


def refused(at: str, start: dict[str, Any], wrong: Wrong) -> list[dict[str, Any]]:
    return [
        {"name": name, **start, **change, "at": at, "error": error, "says": says}
        for name, error, says, change in wrong
    ]


def not_built() -> list[dict[str, Any]]:
    wrong: Wrong = [
        ("one member", CONFIG, "cohort must be 2 to 1024", {"cohort": 1}),
        ("too many members", CONFIG, "cohort must be 2 to 1024", {"cohort": 1025}),
        ("one bit", CONFIG, "bits must be 2 to 32", {"bits": 1}),
        ("a bit too many", CONFIG, "bits must be 2 to 32", {"bits": 33}),
        ("a ring that there is not", CONFIG, "ESHE has goldilocks-4096", {"ring": "rns-2048"}),
        ("keys that there are not", CONFIG, "use 'joint', 'round', 'dealt'", {"keys": "weekly"}),
        ("a short name of the keys", CONFIG, "32 bytes", {"key_id": "00" * 31}),
        ("a name of fresh keys", CONFIG, "none where", {"key_id": "00" * 32, "keys": "round"}),
    ]
    return refused("scheme", THREE.told(), wrong)


def key_told(ranks: list[int], n: int = 4096, times: int = 1, first: int = 0) -> dict[str, Any]:
    """A key in the file: the sum of some, times a number, with a number added to coefficient 0."""
    seeds = [key_seed(rank).hex() for rank in ranks]
    return {"seeds": seeds, "n": n, "times": times, "first": first}


def not_held() -> list[dict[str, Any]]:
    """Keys that a sealer does not take."""
    high = 41 - own(1, 4096)[0]
    above = 72 - key_of(ALL, 4096)[0]  # 9 sigma sqrt(3) is 70.6, rounded up
    wrong: Wrong = [
        ("a rank beyond the cohort", PROTOCOL, "not in the cohort", {"rank": 3}),
        ("a rank below it", PROTOCOL, "not in the cohort", {"rank": -1}),
        ("no key", CONFIG, "a key of its own", {"own": None, "total": None}),
        ("a key, and fresh ones", CONFIG, "no key of its own", {"keys": "round"}),
        ("a key of another ring", PROTOCOL, "dimension", {"own": key_told([1], 8192)}),
        ("a sum of another ring", PROTOCOL, "dimension", {"total": key_told(ALL, 8192)}),
        ("a key twice as wide", PROTOCOL, "too large", {"own": key_told([1], times=2)}),
        ("a coefficient beyond", PROTOCOL, "9 sigma", {"own": key_told([1], first=high)}),
        ("no key at all", PROTOCOL, "too small", {"own": key_told([1], times=0)}),
        ("a sum of two keys", PROTOCOL, "too small", {"total": key_told([0, 1])}),
        ("a sum of four keys", PROTOCOL, "too large", {"total": key_told([0, 1, 2, 3])}),
        ("one key three times", PROTOCOL, "too large", {"total": key_told([1], times=3)}),
        ("a coefficient of a sum", PROTOCOL, "sqrt", {"total": key_told(ALL, first=above)}),
    ]
    start = {"rank": 1, "own": key_told([1]), "total": key_told(ALL)}
    return refused("sealer", THREE.told() | start, wrong)


def not_read() -> list[dict[str, Any]]:
    """Key files; of a ring of two, which a file does not know."""
    good = [1, "eshe-key", bytes([3, 253]), little([5, -7], 4)]
    wrong = {
        "nothing": b"",
        "a byte short": cbor(good)[:-1],
        "a byte long": cbor(good) + b"\0",
        "another version": cbor([2, *good[1:]]),
        "true for the version": b"\x84\xf5" + cbor(good)[2:],
        "a version in its long form": b"\x84\x18\x01" + cbor(good)[2:],
        "of another kind": cbor([1, "eshe-own", *good[2:]]),
        "a sum too short": cbor([*good[:3], little([5], 4)]),
        "no coefficients": cbor([1, "eshe-key", b"", b""]),
        "a field too many": cbor([*good, 0]),
        "the sum missing": cbor(good[:3]),
        "text for the key": cbor([1, "eshe-key", "ab", good[3]]),
    }
    told: Wrong = [(k, PROTOCOL, "ESHE key", {"file": data.hex()}) for k, data in wrong.items()]
    return refused("key", {}, told)


def not_encrypted() -> list[dict[str, Any]]:
    most = THREE.b
    wrong: Wrong = [
        ("a value beyond the space", RANGE, "lies beyond", {"values": [1, most + 1]}),
        ("a value beyond it below", RANGE, "lies beyond", {"values": [-most - 1, 1]}),
        ("an extra beyond the space", RANGE, "lies beyond", {"extras": [most + 1]}),
        ("a value that wraps to one", RANGE, "lies beyond", {"values": [2**32 + 1, 1]}),
        ("a mode", PROTOCOL, "a mode was named", {"mode": "double"}),
        ("coordinates", PROTOCOL, "sparse", {"coords": [3, 5]}),
        ("a support", PROTOCOL, "sparse", {"support": [3, 5]}),
        ("a slot used twice", REUSE, "has encrypted a vector before", {"times": 2}),
    ]
    start = {"rank": 1, "own": key_told([1]), "total": key_told(ALL)}
    start |= {"values": [1, -1], "extras": [7], "mode": ""}
    return refused("encrypt", THREE.told() | start, wrong)


def ciphertext(second: Second, rank: int, length: int = 20) -> Rows:
    """A sender's, of ones."""
    return second.encrypt(own(rank, second.n), noise_seed(rank), [1] * length)


def summed(second: Second = THREE, ranks: Any = ALL) -> Rows:
    return added(second, [ciphertext(second, rank) for rank in ranks])


def message(rank: int, length: int = 20, **other: Any) -> dict[str, str]:
    return THREE.message([rank], ciphertext(THREE, rank, length), length, **other)


def moved(**change: Any) -> list[Any]:
    """The slot, but for something."""
    return context(NEAR | change)


def with_body(told: dict[str, str], change: Callable[[bytes], bytes]) -> dict[str, str]:
    return told | {"body": change(bytes.fromhex(told["body"])).hex()}


def with_residue(rows: Rows, limb: int, at: int, residue: int) -> Rows:
    changed = [list(row) for row in rows]
    changed[limb][at] = residue
    return changed


def not_added() -> list[dict[str, Any]]:
    first, other = message(0), message(1)
    rows, many = ciphertext(THREE, 1), ciphertext(RNS, 1)
    both = THREE.message([0, 1], summed(ranks=(0, 1)), 20)
    support = coded([3, 5], 20)
    digest = hashlib.sha256(cbor(["flhe/v1/support", 20, support])).digest()
    sparse = message(1, supports=[[20, len(support), digest]])
    slot, modulus, double = "slot is not the total's", "below its modulus", "already in the sum"

    def beyond(at: int, residue: int) -> dict[str, str]:
        return THREE.message([1], with_residue(rows, 0, at, residue), 20)

    cases: list[tuple[str, str, str, list[dict[str, str]]]] = [
        ("a mode", PROTOCOL, "a mode was named", [first, message(1, mode="double")]),
        ("of another scheme", PROTOCOL, "'sash'", [first, message(1, scheme="sash")]),
        ("a support", PROTOCOL, "sparse", [first, with_body(sparse, lambda x: x + support)]),
        ("of another round", PROTOCOL, slot, [first, message(1, slot=moved(round=4))]),
        ("of another attempt", PROTOCOL, slot, [first, message(1, slot=moved(attempt=1))]),
        ("of another epoch", PROTOCOL, slot, [first, message(1, slot=moved(epoch="aa" * 16))]),
        ("of another run", PROTOCOL, slot, [first, message(1, slot=moved(run_id=8))]),
        ("of another length", PROTOCOL, "length is not", [first, message(1, 21)]),
        ("a byte short", PROTOCOL, "55 bytes, 20", [first, with_body(other, lambda x: x[1:])]),
        ("a byte long", PROTOCOL, "57 bytes, 20", [first, with_body(other, lambda x: x + b"1")]),
        ("longer by its header", PROTOCOL, "56 bytes, 22", [first, THREE.message([1], rows, 22)]),
        ("of nobody in it", PROTOCOL, "sender 3 is not", [first, THREE.message([3], rows, 20)]),
        ("a sender twice", REUSE, double, [first, first]),
        ("in a sum already", REUSE, double, [both, other]),
        ("a sum that holds it", REUSE, double, [other, both]),
        ("q for a residue", PROTOCOL, modulus, [first, beyond(4, Q)]),
        ("a word of ones", PROTOCOL, modulus, [first, beyond(6, 2**64 - 1)]),
        ("q in the first of all", PROTOCOL, modulus, [beyond(0, Q)]),
    ]
    start = RNS.message([0], ciphertext(RNS, 0), 20)
    limbs: Wrong = [
        (f"q in limb {limb}", PROTOCOL, modulus, {"messages": [start, RNS.message([1], bad, 20)]})
        for limb, q in enumerate(RNS.moduli)
        for bad in [with_residue(many, limb, 2, q)]
    ]
    told: Wrong = [(name, error, says, {"messages": m}) for name, error, says, m in cases]
    return refused("add", THREE.told(), told) + refused("add", RNS.told(), limbs)


def not_opened() -> list[dict[str, Any]]:
    rows, noisy, modulus = summed(), "noise beyond", "below its modulus"
    total, two, many = THREE.message(ALL, rows, 20), summed(ranks=(0, 1)), summed(RNS)
    partly = summed(TEN, (2, 5))
    one, pair, five = (TEN.message(said, partly, 20) for said in ([5], [2, 5], [2, 5, 6, 7, 8]))

    def case(told: dict[str, str], ranks: list[int] = ALL, **change: int) -> dict[str, Any]:
        return {"messages": [told], "total": key_told(ranks, **change)}

    def at(**change: Any) -> dict[str, Any]:
        return case(THREE.message(ALL, rows, 20, slot=moved(**change)))

    def by(limb: int, at: int, residue: int) -> dict[str, Any]:
        second, whole = (RNS, many) if limb else (THREE, rows)
        return case(second.message(ALL, with_residue(whole, limb, at, residue), 20))

    stray = (rows[0][6] + (1 << (2 * THREE.width))) % Q
    more = (many[1][2] + 1) % RNS.moduli[1]  # the other limb stays as it was
    wrong: Wrong = [
        ("two of three", PROTOCOL, "a sum of 2 of 3", case(THREE.message([0, 1], two, 20))),
        ("two, said to be three", PROTOCOL, noisy, case(THREE.message(ALL, two, 20))),
        ("keys of others", PROTOCOL, noisy, case(total, [0, 1, 7])),
        ("one key twice", PROTOCOL, "too large", case(total, [0, 1, 1])),
        ("a coefficient off by one", PROTOCOL, noisy, case(total, first=1)),
        ("a coefficient off by one, down", PROTOCOL, noisy, case(total, first=-1)),
        ("two keys", PROTOCOL, "too small", case(total, [0, 1])),
        ("four keys", PROTOCOL, "too large", case(total, [0, 1, 2, 3])),
        ("another epoch", PROTOCOL, noisy, at(epoch="aa" * 16)),
        ("another run", PROTOCOL, noisy, at(run_id=8)),
        ("another round", PROTOCOL, noisy, at(round=4)),
        ("another history", PROTOCOL, noisy, at(history="00" * 32)),
        ("a slot beyond the last value", PROTOCOL, "the last value is not", by(0, 6, stray)),
        ("q for a residue", PROTOCOL, modulus, by(0, 6, Q)),
        ("a byte short", PROTOCOL, "55 bytes", case(with_body(total, lambda x: x[1:]))),
        ("a byte long", PROTOCOL, "57 bytes", case(with_body(total, lambda x: x + b"1"))),
        ("longer by its header", PROTOCOL, "56 bytes, 22", case(THREE.message(ALL, rows, 22))),
        ("of nobody", PROTOCOL, "not in the cohort", case(THREE.message([0, 1, 3], rows, 20))),
        (
            "of another scheme",
            PROTOCOL,
            "'sash'",
            case(THREE.message(ALL, rows, 20, scheme="sash")),
        ),
        ("a mode", PROTOCOL, "a mode was named", case(THREE.message(ALL, rows, 20, mode="single"))),
    ]
    limbs: Wrong = [
        ("one limb altered", PROTOCOL, "a slot beyond what 3", by(1, 2, more)),
        ("q in the last limb", PROTOCOL, modulus, by(1, 0, RNS.moduli[1])),
    ]  # fmt: skip
    fresh: Wrong = [
        ("a fresh key of another", PROTOCOL, noisy, case(pair, [2, 6])),
        ("a sender more than said", PROTOCOL, noisy, case(one, [5])),
        ("keys of five for a sum of two", PROTOCOL, "too large", case(pair, [0, 1, 2, 3, 4])),
        ("keys of two for a sum of five", PROTOCOL, "too small", case(five, [2, 5])),
    ]
    told = [(THREE, wrong), (RNS, limbs), (TEN, fresh)]
    return [row for second, rows_ in told for row in refused("open", second.told(), rows_)]


def borders() -> list[dict[str, Any]]:
    """A sum of 20 ones of three, altered as far as it still opens, and by one more."""
    rows, width, p = summed(), THREE.width, THREE.p
    whole, key = key_of(ALL, 4096), {"total": key_told(ALL)}
    _, noise = THREE.open(rows, whole, 3, 20)
    bound, ones = THREE.noise_bound(3), 3 * (THREE.b + 1)
    cases = []
    for name, says, at, by, one in (
        ("noise", "noise beyond the 63", 3, p * (bound - noise[3]), p),
        ("noise below", "noise beyond the 63", 5, p * (-bound - noise[5]), -p),
        ("a slot", "a slot beyond what 3", 2, (6 * THREE.b - ones) << width, 1 << width),
        ("a slot below", "a slot beyond what 3", 0, -ones, -1),
    ):
        last, beyond = (with_residue(rows, 0, at, (rows[0][at] + x) % Q) for x in (by, by + one))
        opened, _ = THREE.open(last, whole, 3, 20)
        good = {"messages": [THREE.message(ALL, last, 20)], "opened": opened}
        cases.append(
            {"name": f"{name}, at its border", **THREE.told(), **key, **good, "at": "open"}
        )
        bad: dict[str, Any] = {"messages": [THREE.message(ALL, beyond, 20)]}
        wrong: Wrong = [(f"{name}, beyond it", PROTOCOL, says, bad | key)]
        cases += refused("open", THREE.told(), wrong)
    return cases


def keys_summed() -> list[dict[str, Any]]:
    """Keys of 20 coefficients for three members as field elements: eight bits, seven to an element."""
    three = Second(3, keys="round")
    good = [x % Q for x in columns([three.elements(own(rank, 20)) for rank in ALL])]
    start = {"n": 20, "cohort": 3, "elements": little(good).hex()}
    none = "no members' keys have"
    wrong: Wrong = [
        ("one missing", PROTOCOL, "field elements", {"elements": little(good[:-1]).hex()}),
        ("one too many", PROTOCOL, "field elements", {"elements": little([*good, 0]).hex()}),
        *(
            (name, PROTOCOL, none, {"elements": little([*good[:2], last]).hex()})
            for name, last in (
                ("half of the field", Q // 2),
                ("a digit beyond the last", (good[-1] + 2**56) % Q),
                ("a coefficient too many", (good[-1] + 2**48) % Q),
            )
        ),
    ]
    opened = {"name": "a sum of keys", **start, "opened": key_of(ALL, 20), "at": "elements"}
    return [opened, *refused("elements", start, wrong)]


def steps() -> list[dict[str, Any]]:
    """Cases that must fail, where, and what the library says; a few beside them that must not."""
    built = not_built() + not_held() + not_read() + not_encrypted()
    return built + not_added() + not_opened() + borders() + keys_summed()


def contents(*, everything: bool) -> dict[str, Any]:
    return {
        "version": 1,
        "made_by": "tests/schemes/test_eshe_vectors.py, products of polynomials by definition",
        "thresholds": [f"{x:016x}" for x in thresholds()],
        "sizes": sizes(),
        "cases": positives() + steps(),
        **({"slow": slow()} if everything else {}),
    }


# --- against the library ---

READ: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {"cases": [], "slow": []}
CASES = READ["cases"] + READ["slow"]
GOOD = [case for case in CASES if "at" not in case]
REST = [case for case in CASES if "at" in case]


def test_the_file_is_what_the_second_implementation_writes() -> None:
    told = json.loads(FILE.read_text())
    assert told | {"slow": []} == contents(everything=False) | {"slow": []}


@pytest.mark.sweep
def test_so_are_its_slow_cases() -> None:
    assert READ["slow"] == slow()


def test_long_products_are_products() -> None:
    """The two ways of the second implementation, at the ends and in between."""
    q, n = Q, 4096
    values, s = drawn(bytes(32), 0, n, q), own(0, n)
    a = uniform(bytes(32), 0, n, q)
    many = product(ordered(values), values_of(s, root(q, n), q), q)
    for d in (0, 1, 77, 2048, n - 1):
        assert many[d] == coefficient(a, s, d) % q
    # The second place is the value at -w: the first bit reversed is the highest.
    w = q - root(q, n)
    assert values[1] == functools.reduce(lambda at, x: (at * w + x) % q, reversed(a), 0)


def test_words_are_drawn_again_somewhere() -> None:
    """In a first block, and in later ones of another limb."""
    found = {(case["ring"], a["block"]) for case in GOOD for a in case["a"] if a["drawn_again"]}
    assert found >= {(GOLDILOCKS, 0), ("rns-4096", 1), ("rns-4096", 2)}


def test_the_table_of_samples() -> None:
    assert [f"{x:016x}" for x in Gaussian().thresholds] == READ["thresholds"]


def test_sizes() -> None:
    for ring, cohort, bits, *expected in READ["sizes"]:
        found = Eshe(cohort, bits, ring).sizes
        slots, moduli = found.slots, [f"{q:x}" for q in found.slots.moduli]
        assert [slots.width, slots.per, found.limb_bits, moduli] == expected


def scheme_of(case: dict[str, Any]) -> Eshe:
    key_id = bytes.fromhex(case.get("key_id", ""))
    return Eshe(case["cohort"], case["bits"], case["ring"], case["keys"], key_id)


def slot_of(case: dict[str, Any]) -> Slot:
    return Slot(*context(case["slot"]))


def group_key_of(case: dict[str, Any]) -> bytes:
    return bytes.fromhex(case["group_key"])


def giving(*chunks: str) -> Callable[[int], bytes]:
    """A random source that is asked for these, in order and for nothing else."""
    left = [bytes.fromhex(chunk) for chunk in chunks]

    def random(count: int) -> bytes:
        chunk = left.pop(0)
        assert len(chunk) == count
        return chunk

    return random


def drawn_from(seed: str, n: int) -> NDArray[np.int8]:
    return draw_own(n, giving(seed))


def total_of(seeds: list[str], n: int) -> NDArray[np.int32]:
    total: NDArray[np.int32] = np.sum([drawn_from(x, n) for x in seeds], axis=0, dtype=np.int32)
    return total


@pytest.mark.parametrize("case", GOOD, ids=lambda c: c["name"])
def test_vector(case: dict[str, Any]) -> None:
    def told(data: bytes) -> str:
        return hashed(data) if case.get("hashed") else data.hex()

    def listed(numbers_: list[int]) -> Any:
        return hashed(json.dumps(numbers_).encode()) if case.get("hashed") else numbers_

    scheme, slot, group_key = scheme_of(case), slot_of(case), group_key_of(case)
    n, slots = scheme.sizes.n, scheme.sizes.slots
    assert [slots.width, slots.per, scheme.sizes.limb_bits] == [
        case[name] for name in ("width", "slots", "limb_bits")
    ]
    assert [f"{q:x}" for q in slots.moduli] == case["moduli"]
    blocks = -(-slots.count(case["length"] + case["extras"]) // n)
    streams = itertools.product(enumerate(slots.moduli), range(blocks))
    for ((limb, q), j), a in zip(streams, case["a"], strict=True):
        a_key = derive(group_key, "eshe-a", *slot.context(), case["ring"], limb)
        assert (a_key.hex(), j) == (a["key"], a["block"])
        assert hashed(FieldElements(AesCtr(), a_key, q).block(j, n).tobytes()) == a["values"]
    seeds = {part["rank"]: part["key_seed"] for part in case["parts"]}
    whole = total_of(list(seeds.values()), n)
    parts, shares, noises = {}, {}, {}
    for part in case["parts"]:
        parts[part["rank"]], shares[part["rank"]] = check_part(case, scheme, part, whole, told)
        count = slots.count(parts[part["rank"]].length)
        noises[part["rank"]] = Gaussian().draw(count, giving(part["noise_seed"])).tolist()
    for expected in case["sums"]:
        for order in (expected["senders"], expected["senders"][::-1]):
            total = None
            for rank in order:
                total = scheme.add(total, parts[rank])
            assert total is not None
            closed = scheme.close(total)
            assert told(closed.data.tobytes()) == expected["data"]
            assert closed.header().hex() == expected["header"]
            assert closed.digest().hex() == expected["digest"]
        key = total_of([seeds[rank] for rank in expected["senders"]], n)
        if case["keys"] == "round":
            summed_shares = functools.reduce(add, [shares[rank] for rank in expected["senders"]])
            assert np.array_equal(from_elements(summed_shares, n, case["cohort"]), key)
        assert hashed(key.astype("<i4").tobytes()) == expected["key"]
        opened = EsheOpener(scheme, group_key, key, threads=2).decrypt(closed)
        assert listed(opened.tolist()) == expected["opened"]
        noise = columns([noises[rank] for rank in expected["senders"]])
        assert listed(noise) == expected["noise"]
        assert slots.noise_bound(len(expected["senders"])) == expected["noise_bound"]


def check_part(
    case: dict[str, Any],
    scheme: Eshe,
    part: dict[str, Any],
    whole: NDArray[np.int32],
    told: Callable[[bytes], str],
) -> tuple[Sealed, Any]:
    """One sender's: what travels, and the share of its key where that is fresh."""
    rank, slot, size = part["rank"], slot_of(case), case["length"] + case["extras"]
    values = numbers(size, case["bits"], rank) if case.get("hashed") else part["values"]
    lanes = np.array(values, np.int32)
    mine, share = drawn_from(part["key_seed"], scheme.sizes.n), None
    assert hashed(mine.tobytes()) == part["own"]
    if case["keys"] == "round":
        key, asked = None, [part["key_seed"], part["noise_seed"]]
    else:
        key, asked = EsheKey(mine, whole), [part["noise_seed"]]
        assert hashed(key.to_bytes()) == part["file"]
        assert np.array_equal(EsheKey.from_bytes(key.to_bytes()).total, whole)
    sealer = EsheSealer(scheme, group_key_of(case), rank, key, threads=2, random=giving(*asked))
    if rank % 2:
        sealer.prepare(slot, size)
    sealed = sealer.encrypt(Plain(lanes[: case["length"]], lanes[case["length"] :]), slot)
    assert told(sealed.data.tobytes()) == part["ciphertext"]
    assert sealed.header().hex() == part["header"]
    if key is None:
        share = sealer.take_seed(slot)
        assert hashed(share.astype("<u8").tobytes()) == part["elements"]
    return Sealed.from_parts(sealed.header(), sealed.data), share


def key_from(told: dict[str, Any] | None) -> NDArray[np.int32] | None:
    """Of the library; see `key_told`."""
    if told is None:
        return None
    key = total_of(told["seeds"], told["n"]) * np.int32(told["times"])
    key[0] += told["first"]
    return key


def parts_of(told: dict[str, str]) -> tuple[bytes, NDArray[np.uint8]]:
    return bytes.fromhex(told["header"]), np.frombuffer(bytes.fromhex(told["body"]), np.uint8)


@pytest.mark.parametrize("case", REST, ids=lambda c: f"{c['at']}-{c['name']}")
def test_vector_of_one_step(case: dict[str, Any]) -> None:
    """What must fail fails at its own step and at its last message; all before it pass."""
    reached: list[tuple[str, int]] = []
    if "error" in case:
        with pytest.raises(errors.FlheError, match=case["says"]) as caught:
            run(case, reached)
        assert type(caught.value).__name__ == case["error"]
    else:
        assert run(case, reached) == case["opened"]
    times = {"add": len(case.get("messages", ())), "encrypt": case.get("times", 1)}
    assert reached[-1] == (case["at"], times.get(case["at"], 1) - 1)


def run(case: dict[str, Any], reached: list[tuple[str, int]]) -> Any:
    """All steps to the case's own, noting each."""
    reached.append((case["at"] if case["at"] in ("key", "elements") else "scheme", 0))
    if case["at"] == "key":
        return EsheKey.from_bytes(bytes.fromhex(case["file"]))
    if case["at"] == "elements":
        told = np.frombuffer(bytes.fromhex(case["elements"]), "<u8").astype(np.uint64)
        return from_elements(told, case["n"], case["cohort"]).tolist()
    scheme = scheme_of(case)
    if case["at"] in ("sealer", "encrypt"):
        own_, total = key_from(case["own"]), key_from(case["total"])
        key = None if own_ is None or total is None else EsheKey(own_.astype(np.int8), total)
        reached.append(("sealer", 0))
        sealer = EsheSealer(scheme, group_key_of(case), case["rank"], key)
        if case["at"] == "encrypt":
            encrypt(sealer, case, reached)
        return None
    floats = 20 if case["at"] == "add" else 0
    read = [Sealed.from_parts(*parts_of(told), floats=floats) for told in case["messages"]]
    if case["at"] == "open":
        reached.append(("open", 0))
        s = key_from(case["total"])
        assert s is not None
        return EsheOpener(scheme, group_key_of(case), s).decrypt(read[0]).tolist()
    sum_ = None
    for i, part in enumerate(read):
        reached.append(("add", i))
        sum_ = scheme.add(sum_, part)
    return None


def encrypt(sealer: EsheSealer, case: dict[str, Any], reached: list[tuple[str, int]]) -> None:
    values, extras = (np.array(case[name], np.int64) for name in ("values", "extras"))
    coords = np.array(case["coords"], np.uint32) if "coords" in case else None
    support = Support.of(np.array(case["support"], np.uint32), 20) if "support" in case else None
    for i in range(case.get("times", 1)):
        reached.append(("encrypt", i))
        plain = Plain(values, extras, coords)
        sealer.encrypt(plain, slot_of(case), mode=case["mode"], support=support)


def test_what_does_not_open_does_not_so_in_the_second_implementation() -> None:
    """It reads as well as writes, and tells the same causes apart."""
    said = ("noise beyond", "a slot beyond what", "the last value is not")
    found = 0
    for case in REST:
        cause = [words for words in said if case.get("says", "").startswith(words)]
        if case["at"] != "open" or not cause:
            continue
        found += 1
        sealed = Sealed.from_parts(*parts_of(case["messages"][0]))
        fields = [f.hex() if isinstance(f, bytes) else f for f in sealed.slot.context()]
        slot = dict(zip(NEAR, fields, strict=True))
        second = Second(case["cohort"], case["bits"], case["ring"], case["keys"], slot)
        told, count = case["total"], second.count(sealed.length)
        s = columns([gaussian(bytes.fromhex(seed), second.n) for seed in told["seeds"]])
        s[0] += told["first"]
        bits, limbs = second.sizes[1], len(second.moduli)
        data, size = sealed.data.tobytes(), (count * second.sizes[1] + 7) // 8
        strings = [int.from_bytes(data[size * k :][:size], "little") for k in range(limbs)]
        rows = [[x >> (bits * d) & (2**bits - 1) for d in range(count)] for x in strings]
        with pytest.raises(ValueError, match=cause[0]):
            second.open(rows, s, len(sealed.senders), sealed.length)
    assert found == 16


if __name__ == "__main__":
    text = json.dumps(contents(everything=True))
    FILE.write_text(text.replace('{"name"', '\n{"name"') + "\n")
