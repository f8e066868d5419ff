"""A loader of a user, with a module of its own beside it."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.models.embedder_words import split_words


def load(folder: Path) -> Callable[..., Any]:
    """A model with the weights `w.npy`: the number of words times the weights, and the words."""
    weights = np.load(folder / "w.npy")

    def embed(text: Any, scale: Any) -> dict[str, Any]:
        if "die" in text:
            os._exit(7)
        if "hang" in text:
            if not os.fork():
                signal.pause()  # It holds what it has inherited.
            signal.pause()
        if "bad" in text:
            raise ValueError("bad is no text")
        words = [split_words(value) for value in text]
        sizes = np.array([len(each) for each in words])[:, None] * scale[:, None]
        return {
            "vector": (sizes * weights).astype("float32"),
            "first": [each[0] if each else "" for each in words],
            "lengths": [np.array([len(word) for word in each], "int64") for each in words],
        }

    return embed


def several(folder: Path) -> dict[str, Callable[..., Any]]:
    """A model with three functions."""
    return {
        "serving_default": lambda x: {"sum": x.sum(1)},
        "count": lambda text: {"words": np.array([len(split_words(each)) for each in text])},
        "negative": lambda rows: -rows,
    }


def fail(folder: Path) -> Any:
    """A loader that finds no weights."""
    raise FileNotFoundError(f"{folder / 'weights.bin'} is missing")


def identity(folder: Path) -> Callable[[Any], Any]:
    """A model without files."""
    return lambda rows: rows


def subtract(folder: Path) -> Callable[[Any], Any]:
    """A model that changes its rows."""

    def function(rows: Any) -> Any:
        rows -= 1
        return rows

    return function


def picture(folder: Path) -> Callable[..., Any]:
    """A model that takes and returns bytes."""

    def function(image: Any) -> dict[str, Any]:
        assert all(isinstance(value, bytes) for value in image)
        turned = np.array([*(value[::-1] for value in image), None], object)[:-1]
        return {"size": np.array([len(value) for value in image]), "raw_bytes": turned}

    return function


def empty(folder: Path) -> Callable[[Any], Any]:
    """A model without outputs."""
    return lambda rows: {}


def nested(folder: Path) -> Callable[[Any], Any]:
    """A model that returns a tuple inside a tuple."""
    return lambda rows: (rows, (rows, rows))


def leave(folder: Path) -> Any:
    """A loader that ends the program."""
    sys.exit(3)


def numbered(folder: Path) -> Callable[[Any], Any]:
    """A model whose output has a number for a name."""
    return lambda rows: {0: rows}


def repeat(folder: Path) -> Callable[[Any], Any]:
    """A model that repeats the last row, unless it is zero."""
    return lambda rows: np.concatenate([rows, rows[-1:]]) if rows.any() else rows
