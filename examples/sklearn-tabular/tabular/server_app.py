"""tabular: the server adds what it cannot read, and saves a sealed model."""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flhe.strategies import SashFedAvg, save_sealed
from tabular.task import initial_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for the configured number of rounds, and save the sealed model."""
    config = context.run_config
    strategy = SashFedAvg(
        unmask="clients",  # only the sites read sums and the model
        min_available_nodes=config["sites"],
        max_examples=200,  # no site has more; the bound sets how finely updates are quantized
        clip=4.0,  # largest change of one coefficient in a round
    )
    result = strategy.start(
        grid=grid, initial_arrays=initial_model(), num_rounds=config["num-server-rounds"]
    )
    path = Path(config["model"]).resolve()
    save_sealed(result, path)
    print(f"Sealed model: {path}")
