"""adapters: the server adds encrypted adapters; the model itself never travels."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from adapters.task import adapters, base
from flhe.strategies import SashFedAvg, save_sealed

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for the configured number of rounds, and save the sealed adapters."""
    config = context.run_config
    sites, arrays = config["sites"], ArrayRecord(adapters(base(0)))  # zeros, for any model
    strategy = SashFedAvg(unmask="clients", fraction_evaluate=0, min_available_nodes=sites)
    result = strategy.start(grid, arrays, num_rounds=config["num-server-rounds"])
    save_sealed(result, config["model"])
