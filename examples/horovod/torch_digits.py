"""A PyTorch program for Horovod, on handwritten digits.

Two things differ from the program for Horovod: the import of `hvd`, and the call of
`experiment.horovod` in place of `horovodrun -np 2 python torch_digits.py`.

    pip install 'sparkdl-platform[torch]'
    python examples/horovod/torch_digits.py
"""

import argparse

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import sparkdl.horovod.torch as hvd
from sparkdl import experiment

EPOCHS, BATCH_SIZE = 15, 16


def train() -> float:
    """Train on this rank's share of the digits; return the accuracy on unseen digits."""
    hvd.init()
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype("float32")
    x_train, x_test, y_train, y_test = map(
        torch.from_numpy, train_test_split(images, labels, random_state=0)
    )
    dataset = TensorDataset(x_train, y_train)
    sampler = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
    loader = DataLoader(dataset, BATCH_SIZE, sampler=sampler)

    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001 * hvd.size())
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        loss = hvd.allreduce(loss.detach())
        if hvd.rank() == 0:
            print(f"epoch {epoch}: loss {loss:.4f}")
    with torch.no_grad():
        return (model(x_test).argmax(dim=1) == y_test).float().mean().item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2, help="processes, each in a slot")
    args = parser.parse_args()
    accuracy = experiment.horovod(train, num_workers=args.workers).result
    print(f"accuracy {accuracy:.4f} on unseen digits")
