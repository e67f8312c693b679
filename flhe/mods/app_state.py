"""App state: an app's records in its Context, from one message to the next.

A server that asks one site for unused attempts, or for more evaluations, must not make its app's
state differ from the others'. So the state after training is tentative, like its update: it is kept
once a sum with that update is opened, and restored otherwise. State changes of an evaluation are
discarded.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict

Records = dict[str, ArrayRecord | MetricRecord | ConfigRecord]

OURS = "flhe"
"""Prefix of our own records' names; apps use others."""
_BEFORE = "flhe.before."


class AppState:
    """The records of an app in `context.state`, beside ours."""

    def __init__(self, context: Context) -> None:
        self._context = context
        ours = context.state.get(OURS)
        self._ours = ours if isinstance(ours, ConfigRecord) else ConfigRecord()

    def note_home(self, home: str) -> None:
        """Record the path of the state directory, and nothing secret."""
        self._ours["home"] = home
        self._context.state[OURS] = self._ours

    @contextmanager
    def tentative(self, round_: int) -> Iterator[None]:
        """Train for a round, from the state after the last round that counts."""
        before = self._restored()
        try:
            yield
        except BaseException:
            self._put(before)
            raise
        for name, record in before.items():
            self._context.state[_BEFORE + name] = record
        self._ours["round"] = round_
        self._context.state[OURS] = self._ours  # the app may have replaced the state

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Restore the state afterwards, with our records in it."""
        before = {**self._kept(), **self._own()}
        try:
            yield
        finally:
            self._context.state = RecordDict(before)

    def settle(self, round_: int, counted: int) -> None:
        """End all rounds up to `round_`; `counted` is the last one whose sum has this node's update."""
        trained = self._ours.get("round")
        if type(trained) is not int or round_ < trained:
            return
        if counted == trained:
            self._drop()
        else:
            self._restored()

    def _own(self) -> Records:
        """Return a copy of the app's records; the app may change its own in place."""
        state = self._context.state.items()
        return {name: copy.deepcopy(record) for name, record in state if not _is_ours(name)}

    def _kept(self) -> Records:
        """Return our records."""
        return {name: record for name, record in self._context.state.items() if _is_ours(name)}

    def _put(self, own: Records) -> None:
        self._context.state = RecordDict({**self._kept(), **own})

    def _restored(self) -> Records:
        """Return a copy of the state before a training that does not count, or of the current one."""
        if "round" in self._ours:
            self._put(self._drop())
        return self._own()

    def _drop(self) -> Records:
        """Drop the state from before the last training, and return it."""
        del self._ours["round"]
        state = self._context.state
        names = [name for name in state if name.startswith(_BEFORE)]
        return {name.removeprefix(_BEFORE): state.pop(name) for name in names}


def _is_ours(name: str) -> bool:
    return name == OURS or name.startswith(_BEFORE)
