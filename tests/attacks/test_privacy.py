"""A server that wants a second release for one budget, and a search for updates without noise."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flhe.coding.base import Mechanism
from flhe.coding.chain import chain
from flhe.coding.clip_norm import ClipNorm
from flhe.coding.discrete_gaussian import DiscreteGaussian
from flhe.errors import ConfigError, PolicyError
from flhe.mods import HEMod, records
from flhe.node.budget import Budget
from flhe.node.policy import Policy
from flhe.node.store import Store
from flhe.schemes.base import Scheme
from flhe.schemes.esafl.scheme import Esafl
from flhe.schemes.flashe.scheme import Flashe
from flhe.schemes.sash.scheme import Sash
from flhe.strategies import dp_fedavg, dp_fedsgd
from flhe.testing import InProcessGrid
from flhe.training.accountant import epsilon
from flhe.training.optimizer import Optimizer
from flhe.training.terms import Terms
from tests.mods.harness import (
    RUN,
    App,
    Group,
    Raises,
    Replies,
    Site,
    answer,
    put_back,
    refused,
    update,
)

NOISE = Mechanism(1.0, 1.0)
TERMS = Terms(codec=chain(ClipNorm(1.0), DiscreteGaussian(1.0, 1.0)), metrics=(), evaluated=())
START = {"arrays": records.from_numpy({"w": np.zeros((3, 4), np.float32)})}
TWO = {"flhe-max-epsilon": epsilon({NOISE: 2})}


def group(path: Path, rounds: int = 2, run_id: int = RUN, **how: Any) -> Group:
    """Sites whose budget is two updates; the one that is asked is the first."""
    made = Group(path, terms=how.pop("terms", TERMS), config=TWO, rounds=rounds, **how)
    made.start = dict(START)
    for site in made.sites:
        site.context.run_id = run_id
    return made


def spent(site: Site) -> int:
    """Updates that a site has paid for."""
    return sum(Budget(Store(site.home), b"", 0.0, 1e-5).ledger().counts.values())


def test_a_server_that_asks_again_and_again_pays_each_time(tmp_path: Path) -> None:
    """Fresh noise on the same update, averaged, would be none."""
    sites = group(tmp_path).agree()
    site = sites.sites[0]
    first = sites.ask(site)
    update(first)
    np.testing.assert_array_equal(update(sites.ask(site)).data, update(first).data)
    assert spent(site) == 1  # the same one, resent
    update(sites.ask(site, attempt=1))
    assert spent(site) == 2
    before = len(site.app.seen)
    for round_, attempt in ((1, 2), (2, 0)):
        refused(sites.ask(site, round_=round_, attempt=attempt), 1032)
    assert len(site.app.seen) == before  # nothing is trained for it
    assert spent(site) == 2


def test_a_new_epoch_brings_no_new_budget(tmp_path: Path) -> None:
    sites = group(tmp_path).agree()
    site = sites.sites[0]
    update(sites.ask(site))
    sites.renew()
    update(sites.ask(site, attempt=1))
    sites.declined(1032)


def test_another_run_of_the_same_federation_brings_none(tmp_path: Path) -> None:
    """Renamed, or begun beside the first: the directory is the site's, and so is the budget."""
    sites = group(tmp_path).agree()
    update(sites.ask(sites.sites[0]))
    forked = group(tmp_path, rounds=1, run_id=8).agree()
    update(forked.ask(forked.sites[0]))
    third = group(tmp_path, rounds=1, run_id=9)
    third.sites = [site for site in third.sites if site.home == sites.sites[0].home]
    third.declined(1032)
    refused(sites.ask(sites.sites[0], attempt=1), 1032)


@pytest.mark.parametrize("before", [0, 1])
def test_a_state_directory_that_is_put_back_brings_none(tmp_path: Path, before: int) -> None:
    """Not in its epoch, and not in a new one."""
    sites = group(tmp_path).agree()
    site = sites.sites[0]
    for attempt in range(before):
        update(sites.ask(site, attempt=attempt))
    shutil.copytree(site.home, tmp_path / "image")
    update(sites.ask(site, attempt=before))
    put_back(site.home, tmp_path / "image")
    assert sites.ask(site, attempt=before + 1).error.code in (1020, 1032)
    sites.declined(1032)


def test_a_run_that_the_budget_cannot_end_is_not_begun(tmp_path: Path) -> None:
    group(tmp_path, rounds=3).declined(1032, "noise multiplier 1")


def test_a_site_with_a_budget_takes_part_in_nothing_without_noise(tmp_path: Path) -> None:
    group(tmp_path, terms=Terms(metrics=(), evaluated=())).declined(1010)
    other = Group(tmp_path / "without")  # where no budget is set, it may
    answer(other.sites[0].ask("advertise", **other.begin()))


# --- what a server says that noise is for, and what an app did ---

RECORDS = Terms(
    codec=chain(DiscreteGaussian(1.0, 1.0, "record", 0.5, 10.0)),
    optimizer=Optimizer("sgd"),
    metrics=(),
    evaluated=(),
)


def says(**said: float) -> Replies:
    """An app whose reply says how it clipped and sampled."""
    said = {name.replace("_", "-"): value for name, value in said.items()}
    return Replies(lambda reply: RecordDict({**reply, "privacy": ConfigRecord(said)}), step=0.0)


def test_gradients_that_the_noise_is_not_for_stay(tmp_path: Path) -> None:
    """A server that names a smaller norm, or a lower rate, than the app has would have its noise."""
    sites = group(tmp_path, terms=RECORDS, rounds=1).agree()
    site = sites.sites[0]
    for app in (says(max_norm=2.0, sampling=0.5), says(max_norm=1.0, sampling=1.0), says(), App()):
        site.app, before = app, spent(site)
        refused(sites.ask(site), 1018)
        assert "noise is for gradients" in site.log
        assert spent(site) == before + 1  # it was trained for: to ask again is to pay again
        site.allow(flhe_max_epsilon=100.0)
    site.app = says(max_norm=1.0, sampling=0.5)
    update(sites.ask(site))


def test_an_app_that_fails_is_paid_for(tmp_path: Path) -> None:
    """That it fails may depend on the data, and the server sees it."""
    sites = group(tmp_path).agree()
    site = sites.sites[0]
    site.app = Raises(ValueError("of the data"))
    for paid in (1, 2):
        refused(sites.ask(site), 1001)
        assert spent(site) == paid
    refused(sites.ask(site), 1032)
    assert len(site.app.seen) == 2


def test_a_budget_needs_a_directory_that_lasts_and_refuses_what_is_plain(tmp_path: Path) -> None:
    policy = partial(Policy.of_node, run_id=1, node_id=1, simulated=False)
    with pytest.raises(ConfigError, match="without flhe-home"):
        policy({"flhe-trust": "first-use", **TWO})
    home = {"flhe-home": str(tmp_path), "flhe-trust": "first-use", "flhe-schemes": "plain, flashe"}
    policy(home).check_scheme("plain")
    with pytest.raises(PolicyError, match="has a privacy budget"):
        policy({**home, **TWO}).check_scheme("plain")
    # Metrics are added up without noise, so epsilon would not cover them unless they are named.
    for said, allowed in (({}, True), (TWO, False), ({**TWO, "flhe-metrics": "loss"}, True)):
        assert policy({**home, **said}).allows_metric("train_loss") is allowed


# --- what of an update is anywhere without its noise ---


def patterns(update: np.ndarray) -> list[bytes]:
    """Four values after one another of an update, as it might be written, scaled by what may be."""
    codec = DiscreteGaussian(1.0, 1.0, bits=24)
    steps = np.rint(update.astype(np.float64) / codec.grid(update.size).step)
    norm = update / np.linalg.norm(update)
    kinds = {"<f4": (update, -update, norm), ">f4": (update,), "<f8": (update, norm)}
    kinds |= dict.fromkeys(("<i4", ">i4", "<i8"), (steps, -steps))
    found: list[bytes] = []
    for kind, written in kinds.items():
        for values in written:
            found += [values[at : at + 4].astype(kind).tobytes() for at in (0, 40, 96)]
    return found


def secret(partition: int) -> np.ndarray:
    """A site's update, of norm 1/2: it is not clipped."""
    x = np.random.default_rng(partition).normal(size=100).astype(np.float32)
    return np.asarray(x / (2 * np.linalg.norm(x)), np.float32)


def app() -> ClientApp:
    made = ClientApp(mods=[HEMod()])

    @made.train()
    def train(msg: Message, ctx: Context) -> Message:
        gradient = secret(int(str(ctx.node_config["partition-id"])))
        content = {
            "arrays": records.from_numpy({"w": gradient}),
            "metrics": MetricRecord({"num-examples": 1}),
            "privacy": ConfigRecord({"max-norm": 1.0, "sampling": 1.0}),
        }
        return Message(RecordDict(content), reply_to=msg)

    return made


@pytest.mark.parametrize(
    "scheme", [Flashe(), Sash(), Sash("clients"), Esafl(keys="joint")], ids=str
)
def test_no_update_is_without_noise_on_the_wire_or_on_disk(tmp_path: Path, scheme: Scheme) -> None:
    """Of any site, after two rounds and what is kept of them; an update that is planted is found.

    Under keys that last, other updates are drafts on disk until their round is over.
    """
    seen: list[bytes] = []
    (tmp_path / "homes").mkdir()
    tap = lambda _way, _node, content: seen.append(content)  # noqa: E731
    lenient = lambda _: {"flhe-server-reads": True, "flhe-fresh-keys": False}  # noqa: E731
    how: dict[str, Any] = {"noise_multiplier": 1.0, "state_dir": tmp_path / "server"}
    how |= {"min_train_nodes": 4, "min_available_nodes": 4}
    with InProcessGrid(app(), 4, homes=tmp_path / "homes", tap=tap, node_config=lenient) as grid:
        if scheme.reader == "server":
            strategy = dp_fedavg(scheme, clipping_norm=1.0, **how)
        else:
            strategy = dp_fedsgd(scheme, max_grad_norm=1.0, sampling=1.0, expected_batch=4.0, **how)
        strategy.start(grid, records.from_numpy({"w": np.zeros(100, np.float32)}), num_rounds=2)
    seen += [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    wanted = [pattern for partition in range(4) for pattern in patterns(secret(partition))]
    assert len(seen) > 100
    assert not [p for p in wanted if any(p in blob for blob in seen)]
    seen.append(b"before" + secret(2).astype(">f4").tobytes())
    assert [p for p in wanted if any(p in blob for blob in seen)]
