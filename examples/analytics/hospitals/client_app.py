"""hospitals: a hospital answers the queries that its administrator lists in `flhe-queries`."""

from flwr.app import Context

from flhe.analytics import answers
from flhe.analytics.schema import Table
from flhe.mods import query_app
from hospitals.task import SCHEMA, patients


def load(context: Context) -> Table:
    """Return this hospital's patients; a real one reads them from its database."""
    return patients(context.node_config["partition-id"])


app = query_app(answers(SCHEMA, load))
