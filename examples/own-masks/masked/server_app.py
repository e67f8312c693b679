"""The server: an ordinary strategy, started on a grid whose nodes mask."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from flhe.strategies import MaskingKeyAgreement
from masked.client_app import TRUTH
from masked.strategy import MaskedFedAvg

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and say how far the model is from the one that made the data."""
    nodes, rounds = (int(str(context.run_config[name])) for name in ("nodes", "rounds"))
    model = ArrayRecord({"w": Array(np.zeros(TRUTH.size))})
    with MaskingKeyAgreement(grid, min_nodes=nodes) as keys:
        strategy = MaskedFedAvg(keys, model, min_train_nodes=nodes, min_available_nodes=nodes)
        result = strategy.start(keys, model, num_rounds=rounds)
    found = result.arrays["w"].numpy()
    print(f"weights {np.round(found, 4)}, off by {np.abs(found - TRUTH).max():.2g}")
