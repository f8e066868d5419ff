"""The names that programs of users may rest on. A change needs its reason in the changelog."""

import importlib
import inspect
from importlib.util import find_spec

import pytest

import sparkdl

PUBLIC = {
    "sparkdl": [
        *(
            "HorovodRunner",
            "MirroredStrategyRunner",
            "__version__",
            "callbacks",
            "context",
            "data",
            "devices",
            "distribute",
            "errors",
            "experiment",
        ),
        "keras",
        "ml",
        "models",
        "monitoring",
        *("runs", "search", "serving", "tensorboard", "tfos"),
    ],
    "sparkdl.callbacks": ["Callback", "MLflow", "Webhook"],
    "sparkdl.context": [
        *("VARIABLE", "Context", "acting_as", "activate", "current", "elect", "get_checkpoint"),
        *("report", "resource", "should_stop", "this_committer", "this_reporter"),
    ],
    "sparkdl.data": [
        *("Map", "Rows", "csv", "dataset", "delta", "images", "local", "mix", "parquet"),
        *("petastorm", "read_tfrecord", "tfrecord", "write_tfrecord"),
    ],
    "sparkdl.devices": ["get_num_gpus", "gpus", "is_busy"],
    "sparkdl.distribute": [
        *("allgather", "allgather_object", "allreduce", "alltoall", "barrier", "broadcast"),
        *("broadcast_object", "broadcast_variables", "gradient_tape", "group"),
        *("load_model", "mean", "optimizer"),
        *("reduce_scatter", "scale_learning_rate", "serve", "strategy", "warmed_up"),
    ],
    "sparkdl.errors": [
        *(
            "AllTrialsFailedError",
            "CollectiveError",
            "ConfigError",
            "ControlError",
            "DriftError",
            "FunctionError",
            "InvalidTrial",
        ),
        *("MissingPackageError", "ModelDamagedError", "ModelNotFoundError"),
        *(
            "NoCompleteTrialError",
            "NotKeptError",
            "PeerLostError",
            "PreflightError",
            "RemoteTraceback",
            "RunDamagedError",
            "RunExistsError",
        ),
        *(
            "RunNotFoundError",
            "RunStoppedError",
            "SlotsError",
            "SparkDLError",
            "TrainingFailedError",
        ),
        *("TrialFailedError", "TrialPruned", "suggest"),
    ],
    "sparkdl.experiment": [
        *(
            "allreduce",
            "compare",
            "history",
            "horovod",
            "launch",
            "load",
            "mirrored",
            "parameter_server",
        ),
        "predict",
        *("replay", "reproduce", "resume", "search", "try_one", "verify"),
    ],
    "sparkdl.horovod.spark": ["run", "run_elastic"],
    "sparkdl.horovod.tensorflow": [
        *(
            "Adasum",
            "Average",
            "BroadcastGlobalVariablesHook",
            "Compression",
            "DistributedGradientTape",
            "DistributedOptimizer",
            "Max",
            "Min",
            "PartialDistributedGradientTape",
            "PartialDistributedOptimizer",
            "ProcessSet",
            "Product",
            "Sum",
            "SyncBatchNormalization",
            "add_process_set",
            "allgather",
            "allgather_object",
            "allreduce",
            "alltoall",
            "barrier",
            "broadcast",
            "broadcast_",
            "broadcast_global_variables",
            "broadcast_object",
            "broadcast_object_fn",
            "broadcast_variables",
            "callbacks",
            "ccl_built",
            "cross_rank",
            "cross_size",
            "cuda_built",
            "ddl_built",
            "elastic",
            "global_process_set",
            "gloo_built",
            "gloo_enabled",
            "grouped_allgather",
            "grouped_allreduce",
            "grouped_reducescatter",
            "init",
            "is_homogeneous",
            "is_initialized",
            "join",
            "local_rank",
            "local_rank_op",
            "local_size",
            "local_size_op",
            "mpi_built",
            "mpi_enabled",
            "mpi_threads_supported",
            "nccl_built",
            "process_set_included_op",
            "rank",
            "rank_op",
            "reducescatter",
            "remove_process_set",
            "rocm_built",
            "shutdown",
            "size",
            "size_op",
            "start_timeline",
            "stop_timeline",
        ),
    ],
    "sparkdl.horovod.elastic": [
        *("HorovodInternalError", "HostsUpdatedInterrupt", "KerasState", "ObjectState", "State"),
        *("TensorFlowKerasState", "TensorFlowState", "run"),
    ],
    "sparkdl.keras": [
        *("Checkpoint", "EarlyStopping", "LearningRateWarmup", "Report", "TensorBoard", "save"),
    ],
    "sparkdl.ml": ["KerasEstimator", "KerasModel", "TorchEstimator", "TorchModel", "saved_by_name"],
    "sparkdl.models": [
        *("Affected", "AliasMove", "ModelVersion", "affected", "alias", "alias_history", "best"),
        *("compare", "export", "get", "list", "new_rows", "promote", "roll_back"),
    ],
    "sparkdl.monitoring": [
        *("Decision", "Drift", "Expectation", "Watch", "acknowledge", "drift", "performance"),
        *("profile", "read_log", "results", "should_retrain", "thresholds", "watch"),
    ],
    "sparkdl.runs": ["Run", "RunState", "Trial", "TrialState", "Usage"],
    "sparkdl.search": ["Categorical", "Float", "Int"],
    "sparkdl.serving": ["Batching", "KafkaSink", "Log", "LogSink", "Server", "kserve", "start"],
    "sparkdl.tensorboard": ["logdir"],
    "sparkdl.tfos.TFCluster": ["InputMode", "TFCluster", "run", "tf_status"],
    "sparkdl.tfos.TFNode": [
        *("DataFeed", "batch_results", "export_saved_model", "hdfs_path", "next_batch"),
        *("release_port", "start_cluster_server", "terminate"),
    ],
    "sparkdl.tfos.TFParallel": ["run"],
}
if find_spec("torch"):
    PUBLIC["sparkdl.horovod.torch"] = [
        "Adasum",
        "Average",
        "Compression",
        "DistributedOptimizer",
        "HorovodInternalError",
        "Max",
        "Min",
        "ProcessSet",
        "Product",
        "Sum",
        "SyncBatchNorm",
        "add_process_set",
        "allgather",
        "allgather_async",
        "allgather_object",
        "allreduce",
        "allreduce_",
        "allreduce_async",
        "allreduce_async_",
        "alltoall",
        "alltoall_async",
        "barrier",
        "broadcast",
        "broadcast_",
        "broadcast_async",
        "broadcast_async_",
        "broadcast_object",
        "broadcast_optimizer_state",
        "broadcast_parameters",
        "ccl_built",
        "cross_rank",
        "cross_size",
        "cuda_built",
        "ddl_built",
        "elastic",
        "global_process_set",
        "gloo_built",
        "gloo_enabled",
        "grouped_allgather",
        "grouped_allgather_async",
        "grouped_allreduce",
        "grouped_allreduce_",
        "grouped_allreduce_async",
        "grouped_allreduce_async_",
        "grouped_reducescatter",
        "grouped_reducescatter_async",
        "init",
        "is_homogeneous",
        "is_initialized",
        "join",
        "local_rank",
        "local_size",
        "mpi_built",
        "mpi_enabled",
        "mpi_threads_supported",
        "nccl_built",
        "poll",
        "rank",
        "reducescatter",
        "reducescatter_async",
        "remove_process_set",
        "rocm_built",
        "shutdown",
        "size",
        "sparse_allreduce_async",
        "start_timeline",
        "stop_timeline",
        "synchronize",
    ]
    PUBLIC["sparkdl.horovod.torch.elastic"] = [
        *("ElasticSampler", "HorovodInternalError", "HostsUpdatedInterrupt", "ObjectState"),
        *("State", "TorchState", "run"),
    ]
if find_spec("lightning"):
    PUBLIC["sparkdl.lightning"] = ["Checkpoint"]
if find_spec("transformers"):
    PUBLIC["sparkdl.huggingface"] = ["Checkpoint"]
OPTIONS = {
    *("name", "description", "versioned_resources", "metric", "direction", "parallelism"),
    *("num_gpus", "num_cpus", "timeout_s", "trial_timeout_s", "max_failed_trials"),
    "start_timeout_s",
    *("fail_fast_identical", "max_restarts", "max_losses", "seed", "env", "secrets"),
    *("framework", "run_id", "trial_value", "fingerprint", "smoke", "tensorboard", "callbacks"),
    *("if_exists", "retry", "wait", "spark", "root", "progress", "logs", "keep_checkpoints"),
    *("preload", "expect", "row_key"),
}


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_are_frozen(name: str) -> None:
    assert sorted(importlib.import_module(name).__all__) == sorted(PUBLIC[name])


def test_launch_shows_all_options_by_keyword() -> None:
    parameters = inspect.signature(sparkdl.experiment.launch).parameters
    assert list(parameters)[:2] == ["train", "args"]
    keywords = {n for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
    assert keywords == OPTIONS | {"combine", "data", "init_from"}


def test_wrong_name_names_the_right_ones() -> None:
    with pytest.raises(AttributeError, match="experiment"):
        sparkdl.experimant  # noqa: B018


@pytest.mark.parametrize("module", [n for n in PUBLIC if n != "sparkdl"])
def test_public_things_have_docstrings(module: str) -> None:
    for name in importlib.import_module(module).__all__:
        thing = getattr(importlib.import_module(module), name)
        if callable(thing):
            assert inspect.getdoc(thing), f"{module}.{name}"
            members = inspect.getmembers(thing, inspect.isfunction)
            for member, function in members:
                if not member.startswith("_") and function.__module__.startswith("sparkdl"):
                    assert function.__doc__, f"{module}.{name}.{member}"
