"""Searches declared in files of CloudML Engine and SageMaker; errors name the line."""

import json
import re
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdl import experiment
from sparkdl.errors import ConfigError
from sparkdl.files import storage
from sparkdl.search.files.formats import read_space
from sparkdl.search.space.spaces import Categorical, Float, Int

CLOUDML = """\
# gcloud ai-platform jobs submit training ... --config hptuning_config.yaml
trainingInput:
  scaleTier: CUSTOM
  masterType: complex_model_m
  workerCount: 9
  hyperparameters:
    goal: MAXIMIZE
    hyperparameterMetricTag: val-accuracy
    maxTrials: 30
    maxParallelTrials: 1
    maxFailedTrials: 3
    enableTrialEarlyStopping: True
    algorithm: RANDOM_SEARCH
    params:
    - parameterName: hidden1
      type: INTEGER
      minValue: 40
      maxValue: 400
      scaleType: UNIT_LINEAR_SCALE
    - parameterName: num_layers
      type: DISCRETE
      discreteValues:
      - 5
      - 6
    - parameterName: dropout
      type: DISCRETE
      discreteValues: [0, 0.25, "0.5"]
    - parameterName: rnn_cell_type
      type: CATEGORICAL
      categoricalValues:
      - "GRUCell"
      - LSTMCell
      - no
    - parameterName: units
      type: INTEGER
      minValue: "16"
      maxValue: 1e3
      scaleType: UNIT_LOG_SCALE
    - {parameterName: lr, type: DOUBLE, minValue: 1e-4, maxValue: 0.1, scaleType: UNIT_LOG_SCALE}
    - parameterName: momentum
      type: DOUBLE
      minValue: 0.5
      maxValue: 1
      scaleType: UNIT_REVERSE_LOG_SCALE
    - parameterName: l2
      type: DOUBLE
      minValue: 0
      maxValue: 1
      scaleType: NONE
"""

SAGEMAKER: dict[str, Any] = {
    "ParameterRanges": {
        "CategoricalParameterRanges": [
            {"Name": "tree_method", "Values": ["auto", "exact", "true"]},
            {"Name": "batch_size", "Values": [32, 64]},
            {"Name": "nesterov", "Values": [True, False]},
        ],
        "ContinuousParameterRanges": [
            {"Name": "eta", "MinValue": "0", "MaxValue": "1"},
            {"Name": "alpha", "MinValue": "1e-5", "MaxValue": "1e-2", "ScalingType": "Auto"},
            {"Name": "gamma", "MinValue": "0.001", "MaxValue": "0.9", "ScalingType": "Auto"},
            {
                "Name": "momentum",
                "MaxValue": "0.999",
                "MinValue": "0",
                "ScalingType": "ReverseLogarithmic",
            },
            {"Name": "lr", "MinValue": "0.01", "MaxValue": "0.1", "ScalingType": "Logarithmic"},
        ],
        "IntegerParameterRanges": [
            {"Name": "max_depth", "MinValue": "1", "MaxValue": "10", "ScalingType": "Linear"},
            {"Name": "num_round", "MinValue": 1, "MaxValue": 1000},
        ],
    },
    "ResourceLimits": {
        "MaxNumberOfTrainingJobs": 20,
        "MaxParallelTrainingJobs": 3,
        "MaxRuntimeInSeconds": 3600,
    },
    "Strategy": "Bayesian",
    "HyperParameterTuningJobObjective": {"MetricName": "validation:auc", "Type": "Maximize"},
    "TrainingJobEarlyStoppingType": "Auto",
    "RandomSeed": 7,
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / 'it\'s a "söarch".txt'


@pytest.mark.parametrize(
    ("workers", "servers", "call", "notes"),
    [
        (9, 0, {}, ["has workerCount 9, .* Pass workers_per_trial=10 for"]),
        (9, 2, {"workers_per_trial": 4}, ["has parameterServerCount 2, which has no effect"]),
        (1, 2, {}, ["Pass workers_per_trial=2 ", "has parameterServerCount 2"]),
        (9, 2, {"progress": False}, []),
        (0, 0, {}, []),
    ],
)
def test_processes_that_a_cloudml_file_wants_are_noted(
    file: Path, capsys: Any, workers: int, servers: int, call: Any, notes: list[str]
) -> None:
    counts = f"  workerCount: {workers}\n  parameterServerCount: '{servers}'\n"
    file.write_text(CLOUDML.replace("  workerCount: 9\n", counts))
    with pytest.raises(ConfigError, match="repeats"):  # Nothing is to be started.
        experiment.search(lambda **_: 1.0, str(file), repeats=0, **call)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(notes)
    assert all(map(re.search, notes, lines))


def test_cloudml_file_sets_space_and_options(file: Path) -> None:
    file.write_text(CLOUDML)
    declared = read_space(file)
    assert declared.space.dimensions == {
        "hidden1": Int(40, 400),
        "num_layers": Categorical([5, 6]),
        "dropout": Categorical([0.0, 0.25, 0.5]),
        "rnn_cell_type": Categorical(["GRUCell", "LSTMCell", "no"]),
        "units": Int(16, 1000, log=True),
        "lr": Float(1e-4, 0.1, log=True),
        "momentum": Float(0.5, 1.0, log=True, mirror=1.5),
        "l2": Float(0.0, 1.0),
    }
    assert declared.options == {
        "direction": "max",
        "metric": "val-accuracy",
        "num_trials": 30,
        "parallelism": 1,
        "max_failed_trials": 2,  # sparkdl ends a search when one trial more than this has failed.
        "pruner": "median",
        "algorithm": "random",
    }
    assert [type(c) for c in declared.space.dimensions["dropout"].choices] == [float] * 3
    assert type(declared.space.dimensions["l2"].low) is float


def test_sagemaker_file_sets_space_and_options(file: Path) -> None:
    file.write_text(json.dumps(SAGEMAKER, indent=2))
    declared = read_space(str(file))
    assert declared.space.dimensions == {
        "tree_method": Categorical(["auto", "exact", "true"]),
        "batch_size": Categorical([32, 64]),
        "nesterov": Categorical([True, False]),
        "eta": Float(0, 1),
        "alpha": Float(1e-5, 1e-2, log=True),
        "gamma": Float(0.001, 0.9),
        "momentum": Float(0, 0.999, log=True, mirror=1),
        "lr": Float(0.01, 0.1, log=True),
        "max_depth": Int(1, 10),
        "num_round": Int(1, 1000, log=True),
    }
    assert declared.options == {
        "num_trials": 20,
        "parallelism": 3,
        "timeout_s": 3600,
        "algorithm": "tpe",
        "metric": "validation:auc",
        "direction": "max",
        "pruner": "median",
        "seed": 7,
    }


@pytest.mark.parametrize("indent", [None, 2, "\t"])
@pytest.mark.parametrize("part", ["ParameterRanges", "lists"])
def test_sagemaker_ranges_alone(file: Path, part: str, indent: Any) -> None:
    ranges = SAGEMAKER["ParameterRanges"]
    file.write_text(json.dumps({part: ranges} if part != "lists" else ranges, indent=indent))
    declared = read_space(file)
    assert list(declared.space.dimensions)[:3] == ["tree_method", "batch_size", "nesterov"]
    assert len(declared.space.dimensions) == 10
    assert declared.options == {}


PARAM = "params: [{parameterName: a, type: INTEGER, minValue: 1, maxValue: 2}]"


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("goal: MINIMIZE", {"direction": "min"}),
        ("goal: GOAL_TYPE_UNSPECIFIED", {}),
        ("algorithm: GRID_SEARCH", {"algorithm": "grid"}),
        ("algorithm: ALGORITHM_UNSPECIFIED", {}),
        ("maxFailedTrials: 0", {}),
        ("maxFailedTrials: 1", {"max_failed_trials": 0}),
        ("enableTrialEarlyStopping: false", {}),
        ("maxTrials: '10'", {"num_trials": 10}),
    ],
)
def test_options_of_cloudml_without_a_job(file: Path, text: str, options: dict[str, Any]) -> None:
    file.write_text(f"hyperparameters:\n  {text}\n  {PARAM}\n")
    declared = read_space(file)
    assert declared.options == options
    assert declared.space.dimensions == {"a": Int(1, 2)}


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ({"Strategy": "Random"}, {"algorithm": "random"}),
        ({"Strategy": "Hyperband"}, {"algorithm": "tpe", "pruner": "hyperband"}),
        ({"TrainingJobEarlyStoppingType": "Off"}, {}),
        (
            {"HyperParameterTuningJobObjective": {"Type": "Minimize", "MetricName": "rmse"}},
            {"direction": "min", "metric": "rmse"},
        ),
    ],
)
def test_options_of_sagemaker(file: Path, config: dict[str, Any], options: dict[str, Any]) -> None:
    ranges = {"IntegerParameterRanges": [{"Name": "a", "MinValue": "1", "MaxValue": "2"}]}
    file.write_text(json.dumps({**config, "ParameterRanges": ranges}))
    assert read_space(file).options == options
    file.write_text(json.dumps({**config, **ranges, "CategoricalParameterRanges": []}))
    assert read_space(file).options == options


def test_sagemaker_grid_of_lists(file: Path) -> None:
    values = [{"Name": "a", "Values": ["x", "y"]}]
    file.write_text(json.dumps({"Strategy": "Grid", "CategoricalParameterRanges": values}))
    declared = read_space(file)
    assert declared.options == {"algorithm": "grid"}
    assert [*declared.space.points()] == [{"a": "x"}, {"a": "y"}]


def test_reverse_log_scale_is_dense_near_the_upper_bound(file: Path) -> None:
    """The formats use different mirrors."""
    file.write_text(CLOUDML)
    momentum = read_space(file).space.dimensions["momentum"]
    distribution = momentum.distribution()
    assert (distribution.low, distribution.high, distribution.log) == (0.5, 1.0, True)
    assert (momentum.value(0.5), momentum.value(1.0), momentum.value(0.75)) == (1.0, 0.5, 0.75)
    file.write_text(json.dumps(SAGEMAKER))
    momentum = read_space(file).space.dimensions["momentum"]
    assert momentum.distribution().low == pytest.approx(0.001)
    assert momentum.value(0.001) == pytest.approx(0.999)
    assert momentum.value(1.0) == 0


def test_read_space_accepts_a_url_and_a_relative_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    url = f"memory://{uuid.uuid4().hex}/hptuning.yaml"
    storage.write(url, CLOUDML)
    Path("hptuning.yaml").write_bytes(b"\xef\xbb\xbf" + CLOUDML.replace("\n", "\r\n").encode())
    assert read_space(url) == read_space("hptuning.yaml")
    with pytest.raises(ConfigError, match=r"^memory://none\.yaml cannot be read: .*Expected the"):
        read_space("memory://none.yaml")


def test_yaml_anchors_are_resolved(file: Path) -> None:
    file.write_text(
        "hyperparameters:\n"
        "  params:\n"
        "  - {parameterName: a, type: DISCRETE, discreteValues: &sizes [1, 2]}\n"
        "  - {parameterName: b, type: DISCRETE, discreteValues: *sizes}\n"
    )
    dimensions = read_space(file).space.dimensions
    assert dimensions["a"] == dimensions["b"] == Categorical([1, 2])


def cloudml(*lines: str, kind: str = "DOUBLE") -> str:
    """Return a file with one parameter, whose other keys begin on line 5."""
    head = ["hyperparameters:", "  params:", "  - parameterName: lr", f"    type: {kind}"]
    return "\n".join([*head, *(f"    {line}" for line in lines)]) + "\n"


NO_MAPPING = "expected names with values"
BOUNDS = ("minValue: 1", "maxValue: 2")


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        # The file as a whole.
        ("", 1, "the file is empty"),
        ("# nothing\n---\n", 3, f"the file is ''; {NO_MAPPING}"),
        ("\n- 1\n", 2, f"the file is a list; {NO_MAPPING}"),
        ("params", 1, f"the file is 'params'; {NO_MAPPING}"),
        (
            "a: 1\nb: [1\n",
            3,
            "column 1: invalid YAML or JSON: while parsing a flow sequence, expected",
        ),
        ("a: 1\n b: 2\n", 2, "column 3: invalid YAML or JSON: mapping values are not allowed here"),
        ("a: 1\n---\nb: 1\n", 2, "but found another document"),
        ("a: *b\n", 1, "found undefined alias 'b'"),
        ("a: 1\nb: \x00\n", 2, "special characters are not allowed. Is it a text file?"),
        ("learning_rate: [1, 2]\n", 1, "the file has learning_rate, and declares no search. Expec"),
        ("{}", 1, "the file has no keys, and declares no search"),
        ("hyperparameter:\n  params: []\n", 1, "Did you mean 'hyperparameters'?"),
        ("parameterRanges: {}\n", 1, "Did you mean 'ParameterRanges'?"),
        # CloudML around the parameters.
        ("trainingInput:\n  hyperparams: {}\n", 1, "has no hyperparameters. Did you mean"),
        ("trainingInput:\n  region: us\n", 1, "trainingInput has no hyperparameters. Add it."),
        ("trainingInput: 3\n", 1, f"trainingInput is '3'; {NO_MAPPING}"),
        (
            f"trainingInput:\n  args: [--a]\n  hyperparameters:\n    {PARAM}\n",
            2,
            "args is not supported. Write each argument as a parameter with one value",
        ),
        (
            f"trainingInput:\n  scheduling: {{}}\n  hyperparameters:\n    {PARAM}\n",
            2,
            "Pass timeout_s=",
        ),
        (f"trainingInput: {{}}\nhyperparameters:\n  {PARAM}\n", 1, "Remove one"),
        ("hyperparameters:\n  goal: MAXIMIZE\n", 1, "hyperparameters has no params. Add it."),
        ("hyperparameters:\n  params: []\n", 2, "params is empty; expected at least one"),
        ("hyperparameters:\n  params: {a: 1}\n", 2, "params is names with values; expected a list"),
        ("hyperparameters:\n  params:\n  - lr\n", 3, f"params[0] is 'lr'; {NO_MAPPING}"),
        (
            f"hyperparameters:\n  {PARAM}\n  resumePreviousJobId: j1\n",
            3,
            "resumePreviousJobId is not supported. Pass learn_from=[run] in the call.",
        ),
        (f"hyperparameters:\n  maxTrails: 3\n  {PARAM}\n", 2, "Did you mean 'maxTrials'?"),
        (f"hyperparameters:\n  ? [1]\n  : 2\n  {PARAM}\n", 2, "unknown key '?'"),
        (f"hyperparameters:\n  goal: MAX\n  {PARAM}\n", 2, "goal is 'MAX'; expected one of MAXIM"),
        (f"hyperparameters:\n  maxTrials: 0\n  {PARAM}\n", 2, "maxTrials is '0'; expected a whole"),
        (f"hyperparameters:\n  maxTrials: 1.5\n  {PARAM}\n", 2, "a whole number of at least 1"),
        (f"hyperparameters:\n  maxFailedTrials: -1\n  {PARAM}\n", 2, "of at least 0"),
        (
            f"hyperparameters:\n  enableTrialEarlyStopping: yes\n  {PARAM}\n",
            2,
            "enableTrialEarlyStopping is 'yes'; expected one of true, false",
        ),
        (f"hyperparameters:\n  hyperparameterMetricTag:\n  {PARAM}\n", 2, "is ''; expected a name"),
        (
            f"hyperparameters:\n  goal: MAXIMIZE\n  goal: MINIMIZE\n  {PARAM}\n",
            3,
            "goal is defined twice, first on line 2",
        ),
        # CloudML's parameters.
        (cloudml(kind="FLOAT"), 4, "type is 'FLOAT'; expected one of INTEGER, DOUBLE, DISCRETE"),
        (cloudml("minvalue: 1"), 5, "unknown key 'minvalue' in params[0]. Did you mean 'minValue'"),
        (cloudml("minValue: 1"), 3, "params[0] has no maxValue. Add it."),
        (cloudml(kind="CATEGORICAL"), 3, "params[0] has no categoricalValues. Add it."),
        (cloudml("minValue: small", "maxValue: 2"), 5, "minValue is 'small'; expected a number"),
        (cloudml("minValue: [1]", "maxValue: 2"), 5, "minValue is a list; expected a number"),
        (cloudml("minValue:", "maxValue: 2"), 5, "minValue is ''; expected a number"),
        (cloudml("minValue: 0", "maxValue: .inf"), 6, "maxValue is '.inf'; expected a number"),
        (cloudml("minValue: 0", "maxValue: 1e999"), 6, "maxValue is '1e999'; expected a number"),
        (cloudml("minValue: 1_0", "maxValue: 2"), 5, "minValue is '1_0'; expected a number"),
        (cloudml("minValue: 1.5", "maxValue: 2", kind="INTEGER"), 5, "expected a whole number"),
        (
            cloudml("minValue: 3", "maxValue: 2"),
            6,
            "maxValue is 2.0, and minValue is 3.0; `minValue <= maxValue` must hold. "
            "Swap the bounds.",
        ),
        (
            cloudml("minValue: 0", "maxValue: 2", "scaleType: UNIT_LOG_SCALE"),
            5,
            "minValue is 0.0; expected a number above 0 for a logarithmic scale",
        ),
        (
            cloudml("minValue: 0", "maxValue: 2", "scaleType: UNIT_REVERSE_LOG_SCALE"),
            5,
            "expected a number above 0",
        ),
        (
            cloudml("minValue: 1e-30", "maxValue: 2", "scaleType: UNIT_REVERSE_LOG_SCALE"),
            5,
            "log=True requires bounds above 0; raise low",
        ),
        (cloudml(*BOUNDS, "scaleType: LOG"), 7, "scaleType is 'LOG'; expected one of NONE, UNIT"),
        (cloudml(*BOUNDS, "discreteValues: [1]"), 7, "discreteValues is not valid for type DOUBLE"),
        (cloudml("discreteValues: []", kind="DISCRETE"), 5, "discreteValues is empty"),
        (cloudml("discreteValues: 3", kind="DISCRETE"), 5, "is '3'; expected a list"),
        (cloudml("discreteValues:", "- 1", "- x", kind="DISCRETE"), 7, "discreteValues[1] is 'x'"),
        (
            cloudml("discreteValues: [1, 1.0]", kind="DISCRETE"),
            5,
            "[1] is 1.0, which is in the list twi",
        ),
        (cloudml("categoricalValues: [a, [b]]", kind="CATEGORICAL"), 5, "expected a single value"),
        (cloudml("categoricalValues: [a, null]", kind="CATEGORICAL"), 5, "[1] is 'null'; expected"),
        (
            cloudml("categoricalValues: [a, 'a']", kind="CATEGORICAL"),
            5,
            "is 'a', which is in the list twice",
        ),
        (
            cloudml("categoricalValues: &a [*a]", kind="CATEGORICAL"),
            5,
            "categoricalValues[0] is a list; expected a single value",
        ),
        (
            cloudml("categoricalValues: [a]", "scaleType: UNIT_LOG_SCALE", kind="CATEGORICAL"),
            6,
            "a scale is not valid for type CATEGORICAL. Remove it.",
        ),
        (
            cloudml(*BOUNDS) + "  algorithm: GRID_SEARCH\n",
            3,
            "a grid cannot contain the continuous range of 'lr'. Write a list of values.",
        ),
        (
            cloudml(*BOUNDS, "") + "\n".join(cloudml(*BOUNDS).splitlines()[2:]),
            8,
            "parameter 'lr' is defined twice, first on line 3",
        ),
        # SageMaker.
        ("Strategy: Bayesian\n", 1, "the file has no parameter; expected ContinuousParameterRange"),
        ("ParameterRanges:\n  IntegerParameterRanges: []\n", 1, "ParameterRanges has no parameter"),
        ("ParameterRanges:\n  IntegerParameterRange: []\n", 2, "mean 'IntegerParameterRanges'?"),
        ("ParameterRanges: {}\nStrateg: Grid\n", 2, "unknown key 'Strateg' in the file. Did you m"),
        ("ParameterRanges: {}\nIntegerParameterRanges: []\n", 2, "unknown key 'IntegerParameterRa"),
        ("ParameterRanges:\n  AutoParameters: []\n", 2, "Write the range of each parameter"),
        ("HyperParameterTuningJobConfig: {}\n", 1, "Move its contents into a separate file"),
        ("ParameterRanges: {}\nStrategyConfig: {}\n", 2, "Pass pruner="),
        ("ParameterRanges: {}\nTuningJobCompletionCriteria: {}\n", 2, "Pass stop= or patience="),
        ("ParameterRanges: {}\nStrategy: bayesian\n", 2, "Did you mean 'Bayesian'?"),
        ("ParameterRanges: {}\nRandomSeed: -1\n", 2, "a whole number of at least 0"),
        (
            "Strategy: Hyperband\nTrainingJobEarlyStoppingType: Auto\nParameterRanges: {}\n",
            2,
            "Strategy Hyperband stops trials itself. Write Off.",
        ),
        (
            "ParameterRanges: {}\nResourceLimits: {MaxJobs: 3}\n",
            2,
            "unknown key 'MaxJobs' in Resou",
        ),
    ],
)
def test_invalid_file_names_the_line_and_the_fix(
    file: Path, text: str, line: int, message: str
) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_space(file)
    assert str(caught.value).startswith((f"{file}, line {line}: ", f"{file}, line {line}, column "))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("learning-rate", "'learning_rate'"),
        ("--lr", "'lr'"),
        ("layers.1/units", "'layers_1_units'"),
        ("2nd layer", "'_2nd_layer'"),
        ("--lambda", "'lambda_'"),
        ("-", "a Python identifier"),
    ],
)
def test_name_that_is_no_identifier_is_refused_with_a_suggestion(
    file: Path, name: str, right: str
) -> None:
    message = rf"line 3: \w+ is '{name}'\. The training function .* by name: write {right}\.$"
    file.write_text(cloudml(*BOUNDS).replace("lr", f"'{name}'"))
    with pytest.raises(ConfigError, match=message):
        read_space(file)
    entry = f'{{\n\n"Name": "{name}", "Values": ["a"]}}'
    file.write_text(f'{{"CategoricalParameterRanges": [{entry}]}}')
    with pytest.raises(ConfigError, match=message):
        read_space(file)


@pytest.mark.parametrize(
    ("kind", "entry", "line", "message"),
    [
        ("Integer", {"Name": "a", "MinValue": "1"}, 4, "[0] has no MaxValue"),
        ("Integer", {"Name": "a", "MinValue": "0.5", "MaxValue": "2"}, 6, "a whole number"),
        ("Integer", {"Name": "a", "MinValue": "5", "MaxValue": "2"}, 7, "`MinValue <= MaxValue`"),
        ("Integer", {"Name": "a", "Values": ["1"]}, 6, "unknown key 'Values'"),
        (
            "Integer",
            {"Name": "a", "MinValue": 0, "MaxValue": 0, "ScalingType": "ReverseLogarithmic"},
            8,
            "for continuous parameters only",
        ),
        (
            "Continuous",
            {"Name": "a", "MinValue": 0, "MaxValue": 1, "ScalingType": "ReverseLogarithmic"},
            7,
            "MinValue is 0.0, and MaxValue is 1.0; ReverseLogarithmic requires 0 <= x < 1",
        ),
        (
            "Continuous",
            {"Name": "a", "MinValue": -1, "MaxValue": 1, "ScalingType": "Logarithmic"},
            6,
            "MinValue is -1.0; expected a number above 0",
        ),
        (
            "Continuous",
            {"Name": "a", "MinValue": 0, "MaxValue": 1, "ScalingType": "Log"},
            8,
            "ScalingType is 'Log'; expected one of Auto, Linear, Logarithmic, ReverseLogarithmic",
        ),
        ("Categorical", {"Name": "a", "Values": []}, 6, "Values is empty"),
        ("Categorical", {"Name": "a", "Values": "x"}, 6, "Values is 'x'; expected a list"),
        ("Categorical", {"Values": ["x"]}, 4, "[0] has no Name"),
    ],
)
def test_invalid_ranges_of_sagemaker_are_refused(
    file: Path, kind: str, entry: dict[str, Any], line: int, message: str
) -> None:
    file.write_text(json.dumps({"ParameterRanges": {f"{kind}ParameterRanges": [entry]}}, indent=1))
    with pytest.raises(ConfigError) as caught:
        read_space(file)
    assert str(caught.value).startswith(f"{file}, line {line}: ")
    assert message in str(caught.value)


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml cannot be read: .*No such file.*Expected"):
        read_space(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match=r"cannot be read: .*Is a directory"):
        read_space(tmp_path)
    with pytest.raises(ConfigError, match=r"cannot be read: .*nowhere"):
        read_space("nowhere://bucket/file")
    file = tmp_path / "file"
    file.write_bytes(b"PAR1\x80\xff")
    with pytest.raises(ConfigError, match=r"cannot be read: .*can't decode byte 0x80"):
        read_space(file)
    file.write_bytes(b"a" * 2_000_000)
    with pytest.raises(ConfigError, match="more than 1048576 bytes"):
        read_space(file)
    file.write_text("a: " + "[" * 10_000)
    with pytest.raises(ConfigError, match="nested too deep"):
        read_space(file)


def test_objects_in_a_file_are_not_constructed(file: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    file.write_text(f"hyperparameters: !!python/object/apply:os.mkdir ['{mark}']\n")
    with pytest.raises(ConfigError, match="hyperparameters is a list; expected names"):
        read_space(file)
    assert not mark.exists()


DAMAGE = st.tuples(
    st.sampled_from([CLOUDML, json.dumps(SAGEMAKER, indent=1)]),
    st.floats(0, 1),
    st.integers(0, 12),
    st.text(st.characters(codec="utf-8"), max_size=3) | st.sampled_from(list(":-[]{}&*!?\n 0'")),
)


@given(DAMAGE)
def test_damaged_file_is_read_or_refused_with_its_line(damage: tuple[str, float, int, str]) -> None:
    text, place, size, instead = damage
    at = int(place * len(text))
    url = "memory://damaged/hptuning.yaml"
    storage.write(url, text[:at] + instead + text[at + size :])
    try:
        assert read_space(url).space.dimensions
    except ConfigError as exc:
        assert str(exc).startswith(f"{url}, line ")
