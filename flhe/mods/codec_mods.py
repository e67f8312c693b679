"""Codecs as Flower mods of their own: they work under plain FedAvg, and inside `HEMod`.

    ClientApp(mods=[Quantize(8), Clip(0.5), Sparsify(0.1)])     sparsify, then clip, then quantize
    ClientApp(mods=[HEMod(), Sparsify(0.1)])                    the update is sparse before it is sealed

The app's change of the model goes through the codec and back, and the server receives ordinary
arrays. As with all of Flower's mods, the last in the list sees the update first. State between
rounds is in the node's `context.state`. Values count as sent once they are in a reply, because
under plain FedAvg a node cannot know whether its update arrived.

`HEMod` has codecs of its own, for sums. A codec mod before it would work on ciphertext, and is
refused.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MessageType, RecordDict

from flhe.coding import clip, quantize
from flhe.coding.base import Codec, Plain, State
from flhe.coding.chain import Chain, chain
from flhe.coding.flatten import Arrays, Layout, layout_of
from flhe.coding.sparsify import TopK
from flhe.errors import ConfigError
from flhe.mods import records
from flhe.mods.app import Next

RESIDUAL = "residual"
"""Name of a node's record of unsent values."""


class CodecMod:
    """Codecs in order of encoding, applied to each update of an app.

    Their combination is checked at construction. Codecs that weigh use a reply's "num-examples".

    Raises ConfigError: codecs that need a sum, or hide values from the server: they need `HEMod`;
    noise for sums of gradients; MisfitError: codecs that do not fit together.
    """

    def __init__(self, *codecs: Codec) -> None:
        self.codec: Chain = chain(*codecs)
        self._state = "flhe.codec." + "-".join(codec.name for codec in self.codec.codecs)
        if self.codec.fitting or self.codec.hides:
            raise ConfigError(
                "a codec mod works on one node's update: thresholds fitted on all updates, and "
                "permutations, need HEMod and a strategy of flhe"
            )
        if self.codec.of_gradients:
            raise ConfigError(
                "a codec mod works on updates, and noise for records is for sums of gradients, divided "
                "by the batch of all sites: use flhe.strategies.dp_fedsgd"
            )

    def __call__(self, message: Message, context: Context, call_next: Next) -> Message:
        """Let the app train, and apply the codecs to its update."""
        before = _arrays(message.content)
        if message.metadata.message_type != MessageType.TRAIN or before is None:
            return call_next(message, context)
        old = {name: array.copy() for name, array in records.to_numpy(before[1]).items()}
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        if records.find_reply(reply.content) is not None:
            raise ConfigError(
                f"{type(self).__name__} is before HEMod, and would work on ciphertext: put HEMod() "
                "first in ClientApp(mods=[...])"
            )
        after = _arrays(reply.content)
        if after is not None:
            name, trained = after
            sent = self._through(old, records.to_numpy(trained), _weight(reply), context)
            reply.content[name] = records.from_numpy(sent)
        return reply

    def _through(self, old: Arrays, new: Arrays, weight: int, context: Context) -> Arrays:
        """Return the model for the server: the old one plus the change after the codecs."""
        layout = layout_of(old)
        masters = layout.masters(old)
        change, integers = layout.change(new, masters)
        state = self._recall(layout, context)
        encoded, state = self.codec.encode(Plain(change, np.array([1, weight])), state)
        decoded, state = self.codec.decode(encoded, (0,), state)
        residual = state.local[0]
        own = {} if residual is None else {RESIDUAL: residual}
        context.state[self._state] = records.from_numpy({**self.codec.memory(state), **own})
        return layout.arrays(layout.apply(masters, decoded.values, integers.tolist()))

    def _recall(self, layout: Layout, context: Context) -> State:
        """Return the codecs' state; a fresh one if the node has none for this model."""
        kept = context.state.get(self._state)
        memory = dict(records.to_numpy(kept)) if isinstance(kept, ArrayRecord) else {}
        residual = memory.pop(RESIDUAL, None)
        state = self.codec.recall(layout, memory)
        if residual is None or residual.shape != (layout.floats,):
            return state
        return State(state.shared, (residual, *state.local[1:]))


def _weight(reply: Message) -> int:
    """Return the example count in a reply, or 1."""
    found = (one.get("num-examples") for one in reply.content.metric_records.values())
    return next((int(value) for value in found if isinstance(value, int | float)), 1)


def _arrays(content: RecordDict) -> tuple[str, ArrayRecord] | None:
    """Return the only record of arrays and its name; None for none or several."""
    found = list(content.array_records.items())
    return found[0] if len(found) == 1 else None


class Sparsify(CodecMod):
    """Send the largest values of every layer, and keep the others for the next round.

    For another choice of layers, or a warm-up, give `CodecMod` a `TopK`.
    """

    def __init__(self, ratio: float) -> None:
        super().__init__(TopK(ratio, 0))


class Clip(CodecMod):
    """Clip every change of a weight at `bound`, in the update's own units; see `flhe.coding.clip`."""

    def __init__(self, bound: float | Mapping[str, float]) -> None:
        super().__init__(clip.Clip(bound))


class Quantize(CodecMod):
    """Round every change of a weight to a grid of `bits` bits, without bias, within +-`bound`.

    Values beyond the bound are clipped; see `flhe.coding.quantize`.
    """

    def __init__(self, bits: int, *, bound: float | Mapping[str, float] = 1.0) -> None:
        super().__init__(clip.Clip(bound), quantize.Quantize(bits))
