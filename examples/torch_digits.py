"""Two workers train a small PyTorch network with DistributedDataParallel.

    pip install 'sparkdl-platform[torch]'
    python examples/torch_digits.py
    spark-submit --master <master> examples/torch_digits.py

Each worker has the variables of `torchrun`, which `init_process_group` reads.
"""

import argparse

import torch
import torch.distributed
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from sparkdl import context, experiment

EPOCHS, BATCH_SIZE = 15, 16


def train() -> float:
    """Train on this rank's share of the digits; return the accuracy on unseen digits."""
    torch.distributed.init_process_group("gloo")  # "nccl" if each rank has a GPU
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype("float32")
    x_train, x_test, y_train, y_test = map(
        torch.from_numpy, train_test_split(images, labels, random_state=0)
    )
    dataset = TensorDataset(x_train, y_train)
    sampler = DistributedSampler(dataset, seed=7)
    loader = DataLoader(dataset, BATCH_SIZE, sampler=sampler)

    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        if context.is_chief:
            context.report({"loss": loss.item()}, step=epoch)
    with torch.no_grad():
        accuracy = (network(x_test).argmax(dim=1) == y_test).float().mean().item()
    torch.distributed.destroy_process_group()
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2, help="processes, each in a slot")
    args = parser.parse_args()
    run = experiment.allreduce(train, num_workers=args.workers)
    print(f"accuracy {run.result:.4f} on unseen digits")
