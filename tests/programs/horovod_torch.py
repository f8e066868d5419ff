"""Programs as users write them for Horovod and PyTorch, with only their imports changed."""

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.programs.ring import ROWS, STEPS, mine, rows


def start(**options: Any) -> None:
    import torch

    import sparkdl.horovod.torch as hvd

    torch.set_num_threads(1)
    hvd.init(**options)


def small(seed: int) -> Any:
    import torch

    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))


def digest(*states: Any) -> str:
    """Return a text that is equal for states with equal bits."""
    found = [plain(state.state_dict()) for state in states]
    return hashlib.sha256(repr(found).encode()).hexdigest()[:16]


def plain(value: Any) -> Any:
    """Return a state with lists in place of tensors."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value.tolist() if hasattr(value, "tolist") else value


def values(model: Any) -> list[float]:
    return [value for p in model.parameters() for value in p.detach().ravel().tolist()]


def train(**options: Any) -> Any:
    """Train on this rank's rows; ranks start from different weights and rates."""
    import torch

    import sparkdl.horovod.torch as hvd

    model = small(hvd.rank())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01 * (1 + hvd.rank()))
    if options.pop("named", True):
        options["named_parameters"] = model.named_parameters()
    optimizer = hvd.DistributedOptimizer(optimizer, **options)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    x, y = (torch.from_numpy(mine(part)) for part in rows())
    each = ROWS // hvd.size()
    for step in range(STEPS):
        batch = slice(step * each, (step + 1) * each)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x[batch]), y[batch])
        loss.backward()
        optimizer.step()
    return model, optimizer


def trained(folder: Path) -> Any:
    model, optimizer = train()
    return {"weights": values(model), "digest": digest(model, optimizer)}


def ways(folder: Path) -> Any:
    """Train with options that must not change the result, or hardly."""
    import sparkdl.horovod.torch as hvd

    options: dict[str, Any] = {
        "plain": {},
        "unnamed": {"named": False},
        "two groups": {"groups": 2},
        "predivided": {"gradient_predivide_factor": 4.0},
        "float16": {"compression": hvd.Compression.fp16},
        "bfloat16": {"compression": hvd.Compression.bf16},
    }
    return {name: values(train(**each)[0]) for name, each in options.items()}


def one_weight(weight: float, rate: float = 1.0, **options: Any) -> Any:
    """Return a parameter and an optimizer of it."""
    import torch

    import sparkdl.horovod.torch as hvd

    parameter = torch.nn.Parameter(torch.tensor([weight]))
    return parameter, hvd.DistributedOptimizer(torch.optim.SGD([parameter], rate), **options)


def steps(folder: Path) -> Any:
    """Steps of several backward passes, of clipped gradients, and of parameters not used by all."""
    import torch

    import sparkdl.horovod.torch as hvd

    told: dict[str, Any] = {}
    rank = hvd.rank()
    weight, optimizer = one_weight(0.0, backward_passes_per_step=2)
    for _ in range(2):
        (weight * (rank + 1)).sum().backward()
    optimizer.step()
    told["two passes"] = weight.item()
    optimizer.zero_grad()
    optimizer.set_backward_passes_per_step(1)
    (weight * (rank + 1)).sum().backward()
    told["pending"] = error(optimizer.zero_grad)
    optimizer.synchronize()
    told["gradient"] = weight.grad.item()
    weight.grad.clamp_(max=1.0)
    with optimizer.skip_synchronize():
        optimizer.step()
    told["clipped"] = weight.item()
    used, unused = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    both = hvd.DistributedOptimizer(torch.optim.SGD([used, unused], 1.0), op=hvd.Sum)
    ((used if rank else unused) * 3).sum().backward()
    both.step()
    told["unused"] = [used.tolist(), unused.tolist()]
    torn = torch.nn.Parameter(torch.zeros(1 + rank))
    parameters = [torch.nn.Parameter(torch.zeros(1)), torn, torch.nn.Parameter(torch.zeros(1))]
    torn_optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, 1.0))
    told["shapes"] = []
    for _ in range(2):
        sum(p.sum() for p in parameters).backward()
        told["shapes"] += error(torn_optimizer.step)[:1]
    weight.sum().backward()
    told["again"] = error(weight.sum().backward)
    optimizer.step()
    return told


def sparse(folder: Path) -> Any:
    """Embeddings whose gradients are rows."""
    import torch

    import sparkdl.horovod.torch as hvd

    told = []
    for as_dense in (False, True):
        table = torch.nn.Embedding(4, 1, sparse=True)
        torch.nn.init.zeros_(table.weight)
        optimizer = torch.optim.SGD(table.parameters(), 1.0)
        optimizer = hvd.DistributedOptimizer(
            optimizer, table.named_parameters(), sparse_as_dense=as_dense
        )
        table(torch.tensor([hvd.rank(), 3])).sum().backward()
        optimizer.step()
        told.append([table.weight.grad.is_sparse, table.weight.detach().ravel().tolist()])
    return told


def adasum(folder: Path) -> Any:
    """Equal updates are averaged, and those at right angles are added up."""
    import torch

    import sparkdl.horovod.torch as hvd

    told = []
    for gradient in ([1.0, 0.0], [1.0 - hvd.rank(), float(hvd.rank())]):
        weight = torch.nn.Parameter(torch.zeros(2))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], 1.0), op=hvd.Adasum)
        (weight * torch.tensor(gradient)).sum().backward()
        optimizer.step()
        told.append(weight.tolist())
    return told


def normalized(folder: Path) -> Any:
    """Return outputs, gradients and statistics of a normalization, and those of the joint batch."""
    import torch

    import sparkdl.horovod.torch as hvd

    torch.manual_seed(0)
    batch, factors = torch.randn(6, 3, 2), torch.randn(6, 3, 2)
    cut = slice(0, 2) if hvd.rank() == 0 else slice(2, 6)  # Ranks have batches of their own sizes.
    found = []
    for layer, part in ((hvd.SyncBatchNorm(3), cut), (torch.nn.BatchNorm1d(3), slice(0, 6))):
        x = batch.clone().requires_grad_()
        y = layer(x[part])
        (y * factors[part]).sum().backward()
        gradient = x.grad[part]
        both = y, gradient
        if part != cut:
            both = y[cut], gradient[cut]
        weights = layer.weight.grad if part != cut else hvd.allreduce(layer.weight.grad, op=hvd.Sum)
        found.append([*both, weights, layer.running_mean, layer.running_var])
    return [torch.allclose(a, b, atol=1e-5) for a, b in zip(*found, strict=True)]


def orders(folder: Path) -> Any:
    """Start named collectives in another order on each rank, and wait for them in another one."""
    import torch

    import sparkdl.horovod.torch as hvd

    rank, number = hvd.rank(), 6
    tensors = [torch.full((i + 1,), float(i * (rank + 1))) for i in range(number)]
    places = list(range(number))[:: -1 if rank else 1]
    handles = {i: hvd.allreduce_async_(tensors[i], name=str(i), op=hvd.Sum) for i in places}
    waiting = hvd.allreduce_async(torch.ones(1), name=f"only{rank}")
    twice = error(lambda: hvd.allreduce_async(torch.ones(1), name=f"only{rank}"))
    results = [hvd.synchronize(handles[i]) for i in places[::-1]]
    told = {
        "in place": all(results[::-1][k] is tensors[i] for k, i in enumerate(places)),
        "sums": [each[0].item() for each in tensors],
        "done": [hvd.poll(handles[0]), hvd.poll(waiting)],
        "twice": twice,
    }
    hvd.barrier()
    other = hvd.allreduce_async(torch.ones(1), name=f"only{1 - rank}")
    told["later"] = [hvd.synchronize(each).item() for each in (waiting, other)]
    return told


def objects(folder: Path) -> Any:
    import torch

    import sparkdl.horovod.torch as hvd

    rank = hvd.rank()
    tensors = {"half": torch.ones(2, dtype=torch.bfloat16) * rank, 0: [torch.tensor(rank), (1, 2)]}
    got = hvd.broadcast_object(tensors, root_rank=1)
    everyone = hvd.allgather_object({"rank": rank, "tensor": torch.tensor([rank])})
    return [
        [got["half"].tolist(), str(got["half"].dtype), got[0][0].item(), got[0][1] == (1, 2)],
        [[each["rank"], each["tensor"].tolist()] for each in everyone],
        error(lambda: hvd.broadcast_object(1 if rank else object(), root_rank=0)),
    ]


def error(call: Callable[[], Any]) -> list[str]:
    """Return the kinds of the error of a call."""
    try:
        call()
    except Exception as exc:
        return [kind.__name__ for kind in type(exc).__mro__ if not kind.__name__.startswith("_")]
    return []


def disagreements(folder: Path) -> Any:
    """Call collectives on which the ranks disagree, and one that works after each of them."""
    import torch

    import sparkdl.horovod.torch as hvd

    rank, size = hvd.rank(), hvd.size()
    zeros = torch.zeros
    calls: dict[str, Callable[[], Any]] = {
        "shape": lambda: hvd.allreduce(zeros(rank + 1)),
        "dtype": lambda: hvd.allgather(zeros(2, dtype=torch.int32 if rank else torch.float32)),
        "root": lambda: hvd.broadcast(zeros(2), root_rank=rank),
        "operation": lambda: hvd.allreduce(zeros(2), op=hvd.Max if rank else hvd.Sum),
        "call": lambda: hvd.allgather(zeros(2)) if rank else hvd.allreduce(zeros(2)),
        "barrier": lambda: hvd.barrier() if rank else hvd.allreduce(zeros(2)),
        "float8": lambda: hvd.allreduce(zeros(2, dtype=None if rank else torch.float8_e5m2)),
        "splits": lambda: hvd.alltoall(zeros(size), splits=[2 if rank else 1] * size),
        "number": lambda: hvd.reducescatter(torch.tensor(1.0)),
        "adasum": lambda: hvd.reducescatter(zeros(size), op=hvd.Adasum),
    }
    told = {}
    for name, call in calls.items():
        kinds = error(call)
        total = hvd.allreduce(torch.ones(1), op=hvd.Sum).item()
        told[name] = [kinds[0], "ValueError" in kinds, "PeerLostError" in kinds, total]
    return told


def refused(folder: Path) -> Any:
    """Return the errors of wrong arguments, which a rank notices by itself."""
    import torch

    import sparkdl.horovod.torch as hvd

    model, x = small(0), torch.ones(2)
    names = dict(model.named_parameters())
    weight = names["0.weight"]

    def wrap(named: Any = None, **options: Any) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        return hvd.DistributedOptimizer(optimizer, named, **options)

    calls: dict[str, Callable[[], Any]] = {
        "op is 'median'; expected": lambda: hvd.allreduce(x, op="median"),
        "op and average were given": lambda: hvd.allreduce(x, average=True, op=hvd.Sum),
        "was not added": lambda: hvd.allreduce(x, process_set=hvd.ProcessSet([0])),
        "root_rank is 5; expected": lambda: hvd.broadcast(x, root_rank=5),
        "expected integers": lambda: hvd.alltoall(x, splits=torch.ones(2)),
        "expected a dense tensor": lambda: hvd.allgather(x.to_sparse()),
        "got an int; expected the tensors": lambda: hvd.broadcast_parameters({"a": 1}, 0),
        "expected hvd.Average or hvd.Sum": lambda: hvd.sparse_allreduce_async(x, "x", hvd.Max),
        "op is 'max'; expected": lambda: wrap(op=hvd.Max),
        "expected a number from 1": lambda: wrap(backward_passes_per_step=0),
        "expected hvd.Average.": lambda: wrap(op=hvd.Sum, gradient_predivide_factor=2.0),
        "expected pairs of a name": lambda: wrap(model.parameters()),
        "['a'] twice": lambda: wrap([("a", p) for p in model.parameters()]),
        "lacks parameters of the optimizer": lambda: wrap([("a", weight)]),
        "groups is 0; expected": lambda: wrap(groups=0),
        "groups has an int": lambda: wrap(groups=[[1]]),
        "groups has a parameter twice": lambda: wrap(groups=[[weight], [weight]]),
        "at least two dimensions": lambda: hvd.SyncBatchNorm(2)(x),
        "expected an optimizer of torch.optim": lambda: hvd.DistributedOptimizer(wrap()),
    }
    wrong = []
    for part, call in calls.items():
        try:
            call()
        except ValueError as exc:
            wrong += [] if part in str(exc) else [f"{part}: {exc}"]
        else:
            wrong.append(part)
    return wrong


def two_ranks(folder: Path) -> Any:
    """Run the programs for two ranks in one gang."""
    from tests.programs import horovod_torch_optimizers as optimizers

    start()
    parts = [
        trained,
        ways,
        steps,
        sparse,
        adasum,
        normalized,
        orders,
        objects,
        disagreements,
        refused,
        optimizers.schedules,
        optimizers.states,
        optimizers.parts,
        optimizers.closures,
        optimizers.hooks,
        optimizers.forgotten,
        optimizers.failed,
        optimizers.unused_rows,
        optimizers.values,
    ]
    return {part.__name__: part(folder) for part in parts}


def alone(folder: Path) -> Any:

    start()
    return trained(folder)


def inputs(rank: int) -> Any:
    """The tensors of a rank for all collectives: twelve rows, and as many rows as its number."""
    import torch

    even = torch.arange(12.0)[:, None] * (rank + 1) + rank
    return even, torch.full((rank + 1, 2), float(rank))


def all_collectives(rank: int, size: int) -> Any:
    import torch

    import sparkdl.horovod.torch as hvd

    even, ragged = inputs(rank)
    received, counts = hvd.alltoall(even[: (rank + 1) * size], splits=[rank + 1] * size)
    short = even.to(torch.bfloat16)
    return {
        "product": hvd.allreduce(even, op=hvd.Product),
        "least": hvd.allreduce(even, op=hvd.Min),
        "scaled": hvd.allreduce(even, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0),
        "integers": hvd.allreduce(even.int()),
        "bfloat16": hvd.allreduce_(short, op=hvd.Max).float(),
        "transposed": hvd.allreduce_(even.clone().view(3, 4).t(), op=hvd.Sum),
        "compressed": hvd.allreduce(even, op=hvd.Sum, compression=hvd.Compression.fp16),
        "gathered": hvd.allgather(ragged),
        "grouped": torch.cat(hvd.grouped_allgather([ragged, ragged])),
        "rows": received,
        "counts": counts,
        "scattered": hvd.reducescatter(even, op=hvd.Sum),
        "scattered mean": hvd.grouped_reducescatter([even, even])[1],
        "broadcast": hvd.broadcast(even, root_rank=size - 1),
        "group": sum(hvd.grouped_allreduce([even, even], op=hvd.Sum)),
        "sparse": hvd.sparse_allreduce_async(even.to_sparse(), "sparse", hvd.Sum)().to_dense(),
        "boolean": hvd.allgather(torch.tensor([rank == 0])),
        "large": hvd.allreduce(torch.full((300_000,), float(rank)), op=hvd.Sum)[-3:],
    }


def expected(rank: int, size: int) -> Any:
    import numpy as np

    even = [inputs(other)[0].numpy() for other in range(size)]
    ragged = np.concatenate([inputs(other)[1].numpy() for other in range(size)])
    total = sum(even)
    parts = [even[o][rank * (o + 1) : (rank + 1) * (o + 1)] for o in range(size)]
    return {
        "product": np.prod(even, axis=0),
        "least": even[0],
        "scaled": total * 1.5,
        "integers": (sum(part.astype(int) for part in even) / size).astype(int),
        "bfloat16": even[-1],
        "transposed": total.reshape(3, 4).T,
        "compressed": total,
        "gathered": ragged,
        "grouped": np.concatenate([ragged, ragged]),
        "rows": np.concatenate(parts),
        "counts": [len(part) for part in parts],
        "scattered": np.array_split(total, size)[rank],
        "scattered mean": np.array_split(total, size)[rank] / size,
        "broadcast": even[-1],
        "group": total * 2,
        "sparse": total,
        "boolean": [other == 0 for other in range(size)],
        "large": [float(sum(range(size)))] * 3,
    }


def gradients(rank: int, size: int) -> Any:
    """Return the gradient of each collective with respect to its tensor."""
    import torch

    import sparkdl.horovod.torch as hvd

    def of(call: Callable[[Any], Any], length: int) -> list[float]:
        x = torch.ones(length, requires_grad=True)
        y = call(x)
        (y * (rank + 1.0) * torch.arange(1.0, len(y) + 1)).sum().backward()
        return list(x.grad.tolist())

    return {
        "allreduce": of(lambda x: hvd.allreduce(x, op=hvd.Sum), 1),
        "average": of(hvd.allreduce, 1),
        "allgather": of(hvd.allgather, rank + 1),
        "broadcast": of(lambda x: hvd.broadcast(x, root_rank=1), 1),
        "alltoall": of(lambda x: hvd.alltoall(x, splits=[1] * size)[0], size),
        "reducescatter": of(lambda x: hvd.reducescatter(x, op=hvd.Sum), size),
    }


def process_sets(ends: Any) -> Any:
    """A set of two of three ranks, added at the start, and one of one, added later."""
    import torch

    import sparkdl.horovod.torch as hvd

    middle = hvd.add_process_set([1])
    mine = ends if ends.included() else middle
    x = torch.tensor([1.0 + hvd.rank()])
    weight, optimizer = one_weight(0.0, process_set=ends)
    (weight * (hvd.rank() + 1.0) ** 2).sum().backward()
    optimizer.step()  # The middle keeps its gradient.
    return {
        "sum": hvd.allreduce(x, op=hvd.Sum, process_set=mine).item(),
        "last": hvd.broadcast(x, mine.ranks[-1], process_set=mine).item(),
        "objects": hvd.allgather_object(hvd.rank(), process_set=mine),
        "weight": weight.item(),
        "outside": error(lambda: hvd.allreduce(x, process_set=middle if mine is ends else ends)),
        "removed": [hvd.remove_process_set(middle), hvd.remove_process_set(middle)],
        "all": hvd.allreduce(x, op=hvd.Sum).item(),
    }


def joins(rank: int) -> Any:
    """Train rank r for 2 + r steps; a rank without further steps contributes zeros."""
    import torch

    import sparkdl.horovod.torch as hvd

    weight, optimizer = one_weight(0.0)
    for _ in range(2 + rank):
        optimizer.zero_grad()
        (weight * float(hvd.size())).sum().backward()
        optimizer.step()
        hvd.allreduce(torch.tensor(1), op=hvd.Sum)
    failed = error(lambda: hvd.allgather(torch.ones(1))) if rank == 2 else []
    last = hvd.join()
    return {
        "last": last,
        "weight": hvd.broadcast(weight.detach(), root_rank=last).item(),
        "failed": failed,
        "after": hvd.allreduce(torch.ones(1), op=hvd.Sum).item(),
    }


def three_ranks(folder: Path) -> Any:
    import numpy as np

    import sparkdl.horovod.torch as hvd

    ends = hvd.ProcessSet([0, 2])
    start(process_sets=[ends])
    rank, size = hvd.rank(), hvd.size()
    got, right = all_collectives(rank, size), expected(rank, size)
    return {
        "wrong": [
            f"{name}: {value.tolist()}"
            for name, value in got.items()
            if not np.allclose(value.numpy(), right[name], rtol=1e-5)
        ],
        "gradients": gradients(rank, size),
        "adasum": error(lambda: one_weight(0.0, op=hvd.Adasum)),
        "process_sets": process_sets(ends),
        "joins": joins(rank),
    }


def dies(folder: Path) -> Any:
    """Rank 1 ends without a word; the others get an error from each kind of collective."""
    import os

    import torch

    import sparkdl.horovod.torch as hvd

    start()
    hvd.barrier()
    if hvd.rank() == 1:
        os._exit(7)
    weight, optimizer = one_weight(0.0)
    x, begun = torch.ones(hvd.size()), time.monotonic()
    handle = hvd.allreduce_async(x)
    weight.sum().backward()
    calls: list[Callable[[], Any]] = [
        lambda: hvd.synchronize(handle),
        optimizer.step,
        lambda: hvd.alltoall(x),
        lambda: hvd.broadcast_object(1),
        hvd.barrier,
        hvd.join,
    ]
    kinds = [error(call) for call in calls]
    right = [{"HorovodInternalError", "PeerLostError"} <= set(each) for each in kinds]
    return {"right": right, "after_s": time.monotonic() - begun}


def elastic(folder: Path) -> Any:
    """Count the rows of two epochs; rank 2 dies in the middle, and begins again."""
    import os

    import torch

    import sparkdl.horovod.torch as hvd
    from sparkdl import context

    start()
    me = context.current()
    model = small(me.rank)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), 0.01), model.named_parameters()
    )
    sampler = hvd.elastic.ElasticSampler(range(24), shuffle=False)
    sizes: list[int] = []

    @hvd.elastic.run
    def train(state: Any) -> None:
        sizes.append(hvd.size())
        if len(sizes) == 1 and not me.is_late:
            hvd.join()  # The rank that begins again has not called it.
        for state.epoch in range(state.epoch, 2):  # noqa: B020
            for batch in torch.utils.data.DataLoader(range(24), batch_size=3, sampler=sampler):
                optimizer.zero_grad()
                model(torch.ones(len(batch), 8) * batch[:, None]).mean().backward()
                if me.rank == 2 and not me.is_late and state.epoch == 1:
                    os._exit(0)
                optimizer.step()
                rows = torch.stack([torch.full_like(batch, state.epoch), batch], 1)
                state.rows = [*state.rows, *hvd.allgather(rows).tolist()]
                sampler.record_batch(0, len(batch))
                state.commit()
                while len(sizes) == 2 and not me.is_late and hvd.size() == 2:
                    # The ranks that remain wait for the one that begins again.
                    time.sleep(0.01)
                    state.commit()
            sampler.set_epoch(state.epoch + 1)

    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, rows=[])
    train(state)
    return {
        "sizes": sizes,
        "rows": state.rows,
        "digest": digest(model, optimizer),
        "moved": digest(model) != digest(small(0)),
    }
