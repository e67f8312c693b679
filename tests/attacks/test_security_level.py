"""A server that asks for parameters that it can break."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from flhe.errors import ConfigError
from flhe.schemes.base import Scheme
from flhe.schemes.batchcrypt.scheme import BatchCrypt
from flhe.schemes.registry import SCHEMES
from flhe.schemes.sash.scheme import Sash
from tests.mods.harness import TERMS, Group, refused


def test_a_node_takes_no_parameters_below_its_bar(tmp_path: Path) -> None:
    terms = dataclasses.replace(TERMS, scheme=BatchCrypt(key_bits=2048))
    group = Group(tmp_path, terms=terms)
    refused(group.sites[0].ask("advertise", **group.begin()), 1010)
    assert "112 bits of security, this node takes 128 or more" in group.sites[0].log
    for site in group.sites:
        site.allow(flhe_min_bits=112)
    group.agree()


@pytest.mark.parametrize("own", SCHEMES.own)
def test_every_scheme_of_ours_is_rated_and_reaches_the_bar(own: str) -> None:
    scheme: Scheme = SCHEMES.named(own)()
    assert scheme.security >= 128


@pytest.mark.parametrize("preset", ["lwr-736", "lwr-1024"])
def test_no_server_can_choose_the_papers_matrix(preset: str) -> None:
    """132 bits, it said; by the rounding errors of an opened sum 86 at 10^8 values."""
    with pytest.raises(ConfigError, match="SASH has ring-2048"):
        Sash(preset=preset)
