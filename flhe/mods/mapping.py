"""The round for the map: which values of an update say most of the data, by each node's own lights.

The app says it by a function of its own, as `flhe.coding.sensitivity` computes it, or is let to train
once and judged by what that changed. What it says leaves encrypted as a whole: a sum of maps is opened,
and no single one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import Message, RecordDict
from numpy.typing import NDArray

from flhe.errors import ReplyError
from flhe.math.buffers import give_back
from flhe.mods import records
from flhe.mods.shown import app_message
from flhe.mods.stages import App
from flhe.training.model import Model
from flhe.training.sensitivity import map_of, map_of_change
from flhe.training.session import Session


def own_map(session: Session, model: Model, message: Message, app: App) -> NDArray[np.float32]:
    """This node's map, as it is added up, shape (floats,).

    Raises
    ------
    ConfigError
        The rule needs a function that this app does not have.
    AppError
        The app failed.
    ReplyError, ProtocolError, RangeError
        What it answered is no map of this model.
    """
    shown = app_message(session.terms, message, model)
    if session.terms.select.rule == "magnitude":
        answer = app.run(shown)
        message.content = RecordDict()
        arrays = list(answer.array_records.values())
        if len(arrays) != 1:
            raise ReplyError("the app must reply with one ArrayRecord")
        values = map_of_change(session.terms, model, records.to_numpy(arrays[0]))
    else:
        found = app.sensitivity(shown)
        message.content = RecordDict()
        arrays_found = {name: _array(value) for name, value in found.items()}
        values = map_of(session.terms.select, session.layout, arrays_found)
    give_back()
    return values


def _array(value: Any) -> NDArray[Any]:
    """A tensor of torch, or an array."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().float().numpy()
    return np.asarray(value, np.float32)
