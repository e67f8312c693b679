"""Node: one site's side of one federation, with everything that is on its disk.

Below runs/<id>/, where the id is the federation's: the run id of Flower's run that began it. A run that
resumes it has another. Which module keeps which file is in the first lines of each.

runs/<id>/encrypted   Flower's run of that id resumes an encrypted federation
errors.log            what was answered with a code only
"""

from __future__ import annotations

from flhe.node.agreements import Agreements
from flhe.node.claims import SEEDS
from flhe.node.epochs import Epochs
from flhe.node.policy import Policy
from flhe.node.store import Store
from flhe.wire.files import boot_id, make_private

SECRETS = ("draft", "residual", "outbox", "ranges", *SEEDS)
"""What is destroyed when a node leaves."""


def open_store(policy: Policy) -> Store:
    """The state directory of `policy`; where its place was not configured, every level is private.

    Raises
    ------
    StoreError
        A level that somebody else made, or that others may look into.
    """
    if policy.root is not None:
        policy.root.parent.mkdir(parents=True, exist_ok=True)
        levels = policy.home.relative_to(policy.root).parts
        for depth in range(len(levels)):
            make_private(policy.root.joinpath(*levels[:depth]))
    return Store(policy.home, boot="" if policy.durable else boot_id())


class Node(Agreements, Epochs):
    """A site within one run; for its parameters see `Folder`."""

    __slots__ = ()

    def encrypted_before(self) -> bool:
        """Whether this run has ever spoken of encryption here: then it may not become a plain one."""
        return any(self.store.exists(self._name(n)) for n in ("agreement", "session", "encrypted"))

    def mark_encrypted(self, run_id: int) -> None:
        """Note that Flower's run `run_id` speaks of encryption, where it resumes a federation."""
        name = f"runs/{run_id}/encrypted"
        if run_id != self.run_id and not self.store.exists(name):
            self.store.write(name, b"")

    def leave(self) -> None:
        """Give up this federation: its keys and updates are destroyed, the model stays."""
        self.drop_agreement()
        epochs = self._epochs()
        self._raise_floor(epochs, masked=True)
        for epoch_id in epochs:
            self.store.erase_epoch(epoch_id)
        for name in SECRETS:
            self.store.erase(self._name(name))
