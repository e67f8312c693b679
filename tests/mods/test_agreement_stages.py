"""Key agreement as a node sees it: any message, in any order, gives a reply of ours."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flhe.coding.laplace import Laplace
from flhe.coding.select import Select
from flhe.keys.agreement.messages import Envelope
from flhe.keys.identity import Identity
from flhe.keys.roster.roster import Member, Roster
from flhe.mods import records, table
from flhe.node.keyfile import KeyFile
from flhe.node.store import Store
from flhe.training.client_optimizer import ClientOptimizer
from flhe.training.optimizer import ServerOptimizer
from flhe.training.terms import Terms
from flhe.wire import canonical, files
from tests.mods.harness import RUN, SLUGS, TERMS, TOLD, Group, Site, answer, arrays, refused, update
from tests.rosters import write_signed

STAGES = (
    "advertise",
    "key-pair",
    "take-pair",
    "joint",
    "joint-sum",
    "share",
    "confirm",
    "status",
    "initial",
    "sync",
    "checkpoint",
    "verify",
    "round",
    "supports",
    "update",
    "consist",
    "unmask",
    "evaluate",
)
KEYS = ("key-pair", "take-pair", "joint", "joint-sum")
MASKS = ("mask-key", "mask-share", "consist", "unmask")


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return Group(tmp_path)


def kind_of(stage: str) -> str:
    return "evaluate" if stage == "evaluate" else "train"


# --- order ---


@pytest.mark.parametrize("stage", sorted({*STAGES} - {"advertise", "status"}))
def test_nothing_comes_before_advertise(tmp_path: Path, stage: str) -> None:
    site = Site(tmp_path / "home")
    fields = {"round": 1, "attempt": 0, "terms": TERMS.to_bytes(), "messages": [b"x"]}
    before = ("share", "confirm", "key-pair", "take-pair", "joint", "joint-sum")
    code = 1014 if stage in before else 1020
    refused(site.ask(stage, kind_of(stage), **fields, confirms=[b"x"], sums=[]), code)
    assert not site.app.seen


def test_confirm_without_share(group: Group) -> None:
    hellos = group.hellos()
    refused(group.sites[0].ask("confirm", **group.stage(messages=hellos)), 1014)


def test_share_twice(group: Group) -> None:
    hellos = group.hellos()
    answer(group.sites[0].ask("share", **group.stage(messages=hellos)))
    refused(group.sites[0].ask("share", **group.stage(messages=hellos)), 1014)


def test_confirm_twice(group: Group) -> None:
    shares = group.shares(group.hellos())
    answer(group.sites[0].ask("confirm", **group.stage(messages=shares)))
    refused(group.sites[0].ask("confirm", **group.stage(messages=shares)), 1014)


def test_a_round_before_everybody_confirmed(group: Group) -> None:
    group.shares(group.hellos())
    for site in group.sites:
        refused(group.ask(site), 1020)
        assert not site.app.seen


def test_a_round_with_confirms_left_out(group: Group) -> None:
    group.agree()
    site = group.sites[0]
    refused(group.ask(site, confirms=[]), 1020)
    refused(group.ask(site, confirms=group.confirms[1:]), 1014)
    refused(group.ask(site, confirms=[*group.confirms[1:], group.confirms[1]]), 1013)
    refused(group.ask(site, confirms=[group.confirms[0]] * 3), 1014)
    assert not site.app.seen
    assert not (site.home / "epochs").exists()  # no key was stored
    update(group.ask(site))


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        *((stage, "and the scheme has none") for stage in KEYS),
        *((stage, "this scheme does not have") for stage in MASKS),
    ],
)
def test_stages_that_the_scheme_has_not(group: Group, stage: str, message: str) -> None:
    site = group.agree().sites[0]
    update(group.ask(site))
    group.agree()
    fields = {"confirms": group.confirms, "messages": [b"x"], "key-pair": b"x"}
    if stage in MASKS:
        update(group.ask(site))
    refused(site.ask(stage, **group.stage(**fields)), 1014)
    assert message in site.log


def test_a_second_advertise_starts_over(group: Group) -> None:
    first = group.hellos()
    second = group.hellos()
    site = group.sites[0]
    assert first[0] != second[0]
    refused(site.ask("share", **group.stage(messages=first)), 1013)  # not its own any more
    answer(site.ask("share", **group.stage(messages=second)))


def test_secrets_of_a_finished_agreement_are_erased(group: Group) -> None:
    group.agree()
    site = group.sites[0]
    assert (site.run / "agreement").exists()
    update(group.ask(site))
    assert not (site.run / "agreement").exists()
    assert len(list((site.home / "epochs").iterdir())) == 1


def test_a_message_of_another_type_is_no_stage(tmp_path: Path) -> None:
    site = Site(tmp_path / "home")
    fields = {"number": 0, "terms": TERMS.to_bytes()}
    for kind in ("evaluate", "query", "train.advertise", "train.round"):
        refused(site.ask("advertise", kind, **fields), 1014)
    refused(site.ask("evaluate", "train", **fields), 1014)
    assert not site.app.seen


@pytest.mark.parametrize("version", [0, 1, 3, -1, True, 2.0, "2", b"2", [2]])
def test_a_stage_of_another_version(tmp_path: Path, version: Any) -> None:
    site = Site(tmp_path / "home")
    record = ConfigRecord({"v": version, "stage": "advertise", "number": 0})
    record["terms"] = TERMS.to_bytes()
    refused(site.send(RecordDict({records.STAGE: record})), 1025 if type(version) is int else 1014)
    del record["v"]
    refused(site.send(RecordDict({records.STAGE: record})), 1014)
    assert not site.home.exists()


# --- what a relay may do to messages ---


def test_too_few_members(group: Group) -> None:
    hellos = group.hellos()
    refused(group.sites[0].ask("share", **group.stage(messages=hellos[:2])), 1011)


def test_own_message_left_out_or_changed(group: Group) -> None:
    hellos = group.hellos()
    site = group.sites[0]
    others = Group(site.home.parent / "others", 4).hellos()
    refused(site.ask("share", **group.stage(messages=others)), 1013)
    changed = hellos[0][:-1] + bytes([hellos[0][-1] ^ 1])
    refused(site.ask("share", **group.stage(messages=[changed, *hellos[1:]])), 1013)


def test_a_peers_message_changed_or_doubled(group: Group) -> None:
    hellos = group.hellos()
    site = group.sites[0]
    changed = hellos[1][:-1] + bytes([hellos[1][-1] ^ 1])
    refused(site.ask("share", **group.stage(messages=[hellos[0], changed, hellos[2]])), 1013)
    refused(site.ask("share", **group.stage(messages=[*hellos, hellos[1]])), 1014)


def test_a_message_of_another_run_or_epoch(tmp_path: Path) -> None:
    here, there = Group(tmp_path / "a"), Group(tmp_path / "b", run_id=RUN + 1)
    hellos, foreign = here.hellos(), there.hellos()
    refused(here.sites[0].ask("share", **here.stage(messages=[hellos[0], *foreign])), 1014)
    later = Group(tmp_path / "c")
    later.number = 1
    refused(here.sites[0].ask("share", **here.stage(messages=[hellos[0], *later.hellos()])), 1014)


def test_shares_swapped_dropped_or_doubled(group: Group) -> None:
    shares = group.shares(group.hellos())
    site = group.sites[0]
    for wrong, code in (
        (shares[:-1], 1014),
        ([*shares[:-1], shares[0]], 1014),
        ([*shares, shares[0]], 1014),
        ([], 1014),
        ([b""] * 6, 1014),
        ([s[:-1] + bytes([s[-1] ^ 1]) for s in shares], 1013),
    ):
        refused(site.ask("confirm", **group.stage(messages=wrong)), code)
    answer(site.ask("confirm", **group.stage(messages=shares)))  # refusals changed nothing


def test_members_shown_two_lists_do_not_finish(tmp_path: Path) -> None:
    """One member is shown other messages by a fourth: confirmations differ, nothing is encrypted."""
    group = Group(tmp_path, 4)
    hellos = group.hellos()
    odd = group.sites[3]
    again = answer(odd.ask("advertise", **group.stage()))["envelope"]
    lists = [[*hellos[:3], again]] * 2 + [hellos] + [[*hellos[:3], again]]
    shares = [
        share
        for site, shown in zip(group.sites, lists, strict=True)
        for share in answer(site.ask("share", **group.stage(messages=shown)))["envelopes"]
    ]
    replies = [s.ask("confirm", **group.stage(messages=shares)) for s in group.sites]
    assert any(reply.has_error() for reply in replies)
    group.confirms = [answer(r)["envelope"] for r in replies if not r.has_error()]
    for site in group.sites:
        assert group.ask(site).error.code in (1013, 1014, 1020)
        assert not site.app.seen


def test_equal_identities_are_refused_by_the_members(group: Group) -> None:
    group.hellos()
    twin = Site(group.sites[0].home.parent / "twin")
    twin.home.mkdir(mode=0o700)
    shutil.copy(group.sites[1].home / "identity.key", twin.home / "identity.key")
    own = answer(group.sites[0].ask("advertise", **group.stage()))["envelope"]
    two = [answer(s.ask("advertise", **group.stage()))["envelope"] for s in group.sites[1:]]
    third = answer(twin.ask("advertise", **group.stage()))["envelope"]
    refused(group.sites[0].ask("share", **group.stage(messages=[own, *two, third])), 1014)


# --- rosters ---


def pinned(group: Group, path: Path, *names: int, **bounds: Any) -> dict[str, Any]:
    ids = [Identity.from_seed((group.sites[i].home / "identity.key").read_bytes()) for i in names]
    roster = Roster(
        tuple(Member(f"site-{i}", one.public) for i, one in enumerate(ids)),
        bounds.get("collusion", 0),
        bounds.get("min_survivors", 2),
        bounds.get("schemes", ("flashe",)),
    )
    return write_signed(path, roster, ids)


def test_a_pinned_roster_is_the_list_of_members(tmp_path: Path) -> None:
    group = Group(tmp_path, 4)
    group.hellos()
    config = pinned(group, tmp_path / "roster", 0, 1, 2)
    for site in group.sites:
        site.context.node_config.update(config)
    refused(group.sites[3].ask("advertise", **group.stage()), 1014)  # not in it
    outsider = Group(tmp_path / "other", 1).hellos()[0]
    inside = [answer(s.ask("advertise", **group.stage()))["envelope"] for s in group.sites[:3]]
    refused(group.sites[0].ask("share", **group.stage(messages=[*inside, outsider])), 1014)
    answer(group.sites[0].ask("share", **group.stage(messages=inside)))


def test_a_roster_pinned_anew_in_the_middle_of_a_run(tmp_path: Path) -> None:
    group = Group(tmp_path, 4).agree()
    update(group.ask(group.sites[0]))
    config = pinned(group, tmp_path / "roster", 0, 1, 2, 3, collusion=1)
    site = group.sites[0]
    site.context.node_config.update(config)
    refused(group.ask(site), 1020)
    refused(group.evaluate(site), 1020)
    assert len(site.app.seen) == 1


def test_a_roster_pinned_between_advertise_and_share(tmp_path: Path) -> None:
    """The state of an agreement carries the roster that it began under; the session is checked."""
    group = Group(tmp_path, 3).agree()
    site = group.sites[0]
    site.context.node_config.update(pinned(group, tmp_path / "roster", 0, 1, 2, min_survivors=3))
    refused(group.ask(site), 1020)
    assert not site.app.seen


def test_a_roster_that_bounds_schemes(tmp_path: Path) -> None:
    group = Group(tmp_path, 3)
    group.hellos()
    config = pinned(group, tmp_path / "roster", 0, 1, 2, schemes=("sash",))
    group.sites[0].context.node_config.update(config)
    refused(group.sites[0].ask("advertise", **group.stage()), 1010)


# --- terms ---


OTHER: dict[str, Any] = {
    "bits": 15,
    "clip": 2.0,
    "max_examples": 99,
    "weighted": False,
    "masking": "single",
    "metrics": ("loss", "patients"),
    "arrays_key": "weights",
    "weight_key": "patients",
    "optimizer": ServerOptimizer("fedadam"),
    "top_k": 0.5,
    "warmup": 3,
    "permute": False,
    "unmask": "clients",
    "preset": "lwr-736",
    "key_bits": 2048,
    "advance": True,
    "sends": "gradient",
    "ring": "rns-8192",
    "keys": "round",
    "ckks_ring": "8192",
    "select": Select(0.9, "random"),
    "noise": Laplace(0.5, "all"),
}
ALSO: dict[str, dict[str, Any]] = {
    "sends": {"optimizer": ClientOptimizer("adam")},
    **{name: {"scheme": "batchcrypt"} for name in ("key_bits", "advance")},
    **{name: {"scheme": "esafl"} for name in ("ring", "keys")},
    "ckks_ring": {"scheme": "fedml-he"},
    "select": {"weighted": False},
}
"""Terms without which another one cannot be."""


def changed(name: str) -> bytes:
    """Terms that differ in one field; in two, where it is one scheme's alone."""
    return dataclasses.replace(TERMS, **{**ALSO.get(name, {}), name: OTHER[name]}).to_bytes()


@pytest.mark.parametrize("name", OTHER)
def test_terms_changed_under_way(group: Group, name: str) -> None:
    group.agree()
    site = group.sites[0]
    update(group.ask(site))
    terms = changed(name)
    refused(group.ask(site, terms=terms), 1010)
    refused(group.evaluate(site, terms=terms), 1010)
    for stage in ("sync", "checkpoint", "initial"):
        refused(group.ask(site, stage, terms=terms), 1010)
    refused(site.ask("advertise", number=1, terms=terms), 1010)  # nor with a new agreement
    assert not (site.run / "agreement").exists()
    assert len(site.app.seen) == 1


@pytest.mark.parametrize("name", OTHER)
def test_terms_changed_between_advertise_and_the_first_round(group: Group, name: str) -> None:
    """Terms of a new epoch come with its first round: they must be those of the one before."""
    group.agree()
    site = group.sites[0]
    update(group.ask(site))
    group.number = 1
    group.agree()
    terms = changed(name)
    refused(group.ask(site, terms=terms), 1010)
    assert len(site.epochs) == 1
    update(group.ask(site, attempt=1))


def test_every_term_is_in_the_test_above() -> None:
    assert {*OTHER, "scheme"} == {f.name for f in dataclasses.fields(Terms)}


BAD_TERMS = {
    "empty": b"",
    "garbage": b"\xff" * 100,
    "too long": canonical.dumps("x" * (1 << 20)),
    "a list": canonical.dumps([1, 2]),
    "version": canonical.dumps({**canonical.loads(TERMS.to_bytes(), 9999, ""), "v": 1}),
    "one more": canonical.dumps({**canonical.loads(TERMS.to_bytes(), 9999, ""), "x": 2}),
    **{
        f"{name}={value!r:.20}": canonical.dumps(
            {**canonical.loads(TERMS.to_bytes(), 9999, ""), name: value}
        )
        for name, value in [
            ("bits", 0),
            ("bits", 1 << 60),
            ("bits", True),
            ("clip", "nan"),
            ("clip", "inf"),
            ("clip", "0x0p+0"),
            ("clip", "-0x1p+0"),
            ("clip", "0x1p+99999"),
            ("clip", [["w"]]),
            ("clip", [["w", "0x1p+99999"]]),
            ("clip", [["nothing", (1.0).hex()]]),
            ("max_examples", 0),
            ("max_examples", 1 << 40),
            ("masking", "triple"),
            ("clip", "median"),
            ("top_k", "nan"),
            ("top_k", "0.5"),
            ("top_k", (0.0).hex()),
            ("top_k", (1.5).hex()),
            ("top_k", 1),
            ("warmup", True),
            ("warmup", "10"),
            ("permute", 1),
            ("unmask", "nobody"),
            ("unmask", 1),
            ("preset", "lwr-512"),
            ("preset", b"ring-2048"),
            ("metrics", ["loss", "loss"]),
            ("metrics", [""]),
            ("metrics", [3]),
            ("metrics", ["m" * 200]),
            ("scheme", "plain"),
            ("scheme", "*"),
            ("scheme", ""),
            ("arrays_key", ""),
            ("weight_key", "w" * 200),
            ("optimizer", "fedadam"),
            ("optimizer", {"name": "fedlion"}),
            ("optimizer", {"name": "fedavg", "eta": (1.0).hex()}),
        ]
    },
}


@pytest.mark.parametrize("name", BAD_TERMS)
def test_terms_that_cannot_work(group: Group, name: str) -> None:
    site = group.sites[0]
    reply = site.ask("advertise", number=0, terms=BAD_TERMS[name])
    if name.startswith("clip=[['nothing'"):  # only a model shows that
        answer(reply)
        return
    assert reply.error.code in (1010, 1014, 1017), site.log
    assert reply.error.reason == SLUGS[reply.error.code]


# --- anything at all ---


NOISE = st.one_of(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.booleans(),
    st.floats(),
    st.text(max_size=40),
    st.binary(max_size=200),
    st.lists(st.binary(max_size=60), max_size=8),
    st.lists(st.integers(-5, 5), max_size=4),
    st.lists(st.text(max_size=5), max_size=4),
    st.just(b"\xa1" * 5000),
    st.just([b"\x9f"] * 2000),
    st.just([b""] * 2000),
)
NAMES = (
    "v",
    "stage",
    "number",
    "terms",
    "messages",
    "round",
    "attempt",
    "confirms",
    "sums",
    "federation",
    "history",
    "mode",
    "ranges",
    "fitted-on",
)


class Stand:
    """A group stopped at each step of its way, whose directory is put back before every example."""

    def __init__(self, path: Path) -> None:
        self.states: dict[str, Path] = {}
        self.fields: dict[str, dict[str, Any]] = {}
        group = self.group = Group(path / "live")
        hellos = group.hellos()
        self.site = group.sites[0]
        common = group.stage(round=1, attempt=0, confirms=[], sums=[])
        self._keep("fresh", path, {**common, "stage": "advertise"})
        self._keep("advertised", path, {**common, "stage": "share", "messages": hellos})
        shares = group.shares(hellos)
        self._keep("shared", path, {**common, "stage": "confirm", "messages": shares})
        group.confirms = group.confirm(shares)
        common["confirms"] = group.confirms
        self._keep("confirmed", path, {**common, "stage": "round"})
        total = group.total(group.parts())
        common["sums"], common["told"] = [total.header()], [TOLD]
        common["receipts"] = [group.receipts(total)]
        self.extra = {
            "flhe.sum.0": records.from_sealed(total),
            "arrays": records.from_numpy(arrays()),
        }
        self._keep("running", path, {**common, "stage": "round", "round": 2})

    def _keep(self, name: str, path: Path, fields: dict[str, Any]) -> None:
        self.states[name] = path / name
        shutil.copytree(self.site.home, self.states[name])
        self.fields[name] = {"v": records.PROTOCOL, **fields}

    def _stamp(self) -> None:
        """Make the copied files vouch for themselves, as no node would."""
        store = Store(self.site.home)
        for agreement in self.site.home.glob("runs/*/agreement"):
            kept = canonical.loads(agreement.read_bytes(), 1 << 24, "agreement")
            stamp = files.stamp(agreement.parent / "stamp")
            run = agreement.parent.name
            kept[2] = str(stamp)
            store.write(f"runs/{run}/agreement", canonical.dumps(kept))
        for keys in self.site.home.glob("epochs/*"):
            kept = KeyFile.from_bytes(keys.read_bytes())
            stamp = files.stamp(self.site.home / "used" / keys.name / kept.claim)
            keys.write_bytes(dataclasses.replace(kept, stamp=str(stamp)).to_bytes())

    def play(self, name: str, fields: dict[str, Any], kind: str) -> Message:
        for left in self.site.home.rglob("*"):  # directories stay: a copied one would be refused
            if left.is_file():
                left.unlink()
        shutil.copytree(self.states[name], self.site.home, dirs_exist_ok=True)
        self._stamp()
        content = RecordDict({records.STAGE: ConfigRecord(fields), **self.extra})
        return self.site.send(content, kind)


@pytest.fixture(scope="module")
def stand() -> Iterator[Stand]:
    with tempfile.TemporaryDirectory() as path:
        yield Stand(Path(path))


@pytest.mark.parametrize("state", ["fresh", "advertised", "shared", "confirmed", "running"])
def test_the_stand_itself_works(stand: Stand, state: str) -> None:
    answer(stand.play(state, stand.fields[state], "train"))


@settings(
    max_examples=200, deadline=5000, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    state=st.sampled_from(["fresh", "advertised", "shared", "confirmed", "running"]),
    changes=st.dictionaries(st.sampled_from(NAMES), NOISE, max_size=3),
    dropped=st.sets(st.sampled_from(NAMES), max_size=2),
    stage=st.sampled_from([None, None, *STAGES]),
    kind=st.sampled_from(["train", "train", "train", "evaluate", "query"]),
)
def test_any_stage_record_gets_a_reply_of_ours(
    stand: Stand,
    state: str,
    changes: dict[str, Any],
    dropped: set[str],
    stage: str | None,
    kind: str,
) -> None:
    fields = {**stand.fields[state], **({"stage": stage} if stage else {}), **changes}
    for name in dropped:
        fields.pop(name, None)
    reply = stand.play(state, fields, kind)
    if reply.has_error():
        assert reply.error.reason == SLUGS[reply.error.code]
        assert reply.error.code != 1002, stand.site.log  # nothing that we did not think of
    else:
        answer(reply)


@settings(
    max_examples=200, deadline=5000, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    state=st.sampled_from(["advertised", "shared", "confirmed"]),
    which=st.integers(0, 5),
    at=st.integers(0, 500),
    flip=st.integers(1, 255),
    cut=st.sampled_from(["flip", "cut", "grow"]),
)
def test_any_altered_message_is_refused(
    stand: Stand, state: str, which: int, at: int, flip: int, cut: str
) -> None:
    fields = dict(stand.fields[state])
    name = "confirms" if state == "confirmed" else "messages"
    messages = list(fields[name])
    data = bytearray(messages[which % len(messages)])
    if cut == "flip":
        data[at % len(data)] ^= flip
    elif cut == "cut":
        del data[at % len(data) :]
    else:
        data += bytes([flip])
    messages[which % len(messages)] = bytes(data)
    fields[name] = messages
    reply = stand.play(state, fields, "train")
    mine = Identity.from_seed((stand.site.home / "identity.key").read_bytes()).public
    if state == "shared" and not reply.has_error():
        # A SHARE between two others: whoever gets it will see; here it changes the transcript.
        sender, receiver = between(stand.fields[state][name][which % len(messages)])
        assert mine not in (sender, receiver)
        return
    assert reply.error.code in (1013, 1014), stand.site.log


def between(share: bytes) -> tuple[bytes, bytes]:
    header = Envelope.from_bytes(share, 1024).header
    return header.sender, header.receiver


@settings(
    max_examples=100, deadline=5000, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(header=st.one_of(st.binary(max_size=300), st.integers(0, 400)), arrays_too=st.booleans())
def test_any_sum_gets_a_reply_of_ours(stand: Stand, header: bytes | int, arrays_too: bool) -> None:
    fields = dict(stand.fields["running"])
    good = fields["sums"][0]
    if isinstance(header, int):
        data = bytearray(good)
        data[header % len(data)] ^= 1 + header % 255
        header = bytes(data)
    fields["sums"] = [header]
    extra = dict(stand.extra)
    if not arrays_too:
        stand.extra = {"flhe.sum.0": ConfigRecord({"x": 1})}
    try:
        reply = stand.play("running", fields, "train")
    finally:
        stand.extra = extra
    assert reply.error.code in (1011, 1012, 1014), stand.site.log


# --- every stage is known to these tests ---


def test_every_stage_is_named_here() -> None:
    assert {name for _, name in table.STAGES} == set(STAGES)
