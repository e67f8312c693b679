"""What terms say of one scheme only: which of them go together, and the scheme that they make."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flhe.errors import ConfigError
from flhe.schemes.base import Scheme
from flhe.schemes.batchcrypt.keys import PublicKey, check_key_bits
from flhe.schemes.batchcrypt.scheme import DEFAULT_KEY_BITS, BatchCrypt
from flhe.schemes.esafl import keys as eshe_keys
from flhe.schemes.esafl.scheme import Esafl
from flhe.schemes.fedml_he.keys import CkksPublic
from flhe.schemes.fedml_he.ring import FedmlHe
from flhe.schemes.flashe.scheme import Flashe
from flhe.schemes.presets import DEFAULT_CKKS, DEFAULT_ESHE, eshe_preset, sash_preset
from flhe.schemes.sash.scheme import Sash

if TYPE_CHECKING:
    from flhe.training.terms import Terms


def check_terms(terms: Terms) -> None:
    """Refuse terms that do not go together; ConfigError."""
    _check_values(terms)
    _check_sends(terms)
    _check_owners(terms)
    if terms.scheme != "flashe":
        _check_dense(terms)
    if terms.per_sum_keys and isinstance(terms.clip, str):
        which = "'sash'" if terms.scheme == "sash" else "'esafl' and keys='round'"
        raise ConfigError(
            f"clip={terms.clip!r} with scheme {which}: thresholds are fitted on sums that members open "
            "among themselves; give clip as a number, or numbers by layer"
        )


def _check_values(terms: Terms) -> None:
    """Also of what has no effect under this scheme: terms must read back as they were written."""
    check_key_bits(terms.key_bits)
    for name, value, known in (
        ("advance", terms.advance, (False, True)),
        ("sends", terms.sends, ("update", "gradient")),
    ):
        if value not in known or type(value) is not type(known[0]):
            raise ConfigError(f"Terms({name}={value!r}): use {' or '.join(map(repr, known))}")


def _check_sends(terms: Terms) -> None:
    if terms.sends != terms.optimizer.takes:
        raise ConfigError(
            f"sends={terms.sends!r} with optimizer {terms.optimizer.name!r}, which steps with a mean "
            f"{terms.optimizer.takes}: use a ClientOptimizer for gradients, a ServerOptimizer for "
            "updates"
        )
    if terms.sends == "gradient" and (terms.sparse or terms.reader == "server"):
        raise ConfigError(
            'sends="gradient": every client steps for itself with the sum of all gradients; leave '
            "top_k out, and sums to the clients"
        )


def _check_owners(terms: Terms) -> None:
    """Settings of one scheme are left alone under the others."""
    batches = terms.key_bits, terms.advance
    if terms.scheme != "batchcrypt" and batches != (DEFAULT_KEY_BITS, False):
        raise ConfigError(
            f"key_bits and advance are BatchCrypt's: leave them out with scheme {terms.scheme!r}"
        )
    if terms.scheme != "esafl" and (terms.ring, terms.keys) != (DEFAULT_ESHE, "joint"):
        raise ConfigError(f"ring and keys are ESAFL's: leave them out with scheme {terms.scheme!r}")
    if terms.scheme != "fedml-he" and terms.ckks_ring != DEFAULT_CKKS:
        raise ConfigError(f"ckks_ring is FedML-HE's: leave it out with scheme {terms.scheme!r}")


_WHOLE = {
    "sash": "one sum of seeds opens every coordinate",
    "batchcrypt": "batches are added up as wholes",
    "esafl": "coefficients are added up as wholes",
    "fedml-he": "blocks of values are added up as wholes",
}
"""Why a scheme is for dense updates only."""


def _check_dense(terms: Terms) -> None:
    if terms.sparse:
        raise ConfigError(
            f"top_k with scheme {terms.scheme!r}: {_WHOLE[terms.scheme]}, so all clients must send all "
            "values; leave top_k out, or use scheme 'flashe'"
        )
    if terms.masking != "double":
        raise ConfigError(
            f"masking={terms.masking!r} with scheme {terms.scheme!r}: that is FLASHE's, leave it out"
        )


def elements(terms: Terms, cohort: int) -> int:
    """Field elements of what members share in a masking-key agreement."""
    if terms.scheme == "esafl":
        return eshe_keys.elements(eshe_preset(terms.ring).dimension, cohort)
    return sash_preset(terms.preset).dimension


def build(terms: Terms, cohort: int, public: bytes) -> Scheme:
    """The scheme of resolved terms; see `Terms.for_cohort`."""
    if terms.scheme == "batchcrypt":
        key = PublicKey.from_bytes(public) if public else None
        if key is not None:
            key.check(terms.key_bits)
        return BatchCrypt(cohort, terms.bits, terms.key_bits, key)
    if terms.scheme == "sash":
        return Sash(cohort, terms.bits, terms.preset, terms.unmask)
    if terms.scheme == "fedml-he":
        pair = CkksPublic.from_bytes(public) if public else None
        return FedmlHe(cohort, terms.bits, terms.ckks_ring, pair)
    if terms.scheme == "esafl":
        return Esafl(cohort, terms.bits, terms.ring, terms.keys, public)
    return Flashe(cohort, terms.bits, terms.masking)
