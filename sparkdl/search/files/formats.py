"""Runs on the driver. Read search declarations in the formats of CloudML Engine and SageMaker."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sparkdl.errors import suggest
from sparkdl.search.files.ranges import choices_of, range_of, space_of
from sparkdl.search.files.yaml_entries import Entry, read_document
from sparkdl.search.space.spaces import Categorical, Dimension, Float, Int, Space

# A table maps a key of a file to the option that it sets and the function that reads its value.
Reader = Callable[[Entry], Any]
Table = Mapping[str, tuple[str, Reader]]


@dataclass(frozen=True)
class SearchDeclaration:
    """The contents of a file that declares a search.

    Attributes:
        space: the parameters and their dimensions.
        options: the arguments of `experiment.search` that the file sets, by name.
        num_workers: the number of workers of each trial beside its master, which is not an option:
            the trials of a search are one process unless the call says otherwise.
        num_ps: the number of parameter servers of each trial, which the trials of a search lack.
    """

    space: Space
    options: dict[str, Any]
    num_workers: int = 0
    num_ps: int = 0


def read_space(path: str | os.PathLike[str]) -> SearchDeclaration:
    """Read the space and the options of a search from a file.

    The format is recognized by the keys of the file.

    CloudML Engine (AI Platform): the YAML of `HyperparameterSpec`
    (https://cloud.google.com/ai-platform/training/docs/reference/rest/v1/projects.jobs), below
    `trainingInput: hyperparameters:` or `hyperparameters:`. DISCRETE and CATEGORICAL become
    `Categorical`. `maxFailedTrials: 3` ends a search with its third failure, which is
    `max_failed_trials=2`; 0 is the default of the service and is ignored. `workerCount` and
    `parameterServerCount` are read, but are no options. Other keys beside `hyperparameters`, such
    as those of machines and packages, are ignored.

    SageMaker: the JSON of `HyperParameterTuningJobConfig`
    (https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_HyperParameterTuningJobConfig.html),
    or only its `ParameterRanges`, or only the three lists in `ParameterRanges`. The scaling
    `Auto`, which is the default, is logarithmic if MinValue is above 0 and MaxValue is at least
    1000 times MinValue.

    Both formats may be written as YAML or as JSON. Values in quotes are strings; 32, 1e-4 and true
    without quotes are a number, a number and a boolean. A reverse log scale is dense near its
    upper end: CloudML samples `min + max - x`, and SageMaker `1 - x`, on a log scale.

    Args:
        path: a local path, or a URL that fsspec understands.

    Raises:
        ConfigError: if the file cannot be read or is invalid; the message has the line, the value
            and what was expected.

    Example:
        >>> from pathlib import Path
        >>> _ = Path("hptuning.yaml").write_text('''
        ... trainingInput:
        ...   hyperparameters:
        ...     goal: MAXIMIZE
        ...     hyperparameterMetricTag: accuracy
        ...     maxTrials: 20
        ...     params:
        ...       - parameterName: learning_rate
        ...         type: DOUBLE
        ...         minValue: 0.0001
        ...         maxValue: 0.1
        ...         scaleType: UNIT_LOG_SCALE
        ... ''')
        >>> declared = read_space("hptuning.yaml")
        >>> declared.space.dimensions["learning_rate"]
        Float(low=0.0001, high=0.1, log=True, step=None, mirror=None)
        >>> declared.options
        {'direction': 'max', 'metric': 'accuracy', 'num_trials': 20}
    """
    root = read_document(path)
    names = root.fields().keys()
    if names & _JOB:
        return _cloudml(root)
    if names & (_CONFIG.keys() | _RANGES.keys() | _CONFIG_REFUSED.keys() | {"ParameterRanges"}):
        return _sagemaker(root)
    valid_keys = [*_JOB, "ParameterRanges", *_CONFIG, *_RANGES]
    hint = next(filter(None, (suggest(name, valid_keys) for name in names)), "")
    raise root.error(
        f"the file has {', '.join(names) or 'no keys'}, and declares no search.{hint} Expected "
        "trainingInput or hyperparameters (CloudML Engine), or ParameterRanges (SageMaker)."
    )


def _options(table: Table, fields: Mapping[str, Entry]) -> dict[str, Any]:
    read = {table[key][0]: table[key][1](entry) for key, entry in fields.items() if key in table}
    return {option: value for option, value in read.items() if value is not None}


def _one_of(**choices: str | None) -> Reader:
    return lambda entry: entry.one_of(choices)


def _count(entry: Entry) -> int:
    return entry.whole(1)


# ---- CloudML Engine

_JOB = {"trainingInput", "hyperparameters"}
_JOB_REFUSED = {
    "args": "Write each argument as a parameter with one value, or use functools.partial.",
    "scheduling": "Pass timeout_s= in the call.",
}
_CLOUDML: Table = {
    "goal": ("direction", _one_of(MAXIMIZE="max", MINIMIZE="min", GOAL_TYPE_UNSPECIFIED=None)),
    "hyperparameterMetricTag": ("metric", Entry.text),
    "maxTrials": ("num_trials", _count),
    "maxParallelTrials": ("parallelism", _count),
    "maxFailedTrials": ("max_failed_trials", lambda e: e.whole(0) - 1 if e.whole(0) else None),
    "enableTrialEarlyStopping": ("pruner", lambda e: "median" if e.flag() else None),
    "algorithm": (
        "algorithm",
        _one_of(GRID_SEARCH="grid", RANDOM_SEARCH="random", ALGORITHM_UNSPECIFIED=None),
    ),
}
_CLOUDML_REFUSED = {"resumePreviousJobId": "Pass learn_from=[run] in the call."}
_BOUNDS = ("minValue", "maxValue")
_TYPES = {
    "INTEGER": _BOUNDS,
    "DOUBLE": _BOUNDS,
    "DISCRETE": ("discreteValues",),
    "CATEGORICAL": ("categoricalValues",),
}
_PARAM = ("parameterName", "type", *_BOUNDS, "discreteValues", "categoricalValues", "scaleType")
_SCALES = {
    "NONE": "linear",
    "UNIT_LINEAR_SCALE": "linear",
    "UNIT_LOG_SCALE": "log",
    "UNIT_REVERSE_LOG_SCALE": "reverse log",
}


def _cloudml(root: Entry) -> SearchDeclaration:
    top = root.fields()
    if top.keys() >= _JOB:
        raise root.error("the file has both trainingInput and hyperparameters. Remove one.")
    job = top.get("trainingInput", root)
    job_fields = job.fields(unsupported=_JOB_REFUSED)
    if "hyperparameters" not in job_fields:
        hint = suggest("hyperparameters", job_fields)
        raise job.error(f"{job.name} has no hyperparameters.{hint or ' Add it.'}")
    spec = job_fields["hyperparameters"].fields(
        [*_CLOUDML, "params"], required=["params"], unsupported=_CLOUDML_REFUSED
    )
    options = _options(_CLOUDML, spec)
    params = [_param(param) for param in spec["params"].nonempty_items()]
    counts = [
        job_fields[name].whole(0) if name in job_fields else 0
        for name in ("workerCount", "parameterServerCount")
    ]
    return SearchDeclaration(space_of(params, options.get("algorithm")), options, *counts)


def _param(param: Entry) -> tuple[Entry, Dimension]:
    fields = param.fields(_PARAM, required=_PARAM[:2])
    kind = fields["type"].text()
    keys = fields["type"].one_of(_TYPES)
    for name, entry in fields.items():
        if name not in (*_PARAM[:2], *keys, "scaleType"):
            raise entry.error(f"{name} is not valid for type {kind}, which has {', '.join(keys)}.")
    param.fields(required=keys)
    scale = fields["scaleType"].one_of(_SCALES) if "scaleType" in fields else "linear"
    if keys == _BOUNDS:
        number = Int if kind == "INTEGER" else Float
        low, high = (fields[key] for key in keys)
        return fields["parameterName"], range_of(low, high, number, scale)
    if scale != "linear":
        raise fields["scaleType"].error(f"a scale is not valid for type {kind}. Remove it.")
    entries = fields[keys[0]].nonempty_items()
    values = [e.number() if kind == "DISCRETE" else e.scalar() for e in entries]
    if kind == "DISCRETE" and float in map(type, values):
        values = [float(value) for value in values]
    return fields["parameterName"], choices_of(entries, values)


# ---- SageMaker

_CONFIG: Table = {
    "Strategy": (
        "algorithm",
        _one_of(Bayesian="tpe", Random="random", Grid="grid", Hyperband="tpe"),
    ),
    "TrainingJobEarlyStoppingType": ("pruner", _one_of(Off=None, Auto="median")),
    "RandomSeed": ("seed", lambda e: e.whole(0)),
}
_OBJECTIVE: Table = {
    "Type": ("direction", _one_of(Maximize="max", Minimize="min")),
    "MetricName": ("metric", Entry.text),
}
_LIMITS: Table = {
    "MaxNumberOfTrainingJobs": ("num_trials", _count),
    "MaxParallelTrainingJobs": ("parallelism", _count),
    "MaxRuntimeInSeconds": ("timeout_s", _count),
}
_PARTS = {"HyperParameterTuningJobObjective": _OBJECTIVE, "ResourceLimits": _LIMITS}
_CONFIG_REFUSED = {
    "HyperParameterTuningJobConfig": "Move its contents into a separate file.",
    "StrategyConfig": "Pass pruner= with an Optuna HyperbandPruner in the call.",
    "TuningJobCompletionCriteria": "Pass stop= or patience= in the call.",
}
_RANGES = {
    "ContinuousParameterRanges": Float,
    "IntegerParameterRanges": Int,
    "CategoricalParameterRanges": Categorical,
}
_RANGES_REFUSED = {"AutoParameters": "Write the range of each parameter."}
_SCALINGS = {
    "Auto": "auto",
    "Linear": "linear",
    "Logarithmic": "log",
    "ReverseLogarithmic": "log of 1 - x",
}


def _sagemaker(root: Entry) -> SearchDeclaration:
    top = root.fields()
    ranges = top.get("ParameterRanges", root)
    range_keys = ["ParameterRanges"] if "ParameterRanges" in top else [*_RANGES]
    top = root.fields(
        [*_CONFIG, *_PARTS, *range_keys], unsupported={**_CONFIG_REFUSED, **_RANGES_REFUSED}
    )
    options = _options(_CONFIG, top)
    for name, table in _PARTS.items():
        if name in top:
            options |= _options(table, top[name].fields(table))
    if "Strategy" in top and top["Strategy"].text() == "Hyperband":
        if "pruner" in options:
            early_stopping = top["TrainingJobEarlyStoppingType"]
            raise early_stopping.error("Strategy Hyperband stops trials itself. Write Off.")
        options["pruner"] = "hyperband"
    lists = top if ranges is root else ranges.fields(_RANGES, unsupported=_RANGES_REFUSED)
    params = [
        _range(item, _RANGES[name])
        for name, entry in lists.items()
        if name in _RANGES
        for item in entry.items()
    ]
    if not params:
        raise ranges.error(f"{ranges.name} has no parameter; expected {', '.join(_RANGES)}.")
    return SearchDeclaration(space_of(params, options.get("algorithm")), options)


def _range(item: Entry, kind: type[Any]) -> tuple[Entry, Dimension]:
    if kind is Categorical:
        fields = item.fields(["Name", "Values"], required=["Name", "Values"])
        entries = fields["Values"].nonempty_items()
        return fields["Name"], choices_of(entries, [entry.scalar() for entry in entries])
    bounds = ["Name", "MinValue", "MaxValue"]
    fields = item.fields([*bounds, "ScalingType"], required=bounds)
    scale = fields["ScalingType"].one_of(_SCALINGS) if "ScalingType" in fields else "auto"
    if kind is Int and scale == "log of 1 - x":
        raise fields["ScalingType"].error("ReverseLogarithmic is for continuous parameters only.")
    return fields["Name"], range_of(fields["MinValue"], fields["MaxValue"], kind, scale)
