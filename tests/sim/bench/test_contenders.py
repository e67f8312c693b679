"""Who takes part in benchmarks and tables: each gives the mean, or the sum, and counts its bytes."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import numpy as np
import pytest

from flhe.errors import ConfigError, FlheError
from flhe.keys.agreement.messages import Envelope
from flhe.schemes.flashe.masking import expected
from flhe.wire.canonical import loads
from flhe_lab.bench import flower_secagg
from flhe_lab.bench.contender import Setting
from flhe_lab.bench.flower_secagg import FlowerSecAgg, stayed, update_of
from flhe_lab.bench.members import Pairwise, SashMembers, SashNeighbours
from flhe_lab.bench.peers import bfv, plain_modulus
from flhe_lab.bench.phe import phe_batches, phe_keys, phe_values
from flhe_lab.bench.schemes import SCHEMES, flashe
from flhe_lab.bench.secure_sums import FLOWERS, MAKES, SASH_PLUS, SECAGG_PLUS, contender
from flhe_lab.bench.sparse import plain_sparse, sparse
from flhe_lab.bench.times import limits
from flhe_lab.tables.fedml_measure import bare
from flhe_lab.tables.flashe_masks import MODES, crossover
from flhe_lab.tables.phase_costs import WHO
from flhe_lab.variants.secagg import pairwise

for package in ("phe", "gmpy2", "tenseal"):
    pytest.importorskip(package)

SETTING = Setting(1000, 3)
KEY = phe_keys(512)
MAKERS = {
    **WHO,
    "masks ahead": partial(flashe, ahead=True),
    "TenSEAL, server weighs": bare("server"),
    "TenSEAL, clients weigh": bare("client"),
    "plain tenth": lambda setting, updates: plain_sparse(setting, updates, 0.1)[0],
}


@pytest.mark.parametrize("name", MAKERS)
def test_everybody_gives_the_mean_twice(name: str) -> None:
    made = MAKERS[name](SETTING, SETTING.updates())
    for _ in range(2):
        laps = made.turn()
        assert {"encrypt", "add", "decrypt"} <= {phase for phase in laps if laps[phase] > 0}
        error = made.checked()
        assert error is not None
        assert error < 5e-5
    assert made.upload_bytes


@pytest.mark.parametrize("name", [name for name in SCHEMES if name != "plain"])
def test_a_mean_that_is_not_the_mean_is_an_error(name: str) -> None:
    setting = Setting(values=900, cohort=3)
    updates = setting.updates()
    made = SCHEMES[name](setting, updates)
    made.turn()
    for update in updates:  # another vector than the one that was added up
        update[7] += np.float32(0.5)
    with pytest.raises(FlheError, match="its times mean nothing"):
        made.checked()


def test_the_limit_is_of_flashes_own_streams() -> None:
    # Two runs of senders, two ends each.
    assert "2 streams to encrypt, 4 to decrypt" in (limits(Setting(2_000, 5, 1))[0].note or "")


def test_samples_stand_for_wholes() -> None:
    setting = Setting(1000, 4, 1)
    updates = setting.updates()
    values, batches = (make(setting, updates, KEY) for make in (phe_values, phe_batches))
    assert (values.projection, values.upload_bytes) == (1000 / 16, 1000 * (128 + 4))
    # Slots of 19 bits, 26 of them in 511: 39 ciphertexts.
    assert (batches.projection, batches.upload_bytes) == (39 / 16, 39 * 128)
    assert "from 16 ciphertexts to 39, of 26 values" in (batches.note or "")
    for peer in (values, batches):
        parts: list[Any] = [peer.phases["encrypt"]() for _ in range(2)]
        one, other = ([c.ciphertext(False) for c in part] for part in parts)
        assert len(one) == len(other) == 16
        assert set(one).isdisjoint(other)
    setting = Setting(160, 10)
    for name, ring in (("TenSEAL BFV, a value each", 4096), ("TenSEAL CKKS, a value each", 8192)):
        each = WHO[name](setting, setting.updates())
        assert (each.projection, each.counted) == (10, False)
        assert each.upload_bytes
        assert each.upload_bytes > 160 * 2 * ring * 8  # two polynomials, a word a coefficient


@pytest.mark.parametrize("cohort", [2, 10, 1000])
def test_bfv_moduli_have_room_for_the_sum(cohort: int) -> None:
    setting = Setting(300, cohort)
    largest = [np.where(np.arange(300) % 2, 1, -1).astype(np.float32)] * cohort
    peer = bfv(setting, largest)
    peer.phases["decrypt"]()
    assert peer.checked() == 0
    modulus = plain_modulus(2 * cohort * 32767, 8192)
    assert modulus > 2 * cohort * 32767
    assert modulus % 8192 == pow(3, modulus - 1, modulus) == 1


def test_the_server_weighs_away_a_level() -> None:
    server, client = (bare(who)(SETTING, SETTING.updates()) for who in ("server", "client"))
    assert server.upload_bytes == pytest.approx(client.upload_bytes, rel=0.01)
    assert (server.sum_bytes or 0) < 0.6 * (server.upload_bytes or 0)
    assert (client.sum_bytes or 0) > 0.9 * (client.upload_bytes or 0)


def test_a_tenth_is_the_largest_of_each() -> None:
    setting = Setting(3000, 10)
    updates = setting.updates()
    plain, sent, union = plain_sparse(setting, updates, 0.1)
    touched = {i for update in updates for i in np.argsort(-np.abs(update))[:300]}
    assert (sent.count, union.count) == (300, len(touched))
    assert plain.upload_bytes == 4 * 300 + len(sent.data)
    ours = sparse(setting, updates, 0.1)
    assert (ours.upload_bytes or 0) < (plain.upload_bytes or 0)
    assert 20 * union.count / 8 < (ours.sum_bytes or 0) < (plain.sum_bytes or 0) + 10 * 300


def test_phe_without_gmp_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from phe import util

    monkeypatch.setattr(util, "HAVE_GMP", False)
    with pytest.raises(ConfigError, match="without gmpy2"):
        phe_keys(512)


# --- masks, counted ---


def test_the_crossover_is_where_both_maskings_cost_the_same() -> None:
    for members in (4, 20, 40, 80, 1024):
        double, single = (expected(mode, members, crossover(members)) for mode in MODES)
        assert double == pytest.approx(single)
    assert crossover(2) == crossover(3) == pytest.approx(0, abs=1e-9)


# --- secure aggregation: who takes part, what is checked, and Flower's SecAgg+ as installed ---

MEMBERS = {
    "SASH": SashMembers,
    "SASH+": lambda setting: SashNeighbours(setting, 6),
    "SecAgg": lambda setting: Pairwise(setting, None),
    "SecAgg+": lambda setting: Pairwise(setting, 6),
}


@pytest.mark.parametrize("dropouts", [0, 3])
@pytest.mark.parametrize("kind", MEMBERS)
def test_sums_are_checked(kind: str, dropouts: int) -> None:
    made: Any = MEMBERS[kind](Setting(300, 9, dropouts))
    laps = contender(kind, made).turn()
    assert {*laps} == {"client", "server"}
    assert min(*laps.values(), made.server()["server"]) > 0  # once more, on the same answers
    expected = made._expected if "SecAgg" in kind else made._uploads.expected
    expected[7] += 1
    with pytest.raises(
        FlheError, match=f"{kind.lower().removesuffix('+')}.*: the sum is not the sum"
    ):
        made.server()


def test_made_up_members_answer_as_real_ones_would() -> None:
    """Rank 0's answer by its real steps is the one that was made up for it."""
    pair = Pairwise(Setting(20, 7, 1), 4)
    plan, epoch, identity = pair.plan, pair._epoch, pair._identities[0]
    near = plan.graph.neighbours(0)
    first, _ = pairwise.advertise(identity, epoch, plan)
    second, _ = pairwise.share(first, [pair._keys[r] for r in near])
    masked, _ = pairwise.mask(second, pair._boxes, np.zeros(20, np.uint32))
    signed, _ = pairwise.consist(masked, pair.setting.survivors, pair._statements)
    answer = pairwise.unmask(signed, pair._sets)
    read = [
        loads(Envelope.from_bytes(a, 1 << 16).payload, 1 << 16, "answer")
        for a in (answer, pair._answers[0])
    ]
    assert read[0][:2] == read[1][:2]
    own = 32 * plan.graph.around(0).index(0)
    drop = [data[:own] + data[own + 32 :] for _, _, data in read]
    assert drop[0] == drop[1]  # but for its own share, of a seed drawn anew


def test_a_client_opens_what_all_others_sent_and_has_the_bits_that_there_are() -> None:
    made = SashMembers(Setting(100, 9, 2))
    made._boxes[3] = bytes(made.circle.box_bytes)
    with pytest.raises(FlheError, match="do not open"):
        made.client()
    many = SashMembers(Setting(50, 300))
    assert many.adder.bits < 16
    assert int(np.abs(many._uploads.update(5)).max()) <= many.adder.space.bound


def test_who_has_no_point() -> None:
    for name, clients in ((SECAGG_PLUS, 101), (SASH_PLUS, 101), (FLOWERS, 51)):
        assert MAKES[name](Setting(10, clients)) is None


# --- Flower's ---


@pytest.mark.parametrize(
    "setting", [Setting(100, 5), Setting(100, 5, 2), Setting(40, 9, 1)], ids=str
)
def test_the_mean_is_the_mean_of_whoever_stayed(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        done = FlowerSecAgg(setting)
    assert not [r for r in caplog.records if r.name.startswith("flwr")]
    nodes = stayed(setting)
    assert len(nodes) == setting.cohort - setting.dropouts
    mean = np.mean([update_of(setting, node) for node in nodes], axis=0)
    assert min(done.server()["server"] for _ in range(2)) > 0  # the state is not used up
    assert done._strategy.found[0] == pytest.approx(mean, abs=2 * 16 / 2**22)
    assert len({done.client()["client"] for _ in nodes}) == len(nodes)
    monkeypatch.setattr(flower_secagg, "update_of", lambda one, _node: np.zeros(one.values))
    with pytest.raises(FlheError, match="mean is off by"):
        done.server()
