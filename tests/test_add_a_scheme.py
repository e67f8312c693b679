"""docs/add-a-scheme.md: its scheme obeys the laws, runs by its name, and the page names what exists."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from flhe.schemes.base import Scheme

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "add-a-scheme.md").read_text(encoding="utf-8")
(TOY,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
LAWS = """
from flhe.schemes.base import Secrets
from tests import laws
from toy import Toy

def roles(cohort, key, threads, same):
    adder = Toy().adder(cohort)
    sealers = [adder.sealer(Secrets(key, rank)) for rank in range(cohort)]
    return laws.Roles(adder, sealers, adder.opener(Secrets(key, 0)))

laws.SCHEMES[:] = laws.FEW_SCHEMES[:] = [laws.SchemeCase("toy", roles, block=2040)]
from tests.test_laws import *
"""

RUNS = """
import numpy as np
from flwr.app import Array, ArrayRecord
from flhe.node.checkpoint import open_checkpoint
from flhe.node.policy import allowed
from flhe.schemes.registry import SCHEMES, parse, written
from flhe.strategies import SchemeFedAvg, save_sealed
from flhe.testing import InProcessGrid
from flhe_lab.bench.synthetic import client_app

def test_it_is_found_and_deployed_nodes_must_name_it():
    scheme = parse("toy salt=mine")
    assert type(scheme) is SCHEMES.named("toy")
    assert written(scheme) == "toy salt=mine"
    assert "toy" in allowed(simulated=True)
    assert "toy" not in allowed()

def test_it_trains(tmp_path):
    arrays = ArrayRecord({"weights": Array(np.zeros((4, 3), np.float32))})
    named = {"flhe-schemes": "toy", "flhe-min-bits": 0}
    with InProcessGrid(client_app(), 3, homes=tmp_path, node_config=lambda _: named) as grid:
        strategy = SchemeFedAvg(parse("toy salt=mine"), min_train_nodes=3)
        result = strategy.start(grid, arrays, num_rounds=2)
    save_sealed(result, tmp_path / "model.flhe")
    model = open_checkpoint(tmp_path / "model.flhe", tmp_path / "node-0")
    assert model.masters["weights"].any()
"""


def test_its_scheme_obeys_the_laws_and_trains(tmp_path: Path) -> None:
    about = tmp_path / "toy-0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 0\n")
    (group,) = re.findall(r"`\[project\.entry-points\.\"(flhe\.schemes)\"\]`", PAGE)
    assert '`toy = "toy:Toy"`' in PAGE
    (about / "entry_points.txt").write_text(f"[{group}]\ntoy = toy:Toy\n")
    for name, code in {"toy": TOY, "test_laws_of_it": LAWS, "test_runs_of_it": RUNS}.items():
        (tmp_path / f"{name}.py").write_text(code)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir=.", "."]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert int(re.findall(r"(\d+) passed", done.stdout)[0]) > 20


OTHERS = {"ADDER", "adder", "or_default", "elements", "check_packages"}
"""What the text names apart from the table, or not at all: a scheme calls it."""
DERIVED = {"member_secrets", "needs_all_members", "per_sum_keys"}
"""What follows from the agreement."""
OF_FLHE = {"deployed"}
"""What is asked of flhe's own schemes only."""


def test_its_table_has_every_declaration_and_no_other() -> None:
    table = PAGE.partition("| declaration |")[2].partition("\n\n")[0]
    cells = [row.strip("| ").partition(" | ")[0] for row in table.splitlines()[2:]]
    named = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    own = {name for name in {*vars(Scheme), *Scheme.__annotations__} if not name.startswith("_")}
    assert named == {*own, "FORM"} - OTHERS - DERIVED - OF_FLHE
