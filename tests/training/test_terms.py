"""Terms: one encoding, a hash over all of it, and nothing that works by halves."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from flhe.coding.chain import chain
from flhe.coding.clip import Clip
from flhe.coding.discrete_gaussian import DiscreteGaussian
from flhe.coding.flatten import Entry, Layout
from flhe.coding.laplace import Laplace
from flhe.coding.quantize import Quantize
from flhe.coding.select import Select
from flhe.coding.update import update_codec
from flhe.coding.weigh import Weigh
from flhe.errors import ConfigError, FlheError, MisfitError, ProtocolError
from flhe.schemes.base import Scheme
from flhe.schemes.batchcrypt.scheme import BatchCrypt
from flhe.schemes.esafl.scheme import Esafl
from flhe.schemes.flashe.scheme import Flashe
from flhe.schemes.sash.scheme import Sash
from flhe.training.optimizer import Optimizer
from flhe.training.terms import MAX_BYTES, Terms
from flhe.wire import canonical
from flhe_lab.variants.threshold.scheme import ThresholdCkks
from tests.laws import paillier_key

LAYOUT = Layout((Entry("w", (5,), "float32"), Entry("steps", (), "int64")))
HALF = Select(0.5, rest="drop")
NOISE = Laplace(0.1, "all")
SGD = Optimizer("sgd")
RECORD = DiscreteGaussian(1.0, 1.0, "record", 0.1, 10.0)


def coded(scheme: Scheme | None = None, **coding: Any) -> Terms:
    """Terms of a scheme with a codec."""
    return Terms(scheme or Flashe(), update_codec(**coding))


OTHER_KINDS: list[Terms] = [
    Terms(),
    coded(clip=1 / 3),
    coded(clip={"a*": 1.0, "*": 2.0}),
    coded(clip={"*": 2.0, "a*": 1.0}),
    Terms(Flashe("adaptive")),
    coded(top_k=0.1),
    Terms(Sash()),
    coded(Sash(), bits=0),
    Terms(Esafl(keys="dealt")),
    Terms(codec=update_codec(weighted=False), select=Select(0.5)),
    Terms(select=HALF),
    Terms(noise=NOISE),
    Terms(noise=NOISE, select=HALF),
    Terms(metrics=("é", "loss")),
    Terms(arrays_key="model"),
    Terms(weight_key="n"),
    Terms(optimizer=Optimizer("fedadagrad", eta=1 / 3, tau=1e-3)),
]
"""Terms of which no two may be taken for each other: each field in another way, and order too."""


@pytest.mark.parametrize("terms", OTHER_KINDS, ids=str)
def test_terms_come_back_as_they_are_and_have_hashes_of_their_own(terms: Terms) -> None:
    for made in (terms, terms.resolved(3)):
        again = Terms.from_bytes(made.to_bytes())
        assert again == made
        assert again.to_bytes() == made.to_bytes()
    assert [other for other in OTHER_KINDS if other.to_bytes() == terms.to_bytes()] == [terms]
    resolved = terms.resolved(3)
    hashed = resolved.layout_hash(LAYOUT, resolved.for_cohort(3))
    others = [other.resolved(3) for other in OTHER_KINDS if other is not terms]
    assert hashed not in [t.layout_hash(LAYOUT, resolved.for_cohort(3)) for t in others]


REFUSED: list[tuple[Callable[[], Terms], str]] = [
    (lambda: Terms(scheme="flashe"), "scheme must be a scheme"),  # type: ignore[arg-type]
    (lambda: coded(Esafl(keys="joint"), top_k=0.1), "coefficients are added up as wholes"),
    (lambda: coded(Esafl(keys="round"), clip="exchange"), "fitted on sums that.*clip as a number"),
    (lambda: coded(ThresholdCkks(), clip="exchange"), "fitted on sums that.*clip as a number"),
    (lambda: Terms(ThresholdCkks(), select=HALF), "select with threshold CKKS"),
    (lambda: coded(bits=0), "bits must be 2 to 32"),
    (lambda: coded(permute=1), "each is True or False"),
    (lambda: Terms(codec=chain(Clip(1.0), Quantize(16))), "put Weigh"),
    (lambda: Terms(codec=chain(Weigh(1))), "end the chain with Quantize"),
    (lambda: Terms(codec=Clip(1.0)), "codec must be a chain"),  # type: ignore[arg-type]
    (lambda: Terms(select=0.5), "select must be a select"),  # type: ignore[arg-type]
    (lambda: Terms(noise=0.5), "noise must be a noise"),  # type: ignore[arg-type]
    (lambda: Terms(select=HALF, codec=update_codec(top_k=0.1)), "select with top_k"),
    (lambda: Terms(Sash(), select=HALF), "reads all values anyway"),
    (lambda: Terms(select=Select(0.5)), "select with weighted=True"),
    (lambda: Terms(noise=NOISE, codec=update_codec(clip="history")), "fitted clipping thresholds"),
    (lambda: Terms(noise=NOISE, codec=update_codec(top_k=0.1)), "noise with top_k"),
    (lambda: Terms(noise=Laplace(0.1, "clear")), 'noise of scope "clear"'),
    (lambda: Terms(optimizer=SGD, codec=update_codec(top_k=0.1)), "leave sparsification out"),
    (lambda: Terms(Sash(), optimizer=SGD), "every client steps for itself"),
    (lambda: coded(BatchCrypt(), top_k=0.1), "batches are added up as wholes"),
    (lambda: coded(BatchCrypt(advance=True), bits=2), "2 members leave 1 bits"),
    (lambda: coded(Sash(), top_k=0.1), "sparse updates with SASH.*that carries sparse"),
    (lambda: coded(Sash(), clip="history"), "SASH and fresh keys.*clip as a number"),
    (lambda: coded(Sash(), bits=30), "room for 2 to 29 bits"),
    (lambda: Terms(metrics=tuple(str(i) for i in range(65))), "at most 64"),
    (lambda: Terms(metrics=("",)), "1 to 128"),
    # Several steps of training would let one record change an update by more than was clipped.
    (lambda: Terms(codec=chain(RECORD)), "one clipped gradient a record"),
    (lambda: Terms(weight_key="n" * 129), "1 to 128"),
]


@pytest.mark.parametrize(("build", "message"), REFUSED, ids=lambda x: x if type(x) is str else "")
def test_terms_that_cannot_work_are_refused_when_built(
    build: Callable[[], Terms], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        build()


def test_a_cohort_that_leaves_no_room_is_refused() -> None:
    terms = Terms(codec=update_codec(max_examples=1 << 28))
    terms.for_cohort(15)
    with pytest.raises(MisfitError, match="63 bits"):
        terms.for_cohort(16)


def test_a_public_key_of_another_length_is_refused() -> None:
    public = paillier_key(bytes(32)).public
    terms = Terms(BatchCrypt(key_bits=4096))
    with pytest.raises(ProtocolError, match=f"has {public.bits} bits, the terms say 4096"):
        terms.for_cohort(3, public=public.to_bytes())


# --- SASH's ---


@pytest.mark.parametrize(("cohort", "bits"), [(3, 27), (10, 24), (100, 18), (1000, 12)])
def test_bits_are_resolved_for_a_cohort(cohort: int, bits: int) -> None:
    terms = Terms(Sash(), update_codec(bits=0))
    resolved = terms.resolved(cohort)
    assert resolved == dataclasses.replace(terms, codec=update_codec(bits=bits))
    assert resolved.resolved(cohort + 1) is resolved
    assert terms.bits == 0  # what is signed before the cohort is known
    scheme = terms.for_cohort(cohort)
    assert scheme == terms.scheme.adder(cohort, bits)
    narrower = dataclasses.replace(resolved, codec=update_codec(bits=9))
    hashes = [t.layout_hash(LAYOUT, scheme) for t in (resolved, narrower)]
    assert len({*hashes}) == 2


def test_bits_that_are_given_stay() -> None:
    terms = Terms(Sash(), update_codec(bits=12))
    assert terms.resolved(10) is terms
    with pytest.raises(ConfigError, match="room for 2 to 11 bits; bits=0 takes all"):
        terms.for_cohort(1024)


BODY = canonical.loads(Terms().to_bytes(), MAX_BYTES, "terms")
AS, QUANTIZE_33 = "codec must be a chain", {"name": "quantize", "bits": 33}


def clip(**own: Any) -> dict[str, Any]:
    """Terms whose first codec says this."""
    return {**BODY, "codec": [{"name": "clip", **own}, *BODY["codec"][1:]]}


def top(**own: Any) -> dict[str, Any]:
    return {**BODY, "codec": [{"name": "topk", "ratio": "0.1", "warmup": 0, **own}, *BODY["codec"]]}


UNREADABLE: list[tuple[dict[str, Any], type[FlheError], str]] = [
    ({**BODY, "reader": "server"}, ProtocolError, "1 unknown fields"),
    ({**BODY, "codec": "clip"}, ProtocolError, AS),
    (clip(bound=[["a", "0x1.0000000000000p+0"]] * 2), ProtocolError, AS),
    (clip(rule="history", bits=3), ProtocolError, AS),
    (top(ratio="0.10"), ProtocolError, AS),
    ({**BODY, "scheme": ["flashe"]}, ProtocolError, "scheme"),
    ({**BODY, "scheme": ["flashe", {"masking": "double", "x": 1}]}, ProtocolError, "1 unknown"),
    ({**BODY, "optimizer": {"name": "fedlion"}}, ProtocolError, "optimizer"),
    # Well formed, and they cannot work:
    ({**BODY, "scheme": ["rot13", {}]}, ConfigError, "there are flashe, sash"),
    ({**BODY, "scheme": ["esafl", {"ring": "rns-2048", "keys": "joint"}]}, ConfigError, "ESHE has"),
    ({**BODY, "codec": [*BODY["codec"][:-1], QUANTIZE_33]}, ConfigError, "2 to 32"),
    (
        {**BODY, "codec": BODY["codec"][::-1]},
        ConfigError,
        "Weigh takes reals|Quantize needs inputs",
    ),
    (clip(bound=[[5, "0x1.0000000000000p+0"]]), ConfigError, "names of layers"),
    ({**BODY, "optimizer": {**BODY["optimizer"], "eta": (1.0).hex()}}, ConfigError, "has no eta"),
]


@pytest.mark.parametrize(("body", "error", "message"), UNREADABLE, ids=str)
def test_terms_that_are_none(body: Any, error: type[FlheError], message: str) -> None:
    with pytest.raises(error, match=message):
        Terms.from_bytes(canonical.dumps(body))
