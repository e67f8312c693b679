"""Data sets in files, or fetched by flwr-datasets: only with download=true."""

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
    stem: str  # Prefix of its file's name in a directory
    hub: str  # Its name for flwr-datasets, if torchvision lacks it; "" for none
    folder: str  # Torchvision's folder below the data directory; "" for none
    from_file: Callable[[str, Path], Data]  # (task, path); ConfigError if it is not of this set
    from_folder: Callable[..., Data]  # What torchvision reads, and fetches only if `download`
    from_hub: Callable[[str, Path | None], Data]
    """Fetch it into a directory; None for the default one."""

    def load(self, task: str, data_dir: str, *, download: bool) -> Data:
        """Read both halves from `data_dir`, a directory or a file; fetch them only with `download`.

        Raises ConfigError: there is none, several, or another one; the text says where to put it.
        """
        root = Path(data_dir).expanduser() if data_dir else None
        if root is not None:
            found = [root] if root.suffix == self.SUFFIX else self._files(root)
            if len(found) > 1:
                names = ", ".join(path.name for path in found)
                raise ConfigError(
                    f"task={task!r}: the data directory holds {names}; name one with --data-dir"
                )
            if found:
                return self.from_file(task, found[0])
            if self.folder:
                return self.from_folder(task, root, download=download)
        if self.hub and download:
            return self.from_hub(task, root)
        fetch = f", or set download=true to have flwr-datasets fetch {self.hub}" if self.hub else ""
        raise ConfigError(
            f"task={task!r} needs its data set: put {self.folder or self.stem + self.SUFFIX} into a "
            f"directory and name that with --data-dir (data-dir in the run config){fetch}"
        )

    def there(self, data_dir: str) -> bool:
        """Return whether `data_dir` is, or has, files of the set; reads none."""
        root = Path(data_dir).expanduser()
        here = root.suffix == self.SUFFIX or self._in_folder(root) or bool(self._files(root))
        return bool(data_dir) and here

    def _in_folder(self, root: Path) -> bool:
        return bool(self.folder) and (root / self.folder).is_dir()

    def _files(self, root: Path) -> list[Path]:
        return [] if self._in_folder(root) else sorted(root.glob(f"{self.stem}*{self.SUFFIX}"))


def fetched(task: str, name: str, root: Path | None) -> Any:
    """Return all rows of a data set with only a training split; `root` as for `Files.from_hub`."""
    from flwr_datasets import FederatedDataset

    where = {} if root is None else {"cache_dir": str(root)}
    try:
        found = FederatedDataset(dataset=name, partitioners={"train": 1}, shuffle=False, **where)
        return found.load_split("train")
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"task={task!r}: {name} could not be fetched ({type(error).__name__}); it takes a network: "
            "or put the files into a directory and name that with --data-dir"
        ) from error
