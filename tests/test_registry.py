"""Schemes by name, as people write them; and plugins: flhe's own classes first, then others'."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from flhe.coding.chain import Chain
from flhe.coding.registry import CODECS
from flhe.errors import ConfigError
from flhe.plugins import Plugins
from flhe.schemes import PLAIN
from flhe.schemes.base import Scheme
from flhe.schemes.batchcrypt.scheme import BatchCrypt
from flhe.schemes.esafl.scheme import Esafl
from flhe.schemes.fedml_he.scheme import FedmlHe
from flhe.schemes.flashe.scheme import Flashe
from flhe.schemes.registry import SCHEMES, key_of, parse, written
from flhe.schemes.sash.scheme import Sash
from flhe.strategies import SchemeFedAvg
from flhe.training.terms import Terms

WRITTEN: list[tuple[str, Scheme]] = [
    *((kind.name, kind()) for kind in SCHEMES.all()),
    ("flashe masking=single", Flashe("single")),
    ("sash unmask=clients", Sash("clients")),
    ("batchcrypt key-bits=2048 advance=true", BatchCrypt(2048, advance=True)),
    ("esafl ring=rns-8192 keys=dealt", Esafl("rns-8192", "dealt")),
    ("fedml-he ring=8192", FedmlHe("8192")),
]


@pytest.mark.parametrize(("text", "scheme"), WRITTEN)
def test_what_is_written_is_read_again(text: str, scheme: Scheme) -> None:
    """In any order, with any room between, and with defaults that are said."""
    assert parse(text) == scheme
    assert written(scheme) == text
    values = {key_of(f.name): str(getattr(scheme, f.name)).lower() for f in fields(scheme)}
    said = [f"{key}={value}" for key, value in values.items()]
    assert parse(f" {scheme.name}  {'   '.join(said[::-1])}\n") == scheme


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "scheme '': there are flashe, sash"),
        ("x" * 1000, f"scheme '{'x' * 64}': there are flashe, sash"),
        ("sash " + "y" * 1000, f"sash has no parameter {'y' * 64}, or twice"),
        ("Flashe", "scheme 'Flashe': there are flashe, sash"),
        (PLAIN, "scheme 'plain': there are flashe, sash"),
        ("flashe unmask=clients", "flashe has no parameter unmask.* it has masking"),
        ("flashe masking=single masking=single", "no parameter masking, or twice"),
        ("batchcrypt key_bits=2048", "no parameter key_bits.* it has key-bits, advance"),
        ("batchcrypt key-bits=long", "'batchcrypt key-bits=long': long is no value of key-bits"),
        ("batchcrypt key-bits=1024", "3072 has 128 bits"),
        ("batchcrypt advance=yes", "yes is no value of advance"),
        ("batchcrypt advance", "nothing is no value of advance"),
        ("flashe masking", "masking must be one of double, single, adaptive"),
        ("sash preset=none", "none"),
        ("esafl ring=9", "ring '9'"),
    ],
)
def test_what_nobody_can_mean(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse(text)


# --- plugins ---


OWN = {"one": "flhe_words:One", "moved": "flhe_words:Other"}
MODULE = """
class One:
    name = "one"

class Two:
    name = "two"

class Other:
    name = "other"

name = "thing"
"""


def install(path: Path, group: str, names: Mapping[str, str], module: str, code: str) -> None:
    """A distribution as an installer would leave it: a module, and its entry points."""
    (path / f"{module}.py").write_text(code)
    folder = path / f"{module}-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    points = "".join(f"{name} = {place}\n" for name, place in names.items())
    (folder / "entry_points.txt").write_text(f"[{group}]\n{points}")


def look_again(plugins: Plugins[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """What was installed since, until the test ends: a process looks only once."""
    monkeypatch.setattr(plugins, "_loaded", dict(plugins._loaded))
    monkeypatch.setattr(plugins, "_found", None)


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plugins[Any]:
    """Some of ours, and more of a distribution that is installed beside them."""
    foreign = {
        "two": "flhe_words:Two",
        "one": "flhe_words:Two",
        "gone": "flhe_words:Gone",
        "away": "flhe_no_such_module:Two",
        "thing": "flhe_words:name",
    }
    install(tmp_path, "flhe.words", foreign, "flhe_words", MODULE)
    monkeypatch.syspath_prepend(tmp_path)

    def fault(found: Any) -> str:
        return "" if isinstance(found, type) else "it is no class"

    return Plugins("word", "flhe.words", OWN, fault)


def test_ours_come_first_and_others_that_load_after_them(
    words: Plugins[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """None is loaded before it is asked for."""
    assert words.names() == ("one", "moved", "two", "gone", "away", "thing")
    assert words.named("one").__name__ == "One"  # nobody else's stands in its place
    assert words.named("two") is words.named("two")
    assert "word 'moved'" not in caplog.text
    assert [kind.name for kind in words.all()] == ["one", "two"]
    for name in ("moved", "gone", "away", "thing"):
        assert re.search(f"word '{name}': ", caplog.text)
    assert "word 'one' of flhe_words:Two is ignored" in caplog.text


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("three", "word 'three': there are one, moved, two, .*installed beside flhe"),
        ("moved", "word 'moved': flhe_words:Other is no word: its own name is .other"),
        ("gone", "word 'gone': flhe_words:Gone"),
        ("away", "word 'away': flhe_no_such_module:Two"),
        ("thing", "word 'thing': flhe_words:name is no word"),
    ],
)
def test_what_is_none_is_refused_by_name(words: Plugins[Any], name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=f"^{says}"):
        words.named(name)


# --- a scheme and a codec of somebody else; one that trains is in test_add_a_scheme.py ---

CODEC = """
from dataclasses import dataclass
from typing import ClassVar

from flhe.coding.weigh import Weigh


@dataclass(frozen=True, slots=True)
class Heavy(Weigh):
    name: ClassVar[str] = "heavy"
"""


def test_a_codec_that_is_installed_works_like_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "flhe.codecs", {"heavy": "flhe_heavy:Heavy"}, "flhe_heavy", CODEC)
    monkeypatch.syspath_prepend(tmp_path)
    look_again(CODECS, monkeypatch)
    codec = SchemeFedAvg(Flashe("single"), bits=12).terms.codec
    heavy = CODECS.named("heavy")(100)  # type: ignore[call-arg]
    chain = Chain(tuple(heavy if one.name == "weigh" else one for one in codec.codecs))
    terms = Terms(Flashe("single"), chain)
    assert Terms.from_bytes(terms.to_bytes()) == terms != Terms(Flashe("single"), codec)
    assert terms.codec.max_examples == 100


@pytest.mark.parametrize("form", ['"Theirs"', 'Form("Theirs")', "property(lambda self: 1)"])
def test_a_scheme_that_is_none_harms_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    code = (
        "from flhe.schemes.flashe.scheme import Flashe\n"
        "from flhe.wire.record import Form\n"
        f"class Theirs(Flashe):\n    FORM, name = {form}, 'theirs'\n"
    )
    install(tmp_path, "flhe.schemes", {"theirs": "flhe_theirs:Theirs"}, "flhe_theirs", code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "flhe_theirs", raising=False)
    look_again(SCHEMES, monkeypatch)
    with pytest.raises(ConfigError, match="needs FORM = Form"):
        SCHEMES.named("theirs")
    assert Flashe in SCHEMES.all()
    assert parse("flashe") == Flashe()
