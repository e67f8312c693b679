"""Select: the encrypted part of an update; the rest travels in clear, or not at all.

    sensitivity    values whose gradients reveal most about the data, by the sum of members' maps
    magnitude      values that training changes most, by the sum of the members' first changes
    random         a share of the values, the same for all members
    layers:REGEX   every array whose name REGEX is found in

All members select the same values; of maps only the sum is opened. A map's selection is stored with
the model. Its keyed digest is part of every slot and signed with every update. The other selections
follow from the layout and the terms alone.

Noise, if any, is the only protection of values in clear: it gives no accounted privacy.

Source: FedML-HE, Sec. 2.4 (selective parameter encryption) and Alg. 1, with members' maps
`normalized`. With rest="drop" the selection is a fixed sparse mask for training itself (Sung et
al., 2021).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flhe.coding.flatten import Layout
from flhe.coding.support import Support
from flhe.errors import ConfigError, RangeError, ReplyError
from flhe.math.permutation import Permutation
from flhe.wire.record import Form, Record

Rest = Literal["clear", "drop"]
"""Handling of the values that are not selected."""

MAPS = ("sensitivity", "magnitude")
"""Rules that need a round of their own, in which members add up a map."""

LAYERS = "layers:"
MAX_PATTERN = 256
MAX_NAME, MAX_NAMES = 200, 1 << 18
"""Maximum characters of a name that patterns are matched against, and of all names together."""

_HEADROOM = 4
"""A member's map is cut at the quantile that a quarter of the selected share exceeds."""


@dataclass(frozen=True, slots=True)
class Select(Record):
    """Encrypt a part of each update.

    Parameters
    ----------
    ratio : float
        Share of the values that is selected, above 0 and up to 1; read as the decimal number it is
        written as, and rounded up to whole values. 1, all of them, with rule "layers:...".
    rule : str
        "sensitivity", "magnitude", "random" or "layers:REGEX".
    rest : "clear" or "drop"
        Send the values that are not selected in clear; or send and change only the selected ones, so
        that nothing travels in clear.
    """

    FORM = Form("select", row=True, error=ConfigError)

    ratio: float = 1.0
    rule: str = "sensitivity"
    rest: Rest = "clear"

    def _validate(self) -> None:
        if not 0 < self.ratio <= 1:
            raise ConfigError(f"Select(ratio={self.ratio!r}): a share above 0 and at most 1")
        if self.rule.startswith(LAYERS):
            _check_pattern(self.pattern)
            if self.ratio != 1:
                raise ConfigError(
                    f"Select(ratio={self.ratio}, rule={self.rule!r}): the layers say how much is "
                    "selected; leave ratio out"
                )
        elif self.rule not in (*MAPS, "random"):
            raise ConfigError(
                f"Select(rule={self.rule!r}): 'sensitivity', 'magnitude', 'random' or 'layers:REGEX'"
            )

    @classmethod
    def of(cls, part: float | Select | None) -> Select:
        """Return a selection of a share by the usual rule; of all values by default."""
        return part if isinstance(part, Select) else cls(1.0 if part is None else part)

    @property
    def kind(self) -> str:
        """The rule's name, without a pattern."""
        return "layers" if self.by_layer else self.rule

    @property
    def by_layer(self) -> bool:
        """True if whole arrays are selected, by name."""
        return self.rule.startswith(LAYERS)

    @property
    def pattern(self) -> str:
        """The regular expression of "layers:"; "" for other rules."""
        return self.rule[len(LAYERS) :] if self.by_layer else ""

    @property
    def partial(self) -> bool:
        """True if values may be left out of the encrypted part."""
        return self.by_layer or self.ratio < 1

    @property
    def clear(self) -> bool:
        """True if values may travel in clear."""
        return self.partial and self.rest == "clear"

    @property
    def mapped(self) -> bool:
        """True if a first round adds up a map."""
        return self.partial and self.rule in MAPS

    def count(self, layout: Layout) -> int:
        """Return how many of the layout's floats are selected: public, whatever the values are.

        Raises ConfigError: a pattern that no array with floats matches.
        """
        if not self.by_layer:
            share = Fraction(str(float(self.ratio)))
            return min(max(math.ceil(share * layout.floats), 1), layout.floats)
        return sum(stop - start for start, stop in self._matches(layout))

    def _matches(self, layout: Layout) -> list[tuple[int, int]]:
        found = re.compile(self.pattern)
        sizes = [len(name) for name, _, _ in layout.segments()]
        if max(sizes, default=0) > MAX_NAME or sum(sizes) > MAX_NAMES:
            raise ConfigError(
                f"Select(rule={self.rule!r}): the longest name of the model has {max(sizes)} "
                f"characters, all have {sum(sizes)}; patterns are for {MAX_NAME} and {MAX_NAMES}"
            )
        runs = [(start, stop) for name, start, stop in layout.segments() if found.search(name)]
        if not runs:
            raise ConfigError(
                f"Select(rule={self.rule!r}): no array of the model has such a name; it has "
                + ", ".join(repr(name) for name, _, _ in list(layout.segments())[:8])
            )
        return runs

    def fixed(self, layout: Layout) -> Support:
        """Return the selection of a rule that needs no map.

        Raises ConfigError: a rule that needs one, or a pattern that no array with floats matches.
        """
        if self.by_layer:
            chosen = np.zeros(layout.floats, np.bool_)
            for start, stop in self._matches(layout):
                chosen[start:stop] = True
            return Support.of(np.flatnonzero(chosen).astype(np.uint32), layout.floats)
        if self.rule != "random":
            raise ConfigError(f"Select(rule={self.rule!r}): its selection comes from a map")
        # Not secret: the selection hides nothing, it only has to be the same for all. The key
        # always makes the same permutation for this layout, so its fixed counters reveal nothing
        # new.
        key = layout.hash("flhe/v1/select-random")
        picked = np.arange(self.count(layout), dtype=np.uint32)
        return Support.of(np.sort(Permutation(key, layout.floats).forward(picked)), layout.floats)

    def check_tied(
        self, layout: Layout, mask: Support, tied: Iterable[tuple[slice, slice]]
    ) -> None:
        """Refuse a weight under two names that is selected as one and not as the other.

        In clear it would show what is encrypted; unsent it would undo what is trained. `tied` is as
        of `Layout.tied`. Raises ReplyError with both names.
        """
        chosen, names = np.zeros(layout.floats, np.bool_), dict[int, str]()
        chosen[mask.coords] = True
        names.update((start, name) for name, start, _ in layout.segments())
        for one, other in tied:
            if not np.array_equal(chosen[one], chosen[other]):
                raise ReplyError(
                    f"arrays {names[one.start]!r} and {names[other.start]!r} change alike, as tied "
                    "weights do, and only a part of them is selected alike: encrypt all, name both in "
                    "a rule 'layers:...', or keep one of them out of the model's arrays"
                )

    def of_map(self, sums: NDArray[Any], layout: Layout) -> Support:
        """Return the selection by a summed map: the largest values, of equals those of lowest index.

        Half of each array's share is the array's own. Otherwise the author of the first model, who
        chooses where its gradients are large, could leave the most revealing layer in clear. The
        map is the opened one, integers (layout.floats,): exact, so that all members select the
        same.
        """
        size, count = sums.size, self.count(layout)
        chosen = np.zeros(size, np.bool_)
        for _, start, stop in layout.segments():
            own = count * (stop - start) // (2 * size)
            chosen[start + _largest(sums[start:stop], own)] = True
        left = np.flatnonzero(~chosen)
        chosen[left[_largest(sums[left], count - int(np.count_nonzero(chosen)))]] = True
        return Support.of(np.flatnonzero(chosen).astype(np.uint32), size)

    def normalized(self, own: NDArray[np.float32], *, reuse: bool = False) -> NDArray[np.float32]:
        """Return one member's map for adding: divided by one of its quantiles, within [-1, 1].

        `own` are sensitivities, or sizes of changes, float32 (floats,); signs are ignored. With
        `reuse` it is overwritten.

        A quarter of the selected share exceeds the quantile. This resolves values around the border
        of the selection well; larger ones are selected anyway. No app's map counts more than
        another's, whatever its scale. (A member with a modified client is bound only by the sum's
        range.) Zero is -1, to use all bits.

        Raises RangeError: NaN or infinity, or a map that is zero everywhere, which has no
        information.
        """
        sizes = np.abs(own, out=own if reuse else None)
        if not np.all(np.isfinite(sizes)):
            raise RangeError(
                "the map holds NaN or infinity: see that the loss of every batch is finite"
            )
        most = sizes.max(initial=0.0)
        if not most > 0:
            raise RangeError("the map is zero everywhere: it holds no information about the data")
        above = max(int(self.ratio * sizes.size / _HEADROOM), 1)
        scale = np.partition(sizes, sizes.size - above)[sizes.size - above]
        with np.errstate(over="ignore", under="ignore"):
            sizes /= scale if scale > 0 else most
        np.minimum(sizes, 1, out=sizes)
        sizes *= 2
        sizes -= 1
        return sizes


def _largest(values: NDArray[Any], count: int) -> NDArray[np.intp]:
    """Return the indices of the largest, of equals the first ones; ascending."""
    if count == 0:
        return np.empty(0, np.intp)
    least = np.partition(values, values.size - count)[values.size - count]
    above, ties = np.flatnonzero(values > least), np.flatnonzero(values == least)
    return np.sort(np.concatenate([above, ties[: count - above.size]]))


def describe(select: Select) -> str:
    """Describe the selection in words, for logs."""
    share = "" if select.by_layer else f"{100 * select.ratio:g}% "
    how = "in clear" if select.rest == "clear" else "not sent"
    return f"{share}by {select.rule}; the rest is {how}"


def _check_pattern(pattern: str) -> None:
    """Refuse an invalid regular expression, or one that may run forever; it comes over the wire."""
    if not 1 <= len(pattern) <= MAX_PATTERN:
        raise ConfigError(f"Select: a pattern must have 1 to {MAX_PATTERN} characters")
    bare = re.sub(r"\\.|\[(?:\\.|[^\]\\])*\]", "x", pattern)
    if re.search(r"[()]", bare) or re.search(r"\\\d", pattern):
        raise ConfigError(
            f"Select: pattern {pattern!r}: groups and back-references are refused, they may run for "
            "ever; write alternatives out, as in '^conv|^fc'"
        )
    # With more repeats, matching takes time that grows with the square of the name's length.
    if len(re.findall(r"[*+?{]", bare)) > 1:
        raise ConfigError(f"Select: pattern {pattern!r}: at most one repeat is taken")
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        raise ConfigError(f"Select: {pattern!r} is no regular expression") from None
