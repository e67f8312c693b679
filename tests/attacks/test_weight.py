"""A server that has updates weighed by something that it wants to know: it reads the sum of weights."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.mods.harness import TERMS, App, Group, refused, update

NAME = "deaths-this-week"


@pytest.mark.parametrize("allowed", ["", "loss", NAME])
def test_the_weight_is_a_count_of_examples_or_what_the_site_names(
    tmp_path: Path, allowed: str
) -> None:
    terms = dataclasses.replace(TERMS, weight_key=NAME)
    group = Group(tmp_path, terms=terms, config={"flhe-metrics": allowed})
    for site in group.sites:
        site.app = App(**{NAME: 3})
    if allowed == NAME:
        update(group.agree().ask(group.sites[0]))
        return
    refused(group.sites[0].ask("advertise", **group.begin()), 1010)
    assert "flhe-metrics" in group.sites[0].log


@pytest.mark.parametrize(
    "named", [{}, {"flhe-metrics": "loss, accuracy"}], ids=["default", "named"]
)
@pytest.mark.parametrize("name", ["accuracy", "train_loss", "eval-acc"])
def test_a_loss_or_an_accuracy_is_no_weight(
    tmp_path: Path, name: str, named: dict[str, str]
) -> None:
    """Whether a site's is 1, 0 or neither was in the code of its refusal: weights are whole."""
    terms = dataclasses.replace(TERMS, weight_key=name, metrics=())
    group = Group(tmp_path, terms=terms, config=named)
    refused(group.sites[0].ask("advertise", **group.begin()), 1010)
    assert "model is no weight" in group.sites[0].log


@pytest.mark.parametrize("name", ["num-examples", "num_examples"])
def test_counts_of_examples_need_no_leave(tmp_path: Path, name: str) -> None:
    terms = dataclasses.replace(TERMS, weight_key=name)
    group = Group(tmp_path, terms=terms, config={"flhe-metrics": ""}).agree()
    group.sites[0].app = App(**{name: 3})
    update(group.ask(group.sites[0]))
