"""Data sets in files that the user has: flhe fetches nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from flhe.errors import ConfigError
from flhe_app.tasks.base import Data


class Files:
    """A data set in a file, or in a directory with one or with torchvision's files."""

    __slots__ = ()

    SUFFIX: ClassVar[str]  # Of its file
    stem: str  # Prefix of its file's name in a directory; "" for any name
    folder: str  # Torchvision's folder below the data directory; "" for none
    from_file: Callable[[str, Path], Data]  # (task, path); ConfigError if it is not of this set
    from_folder: Callable[[str, Path], Data]  # (task, root); ConfigError if it is damaged

    def there(self, data_dir: str) -> list[Path]:
        """Return the set's file, or the directory of torchvision's files; none, or several."""
        root = Path(data_dir).expanduser()
        if not data_dir:
            return []
        if root.suffix == self.SUFFIX or (self.folder and (root / self.folder).is_dir()):
            return [root]
        return sorted(root.glob(f"{self.stem}*{self.SUFFIX}"))

    def place(self, task: str, data_dir: str) -> Path:
        """Return where the set is, and read nothing.

        Raises ConfigError: there is none, or several; the text says where to put it.
        """
        found = self.there(data_dir)
        if len(found) > 1:
            names = ", ".join(path.name for path in found)
            raise ConfigError(f"task={task!r}: {data_dir} holds {names}; name one with --data-dir")
        if not found:
            has = f", and --data-dir {data_dir} has none" if data_dir else ""
            raise ConfigError(
                f"task={task!r} needs its data set{has}: put "
                f"{self.folder or self.stem + self.SUFFIX} into a directory and name that with "
                "--data-dir (data-dir in the run config)"
            )
        return found[0]

    def load(self, task: str, data_dir: str) -> Data:
        """Read both halves from `data_dir`, a directory or a file; ConfigError as `place`."""
        path = self.place(task, data_dir)
        read = self.from_file if path.suffix == self.SUFFIX else self.from_folder
        return read(task, path)
