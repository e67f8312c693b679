"""FedML-HE's Tables 4, 6, 7 and 8, and its Figures 2 and 7: what an aggregation costs."""

from __future__ import annotations

from collections.abc import Sequence

from flhe.sim.tables.fedml_models_table import TABLE_4
from flhe.sim.tables.fedml_parameter_table import TABLE_6
from flhe.sim.tables.fedml_selection import TABLES_7_8
from flhe.sim.tables.section import Section

SECTIONS: Sequence[Section] = (TABLE_4, TABLE_6, *TABLES_7_8)
