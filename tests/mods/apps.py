"""Apps that answer as no good one does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict

from flhe.mods import records
from tests.mods.harness import App


class Moves(App):
    """An app that moves each weight of the matrix by so much, and nothing else."""

    def __init__(self, *by: float) -> None:
        super().__init__(step=0.0)
        self.by = np.array(by, np.float32).reshape(3, 4)

    def trained(self, record: Any) -> ArrayRecord:
        after = records.to_numpy(super().trained(record))
        return records.from_numpy({**after, "w": after["w"] + self.by})


class Raises(App):
    """An app that fails."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def content(self, message: Message) -> RecordDict:
        raise self.error


class Replies(App):
    """An app that answers whatever `make` makes of its usual answer."""

    def __init__(self, make: Callable[[RecordDict], Any], **how: Any) -> None:
        super().__init__(**how)
        self.make = make

    def content(self, message: Message) -> Any:
        return self.make(super().content(message))
