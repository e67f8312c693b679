"""`flhe budget`, and what `flhe doctor` says of one."""

from __future__ import annotations

from pathlib import Path

from flhe.coding.base import Mechanism
from flhe.node.ledger import LEDGER
from flhe.node.policy import Policy
from flhe.provision.budgets import budget_of, check_budget
from flhe.training.accountant import epsilon
from tests.provision.site import bad, good, keygen

NOISE = Mechanism(4.0, 0.5)


def config(tmp_path: Path, **more: object) -> dict[str, object]:
    keygen(tmp_path, "a")
    (tmp_path / "apart").mkdir(mode=0o700)
    return {
        "flhe-home": str(tmp_path / "home-a"),
        "flhe-trust": "first-use",
        "flhe-witness": str(tmp_path / "apart"),
        "flhe-durable": True,  # the same disk, in a test
        "flhe-max-epsilon": 5.0,
        "flhe-delta": 1e-6,
        **more,
    }


def written(known: dict[str, object]) -> str:
    return " ".join(
        f"{key}={str(value).lower() if isinstance(value, bool) else repr(value)}".replace("'", '"')
        for key, value in known.items()
    )


def test_what_is_spent_is_shown(tmp_path: Path) -> None:
    known = config(tmp_path)
    budget = budget_of(known)
    for _ in range(3):
        budget.spend(NOISE)
    told = good("budget", "--node-config", written(known))
    assert "0.5" in told
    assert f"epsilon {epsilon({NOISE: 3}, 1e-6):.3g} at delta 1e-06, of 5" in told
    before = budget.ledger()
    assert "is trusted" in good("budget", "--node-config", written(known), "--confirm")
    assert budget.ledger().counts == before.counts


def test_a_directory_without_an_identity_has_none(tmp_path: Path) -> None:
    known = config(tmp_path, **{"flhe-home": str(tmp_path / "elsewhere")})
    assert "no identity" in bad("budget", "--node-config", written(known))


def test_doctor_asks_for_a_record_that_is_missing(tmp_path: Path) -> None:
    known = config(tmp_path)
    (tmp_path / "home-a" / LEDGER).unlink()
    policy = Policy.of_node(known, run_id=0, node_id=0, simulated=False)
    [check] = check_budget(policy)
    assert check.level == "fail"
    assert "no record" in check.says
    good("budget", "--node-config", written(known), "--confirm")
    assert [check.level for check in check_budget(policy)] == ["ok"]


def test_doctor_says_whether_a_budget_can_be_kept(tmp_path: Path) -> None:
    known = config(tmp_path)

    def levels(**more: object) -> list[str]:
        policy = Policy.of_node({**known, **more}, run_id=0, node_id=0, simulated=False)
        return [check.level for check in check_budget(policy)]

    assert levels() == ["ok"]
    assert levels(**{"flhe-max-epsilon": 0.0}) == []
    assert levels(**{"flhe-durable": False}) in (["fail"], ["ok"])  # where memory is another disk
