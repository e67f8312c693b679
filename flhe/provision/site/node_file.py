"""A site's node config: a TOML file with every setting, its meaning, and its default.

Nothing in it comes from the coordinator but the roster's hash, which the site has compared.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path

from flhe.errors import ConfigError
from flhe.keys.roster import limits
from flhe.node.policy import Policy, allowed, settings
from flhe.node.settings import OWN

_HEAD = """\
# Settings of this site in one federation. They are the site's own: no server can change them.
# A line without # is in force; remove the # to set another value. Add the app's own settings, such
# as partition-id = 0, at the end. After a change: flhe site start checks the file.
"""


def render(home: Path, roster: Path, witness: Path | None = None) -> str:
    """Return a new file: the paths are set, all else is a comment with its default.

    Without `witness` its place is a default one.
    """
    here = {"home": str(home), "roster": str(roster)}
    if witness is not None:
        here["witness"] = str(witness)
    lines = [_HEAD]
    for key, meaning, default in _declared():
        lines.append(f"# {meaning}")
        value = here.get(key.removeprefix("flhe-"))
        lines.append(f"# {key} = {default}\n" if value is None else f"{key} = {_toml(value)}\n")
    return "\n".join(lines)


def pin(text: str, name: str, value: str) -> str:
    """Return a file with another value of one setting; all other lines stay as the site wrote them.

    Raises ConfigError: the file has no line for the setting, or several.
    """
    line = re.compile(rf"^#? ?{re.escape(name)} = .*$", re.MULTILINE)
    pinned, count = line.subn(lambda _: f"{name} = {_toml(value)}", text)
    if count != 1:
        raise ConfigError(
            f"node.toml: expected one line {name} = ..., got {count}; write one, "
            "at the top of the file"
        )
    return pinned


def _declared() -> Iterator[tuple[str, str, str]]:
    """Yield each setting, its meaning and its default, as the file has it."""
    own = {each.name.replace("_", "-"): each.default for each in dataclasses.fields(Policy)}
    own |= {"schemes": allowed(), "max-federations": 1, "roster-hash": None}
    own |= {"accept-contract": ()}
    known = limits.known()
    for key in settings():
        name = key.removeprefix("flhe-")
        limit = known.get(name)
        meaning = OWN[name] if limit is None else limit.help or limit.needs
        yield key, meaning, _toml(own[name] if limit is None else limit.default)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"{value}"
    text = ", ".join(value) if isinstance(value, tuple) else value
    return json.dumps(text if isinstance(text, str) else "")
