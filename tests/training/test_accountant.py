"""The accountant, beside dp-accounting called by hand."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flhe.coding.base import Mechanism
from flhe.coding.chain import chain
from flhe.coding.clip_norm import ClipNorm
from flhe.coding.discrete_gaussian import LEAST, MOST_MEMBERS, TAIL, DiscreteGaussian
from flhe.errors import ConfigError
from flhe.keys.agreement.thresholds import Thresholds
from flhe.keys.roster.roster import Member, Roster
from flhe.schemes.base import Scheme
from flhe.schemes.esafl.scheme import Esafl
from flhe.schemes.flashe.scheme import Flashe
from flhe.schemes.sash.scheme import Sash
from flhe.training import accountant
from flhe.training.accountant import ORDERS, SUM, epsilon, multiplier_for
from flhe.training.session import counted_on
from tests.training.rounds import identities


def by_hand(multiplier: float, sampling: float, times: int, delta: float) -> float:
    """One mechanism, composed; all orders are integers."""
    event = dp_accounting.GaussianDpEvent(multiplier)
    if sampling < 1:
        event = dp_accounting.PoissonSampledDpEvent(sampling, event)
    known = RdpAccountant(list(ORDERS))
    known.compose(dp_accounting.SelfComposedDpEvent(event, times))
    return float(known.get_epsilon(delta))


@settings(max_examples=10, deadline=None)
@given(
    st.floats(0.3, 20),
    st.sampled_from([1.0, 0.3, 0.02, 0.001]),
    st.integers(1, 3000),
    st.sampled_from([1e-3, 1e-5, 1e-9]),
)
def test_epsilon_is_that_of_dp_accounting(z: float, q: float, times: int, delta: float) -> None:
    """Equal, with the two terms that are added: they are nothing, unless delta is tiny."""
    plain, found = by_hand(z, q, times, delta), epsilon({Mechanism(z, q): times}, delta)
    tail = accountant.TAIL * times
    left = delta * math.exp(-SUM * times) - 2 * tail
    left -= tail * math.expm1(min(by_hand(z, q, times, left) + 1, 700))
    if left <= 0:
        assert found == math.inf
        assert plain > 10
        return
    assert found == pytest.approx(by_hand(z, q, times, left) + 2 * SUM * times, rel=1e-12)
    # Orders are 2 or more, so epsilon rises by no more than the log of what delta falls.
    assert plain <= found <= plain + math.log(delta / left) + 1e-9


def test_a_sampled_gaussian_by_the_formula() -> None:
    """Mironov, Talwar and Zhang's sum for integer orders, without dp-accounting."""
    z, q, times, delta = 1.1, 0.05, 200, 1e-5
    bounds = []
    for order in range(2, 128):
        logs = [
            math.log(math.comb(order, k))
            + (order - k) * math.log1p(-q)
            + k * math.log(q)
            + k * (k - 1) / (2 * z * z)
            for k in range(order + 1)
        ]
        rdp = times * float(np.logaddexp.reduce(logs)) / (order - 1)
        bounds.append(rdp + math.log1p(-1 / order) - math.log(delta * order) / (order - 1))
    assert epsilon({Mechanism(z, q): times}, delta) == pytest.approx(min(bounds), rel=1e-6)


def test_the_terms_that_are_added_bound_what_they_stand_for() -> None:
    """Sums of discrete Gaussians, and the ends of integers, at the widest that there is."""
    values = 2.0**32
    beyond = sum(math.exp(-2 * math.pi**2 * LEAST**2 * k / (k + 1)) for k in range(1, MOST_MEMBERS))
    assert 2 * values * 10 * beyond <= SUM
    assert values * MOST_MEMBERS * 2 * math.exp(-(TAIL**2) / 2) <= accountant.TAIL
    wide, much = Mechanism(1000.0, 1.0), 10**12
    assert epsilon({wide: much}, 1e-5) > epsilon({wide: 1}, 1e-5)
    assert epsilon({wide: much}, 1e-7) == math.inf  # delta is used up


@settings(max_examples=20, deadline=None)
@given(
    st.integers(3, 40),
    st.integers(0, 12),
    st.integers(2, 12),
    st.floats(0.3, 8),
    st.sampled_from([Flashe(), Sash("clients"), Sash(), Esafl(keys="joint")]),
)
def test_any_sum_that_may_open_has_the_noise_that_is_accounted_for(
    size: int, collusion: int, least: int, z: float, scheme: Scheme
) -> None:
    """Over N, t, c and sigma: of the smallest set, less those who collude, and less one at least."""
    assume(max(least, collusion + 3) <= size and collusion <= size - 2)
    members = tuple(Member(f"site-{i}", one.public) for i, one in enumerate(identities(size)))
    roster = Roster(members, collusion, least, ("*",))
    codec = chain(ClipNorm(1.0), DiscreteGaussian(1.0, z))
    fewest = max(least, collusion + 2)
    if scheme.opened_together:
        fewest = max(fewest, Thresholds(size, collusion).min_set)
    if scheme.needs_all_members:
        fewest = size
    honest = fewest - max(collusion, 1)
    assert counted_on(roster, scheme, size, 0) == honest >= 1
    assert counted_on(roster, scheme, size, size) == size - max(collusion, 1)
    noise = codec.counting_on(honest).codecs[-1]
    assert isinstance(noise, DiscreteGaussian)
    grid = noise.grid(9)
    deviation = math.sqrt(honest * noise._variance(grid, noise.honest))
    made = by_hand(deviation / grid.sensitivity, 1.0, 10, 1e-5)
    mechanism = codec.mechanism
    assert mechanism is not None
    assert made <= epsilon({mechanism: 10}, 1e-5) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("target", "rounds", "sampling"), [(3.0, 100, 0.1), (0.5, 10, 1.0), (8, 1, 1)]
)
def test_a_multiplier_is_the_least_that_stays_within(
    target: float, rounds: int, sampling: float
) -> None:
    found = multiplier_for(target, rounds, sampling=sampling)
    assert epsilon({Mechanism(found, sampling): rounds}) <= target
    assert epsilon({Mechanism(found / 1.01, sampling): rounds}) > target


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: epsilon({Mechanism(1.0, 1.0): 1}, 0.0),
        lambda: epsilon({Mechanism(1.0, 1.0): 1}, 1.0),
        lambda: multiplier_for(0.0, 1),
        lambda: multiplier_for(math.inf, 1),
        lambda: multiplier_for(1.0, 0),
        lambda: multiplier_for(1e-9, 10**6),
    ],
)
def test_what_has_no_answer_is_refused(wrong: object) -> None:
    with pytest.raises(ConfigError):
        wrong()  # type: ignore[operator]


@given(st.floats(0, 1e6, allow_subnormal=False))
def test_an_epsilon_is_never_shown_lower_than_it_is(value: float) -> None:
    text = accountant.shown(value)
    assert value <= float(text) <= value * 1.0101 + 1e-300
    assert len(text.split("e")[0].replace(".", "").strip("0")) <= 3
    assert accountant.shown(float(text)) == text


def test_where_both_are_hidden_a_members_noise_counts_half() -> None:
    """A record that changes an update may turn it round: that is twice as far as to zeros."""
    records, members = Mechanism(1.0, 0.1), Mechanism(4.0, 1.0, of_members=True)
    alone = epsilon({members: 3})
    assert alone == epsilon({Mechanism(4.0, 1.0): 3})
    both = epsilon({records: 50, members: 3})
    assert both == epsilon({records: 50, Mechanism(2.0, 1.0): 3})
    assert max(epsilon({records: 50}), alone) < both
    assert epsilon({}) == 0.0


def test_the_tail_costs_more_of_delta_the_larger_epsilon_is() -> None:
    """(1 + exp(e)) times it a release: once that is all of delta, no epsilon holds."""
    small = Mechanism(0.3, 1.0)
    assert accountant.TAIL * math.exp(by_hand(0.3, 1.0, 1, 1e-9)) > 1e-9
    assert epsilon({small: 1}, 1e-9) == math.inf
    plain, found = by_hand(0.3, 1.0, 1, 1e-6), epsilon({small: 1}, 1e-6)
    assert plain * (1 + 1e-6) < found < plain + 1
