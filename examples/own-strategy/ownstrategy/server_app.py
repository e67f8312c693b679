"""ownstrategy: the server starts the strategy on a grid whose nodes agree on masking keys."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from flhe.strategies import MaskingKeyAgreement
from ownstrategy.strategy import MaskedFedAvg
from ownstrategy.task import TRUTH

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and print how far the weights are from those that made the data."""
    nodes, rounds = (context.run_config[name] for name in ("nodes", "num-server-rounds"))
    start = ArrayRecord({"w": Array(np.zeros(TRUTH.size))})
    with MaskingKeyAgreement(grid, min_nodes=nodes) as keys:
        strategy = MaskedFedAvg(keys, min_train_nodes=nodes, min_available_nodes=nodes)
        found = strategy.start(keys, start, num_rounds=rounds).arrays["w"].numpy()
    print(f"weights {np.round(found, 4)}, off by {np.abs(found - TRUTH).max():.2g}")
