"""Runs in the training process. Reduce gradients of PyTorch as soon as they are computed."""

import contextlib
import weakref
from collections.abc import Iterator, KeysView, Mapping, Sequence
from typing import Any

import torch

from sparkdl.distribute.rows import row_slices
from sparkdl.distribute.step_times import step_times
from sparkdl.errors import named_type
from sparkdl.horovod.process_sets import ProcessSet, own_ring
from sparkdl.horovod.reduction_ops import Average
from sparkdl.horovod.torch.async_collectives import (
    grouped_allreduce_async_,
    sparse_allreduce_async,
)
from sparkdl.horovod.torch.handles import synchronize

_Group = tuple[Any, ...]


class GradientReduction:
    """Reduces the gradients of some parameters.

    Args:
        names: names of the parameters, by which the ranks find each other.
        compression, passes, op, predivide_factor, groups, sparse_as_dense, process_set: see
            `DistributedOptimizer`.

    Attributes:
        names, passes, op, process_set: see above.

    Raises:
        ValueError: if `groups` is invalid.
    """

    def __init__(
        self,
        names: Mapping[Any, str],
        compression: Any,
        passes: int,
        op: str,
        predivide_factor: float,
        groups: int | Sequence[Sequence[Any]] | None,
        sparse_as_dense: bool,
        process_set: ProcessSet,
    ) -> None:
        self.names = dict(names)
        self._compression = compression
        self.passes = passes
        self.op = op
        self._scales = (1 / predivide_factor, predivide_factor) if op == Average else (1.0, 1.0)
        self._sparse_as_dense = sparse_as_dense
        self.process_set = process_set
        self.is_alone = own_ring(process_set).is_alone
        parameters = [p for p in self.names if p.requires_grad]
        self._group_of = {p: group for group in _groups(parameters, groups) for p in group}
        self._running: dict[_Group, Any] = {}
        self._passes_left: dict[Any, int] = {}
        self._sparse_dims: dict[Any, int] = {}
        self._forget()

    @property
    def is_pending(self) -> bool:
        """True if gradients are being reduced."""
        return bool(self._running)

    @property
    def parameters(self) -> KeysView[Any]:
        """The parameters whose gradients are reduced."""
        return self._group_of.keys()

    def listen(self) -> None:
        """Reduce each gradient when it was computed, while this object lives."""
        this = weakref.ref(self)

        def computed(parameter: Any) -> None:
            reduction = this()
            if reduction:
                reduction._computed(parameter)

        for parameter in self._group_of if not self.is_alone else ():
            hook = parameter.register_post_accumulate_grad_hook(computed)
            weakref.finalize(self, hook.remove).atexit = False

    def set_passes(self, passes: int) -> None:
        """Change the number of backward passes, and begin to count."""
        self.passes = passes
        self._passes_left = dict.fromkeys(self._group_of, passes)

    def reset(self) -> None:
        """Wait for the gradients that are being reduced, forget them, and begin to count passes."""
        for wait in self._running.values():
            with contextlib.suppress(Exception):  # Also a failed one has ended.
                wait()
        self._forget()

    def finish(self) -> None:
        """Reduce the gradients that are not reduced yet, and wait for all.

        Gradients that were not computed count as zeros: other ranks may have computed them.
        """
        if self.is_alone:
            return
        groups = list(dict.fromkeys(self._group_of.values()))
        errors: list[Exception] = []
        try:
            _separate([p for group in groups if group not in self._running for p in group])
            for group in groups:
                if group not in self._running:
                    with _keep_error(errors):
                        self._start(group)
            for group, wait in self._running.items():
                with _keep_error(errors):
                    for parameter, gradient in zip(group, wait(), strict=True):
                        _assign(parameter, gradient)
            if errors:  # None waits any more, whose name the next step would need.
                raise errors[0]
        finally:
            errors.clear()
            self._forget()

    def _forget(self) -> None:
        self._running.clear()
        self.set_passes(self.passes)

    def _computed(self, parameter: Any) -> None:
        if not self._passes_left[parameter]:
            raise AssertionError(
                f"the gradient of {self.names[parameter]} was computed more than {self.passes} "
                "times before optimizer.step(); expected backward_passes_per_step times. Increase "
                "backward_passes_per_step to add up gradients of several batches."
            )
        self._passes_left[parameter] -= 1
        group = self._group_of[parameter]
        if not any(self._passes_left[each] for each in group):
            self._start(group)

    def _start(self, group: _Group) -> None:
        if not self._running:
            step_times().begin_step()
        for parameter in group:
            if parameter.grad is None:
                parameter.grad = _zeros(parameter, self._sparse_dims.get(parameter))
        gradients = [parameter.grad for parameter in group]
        name = self.names[group[0]]
        if gradients[0].is_sparse and len(group) == 1 and not self._sparse_as_dense:
            self._sparse_dims[group[0]] = gradients[0].sparse_dim()
            finish = sparse_allreduce_async(gradients[0], name, self.op, self.process_set)
            self._running[group] = lambda: [finish()]
            return
        dense = [g.to_dense() if g.is_sparse else g for g in gradients]
        sent, contexts = zip(*map(self._compression.compress, dense), strict=True)
        handle = grouped_allreduce_async_(
            sent, None, name, self.op, *self._scales, self.process_set
        )

        def wait() -> list[Any]:
            pairs = zip(synchronize(handle), contexts, strict=True)
            return [self._compression.decompress(result, ctx) for result, ctx in pairs]

        self._running[group] = wait


def _assign(parameter: Any, gradient: Any) -> None:
    if parameter.grad is None:  # The program has reset it after the backward pass.
        parameter.grad = gradient
    elif parameter.grad.is_sparse:
        dims = parameter.grad.sparse_dim()
        parameter.grad = gradient if gradient.is_sparse else gradient.to_sparse(dims)
    elif gradient is not parameter.grad:
        parameter.grad.copy_(gradient)


def _zeros(parameter: Any, sparse_dim: int | None) -> Any:
    """Return a gradient of zeros, which is sparse if the one of the parameter was so before."""
    if sparse_dim is None:
        return torch.zeros_like(parameter)
    indices = torch.zeros(sparse_dim, 0, dtype=torch.int64, device=parameter.device)
    values = parameter.new_zeros(0, *parameter.shape[sparse_dim:])
    return torch.sparse_coo_tensor(indices, values, parameter.shape, check_invariants=False)


def _separate(parameters: Sequence[Any]) -> None:
    """Give gradients that share their memory a memory each: results are written into it."""
    places = set()
    for parameter in parameters:
        if parameter.grad is not None and not parameter.grad.is_sparse:
            place = parameter.grad.untyped_storage().data_ptr()
            if place in places:
                parameter.grad = parameter.grad.clone()
            places.add(place)


@contextlib.contextmanager
def _keep_error(errors: list[Exception]) -> Iterator[None]:
    """Append the error of the block to a list."""
    try:
        yield
    except Exception as exc:  # noqa: BLE001 The caller raises the first one.
        errors.append(exc)


def _groups(parameters: Sequence[Any], groups: Any) -> list[_Group]:
    """Return the groups of the parameters whose gradients travel together."""
    if groups is None:
        return [(parameter,) for parameter in parameters]
    if isinstance(groups, int) and groups > 0:
        parts = row_slices(len(parameters), max(1, min(groups, len(parameters))))
        return [tuple(parameters[part]) for part in parts if parameters]
    if isinstance(groups, int):
        raise ValueError(f"groups is {groups!r}; expected a positive number, or lists of tensors.")
    grouped = [each for group in groups for each in group]
    if other := [each for each in grouped if not isinstance(each, torch.Tensor)]:
        raise ValueError(f"groups has {named_type(other[0])}; expected lists of parameters.")
    if len({id(each) for each in grouped}) < len(grouped):
        raise ValueError("groups has a parameter twice; expected each parameter once.")
    trained = set(parameters)
    used_groups = [tuple(each for each in group if each in trained) for group in groups]
    in_groups = {each for group in used_groups for each in group}
    return [g for g in used_groups if g] + [(p,) for p in parameters if p not in in_groups]
