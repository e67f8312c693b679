"""quickstart: the server adds encrypted updates, and tests each round's model."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from flhe.strategies import SashFedAvg
from quickstart import task

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for the configured number of rounds, and save the model."""
    config = context.run_config
    strategy = SashFedAvg(fraction_evaluate=config["fraction-evaluate"])
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(task.Net().state_dict()),
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
        num_rounds=config["num-server-rounds"],
        evaluate_fn=evaluate,
    )
    torch.save(result.arrays.to_torch_state_dict(), "final_model.pt")


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Test the model on every fifth digit, which no node has."""
    model = task.Net()
    model.load_state_dict(arrays.to_torch_state_dict())
    loss, accuracy = task.test(model, task.digits(slice(0, None, 5), batch_size=128))
    return MetricRecord({"loss": loss, "accuracy": accuracy})
