"""What an app is shown: ordinary messages, with nothing of ours in them."""

from __future__ import annotations

from flwr.app import Message, RecordDict

from flhe.mods import records
from flhe.mods.stages import App
from flhe.training.model import Model
from flhe.training.start import hash_app_inputs
from flhe.training.terms import Terms


def app_inputs_of(terms: Terms, message: Message, app: App) -> bytes:
    """Hash of all that the app is about to be told: what `app_message` leaves, the run's config."""
    shown = records.shown(message.content, terms.arrays_key)
    return hash_app_inputs(shown, app.context.run_config)


def app_message(terms: Terms, message: Message, model: Model) -> Message:
    """The message as a plain FedAvg app knows it: the model, and no other arrays or records of ours."""
    content = RecordDict()
    content[terms.arrays_key] = records.from_numpy(model.arrays())
    for name in records.shown(message.content, terms.arrays_key):
        content[name] = message.content[name]
    message.content = content
    return message
