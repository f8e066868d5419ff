"""Runs in the training process. Rows of an epoch for ranks whose number changes."""

import itertools
import random
from collections.abc import Iterator, Sized
from typing import Any

import torch.utils.data

from sparkdl.horovod.ranks import rank, size


class ElasticSampler(torch.utils.data.Sampler[int]):  # type: ignore[misc]
    """The rows of this rank; after a loss, the rows that no rank has had yet, among those left.

    Give it to a `TorchState`, call `record_batch` after each batch, and `set_epoch` at the end of
    each epoch. If the ranks do not divide the number of rows, some rows are repeated, so that all
    ranks have as many.

    Args:
        dataset: the dataset; only its length is used.
        shuffle: shuffle the rows, in another order for each epoch.
        seed: number from which the order is computed, the same on all ranks.

    Attributes:
        epoch: the current epoch.
        processed_num: number of rows that all ranks have had in this epoch.

    Example:
        >>> sampler = ElasticSampler(range(4), shuffle=False)
        >>> sampler.record_batch(0, batch_size=3)
        >>> sampler.reset()
        >>> list(sampler)
        [3]
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch with all rows.

        Args:
            epoch: its number.
        """
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Record that each rank has had a batch.

        Args:
            batch_idx: has no effect.
            batch_size: number of rows of the batch of one rank.
        """
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch and the number of its rows that all ranks have had."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state, among the ranks that are present.

        Args:
            state_dict: see `state_dict`.
        """
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Divide the rows that are left among the ranks that are present."""
        self.num_replicas, self.rank = size(), rank()
        rows = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(rows)
        self.remaining_indices = rows[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        rows = itertools.islice(itertools.cycle(self.remaining_indices), self.total_size)
        return itertools.islice(rows, self.rank, None, self.num_replicas)

    def __len__(self) -> int:
        return self.num_samples
