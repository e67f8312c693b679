"""What must always hold of nodes, watched from inside: what they encrypt, open, keep and say."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, Message

from flhe.coding.base import Plain
from flhe.keys.agreement.epoch import Epoch
from flhe.node.store import Store
from flhe.schemes.esafl.scheme import EsheOpener, EsheSealer
from flhe.schemes.flashe.scheme import FlasheOpener, FlasheSealer
from flhe.schemes.sash.scheme import SashOpener, SashSealer
from flhe.schemes.sealed import Sealed, Slot
from flhe.training.model import Model
from flhe.wire import codes
from tests.mods.harness import SECRET, Site
from tests.strategies.chaos import Made, _summed

LEAST = 16
"""Bytes of a secret that are looked for; shorter ones turn up by chance."""


class Watch:
    """Breaches of what must always hold, by all nodes of a network.

    Parameters
    ----------
    sites : list of Site
        The nodes; it may change.
    """

    def __init__(self, sites: list[Site]) -> None:
        self.sites = sites
        self.actor: int | None = None
        self.wrong: list[str] = []
        self.made: dict[tuple[Slot, int], tuple[Made, bytes]] = {}
        self.heard: dict[tuple[Slot, int], bytes] = {}
        self.opened: dict[tuple[bytes, int], bytes] = {}
        self.signed: dict[tuple[int, int], dict[tuple[int, ...], set[int]]] = {}
        self.models: dict[tuple[int, bytes], bytes] = {}
        self.clear: list[bytes] = []

    def breach(self, text: str) -> None:
        """Note that something happened that never may."""
        self.wrong.append(text)

    def begin(self, patch: pytest.MonkeyPatch) -> None:
        """Wrap what encrypts and what opens."""
        for sealer in (FlasheSealer, SashSealer, EsheSealer):
            patch.setattr(sealer, "encrypt", self._encrypting(sealer.encrypt))
        for opener in (FlasheOpener, SashOpener, EsheOpener):
            patch.setattr(opener, "decrypt", self._opening(opener.decrypt))

    # --- what is encrypted ---

    def _encrypting(self, encrypt: Callable[..., Sealed]) -> Callable[..., Sealed]:
        @functools.wraps(encrypt)
        def wrapped(sealer: Any, plain: Plain, slot: Slot, **how: Any) -> Sealed:
            lanes = np.concatenate([plain.values, plain.extras]).astype(np.int64)
            sealed = encrypt(sealer, plain, slot, **how)
            assert self.actor is not None
            made = Made(0, self.actor, "", sealer.rank, slot, lanes, plain.coords)
            data = sealed.mode.encode() + sealed.data.tobytes()
            before = self.made.setdefault((slot, sealer.rank), (made, data))
            if before[1] != data:
                self.breach(
                    f"node {self.actor} encrypted twice in round {slot.round}, attempt {slot.attempt}"
                )
            # Of the values that it hides, in the two widths that they have on their way.
            self.clear = [lanes.astype(t).tobytes() for t in (np.int16, np.int32, np.int64)]
            return sealed

        return wrapped

    def hears(self, sealed: Sealed) -> None:
        """An update has arrived: it must be what its node made, once and for all."""
        (rank,) = sealed.senders
        data = sealed.mode.encode() + sealed.data.tobytes()
        if self.heard.setdefault((sealed.slot, rank), data) != data:
            self.breach(f"rank {rank} sent two ciphertexts of round {sealed.slot.round}")
        if (made := self.made.get((sealed.slot, rank))) is None or made[1] != data:
            self.breach(f"rank {rank} sent what nobody encrypted")

    # --- what is opened ---

    def _opening(self, decrypt: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(decrypt)
        def wrapped(opener: Any, total: Sealed) -> Any:
            assert self.actor is not None
            slot, digest, site = total.slot, total.digest(), self.sites[self.actor]
            # Before it is decrypted: what is learned cannot be taken back.
            key = (site.home / "identity.key").read_bytes(), slot.round
            if self.opened.setdefault(key, digest) != digest:
                self.breach(f"node {self.actor} opened two sums of round {slot.round}")
            recorded = site.home / "used" / slot.epoch.hex() / f"opened-{slot.round}"
            if not recorded.exists() or recorded.read_bytes() != digest:
                self.breach(f"node {self.actor} opened round {slot.round} before it was recorded")
            lanes = decrypt(opener, total)
            parts = [self.made[slot, rank][0] for rank in total.senders]
            if not np.array_equal(_summed(parts), lanes):
                self.breach(f"the sum of round {slot.round} is not what its senders sent")
            return lanes

        return wrapped

    def signs(
        self, epoch: int, round_: int, among: tuple[int, ...], rank: int, quorum: int
    ) -> None:
        """A member signed a set of survivors: one set a round, and no two sets are agreed on."""
        sets = self.signed.setdefault((epoch, round_), {})
        sets.setdefault(among, set()).add(rank)
        if sum(rank in who for who in sets.values()) > 1:
            self.breach(f"rank {rank} signed two sets of round {round_}")
        if sum(len(who) >= quorum for who in sets.values()) > 1:
            self.breach(f"two sets of round {round_} were agreed on")

    # --- what is kept, and said ---

    def look(self) -> None:
        """Nodes at one round, with one history, have one model."""
        for index, site in enumerate(self.sites):
            path = site.run / "model"
            if not path.exists():
                continue
            data = path.read_bytes()
            try:
                model = Model.from_bytes(data)
            except Exception:  # cut short by a crash, and as good as none
                continue
            if self.models.setdefault((model.round, model.history), data) != data:
                self.breach(f"node {index} has another model of round {model.round}")

    def reads(self, index: int, reply: Message) -> None:
        """Nothing secret is in an answer; a refusal is a code that is known, and its name."""
        if reply.has_error():
            refusal = codes.find(reply.error.code)
            if refusal is None or reply.error.reason != refusal.slug:
                self.breach(f"node {index} answered {reply.error.reason!r}")
            if refusal is codes.INTERNAL:
                self.breach(f"node {index} failed: {self.sites[index].log[-1500:]}")
            return
        said = b"\0".join(_bytes_of(reply))
        for what, secret in self._secrets(self.sites[index]):
            if len(secret) >= LEAST and secret in said:
                self.breach(f"node {index} told {what}")

    def _secrets(self, site: Site) -> Iterator[tuple[str, bytes]]:
        yield "what its app's error said", SECRET.encode()
        yield "its identity", (site.home / "identity.key").read_bytes()
        for clear in self.clear:
            yield "what was encrypted", clear
        store = Store(site.home)
        for epoch_id in store.epochs():
            epoch = Epoch.from_bytes(store.peek_epoch(epoch_id))
            yield "the group key", epoch.group_key
            yield "a key of the scheme", epoch.scheme_secret[64:96]
        path = site.run / "model"
        if path.exists():
            try:
                model = Model.from_bytes(path.read_bytes())
            except Exception:
                return
            if model.round:
                for array in (*model.masters.values(), *model.arrays().values()):
                    yield "its model", array.tobytes()


def _bytes_of(message: Message) -> Iterator[bytes]:
    for record in message.content.values():
        for value in record.values():
            if isinstance(value, Array):
                yield value.data
            else:
                yield from _pieces(value)


def _pieces(value: object) -> Sequence[bytes]:
    if isinstance(value, bytes):
        return [value]
    if isinstance(value, list) and all(isinstance(item, bytes) for item in value):
        return value
    return [repr(value).encode()]
