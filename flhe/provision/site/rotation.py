"""`flhe site rotate`: another identity beside the one in use, and a card that both have signed."""

from __future__ import annotations

import itertools
import shutil

from flhe.answer import Answer, confirm
from flhe.errors import ConfigError
from flhe.keys.roster import fingerprint
from flhe.keys.roster.enrolment import Enrolment
from flhe.node.store import Store
from flhe.provision import sites
from flhe.provision.federation.card import Card
from flhe.provision.site.layout import CARD, Layout
from flhe.wire import files


def rotate(layout: Layout, *, yes: bool) -> Answer:
    """Make the identity and another card.

    The key in use works until this site joins a roster that lists the other. Raises ConfigError: the
    site is not set up, a rotation is under way, or an answer of no.
    """
    _, card = layout.card()
    path = layout.rotated / f"{card.name}{CARD}"
    if (pending := layout.next_home()) is not None:
        raise ConfigError(
            f"a rotation is under way, to {pending}: send {path} to the coordinator, and join the "
            "file that comes back"
        )
    names = (layout.home.with_name(f"{layout.name}-{number}") for number in itertools.count(2))
    home = next(path for path in names if not path.exists())
    if not yes:
        confirm(f"Make another identity in {home}, and a card for it?", "--yes")
    with files.private_umask():
        with layout.as_user():
            old, new = sites.existing(layout.home), Store(home).identity()
        enrolment = Enrolment.make(card.name, new, old)
        shutil.rmtree(layout.rotated, ignore_errors=True)  # of a rotation that was cut short
        layout.make_config(layout.rotated)
        layout.write(path, Card.make(enrolment, card.node_key, new).to_bytes())
        layout.write(layout.rotated / "home", f"{home}".encode())
    text = f"""A new identity is in {home}; {layout.home} stays in use.

{fingerprint.shown("key", new.public)}

1. Send {path} to the coordinator, and read the words to them: flhe federation add, publish.
2. Every site joins the file that comes back, and starts its node again.
Back the identity up now: flhe keys backup --home {home} --out {card.name}.backup"""
    words = " ".join(fingerprint.lines(new.public))
    data = {"site": card.name, "key": new.public, "words": words, "card": path}
    return Answer({**data, "home": home}, text)
