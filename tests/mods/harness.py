"""Drives HEMod without a grid: a test plays the server, message by message."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from numpy.typing import NDArray

from flhe.coding.chain import Chain
from flhe.coding.support import Support
from flhe.coding.update import update_codec
from flhe.errors import FlheError
from flhe.keys import seal
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.agreement.messages import Envelope
from flhe.keys.identity import Identity
from flhe.keys.roster.roster import Member, Roster
from flhe.keys.seal import ModelKey
from flhe.mods import HEMod, records
from flhe.node.journal import UNUSED, Journal
from flhe.node.store import Store
from flhe.schemes.flashe.scheme import Flashe
from flhe.schemes.sealed import Sealed, to_bytes
from flhe.training.contract import Contract
from flhe.training.model import Model
from flhe.training.schedule import Settings
from flhe.training.session import Session
from flhe.training.terms import Terms
from tests.rosters import write_pinned

RUN = 7


def codec(**how: Any) -> Chain:
    return update_codec(**{"bits": 16, "clip": 1.0, "max_examples": 100, **how})


TERMS = Terms(codec=codec(), metrics=("loss",))
SPARSE = replace(TERMS, scheme=Flashe("adaptive"), codec=codec(top_k=0.5, small=0, warmup=0))
RANGED = replace(TERMS, codec=codec(clip="exchange"))
FLOATS = 13
"""Of the model below."""
SECRET = "patient 4711 has a rare disease"

Arrays = dict[str, NDArray[Any]]
CallNext = Callable[[Message, Context], Message]


def arrays() -> Arrays:
    """A small model: a matrix, a 0-d float, a 0-d counter."""
    return {
        "w": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4),
        "scale": np.array(0.5, np.float32),
        "steps": np.array(10, np.int64),
    }


def initial() -> ArrayRecord:
    return records.from_numpy(arrays())


class App:
    """A user's app: moves every float by `step`, and notes what it was shown."""

    def __init__(self, step: float = 0.125, examples: Any = 10, **metrics: Any) -> None:
        self.step = step
        self.examples = examples
        self.metrics = metrics
        self.seen: list[RecordDict] = []

    def __call__(self, message: Message, context: Context) -> Message:
        self.seen.append(message.content)
        return Message(self.content(message), reply_to=message)

    def content(self, message: Message) -> RecordDict:
        metrics = MetricRecord({"num-examples": self.examples, "loss": 0.5, **self.metrics})
        if message.metadata.message_type != "train":
            return RecordDict({"metrics": metrics})
        return RecordDict({"arrays": self.trained(message.content["arrays"]), "metrics": metrics})

    def trained(self, record: Any) -> ArrayRecord:
        before = records.to_numpy(record)
        after = {
            name: np.array(a + a.dtype.type(self.step if a.dtype.kind == "f" else 1), a.dtype)
            for name, a in before.items()
        }
        return records.from_numpy(after)


class Site:
    def __init__(
        self,
        home: Path,
        index: int = 0,
        config: Mapping[str, Any] | None = None,
        app: CallNext | None = None,
    ) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN, 1, 1
        self.home = home
        own = {"flhe-home": str(home), "flhe-trust": "first-use"}
        own |= {"flhe-server-reads": True, "flhe-fresh-keys": False}  # type: ignore[dict-item]
        self.context = Context(
            run_id=RUN,
            node_id=100 + index,
            node_config={"partition-id": index, **(own if config is None else config)},
            state=RecordDict(),
            run_config={},
        )
        self.app: Any = app or App()
        self.initial: Callable[[Context], ArrayRecord] | None = None

    def allow(self, **settings: Any) -> None:
        """Change the node's config: `flhe_leave=True` sets flhe-leave."""
        for name, value in settings.items():
            self.context.node_config[name.replace("_", "-")] = value

    def send(self, content: RecordDict, kind: str = "train") -> Message:
        message = Message(content, self.context.node_id, kind)
        return HEMod(self.initial)(message, self.context, self.app)

    def ask(
        self, stage: str, kind: str = "train", extra: Mapping[str, Any] | None = None, **fields: Any
    ) -> Message:
        record = records.stage_record(stage, **fields)
        return self.send(RecordDict({records.STAGE: record, **(extra or {})}), kind)

    @property
    def run(self) -> Path:
        return self.home / "runs" / str(self.context.run_id)

    @property
    def model_file(self) -> bytes:
        return (self.run / "model").read_bytes()

    @property
    def model(self) -> Model:
        return Model.from_bytes(self.model_file)

    def put(self, model: Model | bytes) -> None:
        data = model if isinstance(model, bytes) else b"".join(model.chunks())
        (self.run / "model").write_bytes(data)
        (self.run / "model").chmod(0o600)

    @property
    def files(self) -> dict[str, bytes]:
        return {p.name: p.read_bytes() for p in self.run.iterdir() if p.is_file()}

    @property
    def journal(self) -> Journal:
        return Journal.from_bytes((self.run / "journal").read_bytes())

    @property
    def claims(self) -> list[str]:
        mark = self.journal.mark
        return ["-".join(map(str, mark))] if mark > UNUSED else []

    @property
    def opened(self) -> list[int]:
        return list(self.journal.opened.get("update", {}))

    @property
    def epochs(self) -> list[str]:
        return sorted(p.name for p in self.home.glob("epochs/*"))

    @property
    def store(self) -> Store:
        return Store(self.home)

    @property
    def epoch(self) -> Epoch:
        """The only one whose keys are on its disk."""
        [name] = self.epochs
        return Epoch.from_bytes(self.store.read(f"epochs/{name}"))

    @property
    def log(self) -> str:
        return (self.home / "errors.log").read_text()


CONFIG: dict[str, Any] = {"lr": 0.1}


class Group:
    """Some sites and the server between them; after `agree` they are in order of rank."""

    def __init__(
        self,
        path: Path,
        size: int = 3,
        terms: Terms = TERMS,
        config: Mapping[str, Any] | None = None,
        **change: Any,
    ) -> None:
        """`change` is what its terms or its contract say otherwise."""
        own = {each.name for each in fields(Terms)} & change.keys()
        self.terms = replace(terms, **{name: change.pop(name) for name in own})
        self.told = {"train": Settings(CONFIG), "evaluate": Settings(CONFIG), **change}
        self.sites = [Site(path / f"node-{i}", i) for i in range(size)]
        for site in self.sites:
            site.context.node_config.update(config or {})
        self.confirms: list[bytes] = []
        self.start: dict[str, Any] = {"arrays": initial()}
        self.number = 0
        self.publics: list[bytes] = []
        self.vouched: dict[bytes, list[bytes]] = {}

    @property
    def contract(self) -> Contract:
        """What the next epoch is for."""
        return Contract(self.terms, **self.told)

    def stage(self, **fields: Any) -> dict[str, Any]:
        """Fields that every stage of the agreement has."""
        return {"number": self.number, **fields}

    def begin(self, **fields: Any) -> dict[str, Any]:
        """Those of the first."""
        return self.stage(contract=self.contract.to_bytes(), **fields)

    def declined(self, code: int, says: str = "") -> None:
        """The first site refuses to begin, and its own log says why."""
        refused(self.sites[0].ask("advertise", **self.begin()), code)
        assert says in self.sites[0].log

    def hellos(self) -> list[bytes]:
        """First relay; puts the sites in order of rank."""
        by_key: dict[bytes, tuple[Site, bytes]] = {}
        for site in self.sites:
            hello: Any = answer(site.ask("advertise", **self.begin()))["envelope"]
            by_key[Envelope.from_bytes(hello, 1024).header.sender] = site, hello
        self.publics = sorted(by_key)
        self.sites = [by_key[key][0] for key in self.publics]
        return [by_key[key][1] for key in self.publics]

    def shares(self, hellos: list[bytes]) -> list[bytes]:
        said = [answer(s.ask("share", **self.stage(messages=hellos))) for s in self.sites]
        return [share for reply in said for share in reply["envelopes"]]

    def confirm(self, shares: list[bytes]) -> list[bytes]:
        said = [answer(s.ask("confirm", **self.stage(messages=shares))) for s in self.sites]
        return [reply["envelope"] for reply in said]

    def agree(self) -> Self:
        self.confirms = self.confirm(self.shares(self.hellos()))
        return self

    def renew(self, **told: Any) -> None:
        """A new epoch, which begins with the next message, where apps are told so."""
        if told:
            self.told["train"] = Settings(told)
        self.number += 1
        self.agree()

    def ask(
        self,
        site: Site,
        stage: str = "round",
        kind: str = "train",
        *,
        round_: int = 1,
        sums: Sequence[Sealed] = (),
        extra: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> Message:
        content: dict[str, Any] = dict(self.start)
        for i, total in enumerate(sums):
            content[f"{records.SUM}.{i}"] = records.from_sealed(total)
        said = {
            "round": round_,
            "attempt": 0,
            "confirms": self.confirms,
            "sums": [total.header() for total in sums],
            "vouchers": self.vouchers((extra or {}).get(records.BOX)),
            **fields,
        }
        return site.ask(stage, kind, {**content, **(extra or {})}, **said)

    def vouchers(self, box: Any) -> list[bytes]:
        """What members sign whose model is in a checkpoint; nothing where it does not open."""
        if not isinstance(box, ArrayRecord):
            return []
        data = b"".join(array.data for array in box.values())
        if data not in self.vouched:
            try:
                plain = b"".join(seal.unseal(ModelKey.of(self.sites[0].epoch), data)[1])
            except (ValueError, FlheError):
                return []
            model = Model.from_bytes(plain)
            holders = [r for r, site in enumerate(self.sites) if site.files.get("model") == plain]
            self.vouched[data] = [self.signed(rank, model) for rank in holders]
        return self.vouched[data]

    def signed(self, rank: int, model: Model) -> bytes:
        """The voucher of the member of that rank, whatever it holds."""
        site = self.sites[rank]
        session = Session(site.epoch, self.terms, model.layout)
        return session.holding(model, session.digest(model)).sign(site.store.identity())

    def handed(self, site: Site, model: Model, *vouchers: bytes, rank: int = 1) -> Message:
        """What a site answers to a checkpoint by that member, with its own voucher or others."""
        key = ModelKey.of(self.sites[rank].epoch)
        box = records.from_pieces(seal.seal(key, model.round, rank, model.chunks()))
        given = vouchers or (self.signed(rank, model),)
        return self.ask(site, "sync", extra={records.BOX: box}, vouchers=list(given))

    def evaluate(self, site: Site, *sums: Sealed, **fields: Any) -> Message:
        return self.ask(site, "evaluate", "evaluate", sums=sums, **fields)

    def parts(self, round_: int = 1, sums: Sequence[Sealed] = ()) -> list[Sealed]:
        return [update(self.ask(s, round_=round_, sums=sums)) for s in self.sites]

    def supports(self, stage: str = "round", **fields: Any) -> list[Support]:
        return [support(self.ask(s, stage, **fields)) for s in self.sites]

    def sparse_parts(
        self, told: Sequence[Support], mode: str = "single", **fields: Any
    ) -> list[Sealed]:
        """Updates of those whose coordinates are given, as far as there are any."""
        said = {"mode": mode} if self.terms.scheme.mode_ahead else {}
        return [
            update(self.ask(s, "update", **said, **fields), [one])
            for s, one in zip(self.sites, told, strict=False)
        ]

    def mean_squares(self, sites: int | None = None, **fields: Any) -> bytes:
        parts = [mean_squares(self.ask(s, **fields)) for s in self.sites[:sites]]
        return to_bytes(self.total(parts))

    def total(self, parts: Iterable[Sealed] | None = None) -> Sealed:
        """Their sum, as the server makes it; of everyone's update of round 1 by default."""
        adder = self.terms.for_cohort(len(self.sites))
        total: Sealed | None = None
        for part in self.parts() if parts is None else parts:
            total = adder.add(total, part)
        assert total is not None
        return adder.close(total)

    def open(self, total: Sealed, **fields: Any) -> None:
        """Have everyone open a sum; they come to one model."""
        for site in self.sites:
            answer(self.evaluate(site, total, **fields))
        assert len({site.model_file for site in self.sites}) == 1

    def play(self, rounds: int = 1) -> list[Sealed]:
        """Sums of some rounds that everyone has opened."""
        sums: list[Sealed] = []
        for round_ in range(1, rounds + 1):
            sums.append(self.total(self.parts(round_, sums[-1:])))
        self.open(sums[-1])
        return sums

    def box(self, site: Site, **fields: Any) -> dict[str, ArrayRecord]:
        """The model as a member seals it, for a message; those that hold it now vouch for it."""
        box = sealed(self.ask(site, "checkpoint", **fields))
        self.vouchers(box)
        return {records.BOX: box}


def answer(message: Message) -> ConfigRecord:
    assert not message.has_error(), message.error
    record = message.content[records.REPLY]
    assert isinstance(record, ConfigRecord)
    return record


def update(message: Message, supports: Sequence[Support] | None = None) -> Sealed:
    """The ciphertext in a reply, with the coordinates that were told before it."""
    header = answer(message)["header"]
    assert isinstance(header, bytes)
    return records.to_sealed(header, message.content[records.UPDATE], supports=supports)  # type: ignore[arg-type]


def support(message: Message) -> Support:
    assert answer(message)["step"] == "supports"
    return Support.from_bytes(answer(message)["support"], FLOATS)  # type: ignore[arg-type]


def mean_squares(message: Message) -> Sealed:
    assert answer(message)["step"] == "mean-squares"
    return update(message)


def sealed(message: Message) -> ArrayRecord:
    answer(message)
    box = message.content[records.BOX]
    assert isinstance(box, ArrayRecord)
    return box


def wire(message: Message) -> bytes:
    """Every byte of a reply that its node decides on."""
    if message.has_error():
        return f"{message.error.code} {message.error.reason}".encode(errors="surrogatepass")
    out = io.BytesIO()
    for name, record in message.content.items():
        out.write(name.encode())
        for key, value in record.items():
            out.write(key.encode())
            out.write(value.data if isinstance(record, ArrayRecord) else repr(value).encode())
    return out.getvalue()


def refused(message: Message, code: int) -> None:
    """Assert that a reply is an error of ours: a code and its slug, and not a byte more."""
    assert message.has_error(), list(message.content)
    assert (message.error.code, message.error.reason) == (code, SLUGS[code])


PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "read-a-refusal.md"
TABLE = re.findall(r"^\| (1\d{3}) `([\w/-]+)` \|", PAGE.read_text("utf-8"), re.MULTILINE)
SLUGS = {int(code): slug for code, slug in TABLE}
"""The codes that a node may answer with, as the page has them: servers of other versions read them."""


def private(path: Path) -> bool:
    return path.stat().st_mode & 0o777 == 0o600 and path.stat().st_uid == os.geteuid()


def put_back(home: Path, image: Path) -> None:
    """Put a state directory back to what it was, in place: as a volume comes back, inodes and all."""
    for path in [p for p in home.rglob("*") if p.is_file()]:
        if not (image / path.relative_to(home)).exists():
            path.unlink()
    for path in [p for p in image.rglob("*") if p.is_file()]:
        there = home / path.relative_to(image)
        there.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        there.touch(0o600)
        there.write_bytes(path.read_bytes())
        os.utime(there, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))


BEFORE_THE_SESSION = (Store, "write", lambda _, file, data: file.endswith("/session"))
"""Between the keys of a new epoch and the file that names it."""


@contextmanager
def dying(target: Any, name: str, where: Callable[..., bool] | None = None) -> Iterator[None]:
    """The process is killed when it comes to `target.name`, or to a call of it that is so."""
    real = getattr(target, name)

    def die(*args: Any, **how: Any) -> Any:
        if where is None or where(*args):
            raise KeyboardInterrupt
        return real(*args, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, name, die)
        with pytest.raises(KeyboardInterrupt):
            yield


def pinned(
    path: Path,
    sites: Sequence[Site],
    collusion: int = 1,
    min_survivors: int = 2,
    strangers: int = 0,
    **settings: object,
) -> None:
    """Pin a roster of these sites, and of some strangers, on each of them."""
    identities = [site.store.identity() for site in sites]
    identities += [Identity(bytes([i + 1]) * 32) for i in range(strangers)]
    members = tuple(Member(f"site-{i}", one.public) for i, one in enumerate(identities))
    roster = Roster(members, collusion, min_survivors, ("*",))
    config = write_pinned(path / "roster", roster)
    for site in sites:
        site.context.node_config.update({**config, **settings})  # type: ignore[dict-item]


class Raises(App):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def content(self, message: Message) -> RecordDict:
        raise self.error


class Replies(App):
    """An app that answers whatever `make` makes of its usual answer."""

    def __init__(self, make: Callable[[RecordDict], Any], **how: Any) -> None:
        super().__init__(**how)
        self.make = make

    def content(self, message: Message) -> Any:
        return self.make(super().content(message))
