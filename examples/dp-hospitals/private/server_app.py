"""private: the server adds gradients that it cannot read, and reports epsilon."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from flhe.strategies import dp_fedsgd, save_sealed
from flhe.training.optimizer import Optimizer
from private.task import PATIENTS, new_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Take the configured number of steps, and save the sealed model."""
    config = context.run_config
    strategy = dp_fedsgd(
        noise_multiplier=config["noise-multiplier"],
        max_grad_norm=config["max-grad-norm"],
        sampling=config["sampling"],
        expected_batch=config["sampling"] * PATIENTS,
        optimizer=Optimizer("sgd", lr=config["learning-rate"]),
        delta=config["delta"],
        min_available_nodes=config["hospitals"],
        min_train_nodes=config["hospitals"],
        min_replies=config["hospitals"],  # all of them: then the noise is least
        on_round=lambda report: print(f"round {report.round}: epsilon {report.epsilon:.3f}"),
    )
    arrays = ArrayRecord(new_model().state_dict())
    result = strategy.start(grid, arrays, num_rounds=config["num-server-rounds"])
    save_sealed(result, config["model"])
