"""Shamir: what shares give, what they do not give, and which of them are wrong."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from flhe import errors
from flhe.math.prg import random_elements
from flhe.math.ring import Q
from flhe.math.shamir import Shamir

SCHEMES = st.integers(2, 40).flatmap(
    lambda members: st.integers(2, members).flatmap(
        lambda threshold: st.integers(1, threshold - 1).map(
            lambda privacy: Shamir(members, threshold, privacy)
        )
    )
)


def array(numbers: Sequence[int]) -> NDArray[np.uint64]:
    return np.array(numbers, np.uint64)


def tampered(shares: NDArray[np.uint64], ranks: Sequence[int], seed: int) -> NDArray[np.uint64]:
    """One element of each of those shares is another."""
    draws = random.Random(seed)
    out = shares.copy()
    for rank in ranks:
        column = draws.randrange(out.shape[1])
        out[rank, column] = (int(out[rank, column]) + draws.randrange(1, Q)) % Q
    return out


@settings(deadline=None, max_examples=60)
@given(SCHEMES, st.data())
def test_privacy_many_shares_fit_any_secrets(scheme: Shamir, data: st.DataObject) -> None:
    """Any secrets may have the very same shares at as many ranks, and no others."""
    packing, privacy = scheme.packing, scheme.privacy
    shares = scheme.share(random_elements(packing))
    ranks = data.draw(st.permutations(range(scheme.members)))[:privacy]
    other = random_elements(packing)
    again = scheme.share(other, given={rank: shares[rank] for rank in ranks})
    assert np.array_equal(again[ranks], shares[ranks])
    assert not np.array_equal(again, shares)
    everyone = range(scheme.members)
    assert np.array_equal(scheme.combine(everyone, again, packing), other)


def test_given_shares_are_as_many_as_reveal_nothing() -> None:
    for ranks in ((0,), (0, 1, 2)):
        with pytest.raises(errors.ConfigError, match=f"{len(ranks)} given shares, 2 are needed"):
            Shamir(5, 4, 2).share(array([1, 2]), given={rank: array([3]) for rank in ranks})


# --- wrong shares ---


@settings(deadline=None, max_examples=100)
@given(SCHEMES, st.integers(1, 20), st.data())
def test_wrong_shares_are_found(scheme: Shamir, count: int, data: st.DataObject) -> None:
    """Named up to half of the spare ones; beyond, refused all the same."""
    everyone = data.draw(st.permutations(range(scheme.members)))
    ranks = everyone[: data.draw(st.integers(scheme.threshold, scheme.members))]
    spare = len(ranks) - scheme.threshold
    wrong = data.draw(st.permutations(ranks))[: data.draw(st.integers(0, spare))]
    secrets = random_elements(count)
    shares = tampered(scheme.share(secrets), wrong, 3)[ranks]
    if not wrong:
        assert np.array_equal(scheme.combine(ranks, shares, count), secrets)
        return
    with pytest.raises(errors.ProtocolError) as caught:
        scheme.combine(ranks, shares, count)
    if 2 * len(wrong) <= spare:
        assert f"ranks {', '.join(map(str, sorted(wrong)))} do not fit" in str(caught.value)


def test_wrong_elements_that_cancel_are_found() -> None:
    """Opposite errors in two polynomials, which the sum of all polynomials would not show."""
    scheme, secrets = Shamir(7, 4, 3), array([1, 2, 3])
    shares = scheme.share(secrets)
    assert not (shares == scheme.share(secrets)).any()
    shares[2, 0] = (int(shares[2, 0]) + 5) % Q
    shares[2, 1] = (int(shares[2, 1]) - 5) % Q
    with pytest.raises(errors.ProtocolError, match="ranks 2 do not fit") as caught:
        scheme.combine(range(7), shares, 3)
    assert not any(str(x) in str(caught.value) for x in shares.ravel().tolist())


@pytest.mark.parametrize("three", [(64, 43, 42), (1000, 667, 333)])
def test_whole_seeds(three: tuple[int, int, int]) -> None:
    """2048 secrets, as masks have, at sizes that are used."""
    scheme, secrets = Shamir(*three), random_elements(2048)
    shares = scheme.share(secrets)
    ranks = np.random.default_rng(1).permutation(scheme.members).tolist()
    few = ranks[: scheme.threshold]
    assert np.array_equal(scheme.combine(few, shares[few], 2048), secrets)
    wrong = sorted(ranks[: (scheme.members - scheme.threshold) // 2])
    with pytest.raises(errors.ProtocolError) as caught:
        scheme.combine(ranks, tampered(shares, wrong, 2)[ranks], 2048)
    assert f"ranks {', '.join(map(str, wrong))} " in str(caught.value)
