"""Text as windows of characters, each position labelled with the character that follows.

What is read is a plain .txt file, of any text, or LEAF's Shakespeare by way of flwr-datasets, whose
rows are windows already. Windows do not overlap; the last tenth of them is the test set, so that it is
text which nobody has trained on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from flhe.errors import ConfigError
from flhe_app.tasks.base import Data, Examples
from flhe_app.tasks.hub import fetched, only_one

LENGTH = 80
"""Characters of a window, LEAF's."""

PRINTABLE = range(32, 127)
CHARACTERS = 2 + len(PRINTABLE)
"""Classes: a line's end, printable ASCII, and one for everything else."""

LEAST_WINDOWS = 20
"""Fewest windows of a text: of fewer, a tenth is hardly a test set."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text, or texts, by one kind of author."""

    title: str  # What a figure calls it
    train_size: int  # Windows that are trained on, of all that there is
    stem: str  # Part of the name of its file in a directory
    hub: str  # Name by which flwr-datasets fetches it

    @property
    def classes(self) -> int:
        """Characters that are told apart."""
        return CHARACTERS

    @property
    def shape(self) -> tuple[int]:
        """One window as a model takes it."""
        return (LENGTH,)

    def load(self, task: str, data_dir: str, *, download: bool) -> Data:
        """Read the text from `data_dir`, a directory or a .txt file; fetch it only if `download`."""
        root = Path(data_dir).expanduser() if data_dir else None
        if root is not None and (path := self._file(task, root)) is not None:
            return self._from_file(task, path)
        if download:
            return self._from_hub(task, root)
        raise ConfigError(
            f"task={task!r} needs its data set: put a text, {self.stem}.txt, into a directory and name "
            "that directory or the file with --data-dir (data-dir in the run config), or set "
            f"download=true to have flwr-datasets fetch {self.hub}"
        )

    def there(self, data_dir: str) -> bool:
        """Whether `data_dir` is, or has, a text; reads none."""
        return bool(data_dir) and self._file(self.stem, Path(data_dir).expanduser()) is not None

    def _file(self, task: str, root: Path) -> Path | None:
        """The file to read: `root`, or of a directory the one that is called so, or the only one."""
        if root.suffix == ".txt":
            return root
        texts = sorted(root.glob("*.txt"))
        return only_one(task, [p for p in texts if self.stem in p.name.lower()] or texts)

    @staticmethod
    def _from_file(task: str, path: Path) -> Data:
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

    def _from_hub(self, task: str, root: Path | None) -> Data:
        """LEAF's rows, each a character on from the one before: so many apart that none overlap."""
        rows = fetched(task, self.hub, root)
        rows = rows.select(range(0, len(rows), LENGTH))
        return in_windows(task, self.hub, zip(rows["x"], rows["y"], strict=True))


def encoded(text: str) -> NDArray[np.int64]:
    """Codes of characters, 0 to CHARACTERS - 1: a line's end first, what is not printable last."""
    points = np.frombuffer(text.encode("utf-32-le"), "<u4").astype(np.int64)
    codes = np.full(points.shape, CHARACTERS - 1, np.int64)
    codes[points == ord("\n")] = 0
    printable = (points >= PRINTABLE.start) & (points < PRINTABLE.stop)
    codes[printable] = points[printable] - PRINTABLE.start + 1
    return codes


def in_windows(task: str, name: str, rows: Iterable[tuple[str, str]]) -> Data:
    """Windows and the character after each, as rows of text."""
    texts = [f"{window}{following}" for window, following in rows]
    if not texts or any(len(text) != LENGTH + 1 for text in texts):
        raise ConfigError(
            f"task={task!r}: {name} does not hold windows of {LENGTH} characters and the one after each"
        )
    codes = encoded("".join(texts)).reshape(len(texts), LENGTH + 1)
    return halved(codes[:, :-1], codes[:, 1:])


def halved(windows: NDArray[np.int64], labels: NDArray[np.int64]) -> Data:
    """The first nine tenths to train, the last tenth to test."""
    cut = len(windows) - max(1, len(windows) // 10)
    return Data(
        *(
            Examples(*(torch.from_numpy(np.ascontiguousarray(half)) for half in pair))
            for pair in ((windows[:cut], labels[:cut]), (windows[cut:], labels[cut:]))
        )
    )


SHAKESPEARE = Text("Shakespeare", 60_000, "shakespeare", "flwrlabs/shakespeare")
"""About as many windows as his complete works have; of LEAF's rows 47,544 are trained on."""
