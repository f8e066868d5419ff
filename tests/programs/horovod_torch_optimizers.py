"""Programs for Horovod's optimizers of PyTorch, for the gang of `horovod_torch.two_ranks`."""

from pathlib import Path
from typing import Any

from tests.programs.horovod_torch import error, one_weight


def schedules(folder: Path) -> Any:
    """Schedule the rate by the optimizer that the distributed one was made from."""
    import torch

    import sparkdl.horovod.torch as hvd

    rank = hvd.rank()
    weight = torch.nn.Parameter(torch.tensor([0.0]))
    plain = torch.optim.SGD([weight], 1.0 + rank)
    schedule = torch.optim.lr_scheduler.ExponentialLR(plain, 0.5)
    plain.param_groups[0]["dtype"] = torch.float64 if rank else torch.float16
    plain.param_groups[0]["function"] = (lambda x: 0) if rank else (lambda x: x * x)
    optimizer = hvd.DistributedOptimizer(plain)
    told: dict[str, Any] = {}

    def step() -> Any:
        weight.grad = torch.ones(1)
        optimizer.step()
        schedule.step()
        group = optimizer.param_groups[0]
        return [group["lr"], str(group["dtype"]), group["function"](3)]

    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    told["broadcast"] = step()
    optimizer.load_state_dict(optimizer.state_dict())
    told["loaded"] = step()
    return told | {"weight": weight.item()}


def states(folder: Path) -> Any:
    """Broadcast a state in other dtypes than that of its parameter."""
    import torch

    import sparkdl.horovod.torch as hvd

    parameter = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    optimizer = torch.optim.Adam([parameter])
    if hvd.rank() == 0:
        optimizer.state[parameter] = {
            "step": torch.tensor(3.0),
            "exp_avg": torch.full((2,), 2.0),
            "history": [torch.ones(1, dtype=torch.float64)],
        }
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    state = optimizer.state[parameter]
    found = [state["step"], state["exp_avg"], state["history"][0]]
    return [[each.tolist(), str(each.dtype)] for each in found]


def parts(folder: Path) -> Any:
    """Train two parts of a model by an optimizer each, and parameters that come later."""
    import torch

    import sparkdl.horovod.torch as hvd

    factor = hvd.rank() + 1.0
    model = torch.nn.ParameterDict({name: torch.zeros(1) for name in ("a", "b", "c")})
    optimizers = [
        hvd.DistributedOptimizer(
            torch.optim.SGD([model[name]], 1.0), model.named_parameters(), op=hvd.Sum
        )
        for name in ("a", "b")
    ]
    (factor * (model["a"] + model["b"])).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
    told = {"both": [-model[name].item() for name in ("a", "b")], "other": model["c"].grad}
    frozen = torch.nn.Parameter(torch.zeros(1), requires_grad=False)
    later = hvd.DistributedOptimizer(torch.optim.SGD([frozen], 1.0))
    frozen.requires_grad_()
    optimizers[0].add_param_group({"params": [model["c"]]})
    told["new"] = [error(each.step)[0] for each in (later, optimizers[0])]
    return told


def closures(folder: Path) -> Any:
    """Step with closures, once and as often as L-BFGS wants to."""
    import torch

    import sparkdl.horovod.torch as hvd

    rank = hvd.rank()
    weight = torch.nn.Parameter(torch.zeros(500_000))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], 1.0))

    def once() -> Any:
        optimizer.zero_grad()
        loss = (weight * (rank + 1)).sum()
        loss.backward()
        return loss

    optimizer.step(once)
    told: dict[str, Any] = {"sgd": [weight[0].item(), weight[-1].item()]}
    place = torch.nn.Parameter(torch.tensor([3.0]))
    searcher = hvd.DistributedOptimizer(torch.optim.LBFGS([place], 0.5, max_iter=30))
    losses = []

    def often() -> Any:
        searcher.zero_grad()
        loss = ((place - 2.0 * rank) ** 4).sum()
        loss.backward()
        losses.append(loss.item())
        return loss

    told["losses"] = [searcher.step(often).item() for _ in range(3)]
    return told | {"lbfgs": place.item(), "calls": len(losses)}


def hooks(folder: Path) -> Any:
    """Return what the hooks of a step have seen, after a state was loaded."""
    import sparkdl.horovod.torch as hvd

    weight, optimizer = one_weight(0.0)
    seen: list[Any] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(["pre", weight.grad.item()]))
    optimizer.register_step_post_hook(lambda *_: seen.append(["post", weight.grad.item()]))
    optimizer.load_state_dict(optimizer.state_dict())
    (weight * (hvd.rank() + 1)).sum().backward()
    optimizer.step()
    return seen


def forgotten(folder: Path) -> Any:
    """Load a state, or reset a gradient, while gradients are being reduced."""
    import torch

    import sparkdl.horovod.torch as hvd

    weight = torch.nn.Parameter(torch.zeros(200_000))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], 1.0))
    reduced = []
    for _ in range(5):
        (weight * (hvd.rank() + 1)).sum().backward()
        optimizer.load_state_dict(optimizer.state_dict())
        reduced.append(weight.grad[-1].item())
        optimizer.zero_grad()
    (weight * (hvd.rank() + 1)).sum().backward()
    optimizer.step()
    other, other_optimizer = one_weight(0.0)
    (other * (hvd.rank() + 1)).sum().backward()
    other.grad = None
    other_optimizer.step()
    return {"reduced": reduced, "weight": weight[0].item(), "reset": other.item()}


def failed(folder: Path) -> Any:
    """Step again after an error of a compression, and copy an optimizer."""
    import copy

    import torch

    import sparkdl.horovod.torch as hvd

    class Fails(hvd.Compression.none):  # type: ignore[misc, name-defined]
        calls = 0

        @classmethod
        def decompress(cls, tensor: Any, ctx: Any) -> Any:
            cls.calls += 1
            if cls.calls == 1:
                raise ZeroDivisionError
            return tensor

    parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    optimizer = torch.optim.SGD(parameters, 1.0)
    optimizer = hvd.DistributedOptimizer(optimizer, compression=Fails)
    told: list[Any] = []
    for step in range(2):
        optimizer.zero_grad()
        sum((p * (hvd.rank() + 1)).sum() for p in parameters).backward()
        if step:
            optimizer.step()
        else:
            told += error(optimizer.step)[:1]
    told.append([p.item() for p in parameters])
    told += error(lambda: copy.deepcopy(optimizer))[:1]
    # The hooks of an optimizer go with it.
    optimizer = None
    again = hvd.DistributedOptimizer(torch.optim.SGD(parameters, 1.0))
    again.zero_grad()
    (parameters[0] * (hvd.rank() + 1)).sum().backward()
    again.step()
    return [*told, parameters[0].item()]


def unused_rows(folder: Path) -> Any:
    """Let rank 1 use no row, in the first step and in a later one."""
    import torch

    import sparkdl.horovod.torch as hvd

    table = torch.nn.Embedding(2, 1, sparse=True)
    torch.nn.init.zeros_(table.weight)
    optimizer = torch.optim.SGD(table.parameters(), 1.0)
    optimizer = hvd.DistributedOptimizer(optimizer, table.named_parameters())
    told: list[Any] = []
    for users in ([0], [0, 1], [0]):
        optimizer.zero_grad()
        if hvd.rank() in users:
            rows = [0] if users == [0] else [0, hvd.rank()]
            table(torch.tensor(rows)).sum().backward()
        failed = error(optimizer.step)[:1]
        told.append(failed or table.weight.detach().ravel().tolist())
    return told


def values(folder: Path) -> Any:
    """Collectives of tensors and arguments of kinds that are rare."""
    import numpy as np
    import torch

    import sparkdl.horovod.torch as hvd

    rank, ones = hvd.rank(), torch.ones(1)
    rows, counts = hvd.alltoall(torch.arange(2.0) * (1 - rank), splits=np.array([1, 1]))
    rows = hvd.broadcast(rows, root_rank=0)
    factors = np.float32(2), torch.tensor(2.0)
    turned = torch.full((1,), 1 + 1j, dtype=torch.complex64, requires_grad=True)
    averaged = hvd.allreduce(turned.conj())
    counted = hvd.sparse_allreduce_async(torch.tensor([0, 3]).to_sparse(), "i", hvd.Sum)()
    frozen = torch.nn.Parameter(ones.clone(), requires_grad=False)
    pair = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    shared = hvd.DistributedOptimizer(torch.optim.SGD(pair, 1.0), op=hvd.Sum)
    pair[0].grad = torch.full((2,), 2.0)
    pair[1].grad = pair[0].grad.view(2)
    shared.synchronize()
    with torch.inference_mode():
        inference = hvd.allreduce_(torch.ones(1), op=hvd.Sum).item()
    needed, factor = torch.ones(1, requires_grad=True), ones.clone()
    product = (needed * factor).sum()
    hvd.allreduce_(factor)
    return {
        "splits": [rows.tolist(), counts.tolist()],
        "factors": [hvd.allreduce(ones, prescale_factor=f, op=hvd.Sum).item() for f in factors],
        "conjugate": [
            torch.view_as_real(averaged.detach()).ravel().tolist(),
            averaged.requires_grad,
        ],
        "nothing": [*hvd.grouped_allgather([]), *hvd.grouped_allreduce([])],
        "generator": [t.item() for t in hvd.grouped_allreduce(ones * n for n in (2, 4))],
        "integers": [str(counted.dtype), counted.to_dense().tolist()],
        "kind": type(hvd.synchronize(hvd.grouped_allreduce_async([ones]))).__name__,
        "frozen": type(hvd.DistributedOptimizer(torch.optim.SGD([frozen], 1.0), groups=2)).__name__,
        "shared": [p.grad.tolist() for p in pair],
        "inference": inference,
        "changed": error(product.backward)[:1],
    }
