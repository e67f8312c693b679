"""Schemes by name: as people write them, and as they are read again."""

from __future__ import annotations

from dataclasses import fields

import pytest

from flhe.errors import ConfigError, FlheError
from flhe.schemes import DEFAULT, PLAIN
from flhe.schemes.base import Scheme
from flhe.schemes.batchcrypt.scheme import BatchCrypt
from flhe.schemes.esafl.scheme import Esafl
from flhe.schemes.fedml_he.scheme import FedmlHe
from flhe.schemes.flashe.scheme import Flashe
from flhe.schemes.registry import SCHEMES, key_of, parse, written
from flhe.schemes.sash.scheme import Sash

WRITTEN: list[tuple[str, Scheme]] = [
    ("flashe", Flashe()),
    ("flashe masking=single", Flashe("single")),
    ("sash", Sash()),
    ("sash unmask=clients", Sash("clients")),
    ("sash unmask=clients preset=lwr-736", Sash("clients", "lwr-736")),
    ("batchcrypt", BatchCrypt()),
    ("batchcrypt key-bits=2048 advance=true", BatchCrypt(2048, advance=True)),
    ("esafl keys=round", Esafl(keys="round")),
    ("esafl ring=rns-8192 keys=dealt", Esafl("rns-8192", "dealt")),
    ("fedml-he ring=8192", FedmlHe("8192")),
]


@pytest.mark.parametrize(("text", "scheme"), WRITTEN)
def test_what_is_written_is_read_again(text: str, scheme: Scheme) -> None:
    assert parse(text) == scheme
    assert written(scheme) == text


@pytest.mark.parametrize("kind", SCHEMES.all(), ids=lambda kind: kind.name)
def test_a_name_alone_is_a_scheme_with_its_defaults(kind: type[Scheme]) -> None:
    assert parse(kind.name) == kind()
    assert written(kind()) == kind.name
    said = [f"{key_of(f.name)}={str(f.default).lower()}" for f in fields(kind)]
    assert parse(" ".join([kind.name, *said])) == kind()
    assert written(parse(" ".join([kind.name, *said]))) == kind.name


def test_the_order_and_the_room_between_do_not_matter() -> None:
    assert parse("  esafl   keys=round ring=rns-8192\n") == parse("esafl ring=rns-8192 keys=round")
    assert written(parse("flashe masking=double")) == "flashe"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "scheme '': there are flashe, sash"),
        ("rot13", "scheme 'rot13': there are flashe, sash"),
        ("x" * 1000, f"scheme '{'x' * 64}': there are flashe, sash"),
        ("sash " + "y" * 1000, f"sash has no parameter {'y' * 64}, or twice"),
        ("Flashe", "scheme 'Flashe': there are flashe, sash"),
        (PLAIN, "scheme 'plain': there are flashe, sash"),
        ("masking=single", "scheme 'masking=single': there are"),
        ("flashe unmask=clients", "flashe has no parameter unmask.* it has masking"),
        ("flashe masking=single masking=single", "no parameter masking, or twice"),
        ("batchcrypt key_bits=2048", "no parameter key_bits.* it has key-bits, advance"),
        ("batchcrypt key-bits=long", "'batchcrypt key-bits=long': long is no value of key-bits"),
        ("batchcrypt key-bits", "nothing is no value of key-bits"),
        ("batchcrypt key-bits=1024", "3072 has 128 bits"),
        ("batchcrypt advance=yes", "yes is no value of advance"),
        ("batchcrypt advance", "nothing is no value of advance"),
        ("flashe masking=triple", "masking must be one of double, single, adaptive"),
        ("flashe masking", "masking must be one of double, single, adaptive"),
        ("sash preset=none", "none"),
        ("esafl ring=9", "ring '9'"),
        ("fedml-he ring=9", "ring '9'"),
    ],
)
def test_what_nobody_can_mean(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse(text)


@pytest.mark.parametrize("scheme", [scheme for _, scheme in WRITTEN], ids=written)
def test_a_scheme_takes_its_own_fields_and_no_others(scheme: Scheme) -> None:
    stored = scheme.to_fields()
    assert isinstance(stored, dict)
    assert type(scheme).from_fields(stored) == scheme
    for wrong in ({**stored, "zz": 1}, dict(list(stored.items())[1:]), [], None):
        with pytest.raises(FlheError):
            type(scheme).from_fields(wrong)


def test_the_default_is_one_of_ours_and_plain_is_none() -> None:
    assert DEFAULT in SCHEMES.own
    assert PLAIN not in SCHEMES.names()
    assert len({kind.title for kind in SCHEMES.all()}) == len(SCHEMES.names())
