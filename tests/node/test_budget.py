"""A site's privacy budget: what is spent stays spent, whatever becomes of its directory."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from flhe.coding.base import Mechanism
from flhe.errors import BudgetError, StoreError
from flhe.node import witness
from flhe.node.budget import Budget
from flhe.node.ledger import LEDGER, MAX_KINDS, Ledger
from flhe.node.store import Store
from flhe.node.witness import Witness
from flhe.training.accountant import epsilon
from tests.mods.harness import put_back
from tests.node.conftest import together

NOISE = Mechanism(1.0, 1.0)
DELTA = 1e-5
THREE = epsilon({NOISE: 3}, DELTA)
RAN = "rolled back or taken away"


@pytest.fixture
def budget(tmp_path: Path) -> Budget:
    """One that three updates use up, with its witness on another disk."""
    (tmp_path / "apart").mkdir(mode=0o700)
    return of(Store(tmp_path / "home", Witness(tmp_path / "apart")))


def of(store: Store) -> Budget:
    """The budget of a site whose identity was made just now, or was there."""
    return Budget(store, store.identity().public, THREE, DELTA)


def spend(budget: Budget, times: int) -> None:
    for _ in range(times):
        budget.spend(NOISE)


def test_what_is_spent_is_spent(budget: Budget) -> None:
    """And nothing else: looking spends and writes nothing."""
    budget.check(NOISE, 3)
    spend(budget, 1)
    before = budget.store.read(LEDGER)
    budget.check_kept()
    budget.check(NOISE, 2)
    with pytest.raises(BudgetError, match="would make it"):
        budget.check(NOISE, 3)
    assert budget.store.read(LEDGER) == before
    spend(budget, 2)
    with pytest.raises(BudgetError, match="would make it"):
        budget.spend(NOISE)
    again = replace(budget, store=Store(budget.store.root, budget.store.witness))
    with pytest.raises(BudgetError, match="would make it"):
        again.check(NOISE)
    assert again.ledger().counts == {NOISE: 3}
    replace(budget, epsilon=2 * THREE).spend(Mechanism(4.0, 0.5))  # a site may allow more
    with pytest.raises(BudgetError, match="would make it"):
        budget.check(Mechanism(1000.0, 1.0))  # of any kind, all add up


@pytest.mark.parametrize(("spent", "says"), [(0, RAN), (1, RAN), (None, RAN), (b"no", "damaged")])
def test_a_directory_that_was_put_back_has_no_budget(
    budget: Budget, tmp_path: Path, spent: int | bytes | None, says: str
) -> None:
    """To before anything was spent, or to later; nor one whose ledger is gone or damaged.

    Nobody confirms what its witness contradicts: one word would begin the budget anew.
    """
    spend(budget, 1 if isinstance(spent, bytes | None) else spent)
    budget.confirm()  # nothing contradicts this one
    shutil.copytree(budget.store.root, tmp_path / "image")
    spend(budget, 2)
    if spent is None:
        budget.store.erase(LEDGER)
    elif isinstance(spent, bytes):
        budget.store.write(LEDGER, spent)
    else:
        put_back(budget.store.root, tmp_path / "image")
    unlimited = replace(budget, epsilon=0.0)
    spends = partial(budget.check, NOISE), partial(budget.spend, NOISE)
    for act in (*spends, budget.check_kept, unlimited.confirm, unlimited.confirm):
        with pytest.raises((BudgetError, StoreError), match=says):
            act()


def test_a_witness_that_is_gone_is_asked_for(budget: Budget, tmp_path: Path) -> None:
    """As after a restart of the machine: its administrator may confirm what is there."""
    spend(budget, 2)
    shutil.rmtree(tmp_path / "apart")
    (tmp_path / "apart").mkdir(mode=0o700)
    with pytest.raises(BudgetError, match="flhe budget --confirm"):
        budget.spend(NOISE)
    budget.confirm()
    spend(budget, 1)
    with pytest.raises(BudgetError, match="would make it"):
        budget.spend(NOISE)


def test_a_disk_that_is_never_put_back_needs_no_witness(budget: Budget, tmp_path: Path) -> None:
    durable = replace(
        budget, store=Store(budget.store.root, Witness(tmp_path / "apart", durable=True))
    )
    spend(durable, 2)
    for path in (tmp_path / "apart").iterdir():
        path.unlink()
    spend(durable, 1)


def test_a_witness_in_memory_lasts_as_long_as_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = of(Store(tmp_path / "home"))
    spend(budget, 1)
    monkeypatch.setattr(witness, "_MEMORY", {})
    with pytest.raises(BudgetError, match="flhe-witness"):
        budget.spend(NOISE)


def test_a_crash_between_ledger_and_witness_costs_what_was_paid(
    budget: Budget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger is one entry ahead, twice in a row: nothing is refused, nothing is lost."""
    spend(budget, 1)

    def crash(*_: object) -> None:
        raise OSError

    for _ in range(2):
        with monkeypatch.context() as crashing:
            crashing.setattr("flhe.wire.files.os.pwrite", crash)
            with pytest.raises(StoreError):
                budget.spend(NOISE)
    assert budget.ledger().counts == {NOISE: 3}
    with pytest.raises(BudgetError, match="would make it"):
        budget.spend(NOISE)


def test_a_run_without_a_limit_mends_nothing(budget: Budget, tmp_path: Path) -> None:
    """It counts. But else an image that was rolled back would be taken, once it had written there."""
    free = replace(budget, epsilon=0.0)
    spend(free, 1)
    shutil.copytree(budget.store.root, tmp_path / "image")
    spend(budget, 1)
    put_back(budget.store.root, tmp_path / "image")
    spend(free, 2)
    assert budget.ledger().counts == {NOISE: 3}
    with pytest.raises(BudgetError, match=RAN):
        budget.spend(NOISE)


@pytest.mark.parametrize("durable", [False, True])
def test_keys_without_a_record_begin_none_by_themselves(
    budget: Budget, tmp_path: Path, durable: bool
) -> None:
    """As a restored backup, or an image and a restart, has them: an empty one would be a new budget."""
    spend(budget, 1)
    (tmp_path / "other").mkdir(mode=0o700)
    restored = Store(tmp_path / "restored", Witness(tmp_path / "other", durable))
    (restored.root / "identity.key").write_bytes((budget.store.root / "identity.key").read_bytes())
    (restored.root / "identity.key").chmod(0o600)
    elsewhere = of(restored)
    assert elsewhere.public == budget.public
    replace(elsewhere, epsilon=0.0).spend(Mechanism(1000.0, 1.0))  # begins none either
    for act in (elsewhere.check, elsewhere.spend):
        with pytest.raises(BudgetError, match="flhe budget --confirm"):
            act(NOISE)
    elsewhere.confirm()
    spend(elsewhere, 2)


def test_so_many_kinds_of_noise_that_none_more_fits_lock_nobody_out() -> None:
    """The rarest ones count as the one that hides less."""
    counts = Counter({Mechanism(50.0 + i, 1.0): 2 + i for i in range(MAX_KINDS)})
    counts += Counter({Mechanism(40.0, 0.5): 1, Mechanism(60.0, 1.0, of_members=True): 1})
    ledger = Ledger.from_bytes(Ledger.of(counts, b"").to_bytes())
    assert len(ledger.counts) == MAX_KINDS
    assert ledger.counts.total() == counts.total()
    assert epsilon(ledger.counts) >= epsilon(counts)
    assert min(ledger.counts) == Mechanism(30.0, 1.0)


def test_two_federations_at_one_time_spend_one_budget(budget: Budget) -> None:
    """Each thread opens the directory for itself, as processes do."""
    refused: list[BudgetError] = []

    def act() -> None:
        own = replace(budget, store=Store(budget.store.root, budget.store.witness))
        for _ in range(2):
            try:
                own.spend(NOISE)
            except BudgetError as error:
                refused.append(error)

    together([act] * 4)
    assert budget.ledger().counts == {NOISE: 3}
    assert len(refused) == 5
