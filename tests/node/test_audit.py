"""The audit log: what it records, what it can never hold, and how people read it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from flhe.cli import app
from flhe.errors import ProtocolError, StoreError
from flhe.mods import he_mod, records
from flhe.node import audit
from flhe.node.audit import Entry, last, write
from flhe.node.store import Store
from flhe.training.query import Query
from flhe.wire.codes import APP
from tests.mods.harness import SECRET

EPOCH = bytes.fromhex("ab12cd34") + bytes(12)
TIME = 1767323045
"""2026-01-02T03:04:05Z."""


def answer_of(stage: str, content: RecordDict) -> str:
    return audit.answer_of(stage, records.find_config(content, records.REPLY))


def entry(**changes: Any) -> Entry:
    usual = {"run": 7, "stage": "round", "answer": "update", "seconds": 1.2, "time": TIME}
    return Entry(**(usual | changes))


UPDATE = entry(epoch=EPOCH, round=3, attempt=0, bytes_out=12345)
REFUSAL = entry(answer="refused", code=1014, seconds=0.0104)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "state")


def test_lines() -> None:
    assert UPDATE.to_line() == (
        b'{"time":"2026-01-02T03:04:05Z","run":7,"stage":"round","asked_by":"server",'
        b'"answer":"update","epoch":"ab12cd34","round":3,"attempt":0,"bytes_out":12345,"seconds":1.2}'
    )
    assert REFUSAL.to_line() == (
        b'{"time":"2026-01-02T03:04:05Z","run":7,"stage":"round","asked_by":"server",'
        b'"answer":"refused","bytes_out":0,"seconds":0.01,"code":1014,"reason":"flhe/protocol"}'
    )
    asked = entry(stage="query", query=Query.of("n" * 64, {"x": ['\\"[/b]' * 99]}).line())
    for one in (UPDATE, REFUSAL, asked):
        assert Entry.from_line(one.to_line()) == one


@pytest.mark.parametrize("stage", ["round", "supports", "update"])
def test_what_a_round_answered(stage: str) -> None:
    """By what is in the reply: the same stage answers otherwise where updates are sparse."""
    told = {
        "mean-squares": "mean squares",
        "supports": "support",
        "update": "update",
        SECRET: "unknown",
    }
    for step, word in told.items():
        content = records.reply(step=step, resent=False)
        assert answer_of(stage, content) == entry(answer=word).answer == word
    assert answer_of(stage, records.reply(step="update", resent=True)) == "resent"
    assert answer_of(stage, records.reply()) == "unknown"
    assert answer_of(stage, RecordDict()) == "unknown"
    assert answer_of("sync", records.reply(step="update", resent=True)) == "status"
    for at, answer in (("consist", "survivors"), ("unmask", "release")):
        assert answer_of(at, records.reply(step=at)) == answer


def test_every_stage_has_its_word() -> None:
    assert {name for _, name in he_mod.STAGES} <= audit.STAGES


HOSTILE = [
    *(SECRET, "", "Round", "round ", "round\n", 'round","answer":"update', "\x1b[2J", "\udcff"),
    *("[red]x", "x" * 10**6, b"round", 7, None, ["round"], {"round": 1}),
]


COUNTS = [-1, 2**32, 10**400, True, 1.0, "3", SECRET, b"3", [3]]
QUERIES = ["two\nlines", "\x1b[2J", "x" * 161, b"bytes", 7]


@pytest.mark.parametrize(
    ("name", "word", "kept"),
    [
        *((name, word, "unknown") for name in ("stage", "answer", "asked_by") for word in HOSTILE),
        *((name, number, None) for name in ("round", "attempt") for number in COUNTS),
        *(("query", text, "unknown") for text in QUERIES),
    ],
    ids=lambda word: repr(word)[:12],
)
def test_no_word_but_those_of_the_sets(name: str, word: Any, kept: str | None) -> None:
    """Nor any number but a count; and what the server says is never a reason not to record."""
    one = entry(**{name: word})
    assert one == entry(**{name: kept})
    assert json.loads(one.to_line()).get(name) == kept


ENTRIES = st.builds(
    Entry,
    run=st.integers(0, 2**64 - 1),
    stage=st.one_of(st.sampled_from(sorted(audit.STAGES)), st.text()),
    answer=st.one_of(st.sampled_from(sorted(audit.ANSWERS - {"refused"})), st.text()),
    seconds=st.floats(0, 1e9),
    bytes_out=st.integers(0, 2**63 - 1),
    epoch=st.one_of(st.none(), st.binary(min_size=16, max_size=16)),
    round=st.one_of(st.none(), st.integers(-5, 2**33)),
    attempt=st.one_of(st.none(), st.integers(-5, 2**33)),
    asked_by=st.text(),
    time=st.integers(0, 253402300799),
).filter(lambda one: one.answer != "refused")


@settings(max_examples=40)
@given(ENTRIES)
def test_any_entry_is_one_short_line_that_reads_back(one: Entry) -> None:
    line = one.to_line()
    assert Entry.from_line(line) == one
    assert replace(one) == one  # validating twice changes nothing
    assert len(line) <= audit.MAX_LINE
    assert b"\n" not in line
    assert line.isascii()


LINE = UPDATE.to_line()
NO_LINES = [
    *(b"", b"[]", b"[" * 10**5, LINE[:-1], LINE + b" "),
    *(LINE.replace(b"12345", b"1e3"), LINE.replace(b"round", SECRET.encode())),
    LINE.replace(b'"run":7', b'"run":7,"run":7'),
    REFUSAL.to_line().replace(b"1014", b"1015"),
    REFUSAL.to_line().replace(b"flhe/protocol", b"[red]\\u001b[2J"),
]


@pytest.mark.parametrize("line", NO_LINES, ids=lambda line: line[-24:].decode(errors="replace"))
def test_lines_that_are_none(line: bytes) -> None:
    with pytest.raises(ProtocolError, match="did not write") as caught:
        Entry.from_line(line)
    assert SECRET not in str(caught.value)


def test_both_generations_are_read(store: Store, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(audit, "LIMIT", 3 * (len(entry(round=0).to_line()) + 1))
    with pytest.raises(StoreError, match="no audit log"):
        last(store, 5)
    many = [entry(round=i) for i in range(8)]
    for one in many:
        write(store, one)
    assert store.read("audit.log") == b"".join(one.to_line() + b"\n" for one in many[6:])
    assert (tmp_path / "state/audit.log").stat().st_mode & 0o777 == 0o600
    assert last(store, 99) == many[3:]
    assert last(store, 4) == many[4:]
    (tmp_path / "state/audit.log").unlink()  # as between the two halves of a rotation
    assert last(store, 99) == many[3:6]


def test_a_rotation_while_it_is_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    many = [entry(round=i) for i in range(4)]
    monkeypatch.setattr(audit, "LIMIT", 2 * (len(many[0].to_line()) + 1))
    for one in many[:3]:
        write(store, one)
    read, again = Store.read, iter([many[3], entry(round=9)])

    def rotating(self: Store, name: str) -> bytes:
        data = read(self, name)
        for one in again:  # once: after the older one was read, before the newer one is
            write(self, one)
        return data

    monkeypatch.setattr(Store, "read", rotating)
    assert last(store, 99) == [many[2], many[3], entry(round=9)]


# --- flhe log ---


def show(*args: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["log", *map(str, args)], env={"COLUMNS": "200"})
    return result.exit_code, result.output


def test_people_read_a_table(store: Store, tmp_path: Path) -> None:
    home = tmp_path / "state"
    write(store, entry(stage="advertise", answer="agreement", bytes_out=400, run=2**64 - 1))
    write(store, replace(UPDATE, attempt=2, bytes_out=3_000_000))
    store.append("audit.log", f'{{"stage":"{SECRET}"}}\n'.encode(), audit.LIMIT)
    write(store, replace(REFUSAL, stage="evaluate", code=APP.code))
    code, text = show("--home", home)
    assert code == 0
    rows = [line for line in text.splitlines() if line.strip()[:1].isdigit()]
    day = "2026-01-02"
    assert [row.split()[0] for row in rows] == ["18446744073709551615", day, "7", day, day]
    assert rows[1].split()[2:] == ["advertise", "agreement", "400", "B", "1.200"]
    assert rows[3].split()[2:] == ["round", "ab12cd34", "3", "(2)", "update", "3.00", "MB", "1.200"]
    assert "refused: app-failed" in rows[4]
    assert "not a line of flhe" in text
    assert SECRET not in text
    code, text = show("--home", home, "--last", 1)
    assert (text.count("2026"), "app-failed" in text) == (1, True)


def test_a_directory_without_a_log(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir(mode=0o700)
    for place, says in (("missing", "flhe: --home"), ("empty", "flhe: no audit log here")):
        code, text = show("--home", tmp_path / place)
        assert (code, text.startswith(says)) == (1, True)
    assert [*tmp_path.rglob("*")] == [tmp_path / "empty"]
    assert (show("--home", tmp_path, "--last", 0)[0], show()[0]) == (2, 2)
