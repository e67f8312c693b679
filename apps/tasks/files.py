"""Data sets in files; only with download=true are they fetched, by torchvision or flwr-datasets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from flhe.errors import ConfigError
from flhe_app.tasks.base import Data


class Files:
    """A data set in a file, or in a directory with one or with torchvision's files."""

    __slots__ = ()

    SUFFIX: ClassVar[str]  # Of its file
    stem: str  # Prefix of its file's name in a directory; "" for any name
    folder: str  # Torchvision's folder below the data directory; "" for none
    hub: str  # Its name for flwr-datasets, where torchvision lacks it
    from_file: Callable[[str, Path], Data]  # (task, path); ConfigError if it is not of this set
    from_folder: Callable[[str, Path, bool], Data]
    """(task, root, download): read what is there, or fetch it; ConfigError if that fails."""

    def there(self, data_dir: str) -> list[Path]:
        """Return the set's file, or the directory of torchvision's files; none, or several."""
        root = Path(data_dir).expanduser()
        if not data_dir:
            return []
        named = root.suffix == self.SUFFIX and root.is_file()
        if named or (self.folder and (root / self.folder).is_dir()):
            return [root]
        return sorted(root.glob(f"{self.stem}*{self.SUFFIX}"))

    def place(self, task: str, data_dir: str, *, download: bool = False) -> Path:
        """Return where the set is, or is fetched to with `download`; read nothing.

        Raises ConfigError: there is none, or several; the text says where to put it.
        """
        found = self.there(data_dir)
        if len(found) > 1:
            names = ", ".join(path.name for path in found)
            raise ConfigError(f"task={task!r}: {data_dir} holds {names}; name one with --data-dir")
        if found:
            return found[0]
        if data_dir and download:
            return Path(data_dir).expanduser()
        has = f", and --data-dir {data_dir} has none" if data_dir else ""
        raise ConfigError(
            f"task={task!r} needs its data set{has}: put "
            f"{self.folder or f'{self.stem}*{self.SUFFIX}'} into a directory and name that with "
            "--data-dir (data-dir in the run config), or have it fetched there with --download "
            f"(download=true) by {'flwr-datasets' if self.hub else 'torchvision'}"
        )

    def load(self, task: str, data_dir: str, *, download: bool = False) -> Data:
        """Read both halves from `data_dir`, a directory or a file; ConfigError as `place`."""
        path = self.place(task, data_dir, download=download)
        if path.suffix == self.SUFFIX:
            return self.from_file(task, path)
        return self.from_folder(task, path, download)

    def fetched(self, task: str, root: Path) -> Any:
        """Return all rows of a set that has only a training split; `root` keeps them."""
        from flwr_datasets import FederatedDataset

        try:
            return FederatedDataset(
                dataset=self.hub, partitioners={"train": 1}, shuffle=False, cache_dir=str(root)
            ).load_split("train")
        except (OSError, RuntimeError, ValueError) as error:
            raise ConfigError(
                f"task={task!r}: {self.hub} could not be fetched ({type(error).__name__}); it takes "
                "a network: or put the files into a directory and name that with --data-dir"
            ) from error
