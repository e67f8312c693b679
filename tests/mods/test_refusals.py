"""What a node refuses, and what a refusal lets the server know: a code, and nothing else."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from flhe import errors
from flhe.mods import app as mods_app
from flhe.mods import records, training
from flhe.mods.app_state import AppState
from flhe.training.contract import Contract
from flhe.training.model import Model
from flhe.training.query import Query
from flhe.wire.codes import APP, GATE, INTERNAL, explain, refusal_for
from tests.mods.harness import (
    RUN,
    SECRET,
    SLUGS,
    TERMS,
    App,
    Group,
    Raises,
    Replies,
    Site,
    answer,
    arrays,
    initial,
    private,
    refused,
    update,
    wire,
)

KINDS = ("train", "evaluate", "query")


def plain_message() -> RecordDict:
    return RecordDict({"arrays": initial(), "config": ConfigRecord({"lr": 0.1})})


def hello(site: Site) -> Message:
    return site.ask("advertise", number=0, contract=Contract(TERMS).to_bytes())


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "home")


# --- the table ---


def test_every_error_of_ours_has_the_code_that_is_written_down() -> None:
    table = {refusal_for(kind("x")) for kind in every_error(errors.FlheError)} | {APP, GATE}
    assert {r.code: r.slug for r in table} == SLUGS
    assert refusal_for(RuntimeError("x")) is INTERNAL
    assert refusal_for(errors.MisfitError("x")).code == 1017
    for code, slug in SLUGS.items():
        assert explain(code, "a text of the node's own").startswith(f"{slug}: ")
        assert "a text" not in explain(code, "a text of the node's own")


def every_error(kind: type[errors.FlheError]) -> Iterator[type[errors.FlheError]]:
    yield kind
    for sub in kind.__subclasses__():
        yield from every_error(sub)


# --- plain messages ---


@pytest.mark.parametrize("kind", KINDS)
def test_a_plain_message_is_refused_and_the_app_does_not_run(site: Site, kind: str) -> None:
    refused(site.send(plain_message(), kind), 1010)
    assert not site.app.seen
    assert not site.home.exists()  # refused before anything is touched


@pytest.mark.parametrize(
    "record", [MetricRecord({"v": 1}), ArrayRecord(), ConfigRecord({"v": 1, "stage": "round"})]
)
def test_a_stage_of_another_name_or_kind_is_no_stage(site: Site, record: Any) -> None:
    name = "flhe.stage " if isinstance(record, ConfigRecord) else records.STAGE
    refused(site.send(RecordDict({name: record})), 1010)
    assert not site.app.seen


def test_run_config_is_no_policy(site: Site, tmp_path: Path) -> None:
    site.context.run_config.update({"flhe-schemes": "plain", "scheme": "plain"})
    refused(site.send(plain_message()), 1010)
    deployed = Site(tmp_path / "other", config={})
    deployed.context.run_config.update({"flhe-trust": "first-use", "flhe-home": str(tmp_path)})
    refused(hello(deployed), 1017)


def test_plain_is_refused_once_a_session_began(group: Group, site: Site) -> None:
    member = group.sites[0]
    update(group.ask(member))
    answer(hello(site))  # or an agreement
    for each in (member, site):
        each.allow(flhe_schemes="flashe,plain")
        for kind in KINDS:
            refused(each.send(plain_message(), kind), 1010)
    assert (len(member.app.seen), len(site.app.seen)) == (1, 0)


def test_a_resumed_run_never_answers_in_plain(tmp_path: Path) -> None:
    group = Group(tmp_path, config={"flhe-schemes": "flashe,plain"}).agree()
    site = group.sites[0]
    update(group.ask(site))
    refused(site.send(plain_message()), 1010)
    federation = records.federation_name(site.context.run_id)
    site.context.run_id += 1
    answer(site.ask("status", federation=federation))
    calls = len(site.app.seen)
    refused(site.send(plain_message()), 1010)
    assert len(site.app.seen) == calls
    assert not site.send(plain_message(), "evaluate").has_content()
    site.context.run_id += 1  # a run that is no federation's may still be a plain one
    assert site.send(plain_message()).has_content()


def test_asking_for_plaintext_is_in_the_nodes_own_log(tmp_path: Path) -> None:
    site = Group(tmp_path, 3).sites[0]
    answer(site.ask("status"))
    refused(site.send(plain_message()), 1010)
    assert "the server asked for an unencrypted run, which this node refuses" in site.log
    assert '"stage":"plain"' in (site.home / "audit.log").read_text()
    assert not site.app.seen


def test_the_scheme_of_the_terms_must_be_allowed(group: Group, site: Site) -> None:
    site.allow(flhe_schemes="batchcrypt")
    refused(hello(site), 1010)
    assert not (site.run / "agreement").exists()
    member = group.sites[0]
    update(group.ask(member))
    member.allow(flhe_schemes="batchcrypt")  # and stay so
    refused(group.ask(member), 1010)
    assert len(member.app.seen) == 1


# --- another version ---


@pytest.mark.parametrize(
    ("spoken", "named", "text"),
    [
        (1, None, "speaks version 1 of flhe's protocol (this node runs flhe"),
        (1, "0.0.9", "version 1 of flhe's protocol (flhe 0.0.9, this node runs flhe"),
        (9, "0.3.0", "version 9 of flhe's protocol (flhe 0.3.0, this node runs flhe"),
        (1, "<script>", "version 1 of flhe's protocol (this node runs flhe"),
    ],
)
def test_a_server_of_another_version_is_refused_by_name(
    tmp_path: Path, spoken: int, named: str | None, text: str
) -> None:
    site = Group(tmp_path, 3).sites[0]
    answer(site.ask("status"))
    fields = {"v": spoken, "stage": "advertise", "number": 0, "terms": TERMS.to_bytes()}
    record = ConfigRecord({**fields, **({} if named is None else {"flhe": named})})  # type: ignore[dict-item]
    refused(site.send(RecordDict({records.STAGE: record})), 1025)
    assert text in site.log
    assert "upgrade the older side" in site.log


# --- simulation or deployment ---


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A node that configures nothing of ours."""
    monkeypatch.setenv("FLHE_HOME", str(tmp_path / "all"))
    return Site(tmp_path / "all" / str(RUN) / "100", config={})


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Ray, as it is in an actor of a simulation."""
    ray: Any = types.ModuleType("ray")
    ray.is_initialized = lambda: True
    ray.get_runtime_context = lambda: types.SimpleNamespace(get_actor_id=lambda: "actor")
    monkeypatch.setitem(sys.modules, "ray", ray)
    return ray


@pytest.mark.parametrize("ray_is", ["a driver", "only imported", "not there"])
def test_a_deployed_node_without_a_pinned_roster_does_not_start(
    bare: Site, tmp_path: Path, ray: Any, ray_is: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver of Ray is no simulation."""
    if ray_is == "a driver":
        ray.get_runtime_context = lambda: types.SimpleNamespace(get_actor_id=lambda: None)
    elif ray_is == "only imported":
        ray.is_initialized = lambda: False
    else:
        monkeypatch.delitem(sys.modules, "ray")
    refused(hello(bare), 1017)
    refused(bare.send(plain_message()), 1017)
    assert not bare.app.seen
    assert list(tmp_path.iterdir()) == []  # no identity, no directory, nothing


@pytest.mark.usefixtures("ray")
def test_an_actor_that_configures_nothing_is_a_simulation(bare: Site) -> None:
    assert answer(hello(bare))["envelope"]
    home = bare.home.parent.parent / "node-0"  # by partition: node ids are another run's others
    assert (home / "identity.key").is_file()
    assert bare.context.state["flhe"] == ConfigRecord({"home": str(home)})
    assert not bare.home.exists()


# --- what goes wrong in the app ---


class NastyError(Exception):
    """An exception that fails when somebody looks at it."""

    def __str__(self) -> str:
        raise RuntimeError(SECRET)

    __repr__ = __str__


def chained() -> Exception:
    error = KeyError("second")
    error.__cause__ = ValueError(SECRET)
    return error


FAILURES: dict[str, Callable[[], BaseException]] = {
    "text": lambda: ValueError(SECRET),
    "surrogates": lambda: ValueError(SECRET + "\udcff\ud800\x00\n1010 flhe/policy"),
    "huge": lambda: ValueError(SECRET * 200_000),
    "chained": chained,
    "nasty": NastyError,
    "ours": lambda: errors.PolicyError(SECRET),
}


@pytest.mark.parametrize("name", FAILURES)
@pytest.mark.parametrize("stage", ["round", "evaluate"])
def test_an_exception_of_the_app_stays_at_home(
    group: Group, name: str, stage: str, caplog: pytest.LogCaptureFixture
) -> None:
    site = group.sites[0]
    site.app = Raises(FAILURES[name]())
    reply = group.ask(site, stage, "train" if stage == "round" else "evaluate")
    refused(reply, 1001)
    assert SECRET.encode() not in wire(reply)
    log = site.home / "errors.log"
    assert private(log)
    assert log.stat().st_size <= 1 << 20
    if name != "nasty":
        assert SECRET in log.read_text(errors="replace")
        assert "Traceback" in log.read_text(errors="replace")
    assert "flhe/app-failed" in caplog.text  # on the console, and no more than its kind
    if name != "ours":  # whose texts hold no secrets, by their rule
        assert name != "text" or "ValueError" in caplog.text
        assert SECRET not in caplog.text
        assert json.dumps(SECRET) not in caplog.text
    assert site.claims == []  # nothing was claimed for it
    assert not [t for t in threading.enumerate() if t.name.startswith("flhe")]
    site.app = App()
    update(group.ask(site))  # and the round can still be had
    assert dict(site.context.state) == {"flhe": ConfigRecord({"home": str(site.home), "round": 1})}


def test_an_exception_of_a_plain_run_stays_at_home(site: Site) -> None:
    site.app = Raises(ValueError(SECRET))
    site.allow(flhe_schemes="plain")
    refused(site.send(plain_message()), 1001)
    assert SECRET in site.log


def fails(message: Message, context: Context) -> Message:
    return Message(Error(code=4711, reason=SECRET), reply_to=message)


@pytest.mark.parametrize(("app", "code"), [(fails, 1001), (lambda message, context: None, 1002)])
def test_an_app_that_answers_with_an_error_or_no_message(group: Group, app: Any, code: int) -> None:
    site = group.sites[0]
    site.app = app
    refused(group.ask(site), code)
    refused(group.evaluate(site), code)


def with_(**changed: Any) -> Callable[[RecordDict], RecordDict]:
    """An answer with some records replaced; None takes one away."""

    def make(content: RecordDict) -> RecordDict:
        for name, record in changed.items():
            content.pop(name, None)
            if record is not None:
                content[name] = record
        return content

    return make


def spoiled(value: Any, name: str = "w") -> Callable[[RecordDict], RecordDict]:
    """An answer with one value of an array replaced."""

    def make(content: RecordDict) -> RecordDict:
        after = records.to_numpy(content["arrays"])  # type: ignore[arg-type]
        after[name] = np.full_like(after[name], value)
        content["arrays"] = records.from_numpy(after)
        return content

    return make


def examples(count: Any) -> Callable[[RecordDict], RecordDict]:
    return with_(metrics=MetricRecord({"num-examples": count}))


OTHER = records.from_numpy({"w": np.ones(3, np.float32)})
ANSWERS: dict[str, tuple[Callable[[RecordDict], Any], int]] = {
    "no arrays": (with_(arrays=None), 1018),
    "two arrays": (with_(more=initial()), 1018),
    "no metrics": (with_(metrics=None), 1018),
    "two metrics": (with_(more=MetricRecord({"loss": 0.1})), 1018),
    "nothing": (lambda content: RecordDict(), 1018),
    "NaN": (spoiled(np.nan), 1027),
    "infinity": (spoiled(-np.inf, "scale"), 1027),
    "integer leap": (spoiled(1 << 40, "steps"), 1016),
    "other names": (with_(arrays=ArrayRecord({"v": OTHER["w"]})), 1018),
    "other shape": (with_(arrays=OTHER), 1018),
    "ciphertext": (with_(arrays=records.from_pieces([b"x"])), 1014),
    "no examples told": (with_(metrics=MetricRecord({"loss": 0.5})), 1018),
    "half an example": (examples(4711.5), 1018),
    "examples infinite": (examples(float("inf")), 1018),
    "no examples": (examples(0), 1029),
    "negative": (examples(-4711), 1029),
    "a list of examples": (examples([10, 4711]), 1018),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_that_cannot_be_sealed(
    group: Group, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    make, code = ANSWERS[name]
    site = group.sites[0]
    site.app = Replies(make)
    refused(group.ask(site), code)
    assert site.claims == []  # refused before a mask was claimed
    assert not (site.run / "outbox").exists()
    assert "4711" not in site.log + caplog.text  # an example count is no text of ours either
    site.app = App(examples=10.0)  # whole floats are examples
    update(group.ask(site))


# --- what no message asks of it: an answer to a query, a first model, its time ---


def inside(call_next: Any = None, **functions: Any) -> mods_app.App:
    """The app as the mod sees it; it does not train unless `call_next` is given."""
    of = Context(1, 2, {}, RecordDict(), {})
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    trains = call_next or (lambda *_: pytest.fail("the app trains"))
    return mods_app.App(of, trains, AppState(of), **functions)


@pytest.mark.parametrize(
    "given", [ArrayRecord(), MetricRecord({"n": 1}), {"a": np.zeros(1)}, None], ids=type
)
def test_a_query_is_answered_with_arrays(given: Any) -> None:
    app = inside(queries={"q": lambda *_: given})
    with pytest.raises(errors.ReplyError, match="at least one array"):
        app.answer(Query.of("q", {}))
    with pytest.raises(errors.PolicyError, match="answers no query 'p'"):
        app.answer(Query.of("p", {}))


def test_what_an_app_leaves_while_it_makes_the_first_model_is_forgotten() -> None:
    def make(context: Context) -> ArrayRecord:
        context.state["seen"] = MetricRecord({"n": 1})
        return ArrayRecord([np.zeros(1)])

    app = inside(make_initial=make)
    assert len(app.initial()) == 1
    assert "seen" not in app.context.state


@pytest.mark.parametrize("how", ["as it came", "ours"])
def test_the_time_of_an_app_counts_once(how: str) -> None:
    """Both for the model of a federation, and for an app's own message (MaskingKeyMod)."""

    def slow(message: Message, _: Context) -> Message:
        time.sleep(0.05)
        return Message(RecordDict(), reply_to=message)

    app, began = inside(slow), time.perf_counter()
    if how == "ours":
        app.evaluate(Contract(), Model.initial(arrays()))
    else:
        app.pass_on(Message(RecordDict(), 1, "train"))
    assert 0.05 <= app.seconds <= time.perf_counter() - began


@pytest.mark.parametrize(
    ("loss", "says"),
    [(1e-4, "steps of 2**-16"), (40_000.0, "has no mean"), (0.0, ""), (0.5, ""), (-2.5, "")],
)
def test_a_metric_that_the_sum_does_not_resolve_is_told_here_alone(
    group: Group, loss: float, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    training.say_once.cache_clear()
    group.sites[0].app.metrics = {"loss": loss}
    assert update(group.ask(group.sites[0])).senders
    assert ("metric 'loss'" in caplog.text) == bool(says)
    assert says in caplog.text
    assert str(loss) not in caplog.text or not says


# --- where the details go ---


@pytest.mark.timeout(20)
@pytest.mark.parametrize("what", ["a link", "a fifo", "a fifo that is read"])
def test_a_link_in_the_place_of_the_log_is_not_followed(
    group: Group, tmp_path: Path, what: str
) -> None:
    site, target = group.sites[0], tmp_path / "target"
    target.write_text("before")
    target.chmod(0o600)
    log = site.home / "errors.log"
    if what == "a link":
        log.symlink_to(target)
    else:
        os.mkfifo(log, 0o600)
    handle = os.open(log, os.O_RDONLY | os.O_NONBLOCK) if what.endswith("read") else None
    site.app = Raises(ValueError(SECRET))
    refused(group.ask(site), 1001)
    assert target.read_text() == "before"
    if handle is not None:
        assert os.read(handle, 1) == b""
        os.close(handle)
