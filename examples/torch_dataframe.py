"""Two workers train a PyTorch network on a DataFrame, without TensorFlow.

    pip install 'sparkdl-platform[torch]' scikit-learn
    python examples/torch_dataframe.py
    spark-submit --master <master> examples/torch_dataframe.py

`data.parquet`, `data.csv` and `data.tfrecord` have `as_torch` too, and all have `as_jax` and
`as_numpy`.
"""

import argparse

import torch
import torch.distributed
from pyspark.sql import DataFrame, SparkSession
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sparkdl import context, data, experiment

EPOCHS = 15


def digits(spark: SparkSession) -> dict[str, DataFrame]:
    """Return scikit-learn's digits as two DataFrames of `pixels` and `digit`."""
    images, labels = load_digits(return_X_y=True)
    rows = [((x / 16.0).tolist(), int(y)) for x, y in zip(images, labels, strict=True)]
    df = spark.createDataFrame(rows, "pixels array<double>, digit bigint")
    train, unseen = df.randomSplit([0.75, 0.25], seed=7)
    return {"train": train, "unseen": unseen}


def train() -> float:
    """Train on this rank's rows; return the accuracy on unseen digits."""
    torch.distributed.init_process_group("gloo")  # "nccl" if each rank has a GPU
    columns = {"feature_cols": "pixels", "label_cols": "digit"}
    rows = data.dataset("train", global_batch_size=32, shuffle=True, **columns).as_torch()
    unseen = data.dataset("unseen", global_batch_size=256, **columns).as_torch()

    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(EPOCHS):
        for x, y in rows:  # Every rank takes the same number of steps.
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        if context.is_chief:
            context.report({"loss": loss.item()}, step=epoch)
    found = torch.zeros(2)  # Number of right answers, and of rows.
    with torch.no_grad():
        for x, y in unseen:
            found += torch.tensor([(network(x).argmax(dim=1) == y).sum().item(), len(y)])
    torch.distributed.all_reduce(found)
    torch.distributed.destroy_process_group()
    return (found[0] / found[1]).item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2, help="processes, each in a slot")
    args = parser.parse_args()
    frames = digits(SparkSession.builder.appName("digits").getOrCreate())
    run = experiment.allreduce(train, num_workers=args.workers, data=frames)
    print(f"accuracy {run.result:.4f} on unseen digits")
