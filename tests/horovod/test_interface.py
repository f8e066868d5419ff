"""The names and arguments of Horovod, and the objects that travel."""

import importlib
import inspect
from collections import namedtuple
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from sparkdl.files.typed_json import decoded, encoded
from sparkdl.horovod.process_sets import ProcessSet

Point = namedtuple("Point", "x y")

# The positional arguments of Horovod 0.28, in its order.
OPTIMIZER = "optimizer name device_dense device_sparse compression sparse_as_dense"
SIGNATURES = {
    "sparkdl.horovod.tensorflow": {
        "allreduce": "tensor average device_dense device_sparse compression op prescale_factor "
        "postscale_factor name process_set ignore_name_scope",
        "grouped_allreduce": "tensors average device_dense device_sparse compression op "
        "prescale_factor postscale_factor process_set ignore_name_scope name",
        "allgather": "tensor name ignore_name_scope process_set",
        "broadcast": "tensor root_rank name ignore_name_scope process_set",
        "alltoall": "tensor splits name ignore_name_scope process_set",
        "reducescatter": "tensor device_dense compression op name process_set ignore_name_scope "
        "prescale_factor postscale_factor",
        "grouped_reducescatter": "tensors device_dense compression op process_set "
        "prescale_factor postscale_factor",
        "broadcast_variables": "variables root_rank process_set inplace",
        "broadcast_object": "obj root_rank session name process_set",
        "allgather_object": "obj session name process_set",
        "DistributedOptimizer": "optimizer name use_locking device_dense device_sparse compression "
        "sparse_as_dense backward_passes_per_step op gradient_predivide_factor "
        "average_aggregated_gradients num_groups groups process_set scale_local_gradients",
        "DistributedGradientTape": "gradtape device_dense device_sparse compression "
        "sparse_as_dense op gradient_predivide_factor num_groups groups process_set "
        "scale_local_gradients",
        "init": "comm process_sets",
    },
    "sparkdl.horovod.tensorflow.keras": {
        "allreduce": "value name average prescale_factor postscale_factor op compression",
        "allgather": "value name",
        "broadcast": "value root_rank name",
        "reducescatter": "value name op",
        "DistributedOptimizer": f"{OPTIMIZER} gradient_predivide_factor op "
        "backward_passes_per_step average_aggregated_gradients num_groups groups process_set "
        "scale_local_gradients",
        "load_model": "filepath custom_optimizers custom_objects compression legacy_opts",
    },
}
SCALES = "prescale_factor postscale_factor"
TORCH = {
    "allreduce": f"tensor average name compression op {SCALES} process_set",
    "allreduce_": f"tensor average name op {SCALES} process_set",
    "allreduce_async": f"tensor average name op {SCALES} process_set",
    "allreduce_async_": f"tensor average name op {SCALES} process_set",
    "grouped_allreduce": f"tensors average name compression op {SCALES} process_set",
    "grouped_allreduce_": f"tensors average name op {SCALES} process_set",
    "grouped_allreduce_async": f"tensors average name op {SCALES} process_set",
    "grouped_allreduce_async_": f"tensors average name op {SCALES} process_set",
    "sparse_allreduce_async": "tensor name op process_set",
    "allgather": "tensor name process_set",
    "allgather_async": "tensor name process_set",
    "grouped_allgather": "tensors name process_set",
    "grouped_allgather_async": "tensors name process_set",
    "broadcast": "tensor root_rank name process_set",
    "broadcast_": "tensor root_rank name process_set",
    "broadcast_async": "tensor root_rank name process_set",
    "broadcast_async_": "tensor root_rank name process_set",
    "alltoall": "tensor splits name process_set",
    "alltoall_async": "tensor splits name process_set",
    "reducescatter": f"tensor name compression op process_set {SCALES}",
    "reducescatter_async": f"tensor name op process_set {SCALES}",
    "grouped_reducescatter": f"tensors name compression op process_set {SCALES}",
    "grouped_reducescatter_async": f"tensors name op process_set {SCALES}",
    "broadcast_parameters": "params root_rank",
    "broadcast_optimizer_state": "optimizer root_rank model",
    "broadcast_object": "obj root_rank name process_set",
    "allgather_object": "obj name process_set",
    "join": "device",
    "barrier": "process_set",
    "poll": "handle",
    "synchronize": "handle",
    "DistributedOptimizer": "optimizer named_parameters compression backward_passes_per_step op "
    "gradient_predivide_factor num_groups groups sparse_as_dense process_set",
    "init": "comm process_sets",
}
if find_spec("torch"):
    SIGNATURES["sparkdl.horovod.torch"] = TORCH


@pytest.mark.parametrize(
    ("module", "name", "parameters"),
    [(m, name, words) for m, functions in SIGNATURES.items() for name, words in functions.items()],
)
def test_arguments_have_the_order_of_horovod(module: str, name: str, parameters: str) -> None:
    function = getattr(importlib.import_module(module), name)
    assert list(inspect.signature(function).parameters) == parameters.split()


def test_modules_have_the_places_of_horovod() -> None:
    for name in ("keras", "tensorflow.keras"):
        hvd = importlib.import_module(f"sparkdl.horovod.{name}")
        callbacks = importlib.import_module(f"sparkdl.horovod.{name}.callbacks")
        elastic = importlib.import_module(f"sparkdl.horovod.{name}.elastic")
        assert callbacks.MetricAverageCallback is hvd.callbacks.MetricAverageCallback
        assert elastic.KerasState is hvd.elastic.KerasState
        assert elastic.CommitStateCallback is hvd.callbacks.CommitStateCallback


# Names that programs import from inside Horovod 0.28, by module.
INNER = {
    "common.elastic": "ObjectState State",
    "common.exceptions": "HorovodInternalError HostsUpdatedInterrupt",
    "common.process_sets": "ProcessSet add_process_set global_process_set remove_process_set",
    "common.util": "ccl_built ddl_built gloo_built mpi_built nccl_built",
    "runner": "run",
    "spark": "run run_elastic",
    "spark.runner": "run run_elastic",
    "spark.task": "get_available_devices",
    "tensorflow.functions": "allgather_object broadcast_object broadcast_object_fn "
    "broadcast_variables",
    "tensorflow.mpi_ops": "Adasum Average Max Min ProcessSet Product Sum add_process_set allgather "
    "alltoall broadcast broadcast_ cross_rank cross_size global_process_set gloo_built init "
    "is_homogeneous is_initialized join local_rank local_rank_op local_size local_size_op "
    "process_set_included_op rank rank_op remove_process_set shutdown size size_op",
}
INNER_OF_TORCH = {
    "torch.elastic": "ElasticSampler TorchState run",
    "torch.elastic.sampler": "ElasticSampler",
    "torch.functions": "allgather_object broadcast_object broadcast_optimizer_state "
    "broadcast_parameters",
    "torch.mpi_ops": "Adasum Average HorovodInternalError Max Min ProcessSet Product Sum allgather "
    "allreduce_async_ alltoall barrier init join poll rank reducescatter size synchronize",
}
if find_spec("torch"):
    INNER |= INNER_OF_TORCH


@pytest.mark.parametrize("module", INNER)
def test_inner_modules_have_the_names_of_horovod(module: str) -> None:
    found = importlib.import_module(f"sparkdl.horovod.{module}")
    assert [name for name in INNER[module].split() if not hasattr(found, name)] == []


ABSENT = {
    "spark.lightning": ("LightningEstimator", r'data=df, framework="torch"\)'),
    "tensorflow.data.compute_service": ("TfDataServiceConfig", r"data\.dataset\("),
    "common.elastic": ("run_fn", r"hvd\.elastic\.run"),
    "common.exceptions": ("HorovodVersionMismatchError", "one of HorovodInternalError, Hosts"),
    **dict.fromkeys(
        ("", "tensorflow", "keras", "tensorflow.keras", "elastic", "spark", "keras.callbacks"),
        ("no_such_name", "has no 'no_such_name'. Expected one of"),
    ),
}


@pytest.mark.parametrize("module", ABSENT)
def test_a_missing_name_says_what_to_write(module: str) -> None:
    """An import says it too, which replaces the text of an AttributeError by its own."""
    name, says = ABSENT[module]
    module = f"sparkdl.horovod.{module}".rstrip(".")
    with pytest.raises(ImportError, match=says):
        exec(f"from {module} import {name}")  # noqa: S102 The statement is what is tested.
    with pytest.raises(AttributeError, match=says):
        getattr(importlib.import_module(module), name)


def test_the_error_of_every_interface_is_that_of_horovods_common_module() -> None:
    from sparkdl.horovod.common.exceptions import HorovodInternalError

    of_torch = ["torch", "torch.elastic"] if find_spec("torch") else []
    for name in ["elastic", "tensorflow.elastic", *of_torch]:
        module = importlib.import_module(f"sparkdl.horovod.{name}")
        assert issubclass(module.HorovodInternalError, HorovodInternalError)


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, 2.5, None, True], (1, "b"): {3, 4}, 0: b"bytes"},
        np.array([[1, 2]], ">i4"),
        np.array([1 + 2j]),
        np.float32(0.5),
        np.zeros((0, 3), "u1"),
    ],
    ids=str,
)
def test_objects_travel(value: Any) -> None:
    np.testing.assert_equal(decoded(encoded(value)), value)


def test_named_tuples_travel_as_tuples() -> None:
    assert decoded(encoded([Point(1, 2)])) == [(1, 2)]


@pytest.mark.parametrize("value", [object(), np.array([None]), 1j, {1: print}])
def test_other_objects_are_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="expected numbers, text, bytes, arrays of numbers"):
        encoded(value)


def test_an_average_that_is_no_boolean_is_refused() -> None:
    import sparkdl.horovod.tensorflow as hvd

    with pytest.raises(ValueError, match="average is 'loss'; expected True, False or None"):
        hvd.allreduce(1.0, "loss")


def test_state_keeps_the_kinds_of_its_values() -> None:
    import sparkdl.horovod.tensorflow as hvd

    state = hvd.elastic.ObjectState(best=(1, 2), by_epoch={0: np.ones(2)})
    state.sync()
    assert state.best == (1, 2)
    assert state.by_epoch[0].tolist() == [1.0, 1.0]


def test_a_process_set_has_each_rank_once() -> None:
    assert ProcessSet([2, 0, 2]).ranks == [0, 2]
