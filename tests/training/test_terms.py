"""Terms: one encoding, a hash over all of it, and nothing that works by halves."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from flhe.coding.flatten import Entry, Layout
from flhe.coding.laplace import Laplace
from flhe.coding.select import Select
from flhe.errors import ConfigError, MisfitError, ProtocolError
from flhe.schemes.sash.scheme import Sash
from flhe.training.client_optimizer import ClientOptimizer
from flhe.training.optimizer import ServerOptimizer
from flhe.training.terms import MAX_BYTES, Terms
from flhe.wire import canonical
from tests.laws import paillier_key

LAYOUT = Layout((Entry("w", (5,), "float32"), Entry("steps", (), "int64")))
SASH_: dict[str, Any] = {"scheme": "sash"}
HALF: dict[str, Any] = {"select": Select(0.5, rest="drop")}
NOISE: dict[str, Any] = {"noise": Laplace(0.1, "all")}
GRADIENT: dict[str, Any] = {"sends": "gradient", "optimizer": ClientOptimizer("sgd")}

OTHER_KINDS: list[dict[str, Any]] = [
    {},
    {"clip": 1 / 3},
    {"clip": {"abc.*?": 0.1, "*": 1e-3}},
    {"clip": "history"},
    {"clip": "exchange"},
    {"masking": "adaptive"},
    {"top_k": 0.1},
    {"top_k": 0.1000001},
    {"top_k": 0.1, "warmup": 0},
    {"top_k": 0.1, "permute": False},
    {"top_k": 1.0},
    SASH_,
    SASH_ | {"bits": 0},
    SASH_ | {"unmask": "clients"},
    {"scheme": "batchcrypt"},
    {"scheme": "batchcrypt", "advance": True},
    {"scheme": "esafl"},
    {"scheme": "esafl", "bits": 0, "ring": "rns-16384"},
    {"scheme": "esafl", "keys": "dealt"},
    {"scheme": "fedml-he"},
    {"select": Select(0.5), "weighted": False},
    {"select": Select(rule="layers:w"), "weighted": False},
    HALF,
    NOISE,
    NOISE | HALF,
    {"metrics": ("é", "loss")},
    {"bits": 17},
    {"max_examples": 9_999},
    {"weighted": False},
    {"arrays_key": "model"},
    {"weight_key": "n"},
    {"scheme": "batchcrypt", "key_bits": 2048},
    {"scheme": "fedml-he", "ckks_ring": "8192"},
    SASH_ | {"preset": "lwr-736"},
    {"optimizer": ServerOptimizer("fedadagrad", eta=1 / 3, tau=1e-3)},
    GRADIENT,
]
"""Terms of which no two may be taken for each other."""


def test_the_order_of_thresholds_is_kept() -> None:
    one, other = Terms(clip={"a*": 1.0, "*": 2.0}), Terms(clip={"*": 2.0, "a*": 1.0})
    assert one.to_bytes() != other.to_bytes()
    assert list(Terms.from_bytes(other.to_bytes()).clip) == ["*", "a*"]  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", OTHER_KINDS, ids=str)
def test_terms_come_back_as_they_are_and_have_hashes_of_their_own(kind: dict[str, Any]) -> None:
    terms = Terms(**kind)
    for made in (terms, terms.resolved(3)):
        again = Terms.from_bytes(made.to_bytes())
        assert again == made
        assert (again.to_bytes(), again.hash()) == (made.to_bytes(), made.hash())
    alike = [other for other in OTHER_KINDS if Terms(**other).hash() == terms.hash()]
    assert alike == [kind]
    resolved = terms.resolved(3)
    hashed = resolved.layout_hash(LAYOUT, resolved.for_cohort(3))
    others = [Terms(**other).resolved(3) for other in OTHER_KINDS if other != kind]
    assert hashed not in [t.layout_hash(LAYOUT, resolved.for_cohort(3)) for t in others]


def test_the_cohort_is_in_the_layout_hash() -> None:
    terms = Terms()
    assert terms.layout_hash(LAYOUT, terms.for_cohort(3)) != terms.layout_hash(
        LAYOUT, terms.for_cohort(4)
    )


@pytest.mark.parametrize(
    ("terms", "tagged"),
    [
        (Terms(), True),
        (Terms("sash", unmask="clients"), True),
        (Terms("sash"), False),
        (Terms("esafl", keys="round"), True),
        (Terms("fedml-he"), True),
        (Terms("batchcrypt"), False),
        (Terms("batchcrypt", weighted=False, select=Select(0.5)), True),
        (Terms("batchcrypt", select=Select(0.5, rest="drop")), False),
    ],
)
def test_members_know_a_sum_by_tags(terms: Terms, tagged: bool) -> None:
    """Unless the server makes the model anyway, or batches that hold all of it have tags already."""
    resolved = terms.resolved(4)
    assert resolved.tagged is tagged
    assert (resolved.tag_lanes > 0) is tagged


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scheme": "eshe"}, "'eshe': this version builds flashe, sash, batchcrypt, esafl"),
        ({"ring": "rns-8192"}, "ring and keys are ESAFL's: leave them out with scheme 'flashe'"),
        (SASH_ | {"keys": "round"}, "ring and keys are ESAFL's"),
        ({"scheme": "esafl", "ring": "rns-2048"}, "ESHE has goldilocks-4096"),
        ({"scheme": "esafl", "keys": "weekly"}, "keys must be one of joint, round, dealt"),
        ({"scheme": "esafl", "top_k": 0.1}, "coefficients are added up as wholes"),
        ({"scheme": "esafl", "masking": "single"}, "that is FLASHE's"),
        ({"scheme": "esafl", "bits": 1}, "bits"),
        (
            {"scheme": "esafl", "keys": "round", "clip": "exchange"},
            "keys='round': thresholds are fitted.*give clip as a number",
        ),
        ({"bits": 0}, "bits must be 2 to 32"),
        ({"key_bits": 1024}, "key_bits=1024: 3072 has 128 bits"),
        ({"ckks_ring": "8192"}, "ckks_ring is FedML-HE's"),
        ({"permute": 1}, "permute must be true or false"),
        ({"select": 0.5}, "select must be a select"),
        ({"noise": 0.5}, "noise must be a noise"),
        (HALF | {"top_k": 0.1}, "select with top_k"),
        (HALF | SASH_, 'select with unmask="server"'),
        ({"select": Select(0.5)}, "select with weighted=True"),
        (NOISE | {"clip": "history"}, "noise with clip='history'"),
        (NOISE | {"top_k": 0.1}, "noise with top_k"),
        ({"noise": Laplace(0.1, "clear")}, 'noise of scope "clear"'),
        ({"preset": "lwr-512"}, "SASH has ring-2048, lwr-736, lwr-1024"),
        ({"sends": "gradient"}, "optimizer 'fedavg', which steps with a mean update"),
        ({"optimizer": ClientOptimizer("adam")}, "which steps with a mean gradient"),
        (GRADIENT | {"top_k": 0.1}, "every client steps for itself.*leave top_k out"),
        (GRADIENT | {"scheme": "sash"}, "every client steps for itself"),
        ({"sends": "weights"}, "sends must be one of update, gradient"),
        ({"key_bits": 2048}, "key_bits and advance are BatchCrypt's"),
        ({"scheme": "batchcrypt", "key_bits": 1024}, "3072 has 128 bits of security"),
        ({"scheme": "batchcrypt", "advance": 1}, "advance must be true or false"),
        ({"scheme": "batchcrypt", "top_k": 0.1}, "batches are added up as wholes"),
        ({"scheme": "batchcrypt", "masking": "single"}, "that is FLASHE's"),
        ({"scheme": "batchcrypt", "advance": True, "bits": 2}, "2 members leave 1 bits"),
        (SASH_ | {"top_k": 0.1}, "top_k with scheme 'sash'.*use scheme 'flashe'"),
        (SASH_ | {"clip": "history"}, "clip='history' with scheme 'sash'.*give clip as a number"),
        (SASH_ | {"clip": "median"}, "with scheme 'sash'"),
        (SASH_ | {"bits": 1}, "bits"),
        (SASH_ | {"bits": 30}, "room for 2 to 29 bits"),
        (SASH_ | {"unmask": "all"}, "unmask must be one of server, clients"),
        ({"bits": 33}, "bits must be 2 to 32"),
        ({"clip": 0.0}, "alpha must"),
        ({"clip": float("nan")}, "alpha must"),
        ({"clip": {"a": -1.0}}, "alpha must"),
        ({"max_examples": 0}, "must be 1 to"),
        ({"max_examples": 1 << 29}, "must be 1 to"),
        ({"masking": "triple"}, "masking must be one of"),
        ({"clip": "median"}, "'history' or 'exchange'"),
        ({"top_k": 0.0}, "above 0 and at most 1"),
        ({"top_k": 1.5}, "above 0 and at most 1"),
        ({"top_k": float("nan")}, "top_k must be a finite number"),
        ({"top_k": 0.1, "warmup": -1}, "cannot be negative"),
        ({"metrics": ("loss", "loss")}, "twice"),
        ({"metrics": tuple(str(i) for i in range(65))}, "at most 64"),
        ({"metrics": ("",)}, "1 to 128"),
        ({"arrays_key": ""}, "1 to 128"),
        ({"weight_key": "n" * 129}, "1 to 128"),
    ],
)
def test_terms_that_cannot_work_are_refused_when_built(change: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Terms(**change)


def test_a_cohort_that_leaves_no_room_is_refused() -> None:
    terms = Terms(max_examples=1 << 28)
    terms.for_cohort(15)
    with pytest.raises(MisfitError, match="63 bits"):
        terms.for_cohort(16)
    dataclasses.replace(terms, weighted=False).for_cohort(1024)


def test_a_public_key_of_another_length_is_refused() -> None:
    public = paillier_key(bytes(32)).public
    terms = Terms(scheme="batchcrypt", key_bits=4096)
    with pytest.raises(ProtocolError, match=f"has {public.bits} bits, the terms say 4096"):
        terms.for_cohort(3, public=public.to_bytes())


# --- SASH's ---


@pytest.mark.parametrize(("cohort", "bits"), [(3, 27), (10, 24), (100, 18), (1000, 12)])
@pytest.mark.parametrize("unmask", ["server", "clients"])
def test_bits_are_resolved_for_a_cohort(cohort: int, bits: int, unmask: Any) -> None:
    terms = Terms("sash", 0, unmask=unmask, preset="lwr-736")
    resolved = terms.resolved(cohort)
    assert resolved == dataclasses.replace(terms, bits=bits)
    assert resolved.resolved(cohort + 1) is resolved
    assert terms.bits == 0  # what is signed before the cohort is known
    scheme = terms.for_cohort(cohort)
    assert scheme == resolved.for_cohort(cohort) == Sash(cohort, bits, "lwr-736", unmask)
    assert Terms.from_bytes(resolved.to_bytes()) == resolved
    assert Terms.from_bytes(terms.to_bytes()) == terms
    assert resolved.codec().parameters() != terms.resolved(2).codec().parameters()
    hashes = [
        t.layout_hash(LAYOUT, scheme) for t in (resolved, dataclasses.replace(resolved, bits=9))
    ]
    assert len({*hashes}) == 2


def test_bits_that_are_given_stay() -> None:
    terms = Terms("sash", 12)
    assert terms.resolved(10) is terms
    assert terms.for_cohort(1000) == Sash(1000, 12)
    with pytest.raises(ConfigError, match="room for 2 to 11 bits; bits=0 takes all"):
        terms.for_cohort(1024)
    flashe = Terms(bits=16)
    assert flashe.resolved(10) is flashe


def test_numbers_may_be_numpys() -> None:
    noise = Laplace(np.float32(0.5), "all")  # type: ignore[arg-type]
    for given, plain in (
        (Terms(top_k=np.float64(0.25)), Terms(top_k=0.25)),
        (Terms(noise=noise), Terms(noise=Laplace(0.5, "all"))),
    ):
        assert given == plain == Terms.from_bytes(given.to_bytes())


@pytest.mark.parametrize("cohort", [0, 1, 1025])
def test_a_cohort_that_sash_has_no_place_for(cohort: int) -> None:
    with pytest.raises(ConfigError, match="cohort must be 2 to 1024"):
        Terms("sash", 0).for_cohort(cohort)


@pytest.mark.parametrize(
    ("terms", "reader", "masked", "sparse", "permuted"),
    [
        (Terms(unmask="server"), "clients", False, False, False),
        (Terms(permute=False), "clients", False, False, False),
        (Terms(top_k=1.0), "clients", False, True, True),
        (Terms(top_k=0.1, permute=False), "clients", False, True, False),
        (Terms("sash"), "server", True, False, False),
        (Terms("sash", unmask="clients"), "clients", True, False, False),
        (Terms("esafl", keys="round"), "clients", True, False, False),
        (Terms("esafl"), "clients", False, False, False),
    ],
)
def test_who_reads_what(
    terms: Terms, reader: str, masked: bool, sparse: bool, permuted: bool
) -> None:
    found = terms.reader, terms.per_sum_keys, terms.sparse, terms.permuted
    assert found == (reader, masked, sparse, permuted)


BODY = canonical.loads(Terms().to_bytes(), MAX_BYTES, "terms")
AS = "clip must be thresholds"
MALFORMED: list[tuple[Any, str]] = [
    ([1], "needs a map of named fields"),
    ({**BODY, "reader": "server"}, "1 unknown fields"),
    ({**BODY, "v": 5}, "version 5, this flhe reads"),
    ({**BODY, "v": 8}, "version 8, this flhe reads"),
    ({**BODY, "clip": 1}, AS),
    ({**BODY, "clip": "one"}, AS),
    ({**BODY, "clip": "1.0"}, AS),
    ({**BODY, "clip": "0x1p+5000"}, AS),
    ({**BODY, "clip": [1, 2]}, AS),
    ({**BODY, "clip": [["a", "0x1p+0", 1]]}, AS),
    ({**BODY, "clip": ["ab"]}, AS),
    ({**BODY, "clip": [[5, "0x1.0000000000000p+0"]]}, AS),
    ({**BODY, "clip": [["a", 1]]}, AS),
    ({**BODY, "clip": [["a", "0x1p+5000"]]}, AS),
    ({**BODY, "clip": [["a", "0x1.0000000000000p+0"]] * 2}, AS),
    ({**BODY, "clip": "median"}, AS),
    ({**BODY, "clip": ["history"]}, AS),
    ({**BODY, "optimizer": {"name": "fedlion"}}, "optimizer"),
    ({**BODY, "optimizer": {"name": "fedavg", "eta": (1.0).hex()}}, "optimizer"),
    ({**BODY, "top_k": "0.5"}, "top_k"),
    ({**BODY, "top_k": "0x1p+5000"}, "top_k"),
]


@pytest.mark.parametrize(("body", "message"), MALFORMED, ids=str)
def test_malformed_terms(body: Any, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        Terms.from_bytes(canonical.dumps(body))


@pytest.mark.parametrize(
    "change", [{"bits": 33}, {"scheme": "eshe"}, {"top_k": "nan"}, {"clip": (0.0).hex()}], ids=str
)
def test_well_formed_terms_that_cannot_work(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Terms.from_bytes(canonical.dumps({**BODY, **change}))


def test_bytes_that_are_no_terms() -> None:
    good = Terms().to_bytes()
    for bad in (b"", good[:-1], good + b"\x00", b"\xff", bytes(MAX_BYTES + 1)):
        with pytest.raises(ProtocolError):
            Terms.from_bytes(bad)
