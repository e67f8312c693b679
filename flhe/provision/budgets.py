"""`flhe budget`: a site's privacy loss so far, and its administrator's confirmation."""

from __future__ import annotations

from collections.abc import Mapping

from flhe.answer import Answer, table
from flhe.errors import BudgetError, ConfigError, FlheError
from flhe.node import witness
from flhe.node.budget import Budget
from flhe.node.node import open_store
from flhe.node.policy import Policy
from flhe.node.store import Store
from flhe.provision.checks import Check, Checks
from flhe.provision.sites import has_identity
from flhe.training import accountant


def budget_of(config: Mapping[str, object], *, look: bool = False) -> Budget:
    """Return the budget of the site with this node config; ConfigError without an identity.

    With `look` it has no witness: its ledger is shown, and nothing else.
    """
    policy = Policy.of_node(config, run_id=0, node_id=0, simulated=False)
    if not has_identity(policy.home):
        raise ConfigError("--node-config: no identity in its flhe-home; name the node's own config")
    store = Store(policy.home) if look else open_store(policy)
    return Budget.of(store, store.identity().public, policy.limits)


def answer(budget: Budget) -> Answer:
    """Return one row for each noise, and the total in the caption."""
    counts = budget.ledger().counts
    limit = f", of {budget.epsilon:g}" if budget.epsilon else "; no limit (flhe-max-epsilon)"
    spent = accountant.epsilon(counts, budget.delta)
    caption = f"epsilon {accountant.shown(spent)} at delta {budget.delta:g}{limit}"
    headings = ("updates", "protects a", "noise multiplier", "sampling", "epsilon alone")
    out, rows = table(headings, right=True, caption=caption), []
    for mechanism, count in sorted(counts.items()):
        alone = accountant.epsilon({mechanism: count}, budget.delta)
        noise = f"{mechanism.multiplier:g}", f"{mechanism.sampling:g}"
        protects = "member" if mechanism.of_members else "record"
        out.add_row(str(count), protects, *noise, accountant.shown(alone))
        rows.append(
            {
                "updates": count,
                "protects": protects,
                "noise_multiplier": mechanism.multiplier,
                "sampling": mechanism.sampling,
                "epsilon": alone,
            }
        )
    total = {"epsilon": spent, "delta": budget.delta, "max_epsilon": budget.epsilon or None}
    return Answer({**total, "noises": rows}, out)


def doubts(config: Mapping[str, object]) -> list[str]:
    """Return why the record that is shown may not be all that was spent."""
    policy = Policy.of_node(config, run_id=0, node_id=0, simulated=False)
    return [check.says for check in check_budget(policy) if check.level == "fail"]


def check_budget(policy: Policy) -> Checks:
    """Yield whether a configured budget can be kept here."""
    limits = policy.limits
    if not limits["max-epsilon"]:
        return
    says = f"epsilon {limits['max-epsilon']:g} at delta {limits['delta']:g}"
    try:
        accountant.check_package()
        kept = witness.find(policy.witness, policy.home, durable=policy.durable, make=False)
    except FlheError as error:
        yield Check("privacy budget", "fail", f"{says}, and {error}", "install it, or mend that")
        return
    if kept.place is None:
        mend = "set flhe-witness to a directory on another disk, or in memory"
        yield Check("privacy budget", "fail", f"{says}, and nothing lasting confirms it", mend)
        return
    if has_identity(policy.home):
        try:
            store = Store(policy.home, kept)
            Budget.of(store, store.identity().public, limits).check_kept()
        except FlheError as error:
            mend = "correct it; the node sends no update until then"
            if isinstance(error, BudgetError):
                mend = "see the record: flhe budget --node-config CONFIG"
            yield Check("privacy budget", "fail", str(error), mend)
            return
    yield Check("privacy budget", "ok", says)
