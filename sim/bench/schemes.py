"""Schemes of ours as contenders."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from flhe.coding.select import Select
from flhe.math import ring
from flhe.schemes.base import Sealer, Secrets
from flhe.schemes.batchcrypt.adder import BatchCryptOpener, BatchCryptSealer
from flhe.schemes.batchcrypt.keys import SecretKey
from flhe.schemes.batchcrypt.scheme import DEFAULT_KEY_BITS, BatchCrypt
from flhe.schemes.esafl.adder import EsaflOpener, EsaflSealer
from flhe.schemes.esafl.keys import Total, draw_own
from flhe.schemes.esafl.scheme import DEFAULT_ESHE, Esafl
from flhe.schemes.fedml_he.scheme import FedmlHe
from flhe.schemes.flashe.adder import FlasheOpener, FlasheSealer
from flhe.schemes.flashe.scheme import Flashe
from flhe.schemes.sash.adder import SashOpener, SashSealer
from flhe.schemes.sash.scheme import Sash
from flhe.schemes.sealed import Sealed
from flhe.training.terms import Terms
from flhe_lab.bench.contender import (
    EXAMPLES,
    SLOT,
    Contender,
    Make,
    Setting,
    Vector,
    Work,
    averaging,
)
from flhe_lab.bench.federation import Federation, layout_of, terms_of

NARROW = "rns-8192"
"""ESAFL's ring for narrow links, a row of its own."""


def flashe(setting: Setting, updates: Sequence[Vector], *, ahead: bool = False) -> Contender:
    """FLASHE; with `ahead` also phases "prepare", an upload's masks, and "encrypt_prepared"."""
    scheme, key, threads = Flashe(), secrets.token_bytes(32), setting.threads
    terms, adder = terms_of(scheme), scheme.adder(setting.cohort)

    def sealer(rank: int) -> FlasheSealer:
        return FlasheSealer(adder, key, rank, threads=threads)

    ours = Federation(
        terms,
        adder,
        sealer,
        lambda total: FlasheOpener(adder, key, threads=threads).decrypt(total),
        key,
    )
    note = f"{scheme.masking} masking, {terms.bits} bits, {adder.lane_bits} on the wire"
    made = ours.contender("flashe", setting, updates, note=note)
    if not ahead:
        return made
    encoded, ready = ours.encoder(setting, updates), sealer(0)
    length = setting.values + terms.trailer_lanes(layout_of(setting.values))

    def prepare() -> None:
        nonlocal ready
        ready = sealer(0)
        ready.prepare(SLOT, length)

    more: dict[str, Work] = {
        "encrypt": made.phases["encrypt"],
        "prepare": prepare,
        "encrypt_prepared": lambda: ready.encrypt(encoded(0), SLOT),
    }
    return replace(made, phases={**more, **made.phases})


def plain(setting: Setting, updates: Sequence[Vector]) -> Contender:
    """FedAvg in clear: weigh, add, divide, in float32."""
    weight, mine = np.float32(EXAMPLES), [updates[j] for j in setting.survivors]
    total, running = np.zeros(setting.values, np.float32), np.zeros(setting.values, np.float32)
    for update in mine:
        total += update * weight
    factor = np.float32(1 / (EXAMPLES * len(mine)))
    return averaging(
        "plain",
        lambda: mine[0] * weight,
        lambda: np.add(running, mine[0], out=running),
        lambda: total * factor,
        mine,
        note="FedAvg in clear: weigh, add, divide",
        upload_bytes=4 * setting.values,
        sum_bytes=4 * setting.values,
    )


def sash(setting: Setting, updates: Sequence[Vector]) -> Contender:
    """SASH: quantize, draw a seed, expand the mask, add.

    The agreement on the sum of seeds does not depend on the update's length and is timed elsewhere.
    """
    scheme = Sash()
    terms, adder = terms_of(scheme).resolved(setting.cohort), scheme.adder(setting.cohort)
    first: dict[int, SashSealer] = {}
    """Whose seeds are in the sum."""

    def sealer(rank: int) -> SashSealer:
        made = SashSealer(adder, rank, threads=setting.threads)
        first.setdefault(rank, made)
        return made

    @functools.cache
    def agreed() -> Any:
        return functools.reduce(ring.add, (made.take_seed(SLOT) for made in first.values()))

    def opened(total: Sealed) -> Any:
        return SashOpener(adder, agreed(), threads=setting.threads).decrypt(total)

    return Federation(terms, adder, sealer, opened).contender(
        "sash", setting, updates, note=f"{adder.bits} bits a value, 32 on the wire; {scheme.preset}"
    )


def esafl(setting: Setting, updates: Sequence[Vector], ring_name: str = DEFAULT_ESHE) -> Contender:
    """ESAFL: quantize, draw the error, expand `a`, transform, add, pack.

    Who drops out does so before keys are agreed on: the cohort is that of the survivors.
    """
    mine, threads = [updates[j] for j in setting.survivors], setting.threads
    scheme = Esafl(ring_name, "joint")  # the keys cost apart; how values are encrypted is the same
    terms, adder = terms_of(scheme), scheme.adder(len(mine))
    sizes, key = adder.sizes, secrets.token_bytes(32)
    owns = [draw_own(sizes.n) for _ in mine]
    s: Total = np.add.reduce(owns, dtype=np.int32)

    return Federation(
        terms,
        adder,
        lambda rank: EsaflSealer(adder, key, rank, owns[rank], threads=threads),
        lambda total: EsaflOpener(adder, key, s, threads=threads).decrypt(total),
        key,
    ).contender(
        "esafl" if ring_name == DEFAULT_ESHE else f"esafl {ring_name}",
        Setting(setting.values, len(mine), 0, threads),
        mine,
        note=f"{ring_name}, log q = {sizes.slots.q.bit_length()}; {sizes.slots.per} values of "
        f"{adder.bits} bits in {len(sizes.slots.moduli)} x {sizes.limb_bits}",
    )


def batchcrypt(
    setting: Setting,
    updates: Sequence[Vector],
    key_bits: int = DEFAULT_KEY_BITS,
    *,
    subgroup: bool = False,
    **coding: Any,
) -> Contender:
    """BatchCrypt: quantize, batch, draw the powers r^n, multiply; fixed-base tables are made anew.

    A modulus of `key_bits` bits; `coding` as in `terms_of`.
    """
    scheme, threads = BatchCrypt(key_bits, subgroup=subgroup), setting.threads
    key = SecretKey.generate(key_bits, subgroup)
    terms = terms_of(scheme, **coding)
    adder = scheme.adder(setting.cohort, terms.bits, key.public.to_bytes())
    slots = adder.batch
    count = slots.batches(setting.values + terms.trailer_lanes(layout_of(setting.values)))
    return Federation(
        terms,
        adder,
        lambda rank: BatchCryptSealer(adder, key, rank, threads=threads),
        lambda total: BatchCryptOpener(adder, key, threads).decrypt(total),
        # Always the same: exponents are drawn afresh, and tags here protect nothing but random numbers.
        bytes(32),
    ).contender(
        f"batchcrypt{'' if key_bits == DEFAULT_KEY_BITS else f' {key_bits}'}"
        f"{' subgroup' if subgroup else ''}",
        setting,
        updates,
        note=f"Paillier, {key_bits} bits; {count:,} ciphertexts of {slots.per} values, each of "
        f"{terms.bits} bits in {slots.width}; at most 3 repeats",
        max_repeats=3,
    )


def fedml_terms(share: float) -> Terms:
    """FedML-HE with so much encrypted; which values does not matter, so they are random ones."""
    return terms_of(FedmlHe(), weighted=share == 1, select=Select(share, "random"))


def fedml(setting: Setting, updates: Sequence[Vector], share: float = 1.0) -> Contender:
    """FedML-HE: CKKS of all of an update, or of a share; TenSEAL's context is built once."""
    from flhe.schemes.selective import Selective

    terms, layout, threads = fedml_terms(share), layout_of(setting.values), setting.threads
    scheme, key = FedmlHe(), secrets.token_bytes(32)
    public, secret = scheme.adder(setting.cohort).new_pair(secrets.token_bytes)
    whole = scheme.adder(setting.cohort, public=public)
    adder = terms.selective(whole, layout)
    if isinstance(adder, Selective):
        adder = replace(adder, mask=terms.select.fixed(layout))
    opener = adder.opener(Secrets(key, 0, secret), threads=threads)

    def sealer(rank: int) -> Sealer:
        return adder.sealer(Secrets(key, rank, secret), threads=threads)

    sizes = whole.sizes
    return Federation(terms, adder, sealer, opener.decrypt, key).contender(
        "fedml-he" if share == 1 else f"fedml-he select {share:g}",
        setting,
        updates,
        note=f"ring {scheme.ring}, log q = {sizes.q.bit_length()}, {sizes.digits.per} values of "
        f"{whole.bits} bits in a slot",
    )


SCHEMES: dict[str, Make] = {
    "flashe": flashe,
    "sash": sash,
    "batchcrypt": batchcrypt,
    "batchcrypt-subgroup": partial(batchcrypt, subgroup=True),
    "esafl": esafl,
    "fedml-he": fedml,
    "plain": plain,
}
"""Name -> how to make it take part."""
