"""Text as windows of characters, each position labelled with the next character.

The source is a plain .txt file, of any text; what is fetched is LEAF's Shakespeare. Windows do not
overlap; the last tenth of them is the test set, a text that no node has trained on.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flhe.errors import ConfigError
from flhe_app.tasks.base import Data, Examples
from flhe_app.tasks.files import Files

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
    classes: ClassVar[int] = CHARACTERS
    shape: ClassVar[tuple[int]] = (LENGTH,)  # Of one window for a model
    SUFFIX: ClassVar[str] = ".txt"
    stem: ClassVar[str] = ""  # type: ignore[misc]
    folder: ClassVar[str] = ""  # type: ignore[misc]
    hub: ClassVar[str] = "flwrlabs/shakespeare"  # type: ignore[misc]

    def from_file(self, task: str, path: Path) -> Data:
        """See `Files`."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"task={task!r}: {path.name} cannot be read; it must be a text in UTF-8"
            ) from error
        if len(text) <= LEAST_WINDOWS * LENGTH:
            raise ConfigError(
                f"task={task!r}: {path.name} has {len(text)} characters; a text of "
                f"{LEAST_WINDOWS * LENGTH + 1} or more can be learned and tested on"
            )
        return halved(torch.from_numpy(encoded(text)).unfold(0, LENGTH + 1, LENGTH))

    def from_folder(self, task: str, root: Path, download: bool) -> Data:
        """Fetch LEAF's rows, each a character on from the previous one; take them without overlaps."""
        rows = self.fetched(task, root)
        rows = rows.select(range(0, len(rows), LENGTH))
        texts = [f"{x}{y}" for x, y in zip(rows["x"], rows["y"], strict=True)]
        if any(len(text) != LENGTH + 1 for text in texts):
            raise ConfigError(
                f"task={task!r}: {self.hub} does not hold windows of {LENGTH} characters and the one "
                "after each"
            )
        return halved(torch.from_numpy(encoded("".join(texts))).view(-1, LENGTH + 1))


def halved(windows: Tensor) -> Data:
    """Return windows (count, LENGTH + 1): nine tenths for training, the last for testing."""
    cut = len(windows) - len(windows) // 10
    halves = windows[:cut], windows[cut:]
    return Data(*(Examples(half[:, :-1], half[:, 1:]) for half in halves))


def encoded(text: str) -> NDArray[np.int64]:
    """Return codes of characters, 0 to CHARACTERS - 1: line's end first, unprintable last."""
    points = np.frombuffer(text.encode("utf-32-le"), "<u4").astype(np.int64)
    codes = np.full(points.shape, CHARACTERS - 1, np.int64)
    codes[points == ord("\n")] = 0
    printable = (points >= PRINTABLE.start) & (points < PRINTABLE.stop)
    codes[printable] = points[printable] - PRINTABLE.start + 1
    return codes


SHAKESPEARE = Text("Shakespeare", 60_000)
"""About as many windows as his complete works have; 47,544 of LEAF's rows are for training."""
