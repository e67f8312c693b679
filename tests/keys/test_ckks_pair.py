"""FedML-HE's key pair: what members take from the one that made it, and what the server gets."""

from __future__ import annotations

import dataclasses
import secrets

import numpy as np
import pytest

from flhe.errors import ProtocolError
from flhe.keys.roles import check_pair
from flhe.schemes.fedml_he.adder import FedmlHeAdder
from flhe.schemes.fedml_he.keys import CkksPublic, CkksSecret
from flhe.schemes.fedml_he.scheme import FedmlHe
from flhe.schemes.fedml_he.seal_blocks import Blocks

pytest.importorskip("tenseal")

SCHEME = FedmlHe().adder(3)


def pair(scheme: FedmlHeAdder = SCHEME) -> tuple[bytes, bytes]:
    return scheme.new_pair(secrets.token_bytes)


def with_key(public: bytes, secret: bytes) -> bytes:
    """A public part whose context holds the key."""
    whole = Blocks.of(SCHEME.sizes, CkksSecret.from_bytes(secret)).context.serialize(
        save_secret_key=True
    )
    told = CkksPublic.from_bytes(public)
    return dataclasses.replace(told, context=whole).to_bytes()


def test_a_pair_is_taken_as_it_was_made() -> None:
    public, secret = pair()
    check_pair(SCHEME, public, secret)
    assert len(public) < 400
    assert CkksSecret.from_bytes(secret).to_bytes() == secret
    for part in (secret[-200:-100], CkksSecret.from_bytes(secret).coefficients.tobytes()[:64]):
        assert part not in public


def test_a_pair_that_no_honest_member_makes_is_refused() -> None:
    public, secret = pair()
    other_public, other_secret = pair()
    zeros = CkksSecret("4096", np.zeros(4096, np.int8))
    elsewhere = FedmlHe(ring="8192").adder(3)
    bad = {
        "another's secret": (public, other_secret),
        "another's public": (other_public, secret),
        "a key of zeros": (zeros.public(SCHEME.sizes).to_bytes(), zeros.to_bytes()),
        "another ring": pair(elsewhere),
        "a context with the key": (with_key(public, secret), secret),
        "no public part": (b"", secret),
        "no secret": (public, b""),
        "the two exchanged": (secret, public),
    }
    for told in bad.values():
        with pytest.raises(ProtocolError):
            check_pair(SCHEME, *told)


def test_the_server_adds_under_no_context_with_a_key() -> None:
    """What it is told is looked at before anything is added: it must have nothing to decrypt with."""
    from flhe.training.terms import Terms

    public, secret = pair()
    terms = Terms(FedmlHe())
    assert terms.for_cohort(3, public=public).name == "fedml-he"
    with pytest.raises(ProtocolError, match="secret key"):
        terms.for_cohort(3, public=with_key(public, secret))
    with pytest.raises(ProtocolError, match="ring"):
        Terms(FedmlHe(ring="8192")).for_cohort(3, public=public)
