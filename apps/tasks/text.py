"""Text as windows of characters, each position labelled with the next character.

The source is a plain .txt file, of any text, or LEAF's Shakespeare from flwr-datasets, whose rows
are windows already. Windows do not overlap; the last tenth of them is the test set, a text that no
node has trained on.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from flhe.errors import ConfigError
from flhe_app.tasks.base import Data, Examples
from flhe_app.tasks.hub import Files, fetched

LENGTH = 80
"""Characters of a window, LEAF's."""

PRINTABLE = range(32, 127)
CHARACTERS = 2 + len(PRINTABLE)
"""Classes: a line's end, printable ASCII, and one for everything else."""

LEAST_WINDOWS = 20
"""Minimum number of windows of a text: a tenth of fewer is too small a test set."""


@dataclass(frozen=True, slots=True)
class Text(Files):
    """A text, or texts, by one kind of author."""

    title: str  # Name in figures
    train_size: int  # Windows for training, of all that there are
    stem: str  # Part of the name of its file in a directory
    hub: str
    SUFFIX: ClassVar[str] = ".txt"
    folder: ClassVar[str] = ""  # type: ignore[misc]

    @property
    def classes(self) -> int:
        """Number of distinct characters."""
        return CHARACTERS

    @property
    def shape(self) -> tuple[int]:
        """Shape of one window for a model."""
        return (LENGTH,)

    def _files(self, root: Path) -> list[Path]:
        """Return the texts with that name, or all."""
        texts = sorted(root.glob(f"*{self.SUFFIX}"))
        return [path for path in texts if self.stem in path.name.lower()] or texts

    def from_file(self, task: str, path: Path) -> Data:
        """See `Files`."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"task={task!r}: {path.name} cannot be read; it must be a text in UTF-8"
            ) from error
        windows = (len(text) - 1) // LENGTH
        if windows < LEAST_WINDOWS:
            raise ConfigError(
                f"task={task!r}: {path.name} has {len(text)} characters; a text of "
                f"{LEAST_WINDOWS * LENGTH + 1} or more can be learned and tested on"
            )
        codes = encoded(text[: windows * LENGTH + 1])
        return halved(codes[:-1].reshape(windows, LENGTH), codes[1:].reshape(windows, LENGTH))

    def from_hub(self, task: str, root: Path | None) -> Data:
        """Return LEAF's rows, each a character on from the previous one, without overlaps."""
        rows = fetched(task, self.hub, root)
        rows = rows.select(range(0, len(rows), LENGTH))
        texts = [f"{x}{y}" for x, y in zip(rows["x"], rows["y"], strict=True)]
        if not texts or any(len(text) != LENGTH + 1 for text in texts):
            raise ConfigError(
                f"task={task!r}: {self.hub} does not hold windows of {LENGTH} characters and the one "
                "after each"
            )
        codes = encoded("".join(texts)).reshape(len(texts), LENGTH + 1)
        return halved(codes[:, :-1], codes[:, 1:])


def encoded(text: str) -> NDArray[np.int64]:
    """Return codes of characters, 0 to CHARACTERS - 1: line's end first, unprintable last."""
    points = np.frombuffer(text.encode("utf-32-le"), "<u4").astype(np.int64)
    codes = np.full(points.shape, CHARACTERS - 1, np.int64)
    codes[points == ord("\n")] = 0
    printable = (points >= PRINTABLE.start) & (points < PRINTABLE.stop)
    codes[printable] = points[printable] - PRINTABLE.start + 1
    return codes


def halved(windows: NDArray[np.int64], labels: NDArray[np.int64]) -> Data:
    """Return the first nine tenths for training, the last tenth for testing."""
    cut = len(windows) - max(1, len(windows) // 10)
    return Data(
        *(
            Examples(*(torch.from_numpy(np.ascontiguousarray(half)) for half in pair))
            for pair in ((windows[:cut], labels[:cut]), (windows[cut:], labels[cut:]))
        )
    )


SHAKESPEARE = Text("Shakespeare", 60_000, "shakespeare", "flwrlabs/shakespeare")
"""About as many windows as his complete works have; 47,544 of LEAF's rows are for training."""
