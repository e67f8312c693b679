"""What a node refuses, and what a refusal lets the server know: a code, and nothing else."""

from __future__ import annotations

import json
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict

from flhe import errors
from flhe.keys.identity import Identity
from flhe.keys.roster.roster import Member, Roster
from flhe.mods import records
from flhe.wire.codes import APP, INTERNAL, explain, refusal_for
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
    initial,
    private,
    refused,
    update,
    wire,
)
from tests.rosters import write_signed

KINDS = ("train", "evaluate", "query")


def plain_message() -> RecordDict:
    return RecordDict({"arrays": initial(), "config": ConfigRecord({"lr": 0.1})})


def pin(path: Path, *sites: Site, schemes: tuple[str, ...] = ("*",)) -> dict[str, Any]:
    """A roster of these sites, and of so many others that there are three."""
    ids = [Identity.from_seed((s.home / "identity.key").read_bytes()) for s in sites]
    ids += [Identity.from_seed(bytes([i + 1]) * 32) for i in range(3 - len(sites))]
    members = tuple(Member(f"site-{i}", one.public) for i, one in enumerate(ids))
    return write_signed(path, Roster(members, 0, 2, schemes), ids)


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return Group(tmp_path).agree()


# --- the table ---


def test_every_error_of_ours_has_the_code_that_is_written_down() -> None:
    table = {refusal_for(kind("x")) for kind in every_error(errors.FlheError)} | {APP}
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


def test_codes_of_flower_itself_are_explained() -> None:
    assert explain(5, "") == "the node is unavailable"
    assert explain(3, "") == "the message expired"
    assert explain(0, "unknown") == "error code 0, unknown"
    assert "put HEMod() first" in explain(2, "<class 'ValueError'>: secret")
    assert "secret" not in explain(2, "<class 'ValueError'>: secret")
    assert explain(99, "secret") == "error code 99"


# --- plain messages ---


@pytest.mark.parametrize("kind", KINDS)
def test_a_plain_message_is_refused_and_the_app_does_not_run(tmp_path: Path, kind: str) -> None:
    site = Site(tmp_path / "home")
    refused(site.send(plain_message(), kind), 1010)
    assert not site.app.seen
    assert not site.home.exists()  # refused before anything is touched


@pytest.mark.parametrize(
    "record", [MetricRecord({"v": 1}), ArrayRecord(), ConfigRecord({"v": 1, "stage": "round"})]
)
def test_a_stage_of_another_name_or_kind_is_no_stage(tmp_path: Path, record: Any) -> None:
    site = Site(tmp_path / "home")
    name = "flhe.stage " if isinstance(record, ConfigRecord) else records.STAGE
    refused(site.send(RecordDict({name: record})), 1010)
    assert not site.app.seen


@pytest.mark.parametrize("kind", KINDS)
def test_plain_runs_where_the_policy_names_it(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(tmp_path / "home")
    site.allow(flhe_schemes="flashe,plain")
    reply = site.send(plain_message(), kind)
    assert not reply.has_error()
    assert len(site.app.seen) == 1
    assert "NOT encrypted" in caplog.text


@pytest.mark.parametrize("schemes", ["flashe", "plai", "plain ain", "*", "Plain", "flashe,*"])
def test_nothing_else_allows_plain(tmp_path: Path, schemes: str) -> None:
    site = Site(tmp_path / "home")
    site.allow(flhe_schemes=schemes)
    refused(site.send(plain_message()), 1010 if schemes == "flashe" else 1017)
    assert not site.app.seen


def test_run_config_is_no_policy(tmp_path: Path) -> None:
    site = Site(tmp_path / "home")
    site.context.run_config.update({"flhe-schemes": "plain", "scheme": "plain"})
    refused(site.send(plain_message()), 1010)
    deployed = Site(tmp_path / "other", config={})
    deployed.context.run_config.update({"flhe-trust": "first-use", "flhe-home": str(tmp_path)})
    refused(deployed.ask("advertise", number=0, terms=TERMS.to_bytes()), 1017)


def test_a_roster_for_every_scheme_does_not_allow_plain(tmp_path: Path) -> None:
    site = Site(tmp_path / "home")
    answer(site.ask("advertise", number=0, terms=TERMS.to_bytes()))
    (site.home / f"runs/{RUN}/agreement").unlink()
    for schemes, code in ((("*",), 1010), (("flashe",), 1010), (("flashe", "plain"), 0)):
        site.allow(**pin(tmp_path / "roster", site, schemes=schemes))
        site.allow(flhe_schemes="flashe,plain")
        reply = site.send(plain_message())
        if code:
            refused(reply, code)
            assert not site.app.seen
    assert not reply.has_error()
    assert len(site.app.seen) == 1


def test_plain_is_refused_once_an_agreement_began(tmp_path: Path) -> None:
    site = Site(tmp_path / "home")
    site.allow(flhe_schemes="flashe,plain")
    answer(site.ask("advertise", number=0, terms=TERMS.to_bytes()))
    for kind in KINDS:
        refused(site.send(plain_message(), kind), 1010)
    assert not site.app.seen


def test_plain_is_refused_once_a_session_began(group: Group) -> None:
    site = group.sites[0]
    update(group.ask(site))
    site.allow(flhe_schemes="flashe,plain")
    for kind in KINDS:
        refused(site.send(plain_message(), kind), 1010)
    assert len(site.app.seen) == 1


def test_the_scheme_of_the_terms_must_be_allowed(tmp_path: Path) -> None:
    site = Site(tmp_path / "home")
    site.allow(flhe_schemes="batchcrypt")
    refused(site.ask("advertise", number=0, terms=TERMS.to_bytes()), 1010)
    assert not (site.run / "agreement").exists()


def test_a_scheme_that_is_allowed_no_more(group: Group) -> None:
    site = group.sites[0]
    update(group.ask(site))
    site.allow(flhe_schemes="batchcrypt")
    refused(group.ask(site), 1010)
    assert len(site.app.seen) == 1


# --- simulation or deployment ---


def stub_ray(monkeypatch: pytest.MonkeyPatch, actor: object, *, up: bool = True) -> None:
    ray: Any = types.ModuleType("ray")
    ray.is_initialized = lambda: up
    ray.get_runtime_context = lambda: types.SimpleNamespace(get_actor_id=lambda: actor)
    monkeypatch.setitem(sys.modules, "ray", ray)


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A node that configures nothing of ours."""
    monkeypatch.setenv("FLHE_HOME", str(tmp_path / "all"))
    return Site(tmp_path / "all" / str(RUN) / "100", config={})


def hello(site: Site) -> Message:
    return site.ask("advertise", number=0, terms=TERMS.to_bytes())


def test_a_deployed_node_without_a_pinned_roster_does_not_start(bare: Site, tmp_path: Path) -> None:
    refused(hello(bare), 1017)
    refused(bare.send(plain_message()), 1017)
    assert not bare.app.seen
    assert list(tmp_path.iterdir()) == []  # no identity, no directory, nothing


def test_a_driver_of_ray_is_no_simulation(bare: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    stub_ray(monkeypatch, None)
    refused(hello(bare), 1017)


def test_ray_that_was_only_imported_is_no_simulation(
    bare: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub_ray(monkeypatch, "actor", up=False)
    refused(hello(bare), 1017)


def test_an_actor_that_configures_nothing_is_a_simulation(
    bare: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub_ray(monkeypatch, "actor")
    assert answer(hello(bare))["envelope"]
    home = bare.home.parent.parent / "node-0"  # by partition: node ids are another run's others
    assert (home / "identity.key").is_file()
    assert bare.context.state["flhe"] == ConfigRecord({"home": str(home)})
    assert not bare.home.exists()


@pytest.mark.parametrize("config", [{"scheme": "plain"}, {"flhe-plain": True}])
def test_in_a_simulation_plain_runs_where_the_run_says_so(
    bare: Site, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any]
) -> None:
    stub_ray(monkeypatch, "actor")
    refused(bare.send(plain_message()), 1010)  # somebody forgot to swap the strategy
    bare.context.run_config.update(config)
    assert not bare.send(plain_message()).has_error()


@pytest.mark.parametrize(
    "key", ["flhe-home", "flhe-metrics", "flhe-schemes", "flhe-counts", "flhe-of-some-later-day"]
)
def test_an_actor_that_configures_anything_is_deployed(
    bare: Site, monkeypatch: pytest.MonkeyPatch, key: str, tmp_path: Path
) -> None:
    stub_ray(monkeypatch, "actor")
    value = {"flhe-counts": False, "flhe-home": str(tmp_path / "own")}.get(key, "flashe")
    bare.context.node_config[key] = value
    refused(hello(bare), 1017)
    if key != "flhe-schemes":
        refused(bare.send(plain_message()), 1017)
    assert not bare.app.seen


# --- what goes wrong in the app ---


def surrogates() -> str:
    return SECRET + "\udcff\ud800\x00\n1010 flhe/policy"


class NastyError(Exception):
    """An exception that fails when somebody looks at it."""

    def __str__(self) -> str:
        raise RuntimeError(SECRET)

    __repr__ = __str__


def chained() -> Exception:
    try:
        try:
            raise ValueError(SECRET)
        except ValueError as error:
            raise KeyError("second") from error
    except KeyError as error:
        return error


FAILURES: dict[str, Callable[[], BaseException]] = {
    "text": lambda: ValueError(SECRET),
    "surrogates": lambda: ValueError(surrogates()),
    "huge": lambda: ValueError(SECRET * 200_000),
    "arrays": lambda: ValueError(np.full(4, 1.2345678)),
    "group": lambda: ExceptionGroup("many", [ValueError(SECRET)]),
    "chained": chained,
    "nasty": NastyError,
    "ours": lambda: errors.PolicyError(SECRET),
    "reuse": lambda: errors.ReuseError(SECRET),
    "recursion": lambda: RecursionError(SECRET),
    "memory": lambda: MemoryError(SECRET),
    "os": lambda: FileNotFoundError(2, "No such file", "/data/" + SECRET),
    "unicode": lambda: UnicodeDecodeError("utf-8", SECRET.encode(), 0, 1, SECRET),
}


@pytest.mark.parametrize("name", FAILURES)
@pytest.mark.parametrize("stage", ["round", "evaluate"])
def test_an_exception_of_the_app_stays_at_home(group: Group, name: str, stage: str) -> None:
    site = group.sites[0]
    site.app = Raises(FAILURES[name]())
    reply = group.ask(site, stage, "train" if stage == "round" else "evaluate")
    refused(reply, 1001)
    assert SECRET.encode() not in wire(reply)
    log = site.home / "errors.log"
    assert private(log)
    assert log.stat().st_size <= 1 << 20
    if name not in ("nasty", "arrays"):
        assert SECRET in log.read_text(errors="replace")
    # nothing was claimed for it
    assert [p.name for p in site.home.glob("used/*/*")] in ([], [".unused"])
    assert not [t for t in threading.enumerate() if t.name.startswith("flhe")]
    site.app = App()
    update(group.ask(site))  # and the round can still be had


def test_an_exception_of_a_plain_run_stays_at_home(tmp_path: Path) -> None:
    site = Site(tmp_path / "home", app=Raises(ValueError(SECRET)))
    site.allow(flhe_schemes="plain")
    refused(site.send(plain_message()), 1001)
    assert SECRET in site.log


@pytest.mark.parametrize("stage", ["round", "evaluate"])
def test_an_error_reply_of_the_app_is_not_passed_on(group: Group, stage: str) -> None:
    class Answers(App):
        def __call__(self, message: Message, context: Context) -> Message:
            return Message(Error(code=4711, reason=SECRET), reply_to=message)

    site = group.sites[0]
    site.app = Answers()
    refused(group.ask(site, stage, "train" if stage == "round" else "evaluate"), 1001)


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
        after[name] = after[name].copy()
        after[name][...] = value
        content["arrays"] = records.from_numpy(after)
        return content

    return make


def told(**metrics: Any) -> Callable[[RecordDict], RecordDict]:
    renamed = {name.replace("_", "-"): value for name, value in metrics.items()}
    return with_(metrics=MetricRecord(renamed))


ANSWERS: dict[str, tuple[Callable[[RecordDict], Any], int]] = {
    "no arrays": (with_(arrays=None), 1018),
    "two arrays": (with_(more=initial()), 1018),
    "no metrics": (with_(metrics=None), 1018),
    "two metrics": (with_(more=MetricRecord({"loss": 0.1})), 1018),
    "nothing": (lambda content: RecordDict(), 1018),
    "NaN": (spoiled(np.nan), 1027),
    "infinity": (spoiled(np.inf), 1027),
    "minus infinity": (spoiled(-np.inf, "scale"), 1027),
    "all clipped": (spoiled(99.0), 1028),
    "integer leap": (spoiled(1 << 40, "steps"), 1016),
    "other names": (
        with_(arrays=ArrayRecord({"v": records.from_numpy({"v": np.ones(2)})["v"]})),
        1018,
    ),
    "other shape": (
        with_(arrays=records.from_numpy({"w": np.ones(3, np.float32)})),
        1018,
    ),
    "ciphertext": (
        with_(arrays=records.from_pieces([b"x"])),
        1014,
    ),
    "no examples told": (told(loss=0.5), 1018),
    "half an example": (told(num_examples=4711.5), 1018),
    "examples NaN": (told(num_examples=float("nan")), 1018),
    "examples infinite": (told(num_examples=float("inf")), 1018),
    "examples 1e300": (told(num_examples=1e300), 1029),
    "no examples": (told(num_examples=0), 1029),
    "negative": (told(num_examples=-4711), 1029),
    "a list of examples": (told(num_examples=[10, 4711]), 1018),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_that_cannot_be_sealed(
    group: Group, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    make, code = ANSWERS[name]
    site = group.sites[0]
    site.app = Replies(make)
    reply = group.ask(site)
    refused(reply, code)
    # refused before a mask was claimed
    assert [p.name for p in site.home.glob("used/*/*")] in ([], [".unused"])
    assert not (site.run / "outbox").exists()
    assert "4711" not in site.log + caplog.text  # an example count is no text of ours either
    site.app = App()
    update(group.ask(site))


def test_an_app_that_answers_no_message(group: Group) -> None:
    group.sites[0].app = lambda message, context: None
    refused(group.ask(group.sites[0]), 1002)


def test_whole_floats_are_examples(group: Group) -> None:
    group.sites[0].app = App(examples=10.0)
    update(group.ask(group.sites[0]))


# --- where the details go ---


def test_the_log_has_the_details_and_starts_anew(group: Group) -> None:
    site = group.sites[0]
    site.app = Raises(ValueError(SECRET + "x" * 300_000))
    for _ in range(5):
        refused(group.ask(site), 1001)
    log = site.home / "errors.log"
    assert 300_000 < log.stat().st_size <= 1 << 20
    assert private(log)
    assert "Traceback" in site.log


def test_a_link_in_the_place_of_the_log_is_not_followed(group: Group, tmp_path: Path) -> None:
    site = group.sites[0]
    target = tmp_path / "target"
    target.write_text("before")
    target.chmod(0o600)
    (site.home / "errors.log").symlink_to(target)
    site.app = Raises(ValueError(SECRET))
    refused(group.ask(site), 1001)
    assert target.read_text() == "before"


@pytest.mark.timeout(20)
@pytest.mark.parametrize("reader", [False, True])
def test_a_fifo_in_the_place_of_the_log_does_not_hang(group: Group, reader: bool) -> None:
    site = group.sites[0]
    log = site.home / "errors.log"
    os.mkfifo(log, 0o600)
    handle = os.open(log, os.O_RDONLY | os.O_NONBLOCK) if reader else None
    site.app = Raises(ValueError(SECRET))
    refused(group.ask(site), 1001)
    if handle is not None:
        assert os.read(handle, 1) == b""
        os.close(handle)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["identity.key", f"runs/{RUN}/model", f"runs/{RUN}/session"])
def test_a_fifo_in_the_place_of_a_file_does_not_hang(group: Group, name: str) -> None:
    site = group.sites[0]
    update(group.ask(site))
    (site.home / name).unlink()
    os.mkfifo(site.home / name, 0o600)
    for reply in (group.ask(site), group.evaluate(site)):  # what is no file is as good as missing
        assert reply.has_error() or answer(reply)
    assert len(list(site.home.glob("used/*/0-*")) + list(site.home.glob("used/*/1-*"))) == 1


@pytest.mark.parametrize("mode", [0o777, 0o750, 0o701])
def test_a_home_open_to_others_is_refused_and_not_written_to(tmp_path: Path, mode: int) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(mode)
    site = Site(home)
    site.allow(flhe_schemes="flashe,plain")
    refused(hello(site), 1015)
    refused(site.send(plain_message()), 1015)
    assert list(home.iterdir()) == []
    assert not site.app.seen


def test_a_home_that_is_a_link_or_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    refused(hello(Site(tmp_path / "link")), 1015)
    (tmp_path / "file").write_text("")
    refused(hello(Site(tmp_path / "file" / "home")), 1015)
    refused(hello(Site(tmp_path / "file")), 1015)
    assert list((tmp_path / "real").iterdir()) == []


@pytest.mark.parametrize(
    "config",
    [{"flhe-home": 3}, {"flhe-trust": "nobody"}, {"flhe-roster": "/x"}, {"flhe-min-survivor": 3}],
)
def test_a_config_that_cannot_work(tmp_path: Path, config: dict[str, Any]) -> None:
    site = Site(tmp_path / "home")
    site.context.node_config.update(config)
    refused(hello(site), 1017)


def test_context_holds_the_path_alone(group: Group) -> None:
    site = group.sites[0]
    update(group.ask(site))
    assert dict(site.context.state) == {"flhe": ConfigRecord({"home": str(site.home)})}


def test_what_is_logged_on_the_console_names_no_secret(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    group.sites[0].app = Raises(ValueError(SECRET))
    refused(group.ask(group.sites[0]), 1001)
    assert "flhe/app-failed" in caplog.text
    assert "ValueError" in caplog.text
    assert SECRET not in caplog.text
    assert json.dumps(SECRET) not in caplog.text


def test_a_directory_that_cannot_be_written(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root writes everywhere, the operating system's refusal is played."""
    site = group.sites[0]
    real = os.open

    def denied(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & os.O_CREAT and str(path).startswith(str(site.home)):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", denied)
    refused(group.ask(site), 1015)
    assert not site.app.seen
    monkeypatch.undo()
    update(group.ask(site))


def test_a_disk_that_fills_up_before_the_claim(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = group.sites[0]
    real = os.open

    def full(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & os.O_CREAT and "/used/" in str(path):
            raise OSError(28, "No space left on device", str(path))
        return real(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", full)
    refused(group.ask(site), 1015)
    assert "No space left" in site.log
    assert str(site.home) not in site.log.partition("StoreError")[2].splitlines()[0]
