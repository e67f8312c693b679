"""A hospital: it answers those queries that its administrator lists; nobody sees its answers alone."""

from __future__ import annotations

from flwr.app import Context

from flhe.analytics import answers
from flhe.analytics.schema import Table
from flhe.mods import query_app
from hospitals.task import SCHEMA, patients


def load(context: Context) -> Table:
    """This hospital's patients; in earnest, from a database that the node's own config names."""
    return patients(int(str(context.node_config["partition-id"])))


app = query_app(answers(SCHEMA, load))
