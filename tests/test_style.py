"""One style of all pictures: its colours, its titles, and the pictures of the documents."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from flhe_app import style
from flhe_lab.redraw import redraw
from flhe_lab.tables import chart as looks
from flhe_lab.tables.chart import NUMBER
from flhe_lab.tables.table import declarations
from tests.source import ROOT

pytest.importorskip("matplotlib")
DOCS = ROOT / "docs"
PICTURES = sorted([*DOCS.glob("*.svg"), *DOCS.glob("results/*.svg")])
DRAWN = [path for path in PICTURES if path.name != "dataflow.svg"]


def linear(colour: str) -> np.ndarray:
    parts = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    low, high = sorted(float(linear(c) @ [0.2126, 0.7152, 0.0722]) + 0.05 for c in (one, other))
    return high / low


def test_all_that_is_drawn_can_be_read_on_light_and_dark_pages() -> None:
    for inks in (*style.COLOURS.values(), style.TEXT, style.MUTED):  # texts have these colours too
        for ink, page in zip(inks, style.PAGE, strict=True):
            assert contrast(ink, page) >= 4.5


def test_colours_stay_apart_for_those_who_see_few_hues() -> None:
    # Machado et al. 2009: nothing amiss, no red cones, no green cones.
    sights = np.array(
        [
            np.eye(3),
            [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
            [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
        ]
    )
    to_xyz = np.array(
        [[0.4339, 0.3762, 0.1899], [0.2126, 0.7152, 0.0722], [0.0177, 0.1095, 0.8730]]
    )

    def lab(rgb: np.ndarray) -> np.ndarray:
        x, y, z = np.cbrt(to_xyz @ np.clip(rgb, 1e-4, 1))
        return np.array([116 * y, 500 * (x - y), 200 * (y - z)])

    for inks, sight in itertools.product(zip(*style.COLOURS.values(), strict=True), sights):
        seen = [lab(sight @ linear(ink)) for ink in inks]
        for one, other in itertools.combinations(seen, 2):
            assert np.linalg.norm(one - other) > 10


def test_a_contender_has_one_look() -> None:
    found = [
        looks.look(name) for name in ("SASH", "FLASHE", "ESAFL", "BatchCrypt", "FedML-HE", "plain")
    ]
    assert (
        len({look.colour for look in found}) == len({look.marker for look in found}) == len(found)
    )
    assert looks.look("TenSEAL BFV, as in FLASHE") == looks.look("TenSEAL")
    assert looks.look("FLASHE, top 10%").colour == looks.look("FLASHE").colour
    assert looks.look("SecAgg+, Flower's") == looks.look("Flower")


@pytest.mark.parametrize("path", DRAWN, ids=lambda path: path.stem)
def test_a_picture_swaps_every_colour_and_has_texts(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text) < 200_000
    sheet = text[text.index("@media (prefers-color-scheme: dark)") : text.index("}}</style>")]
    for kind, colour in set(re.findall(r"(fill|stroke): (#[0-9a-f]{6})", text.replace(sheet, ""))):
        assert f'[style*="{kind}: {colour}"]' in sheet, (kind, colour)
    assert text.count("<text") > 5


def test_nobody_draws_outside_the_style() -> None:
    helper = ROOT / "apps" / "style.py"
    for folder in ("flhe", "strategies", "apps", "sim"):
        for path in (ROOT / folder).rglob("*.py"):
            if path != helper and "build" not in path.parts:
                found = re.search(
                    r"pyplot|\.(subplots|savefig)\(|#[0-9a-fA-F]{6}\b", path.read_text()
                )
                assert not found, (path, found)


def test_titles_are_sentences_without_numbers_by_hand() -> None:
    tables = {name: table for name, table in declarations().items() if "chart" in table}
    assert len(tables) > 25
    for name, table in tables.items():
        says = table["chart"]["says"]
        words = NUMBER.sub("N", says)
        assert len(words.split()) >= 6, name
        assert words[0].isupper() or words.startswith("flhe"), name
        assert not re.search(r"\d", re.sub(r"rns-8192|16-bit|Llama 2|ResNet-50", "", words)), name


def test_pictures_are_those_of_the_numbers_beside_them(tmp_path: Path) -> None:
    for path in redraw(DOCS, tmp_path):
        texts = [re.findall(r">([^<>]+)</text>", p.read_text()) for p in (path, DOCS / path.name)]
        assert texts[0] == texts[1], f"run `flhe tables --full --redraw --out docs`: {path.name}"
