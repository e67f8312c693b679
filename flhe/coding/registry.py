"""Codecs by their names in terms: flhe's own, and those of other distributions.

    [project.entry-points."flhe.codecs"]
    mine = "my_package:Mine"

See `flhe.plugins`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from flhe.coding.base import Codec
from flhe.coding.chain import Chain
from flhe.plugins import Plugins
from flhe.wire.fields import As, Rule

CODECS: Plugins[Codec] = Plugins(
    "codec",
    "flhe.codecs",
    {
        "topk": "flhe.coding.sparsify:TopK",
        "clip": "flhe.coding.clip:Clip",
        "weigh": "flhe.coding.weigh:Weigh",
        "quantize": "flhe.coding.quantize:Quantize",
        "permute": "flhe.coding.permute:Permute",
        "clip-norm": "flhe.coding.clip_norm:ClipNorm",
        "discrete-gaussian": "flhe.coding.discrete_gaussian:DiscreteGaussian",
    },
    lambda found: "" if Codec in getattr(found, "__mro__", ()) else "it is no Codec",
)


def _codec(stored: Mapping[str, Any]) -> Codec:
    own = dict(stored)
    return CODECS.named(own.pop("name")).from_parameters(own)


ChainField = Annotated[
    Chain,
    As(
        lambda chain: [codec.parameters() for codec in chain.codecs],
        lambda stored: Chain(tuple(map(_codec, stored))),
        "",
        refuses=True,
    ),
    Rule("a chain of codecs", lambda value: isinstance(value, Chain)),
]
"""A chain as a field of a record."""
