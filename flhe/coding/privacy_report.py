"""What a client's releases have cost so far: figures for a run's report, and a warning in words.

A release is any attempt in which a clear part left, whether its round succeeded or not. The figures are
those of `flhe.coding.epsilon`, which says what they mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from flhe.coding.epsilon import Release
from flhe.errors import ConfigError

MEANINGFUL = 10.0
"""Above this epsilon a guarantee is hardly one: e^10 is odds of 22,000 to 1."""

MEANINGLESS = 1000.0


@dataclass(frozen=True, slots=True)
class PrivacyReport:
    """What a client's releases have cost so far.

    Parameters
    ----------
    release : Release
        The last one: thresholds may change from round to round.
    releases : int
        How many there were.
    epsilon, epsilon_readers : float
        Sums over all of them (Lemma 3.10): against the server, and against those who open the sums.
    """

    release: Release
    releases: int = 0
    epsilon: float = 0.0
    epsilon_readers: float = 0.0

    @classmethod
    def of(cls, release: Release, releases: int = 1) -> PrivacyReport:
        """Of so many releases, all alike."""
        return cls(release).after(release, releases)

    def after(self, release: Release, releases: int = 1) -> PrivacyReport:
        """With so many more releases."""
        if releases < 0:
            raise ConfigError(f"{releases} releases: must be at least 0")
        if not releases:
            return replace(self, release=release)
        return PrivacyReport(
            release,
            self.releases + releases,
            self.epsilon + releases * release.epsilon,
            self.epsilon_readers + releases * release.epsilon_readers,
        )

    def warning(self) -> str | None:
        """What a user of selection must know, in plain words; None where all is encrypted."""
        release = self.release
        clear = release.parameters - release.selected
        if not clear and not self.epsilon:
            return None
        share = f"{_percent(1 - release.ratio)} of the parameters leave in clear"
        if math.isinf(release.epsilon) or math.isinf(self.epsilon):
            if clear and release.scale is None:
                share += " without noise"
            elif math.isinf(release.epsilon):
                share += " with noise, but are not clipped"
            else:
                share += ", and earlier ones left without noise"
            return (
                f"{share}: there is no differential privacy guarantee, whatever selection. What the "
                "clear part shows of the training data depends on model and data; measure it with an "
                "attack (`flhe audit`), add Laplace noise, or encrypt all (p = 1)"
            )
        text = (
            f"{share} with Laplace noise: epsilon = {_number(release.epsilon)} a release, "
            f"{_number(self.epsilon)} for {self.releases} so far, at worst"
        )
        if self.epsilon > MEANINGLESS:
            text += (
                ". An epsilon in the thousands means nothing: the definition then lets any output "
                "tell the data apart. The noise may still hinder known attacks; it proves nothing"
            )
        elif self.epsilon > MEANINGFUL:
            text += f". An epsilon above {MEANINGFUL:g} promises next to nothing"
        return text

    def to_data(self) -> dict[str, Any]:
        """Plain numbers for JSON; None where there is no guarantee."""
        release = self.release

        def number(epsilon: float) -> float | None:
            return epsilon if math.isfinite(epsilon) else None

        return {
            "parameters": release.parameters,
            "selected": release.selected,
            "scale": release.scale,
            "scope": release.scope,
            "releases": self.releases,
            "epsilon_release": number(release.epsilon),
            "epsilon": number(self.epsilon),
            "epsilon_readers": number(self.epsilon_readers),
            "remarks": {
                "J": number(release.everything),
                "(1-p)J": number(release.random),
                "(1-p)^2 J": number(release.sensitive),
            },
        }

    def lines(self) -> Mapping[str, str]:
        """Label -> figure, for a console."""
        release = self.release
        return {
            "parameters": f"{release.parameters:,}, {_percent(release.ratio)} encrypted",
            "noise": "none" if release.scale is None else f"b = {release.scale:g}, {release.scope}",
            "epsilon a release, at worst": _number(release.epsilon),
            f"epsilon of {self.releases} releases": _number(self.epsilon),
            "epsilon against readers of the sum": _number(self.epsilon_readers),
            "J: all clear (Remark 3.12)": _number(release.everything),
            "(1-p) J: random (3.13)": _number(release.random),
            "(1-p)^2 J: if Delta ~ U(0, 1), largest encrypted (3.14)": _number(release.sensitive),
        }


def _percent(share: float) -> str:
    return f"{100 * share:.4g}%"


def _number(epsilon: float) -> str:
    return (
        "no guarantee"
        if math.isinf(epsilon)
        else f"{epsilon:,.4g}"
        if epsilon < 1000
        else f"{epsilon:,.0f}"
    )
