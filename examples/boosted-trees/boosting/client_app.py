"""A site: it adds its gradients to those of the others, by bin."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, ConfigRecord, Context

from boosting.task import site
from boosting.trees import Trees
from flhe.mods import query_app


def gradients(asked: ConfigRecord, context: Context) -> ArrayRecord:
    """Histograms of one level of the tree that is grown; `asked` holds the trees so far."""
    node = context.node_config
    rows = site(int(str(node["partition-id"])), int(str(node["num-partitions"])))
    trees = Trees(
        int(asked["depth"]),
        float(asked["rate"]),
        asked["features"],
        asked["cuts"],
        asked["weights"],
    )
    return ArrayRecord({"gradients": Array(trees.histogram(rows, int(asked["level"])))})


app = query_app({"gradients": gradients})
