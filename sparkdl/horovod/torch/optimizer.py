"""Runs in the training process. Horovod's optimizers for PyTorch."""

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from sparkdl.distribute.step_times import step_times
from sparkdl.errors import named_type
from sparkdl.horovod.process_sets import ProcessSet, global_process_set, own_ring
from sparkdl.horovod.reduction_ops import Adasum, Average, Sum
from sparkdl.horovod.torch.async_collectives import allreduce_async, grouped_allreduce_async
from sparkdl.horovod.torch.compression import Compression
from sparkdl.horovod.torch.gradients import GradientReduction
from sparkdl.horovod.torch.handles import synchronize


class _Distributed:
    """The methods that `DistributedOptimizer` adds to an optimizer."""

    param_groups: list[Any]
    _reduction: GradientReduction
    _is_synchronized = False
    _synchronizes = True

    @property
    def backward_passes_per_step(self) -> int:
        """The number of backward passes whose gradients make up one step."""
        return self._reduction.passes

    @property
    def process_set(self) -> ProcessSet:
        """The ranks that take part."""
        return self._reduction.process_set

    @property
    def _parameter_names(self) -> dict[Any, str]:
        return self._reduction.names

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a DistributedOptimizer cannot be copied or pickled: it takes part in collectives. "
            "Copy or save optimizer.state_dict()."
        )

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change the number of backward passes whose gradients make up one step.

        Args:
            passes: the number.
        """
        self._reduction.set_passes(passes)

    def synchronize(self) -> None:
        """Wait until the gradients of all parameters are reduced, before they are clipped.

        Call `step` in the block of `skip_synchronize` then.

        Raises:
            RuntimeError: if the optimizer trains parameters that it did not at the beginning.
        """
        self._reduce()
        self._is_synchronized = True

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Let `step` in the block apply the gradients as they are, after `synchronize`."""
        self._synchronizes = False
        try:
            yield
        finally:
            self._synchronizes = True

    def step(self, closure: Any = None) -> Any:
        """Reduce the gradients, and apply them.

        Args:
            closure: function that computes the gradients and returns the loss. They are reduced
                after each call. L-BFGS compares losses, which are reduced as the gradients are.

        Raises:
            RuntimeError: see `synchronize`.
        """
        if self._synchronizes:
            if self._is_synchronized:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() after "
                    "optimizer.synchronize(): the gradients are reduced twice. Call step() in the "
                    "block of skip_synchronize().",
                    stacklevel=2,
                )
            if closure is None:
                self.synchronize()
            else:
                closure = self._reducing(closure)
        self._is_synchronized = False
        return super().step(closure)  # type: ignore[misc]

    # The method of the optimizer calls the hooks, after gradients were reduced.
    step.hooked = True  # type: ignore[attr-defined]

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Forget the gradients.

        Args:
            *args, **kwargs: see the method of the optimizer.

        Raises:
            AssertionError: between `backward` and `step`: the gradients are being reduced.
        """
        if self._reduction.is_pending:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() and before "
                "optimizer.step() or optimizer.synchronize(), while gradients are being reduced. "
                "Call it before loss.backward()."
            )
        super().zero_grad(*args, **kwargs)  # type: ignore[misc]

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Load a state, and forget gradients that are being reduced.

        Args:
            *args, **kwargs: see the method of the optimizer.
        """
        self._reduction.reset()
        self._is_synchronized, self._synchronizes = False, True
        groups = self.param_groups
        super().load_state_dict(*args, **kwargs)  # type: ignore[misc]
        # A scheduler may have the optimizer from which this one was made, with the same groups.
        for group, loaded in zip(groups, [*map(dict, self.param_groups)], strict=True):
            group.clear()
            group.update(loaded)
        self.param_groups = groups

    def _reducing(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Return a closure after whose calls the gradients are reduced."""

        def reduced() -> Any:
            loss = closure()
            self._reduce()
            if isinstance(self, torch.optim.LBFGS) and not self._reduction.is_alone:
                # All ranks must call the closure as often.
                value = torch.tensor(float(loss), dtype=torch.float64)
                name = f"loss.{next(iter(self._parameter_names.values()))}"
                options = self._reduction.op, 1.0, 1.0, self._reduction.process_set
                loss = synchronize(allreduce_async(value, None, name, *options))
            return loss

        return reduced

    def _reduce(self) -> None:
        self._check_parameters()
        self._reduction.finish()

    def _check_parameters(self) -> None:
        trained = self._reduction.parameters
        every = [p for group in self.param_groups for p in group["params"]]
        new = [list(p.shape) for p in every if p.requires_grad and p not in trained]
        if new and not self._reduction.is_alone:
            raise RuntimeError(
                f"the optimizer has parameters of the shapes {new} that it did not train when "
                "hvd.DistributedOptimizer was called, so that their gradients are not reduced. "
                "Call it after requires_grad_() and add_param_group()."
            )


class _WithAdasum(_Distributed):
    """Combines the updates of the ranks, each made with the gradients of one rank, by Adasum."""

    _compression: Any

    def synchronize(self) -> None:
        """Do nothing: updates are combined, not gradients."""

    def step(self, closure: Any = None) -> Any:
        """Make the update of this rank, and combine it with those of the other ranks.

        Args:
            closure: see the method of the optimizer.
        """
        self._check_parameters()
        parameters = [p for p in self._reduction.parameters if p.requires_grad]
        starts = [p.detach().clone() for p in parameters]
        loss = super(_Distributed, self).step(closure)  # type: ignore[misc]
        if not parameters:
            return loss
        updates = [p.detach() - start for p, start in zip(parameters, starts, strict=True)]
        sent, contexts = zip(*map(self._compression.compress, updates), strict=True)
        step_times().begin_step()
        combined = synchronize(grouped_allreduce_async(sent, op=Adasum))
        for p, start, update, ctx in zip(parameters, starts, combined, contexts, strict=True):
            p.detach().copy_(start + self._compression.decompress(update, ctx))
        self._reduction.reset()
        return loss

    step.hooked = True  # type: ignore[attr-defined]


def DistributedOptimizer(
    optimizer: Any,
    named_parameters: Iterable[tuple[str, Any]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: str = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Make an optimizer that averages its gradients over all ranks.

    A gradient is reduced as soon as `backward` has computed it; `step` waits for all of them. To
    clip gradients, call `optimizer.synchronize()`, clip them, and call `step` in the block of
    `with optimizer.skip_synchronize()`.

    Args:
        optimizer: an optimizer of `torch.optim`, whose parameters and state the new one shares.
        named_parameters: `model.named_parameters()`; by default parameters are numbered.
        compression: an attribute of `Compression`.
        backward_passes_per_step: number of backward passes whose gradients are added up for a step.
        op: `Average`, `Sum`, or `Adasum`, which combines the updates of a power of two of ranks.
        gradient_predivide_factor: gradients are divided by it before they are summed up, and
            multiplied by it afterwards, which avoids overflows of float16; for `Average`.
        num_groups: older form of `groups`.
        groups: lists of parameters whose gradients travel together, or the number of such groups.
        sparse_as_dense: convert sparse gradients to dense ones while they travel.
        process_set: the ranks that take part; others keep their own gradients.

    Returns:
        An optimizer of a subclass of the class of `optimizer`.

    Raises:
        ValueError: if an argument is invalid or not supported.

    Example:
        >>> import torch, sparkdl.horovod.torch as hvd
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.5 * hvd.size())
        >>> optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        >>> model(torch.ones(1, 2)).sum().backward()
        >>> optimizer.step()
    """
    _check(op, gradient_predivide_factor, backward_passes_per_step)
    if num_groups and groups is None:
        warnings.warn("num_groups is deprecated; use groups.", DeprecationWarning, stacklevel=2)
        groups = num_groups
    if isinstance(optimizer, _Distributed):
        raise ValueError(
            "DistributedOptimizer got a DistributedOptimizer; expected an optimizer of "
            "torch.optim. Call it once."
        )
    combines = op == Adasum and not own_ring(process_set).is_alone
    if combines:
        _check_adasum(process_set)
    reduction = GradientReduction(
        _names_of(optimizer, named_parameters),
        compression,
        backward_passes_per_step,
        Sum if combines else op,
        float(gradient_predivide_factor),
        groups,
        sparse_as_dense,
        process_set,
    )
    bases = (_WithAdasum if combines else _Distributed, type(optimizer))
    distributed: Any = object.__new__(type(type(optimizer).__name__, bases, {}))
    # A scheduler of the learning rate has wrapped the method in an attribute.
    vars(distributed).update({k: v for k, v in vars(optimizer).items() if k != "step"})
    distributed._reduction, distributed._compression = reduction, compression
    distributed.op = op
    if not combines:
        reduction.listen()
    return distributed


def _check(op: str, predivide_factor: float, passes: int) -> None:
    if op not in (Average, Sum, Adasum):
        raise ValueError(f"op is {op!r}; expected hvd.Average, hvd.Sum or hvd.Adasum.")
    if predivide_factor != 1.0 and op != Average:
        raise ValueError(
            f"gradient_predivide_factor is {predivide_factor!r} with op={op!r}; expected "
            "hvd.Average."
        )
    if passes < 1:
        raise ValueError(f"backward_passes_per_step is {passes!r}; expected a number from 1.")


def _check_adasum(process_set: ProcessSet) -> None:
    if process_set is not global_process_set:
        raise NotImplementedError("op is hvd.Adasum with a process set; expected all ranks.")
    size = own_ring(process_set).size
    if size & (size - 1):
        raise ValueError(
            f"op is hvd.Adasum on {size} ranks; expected a power of two. Use hvd.Average."
        )


def _names_of(optimizer: Any, named_parameters: Iterable[tuple[str, Any]] | None) -> dict[Any, str]:
    """Return the names of the parameters of an optimizer.

    Raises:
        ValueError: if a parameter has no name, or two have the same.
    """
    groups = [group["params"] for group in optimizer.param_groups]
    if named_parameters is None:
        return {p: f"noname.{i}.{j}" for i, group in enumerate(groups) for j, p in enumerate(group)}
    pairs = list(named_parameters)
    if other := [each for each in pairs if not isinstance(each, tuple)]:
        raise ValueError(
            f"named_parameters has {named_type(other[0])}; expected pairs of a name and a "
            "parameter, as of model.named_parameters()."
        )
    counted = [name for name, _ in pairs]
    if twice := sorted({name for name in counted if counted.count(name) > 1}):
        raise ValueError(f"named_parameters has the names {twice} twice; expected unique names.")
    names = {parameter: name for name, parameter in pairs}
    if missing := [p for group in groups for p in group if p not in names]:
        shapes = [list(p.shape) for p in missing if isinstance(p, torch.Tensor)]
        raise ValueError(
            f"named_parameters lacks parameters of the optimizer, of the shapes {shapes}; expected "
            "all of them, as of model.named_parameters()."
        )
    # The names may be those of a model of which other optimizers train other parts.
    return {p: names[p] for group in groups for p in group}
