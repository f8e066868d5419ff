"""Programs for the ranks of an elastic gang, see `test_elastic_ring`."""

import time
from pathlib import Path
from typing import Any

DOOMED = 2


def _cut_short(folder: Path, call: Any, blocks: int, before: int = 0) -> Any:
    """Return a rank's result of a collective in which the doomed rank stops after some blocks.

    Args:
        folder: folder for the mark that the doomed rank hangs.
        call: the collective.
        blocks: number of blocks that the doomed rank sends.
        before: number of exchanges that the doomed rank completes first.
    """
    import numpy as np

    from sparkdl.distribute.elastic_ring import ElasticRing
    from sparkdl.distribute.world import ring

    world = ring()
    assert isinstance(world, ElasticRing)
    world.barrier()
    if world.rank == DOOMED:
        assert world._ring and world._ring._links
        exchange, made = world._ring._links.exchange, list[int]()

        def stops(sends: Any, receives: Any, ready: int, arrived: Any, lag: int = 0) -> None:
            made.append(ready)
            if len(made) > before:
                exchange(sends[:blocks], [], blocks, arrived)
                Path(folder, f"hangs-{DOOMED}").touch()
                time.sleep(60)
            exchange(sends, receives, ready, arrived, lag)

        world._ring._links.exchange = stops  # type: ignore[method-assign]
    told = [np.asarray(one).astype("f8") for one in call(world)]
    later = world.allreduce(np.arange(5.0) + world.members[world.rank], "sum")
    return [[float(one.sum()) for one in told], [one.size for one in told], later.tolist()]


def cut_short_short(folder: Path) -> Any:
    import numpy as np

    def call(world: Any) -> Any:
        out = np.empty(9)
        total = world.allreduce(np.arange(9.0) + world.rank, "sum", out).copy()
        out[...] = -1  # TensorFlow may write into the memory of a result.
        return [total]

    return _cut_short(folder, call, 1)


def cut_short_allreduce(folder: Path) -> Any:
    import numpy as np

    return _cut_short(folder, lambda w: [w.allreduce(np.full(900_000, w.rank + 1.0))], 3)


def cut_short_broadcast(folder: Path) -> Any:
    import numpy as np

    call = lambda w: [w.broadcast(np.full(900_000, w.rank + 1.0), 1)]  # noqa: E731
    return _cut_short(folder, call, 0, before=1)


def cut_short_allgather(folder: Path) -> Any:
    import numpy as np

    call = lambda w: w.allgather(np.full((w.rank + 1, 9), w.rank + 1.0))  # noqa: E731
    return _cut_short(folder, call, 2, before=1)


def cut_short_agreement(folder: Path) -> Any:
    import numpy as np

    from sparkdl.horovod.arrays import Reduction

    call = lambda w: Reduction("mean")(w, np.full(3, 5))  # noqa: E731
    return _cut_short(folder, call, 2, before=1)


def broadcasts_in_turn(folder: Path) -> Any:
    """The doomed rank passes nothing on, so that its neighbours could be two results apart."""
    import numpy as np

    from sparkdl.distribute.world import ring

    world = ring()
    world.barrier()
    if world.rank == DOOMED:
        Path(folder, f"hangs-{DOOMED}").touch()
        time.sleep(60)
    told = [world.broadcast(np.full(2, value * (world.rank == 0))) for value in (5.0, 7.0, 9.0)]
    return [each.tolist() for each in told]


class Total:
    """A variable with the methods that a ring uses."""

    def __init__(self) -> None:
        import numpy as np

        self.value = np.zeros(3)

    def numpy(self) -> Any:
        return self.value

    def assign(self, value: Any) -> None:
        self.value = value


def comes_late(folder: Path) -> Any:
    """Ranks count together, and give their state to ranks that join later."""
    from sparkdl import context, distribute
    from sparkdl.distribute.elastic_ring import ElasticRing
    from sparkdl.distribute.world import ring

    world, total, number, refused = ring(), Total(), 0, ""
    assert isinstance(world, ElasticRing)
    if world.is_late:
        try:
            distribute.barrier()
        except RuntimeError as exc:
            refused = str(exc)
        world.meet()
        number = world.share([total], None)
    while not distribute.allreduce(int(Path(folder, "stop").exists()), "max"):
        if distribute.allreduce(int(world.is_awaited), "max") and world.meet():
            world.share([total], number)
            continue
        total.assign(total.numpy() + distribute.allreduce(1.0, "max"))
        number += 1
        Path(folder, f"{'late' if refused else 'step'}-{context.rank}").write_text(f"{number}")
        time.sleep(0.01)
    return [number, total.numpy().tolist(), world.size, refused, context.current().is_chief]


def comes_late_in_rounds(folder: Path) -> Any:
    """As `comes_late`, of ranks that have further connections after two collectives."""
    from sparkdl.distribute import ring_calls
    from sparkdl.distribute.elastic_ring import ElasticRing
    from sparkdl.distribute.world import ring

    ring_calls.NUM_CALLS_BEFORE_STRIDES = 2
    ring_calls.longest_in_rounds = lambda nodes: 1 << 20
    result = comes_late(folder)
    world = ring()
    assert isinstance(world, ElasticRing) and world._ring
    return [*result, world._ring._strides is not None]
