"""Programs whose ranks would call collectives in different orders by themselves."""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def delayed(tensor: Any, is_slow: bool) -> Any:
    """A tensor that one rank has later than the others."""
    import tensorflow as tf

    def wait(array: Any) -> Any:
        time.sleep(0.02 * is_slow)
        return array

    return tf.ensure_shape(tf.numpy_function(wait, [tensor], tf.float32, False), tensor.shape)


def nested(rank: int) -> Any:
    """A call, a branch and a loop with a variable, and collectives of another shape after them."""
    import tensorflow as tf

    import sparkdl.horovod.tensorflow as hvd
    from sparkdl import distribute

    variable, x = tf.Variable([1.0] * 4), tf.ones([4])

    def reduced(tensor: Any) -> Any:
        variable.assign_add(tensor * 0)
        return hvd.allreduce(delayed(tensor, rank == 0), op=hvd.Sum)

    @tf.function
    def looped() -> Any:
        total = x
        for _ in tf.range(2):
            variable.assign_add(x * 0)
            total = hvd.allreduce(delayed(x, rank == 0), op=hvd.Sum)
        return total

    @tf.function
    def gradient() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable * delayed(x, rank == 0))
        return hvd.DistributedGradientTape(tape, op=hvd.Sum).gradient(loss, variable)

    called = tf.function(reduced)
    kinds: dict[str, Callable[[], Any]] = {
        "call": lambda: called(x),
        "branch": lambda: tf.cond(variable[0] > 0, lambda: reduced(x), lambda: x),
        "loop": looped,
        "gradient": gradient,
    }

    def whole(kind: Callable[[], Any]) -> Any:
        first, number = kind(), tf.reduce_sum(x)
        return first, hvd.allreduce(number, op=hvd.Sum), distribute.allreduce(x[:2], "sum")

    steps = {name: tf.function(whole).get_concrete_function(kind) for name, kind in kinds.items()}
    got: dict[str, set[str]] = {name: set() for name in kinds}
    for name, step in steps.items():
        for _ in range(5):
            got[name].add(str([value.numpy().tolist() for value in step()]))
    return {name: sorted(values) for name, values in got.items()}


def sessions(rank: int) -> Any:
    """Two optimizers at once, and a graph with more collectives on rank 0."""
    import tensorflow as tf

    import sparkdl.horovod.tensorflow as hvd

    v1 = tf.compat.v1
    with tf.Graph().as_default():
        if rank == 0:
            hvd.allreduce(tf.ones([5]))  # A graph of its own.
    with tf.Graph().as_default():
        x, y = tf.constant([1.0, 2.0], name="x"), tf.constant([3.0], name="y")
        if rank == 0:
            hvd.allreduce(hvd.allreduce(x * 3))
        once = hvd.allreduce(x, op=hvd.Sum, compression=hvd.Compression.fp16)
        named = hvd.allreduce(y * (rank + 1), op=hvd.Sum, name="mine")
        part = hvd.reducescatter(x * 1 if rank else x, op=hvd.Sum, name="part")
        twice = hvd.allreduce(once, op=hvd.Sum)
        both = tf.gradients(twice, x)[0]
        branch = tf.cond(x[0] > 0, lambda: hvd.allreduce(x, op=hvd.Sum), lambda: x)
        weights, train = [], []
        for size in (3, 5):
            weights.append(v1.get_variable(f"w{size}", (size,), initializer=v1.zeros_initializer()))
            optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0))
            loss = tf.reduce_sum(weights[-1] * delayed(tf.ones([size]), (size == 3) == (rank == 0)))
            train.append(optimizer.minimize(loss, var_list=weights[-1:]))
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for _ in range(5):
                session.run(train)
            values = session.run([once, named, part, twice, both, branch, *weights])
    return [value.tolist() for value in values]


def errors(rank: int) -> Any:
    """A collective that other ranks lack, one in two threads, and a barrier on one rank only."""
    import tensorflow as tf

    import sparkdl.horovod.tensorflow as hvd
    from sparkdl.horovod import name_order

    told: dict[str, Any] = {}
    warnings: list[str] = []
    told_to_wait = threading.Event()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            warnings.append(record.getMessage())
            told_to_wait.set()

    handler, logger = Handler(), logging.getLogger("sparkdl.horovod")
    logger.addHandler(handler)
    order = name_order.order_of(hvd.global_process_set)
    with tf.Graph().as_default() as graph:
        total = hvd.allreduce(tf.ones([1]), op=hvd.Sum, name="all")
        more = hvd.allreduce(tf.ones([2]), op=hvd.Sum, name=f"only{rank}")
    session = tf.compat.v1.Session(graph=graph)  # Its end would wait for what waits in it.

    def run() -> None:
        with contextlib.suppress(tf.errors.OpError):
            session.run(more)

    order._timeout_s = 0.1
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    told["warned"] = told_to_wait.wait(30) and f"collective hvd_only{rank}" in warnings[0]
    order._timeout_s = 600.0
    try:
        session.run(more)
    except tf.errors.InvalidArgumentError as exc:
        told["threads"] = "was called while another one of this name" in str(exc)
    told["others"] = session.run(total).tolist()
    logger.removeHandler(handler)
    calls = [hvd.barrier, lambda: hvd.allreduce(tf.ones([2]))]
    for number in range(2):
        try:
            calls[(rank + number) % 2]()
        except (ValueError, tf.errors.FailedPreconditionError) as exc:
            told[f"barrier{number}"] = "do not call the same collectives" in str(exc)
    told["after"] = float(hvd.allreduce(tf.constant(1.0), op=hvd.Sum))
    told["ends"] = ends(rank, thread)
    return told


def ends(rank: int, thread: threading.Thread) -> Any:
    """Remove process sets, and leave, with a collective that still waits."""
    import tensorflow as tf

    import sparkdl.horovod.tensorflow as hvd

    def held() -> list[int]:
        for each in threading.enumerate():
            if each.name == "sparkdl collectives" and each.ident not in before:
                each.join(30)
        return [len(os.listdir("/proc/self/fd")), threading.active_count()]

    before = {each.ident for each in threading.enumerate()}
    counts = held()
    members = hvd.add_process_set([0])
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        if members.included():
            session.run(hvd.allreduce(tf.ones([1]), process_set=members))
    hvd.remove_process_set(members)
    told: dict[str, Any] = {"released": held() == counts}
    hvd.barrier()
    hvd.shutdown()
    thread.join(30)
    told["is"] = [hvd.is_initialized(), thread.is_alive()]
    for name, call in (("init", hvd.init), ("later", lambda: hvd.allreduce(tf.ones([1])))):
        try:
            call()
        except RuntimeError as exc:
            told[name] = "hvd.shutdown was called" in str(exc)
    return told


def threads(rank: int) -> Any:
    """Two threads call collectives of the same shape, which a rank must not mix with each other."""
    import tensorflow as tf

    import sparkdl.horovod.tensorflow as hvd

    told: list[float] = []

    def run() -> None:
        for _ in range(20):
            told.extend(hvd.allreduce(tf.ones([2]), op=hvd.Sum).numpy().tolist())

    both = [threading.Thread(target=run, daemon=True) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join(60)
    return [len(told), *set(told)]


def all_orders(folder: Path) -> Any:
    import sparkdl.horovod.tensorflow as hvd

    hvd.init()
    # The last one leaves the ring.
    return {part.__name__: part(hvd.rank()) for part in (nested, threads, sessions, errors)}
