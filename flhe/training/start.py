"""What a round starts from, in each node's own words: its model, and what its app was told.

A relay that tells one node to train and all others to stand still turns a sum into that node's
update; so does a member that hands one node another model than the rest. So both are bound into the
slot of whatever is encrypted: masks, seeds and `a` then differ between nodes that were told different
things, and nothing that they send adds up.

    app_inputs_hash = SHA-256 over every record that the app is shown, and the run's config
    start           = SHA-256 over layout hash, app_inputs_hash, keyed digest of the model

What nodes are told has to be the same for all of them: a setting for one node belongs into its own
node config, which no server can change.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import NamedTuple

from flhe.errors import ProtocolError
from flhe.wire import canonical
from flhe.wire.derive import PREFIX

NO_APP_INPUTS = bytes(32)
"""What stands where nothing was told: outside a federation."""

Records = Mapping[str, Mapping[str, object]]


class Start(NamedTuple):
    """What one node says that a round starts from, as the relay knows it.

    The hash of what its app was told, 32 bytes, and the keyed digest of its model.
    """

    app_inputs_hash: bytes
    digest: bytes

    def layout(self, layout_hash: bytes) -> bytes:
        """Layout hash of a round that starts from there; see the module."""
        fields = [PREFIX + "start", layout_hash, self.app_inputs_hash, self.digest]
        return hashlib.sha256(canonical.dumps(fields)).digest()


def hash_app_inputs(records: Records, run_config: Mapping[str, object]) -> bytes:
    """SHA-256 over what an app is told, 32 bytes.

    Raises ProtocolError: a value that is no number, text or bytes, or list of those; NaN.

    Parameters
    ----------
    records : mapping of str to mapping
        Every record of the message that reaches the app, but for the model.
    run_config : mapping
        The run's config.
    """
    config = canonical.dumps([PREFIX + "run-config", _pairs(run_config)])
    run = hashlib.sha256(config).digest()
    said = [[name, _pairs(record)] for name, record in sorted(records.items())]
    return hashlib.sha256(canonical.dumps([PREFIX + "app-inputs", said, run])).digest()


def fitted_layout(layout_hash: bytes, digest: bytes) -> bytes:
    """Layout hash of a round whose thresholds are fitted on the sum with this `digest`."""
    return hashlib.sha256(canonical.dumps([PREFIX + "ranged", layout_hash, digest])).digest()


def _pairs(record: Mapping[str, object]) -> list[list[object]]:
    return [[name, _encoded(value)] for name, value in sorted(record.items())]


def _encoded(value: object) -> list[object]:
    """A value with its type, exactly: 1, 1.0, True and "1" are four values."""
    if isinstance(value, bool):
        return ["bool", int(value)]
    if isinstance(value, int):
        return ["int", str(value)]
    if isinstance(value, float) and not math.isnan(value):  # of which there are many
        return ["float", value.hex()]
    if isinstance(value, str):
        return ["str", value]
    if isinstance(value, bytes):
        return ["bytes", value]
    if isinstance(value, (list, tuple)):
        return ["list", [_encoded(item) for item in value]]
    raise ProtocolError(
        "a setting that is no number, text or bytes: nobody can say whether all got it"
    )
