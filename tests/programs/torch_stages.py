"""Modules of PyTorch, and functions with saved names, for stages of Spark ML; what a fit equals.

As a program under torchrun, it trains with the batches that a fit has noted.
"""

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from sparkdl.ml import saved_by_name


@saved_by_name
def classifier(units: int = 4, learning_rate: float = 0.1) -> Any:
    """Two classes of two numbers."""
    import torch

    torch.manual_seed(1)
    layers = [torch.nn.Linear(2, units), torch.nn.BatchNorm1d(units), torch.nn.Linear(units, 2)]
    net = torch.nn.Sequential(*layers)
    return net, torch.optim.Adam(net.parameters(), learning_rate)


@saved_by_name
def absolute_error(outputs: Any, labels: Any) -> Any:
    """A loss that PyTorch does not have under this name."""
    return (outputs - labels).abs().mean()


@saved_by_name
def accuracy(outputs: Any, labels: Any) -> Any:
    """The share of the rows whose largest output is that of their class."""
    return (outputs.argmax(dim=1) == labels).float().mean()


def linear(inputs: int, units: int = 1) -> Any:
    """The sum of the inputs, in every output, and an optimizer that has made a step of zero."""
    import torch

    net = torch.nn.Linear(inputs, units)
    torch.nn.init.ones_(net.weight)
    torch.nn.init.zeros_(net.bias)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    net(torch.zeros(1, inputs)).sum().mul(0).backward()
    optimizer.step()
    return net, optimizer


def point(number: int) -> tuple[float, float]:
    """The features of a row."""
    a, b = np.random.default_rng(number).normal(size=2)
    return float(a), float(b)


def trained_by_hand(net: Any, optimizer: Any, batches: list[list[int]], model: Any) -> None:
    """Train a network, which `model` may wrap, with the rows of these numbers."""
    import torch

    net.train()
    for numbers in batches:
        x = torch.tensor([point(number) for number in numbers])
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), torch.tensor(numbers)[:, None] / 50).backward()
        optimizer.step()


def regressor() -> Any:
    """Two layers for the numbers of rows."""
    import torch

    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(2, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
    return net, torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)


if __name__ == "__main__":
    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.distributed.init_process_group("gloo")
    rank = os.environ["RANK"]
    lines = Path(sys.argv[1], f"rank-{rank}.txt").read_text().splitlines()
    net, optimizer = regressor()
    batches = [[int(word) for word in line.split()] for line in lines]
    trained_by_hand(net, optimizer, batches, DistributedDataParallel(net))
    torch.save(net.state_dict(), Path(sys.argv[1], f"expected-{rank}.pt"))
    torch.distributed.destroy_process_group()
