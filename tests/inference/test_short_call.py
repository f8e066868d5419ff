"""A compiled function gives the same, called in the short way and as TensorFlow calls it."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from sparkdl.inference.short_call import short_call

RAGGED = tf.RaggedTensorSpec([None, None], tf.float32, 1)
ROWS = tf.TensorSpec([None, 3], tf.float32)
TEXTS = tf.TensorSpec([None], tf.string)


def looked_up() -> Callable[[Any], Any]:
    pairs = tf.lookup.KeyValueTensorInitializer(["a", "b"], [1, 2])
    table = tf.lookup.StaticHashTable(pairs, -1)
    return lambda texts: table.lookup(texts)


def dense() -> Callable[[Any], Any]:
    weights = tf.Variable(np.random.default_rng(0).random((3, 5), "float32"))
    return lambda x: tf.tanh(x @ weights)


CASES: dict[str, tuple[Callable[[], Callable[..., Any]], list[Any], list[Any]]] = {
    "dense": (dense, [ROWS], [tf.random.stateless_uniform((7, 3), (1, 2))]),
    "no rows": (dense, [ROWS], [tf.zeros((0, 3))]),
    "a dict": (lambda: lambda x: {"z": x + 1, "a": (x, [2 * x])}, [ROWS], [tf.ones((2, 3))]),
    "two inputs": (lambda: lambda x, y: [x - 1, y], [ROWS, TEXTS], [tf.ones((1, 3)), ["é"]]),
    "ragged": (
        lambda: lambda r: (r * 2, tf.reduce_sum(r, 1)),
        [RAGGED],
        [tf.ragged.constant([[1.0, 2.0], [], [3.0]])],
    ),
    "texts": (looked_up, [TEXTS], [tf.constant(["b", "", "a"])]),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_results_are_those_of_the_function(case: str) -> None:
    make, specs, arguments = CASES[case]
    arguments = [tf.constant(each) if isinstance(each, list) else each for each in arguments]
    compiled = tf.function(make()).get_concrete_function(*specs)
    results = compiled(*arguments), short_call(compiled)(*arguments)
    tf.nest.assert_same_structure(*results, expand_composites=True)
    expected, found = (tf.nest.flatten(each, expand_composites=True) for each in results)
    for left, right in zip(expected, found, strict=True):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left.numpy(), right.numpy())


# In a process of its own: what other tests have left to collect would count.
DROPPED = """
import gc, resource
from pathlib import Path
import numpy as np, tensorflow as tf
from sparkdl.inference.short_call import short_call

def use_one():
    constant = np.full(5_000_000, 2, "float32")
    function = tf.function(lambda x: x + tf.reduce_sum(constant))
    spec = tf.TensorSpec([None], tf.float32)
    assert short_call(function.get_concrete_function(spec))(tf.ones(1)).numpy() == 1 + 1e7

def memory_mb():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6

use_one()
before = memory_mb()
for _ in range(16):
    use_one()
print(memory_mb() - before)
"""


@pytest.mark.slow
def test_functions_that_are_dropped_leave_no_memory() -> None:
    command = [sys.executable, "-c", DROPPED]
    grown_mb = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    assert float(grown_mb) < 100


@pytest.mark.slow
def test_changed_variables_and_errors_of_operations_are_seen() -> None:
    weights = tf.Variable([[1.0], [2.0], [3.0]])
    compiled = tf.function(lambda x: x @ weights).get_concrete_function(
        tf.TensorSpec([None, None], tf.float32)
    )
    call = short_call(compiled)
    weights.assign(weights * 10)
    assert call(tf.ones((1, 3))).numpy().tolist() == [[60.0]]
    messages = []
    for function in (compiled, call):
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            function(tf.ones((1, 2)))
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
