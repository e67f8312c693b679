"""Every class of records refuses all that its declaration does not allow."""

from __future__ import annotations

from random import Random

import pytest

from tests.fuzz.declared import all_decoders, all_records, of_one_reader, refused, samples
from tests.fuzz.decoders import try_one


@pytest.mark.parametrize("name", all_records())
def test_what_a_declaration_does_not_allow_is_refused(name: str) -> None:
    assert samples().get(name), "a class of records of which nothing honest is in tests/fuzz"
    for record in of_one_reader(name)[:2]:
        for what, data in refused(record, Random(name)):
            assert not try_one(all_decoders()[name], data), what
