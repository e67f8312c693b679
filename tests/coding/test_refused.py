"""What cannot be built: each class of the room refuses it at once, and says what is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from flhe.coding.clip import Clip
from flhe.coding.coefficients import Coefficients
from flhe.coding.extras import Extras
from flhe.coding.flatten import MAX_ENTRIES, Entry, Layout, layout_of
from flhe.coding.laplace import Laplace
from flhe.coding.quantize import Quantize
from flhe.coding.select import Select
from flhe.coding.sparsify import TopK
from flhe.coding.support import MAX_LENGTH, Support
from flhe.coding.weigh import Weigh
from flhe.errors import ConfigError
from flhe.math.ring import Q

Build = Callable[..., Any]
NAN, INF = math.nan, math.inf
ENTRY = Entry("w", (2,), "float32")


def selected(rule: str) -> Select:
    return Select(rule=f"layers:{rule}")


REFUSED: list[tuple[str, Build, list[tuple[Any, ...]]]] = [
    ("alpha must", Clip, [(a,) for a in (0.0, -1.0, NAN, INF, 1e-40, 1e40)]),
    ("Clip.head: .*alpha", lambda a: Clip({"*": 1.0, "head": a}), [(-1.0,), (NAN,), (1e40,)]),
    ("'fixed', 'history' or 'exchange'", lambda rule: Clip(rule=rule), [("guess",)]),
    ("give it no bound", lambda rule: Clip(2.0, rule=rule), [("history",)]),
    ("must be 1 to", Weigh, [(0,), (-1,), ((1 << 28) + 1,)]),
    ("'stochastic' or 'nearest'", Quantize, [(8, "down")]),
    ("ratio", TopK, [(ratio,) for ratio in (0, -0.1, 1.1, NAN, INF)]),
    ("warmup", TopK, [(0.1, -1)]),
    ("tuple of names", TopK, [(0.1, 0, "*"), (0.1, 0, (1,))]),
    ("small", TopK, [(0.1, 0, (), bad) for bad in (-1, True, 1.0)]),
    ("scale must be", Laplace, [(b,) for b in (0.0, -1.0, NAN, INF, 1e-31, 1e31)]),
    ("scope must be one of clear, all", Laplace, [(1.0, "some")]),
    ("twice", Extras, [(("loss", "loss"),)]),
    ("(?i)select", Select, [(ratio,) for ratio in (0, -0.1, 1.1, NAN, True, "0.1")]),
    ("(?i)select", Select, [(1.0, "all"), (1.0, "layers"), (0.5, "layers:fc")]),
    ("(?i)select", Select, [(1.0, "sensitivity", "keep")]),
    ("characters", selected, [("",), ("x" * 257,)]),
    ("no regular expression", selected, [("[",), ("*",)]),
    # What may take for ever.
    ("groups", selected, [(p,) for p in ("(a+)+$", "(aa|a)" * 42 + "b", "(conv|fc)", "(a|aa)*")]),
    ("groups", selected, [(p,) for p in ("(", "(?=a)", "(?P<n>a)", r"(a)\1", "a{1,9}(b){2}")]),
    ("groups", selected, [("(a?){50}",), (r"a\1",)]),
    ("one repeat", selected, [("a*b*",), ("a?a?",), (r".*.*\w\w\wx",), ("a?" * 60 + "a" * 60,)]),
    ("give the key away", partial(Coefficients, 7, 10, 1), [((2**63,),), ((2**62 + 1, 2**40),)]),
    ("take fewer slots", Coefficients, [(7, 10, 8, (Q,)), (7, 2, 1, (1009,))]),
    ("length", lambda n: Support.of(np.empty(0, np.uint32), n), [(-1,), (MAX_LENGTH + 1,)]),
    ("length", lambda n: Support.from_bytes(b"\1\0\0\0\0", n), [(-1,), (MAX_LENGTH + 1,)]),
    (
        "ascend and lie below 100",
        lambda *coords: Support.of(np.array(coords, np.uint32), 100),
        [(3, 3), (4, 3), (100,), (5, 2**32 - 1)],
    ),
    ("one name", Layout, [((ENTRY, ENTRY),)]),
    ("its shape must", lambda *n: Entry("w", n, "float32"), [(2, -1), (1,) * 33]),
    ("its shape must", lambda *n: Entry("w", n, "float32"), [(1 << 21, 0, 1 << 20)]),
    (
        f"at most {MAX_ENTRIES}",
        lambda n: Layout(tuple(Entry(str(i), (), "float32") for i in range(n))),
        [(MAX_ENTRIES + 1,)],
    ),
    (
        r"array 'odd\.layer' is .* does not average",
        lambda data, kind=None: layout_of({"fine": np.zeros(2), "odd.layer": np.array(data, kind)}),
        [
            *(([True],), ([1j], np.complex64), ([1j],), ([None],), (["a"],), ([b"ab"],)),
            *(([1], np.uint64), (["2020-01-01"], "datetime64[D]"), ([b""], "V4")),
        ],
    ),
]


@pytest.mark.parametrize(
    ("says", "build", "given"),
    [(says, build, given) for says, build, many in REFUSED for given in many],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_built(says: str, build: Build, given: tuple[Any, ...]) -> None:
    with pytest.raises(ConfigError, match=says):
        build(*given)
