"""Models of any framework as versions: exported, loaded, applied, served, described for KServe."""

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from pyspark.sql import SparkSession

from sparkdl import experiment, models, serving
from sparkdl.errors import ConfigError, MissingPackageError, ModelDamagedError
from sparkdl.inference.loader_model import read_loader_model
from sparkdl.inference.torch_files import torch_format
from tests.helpers.processes import eventually
from tests.models import embedder

TEXTS = np.array(["one", "two words", "", "three more words"])
BATCH = {"text": TEXTS, "scale": np.array([1.0, 2.0, 3.0, 4.0])}
WEIGHTS = np.array([1.0, 10.0], "float32")


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    (tmp_path / "weights").mkdir()
    np.save(tmp_path / "weights" / "w.npy", WEIGHTS)
    return tmp_path / "weights"


@pytest.fixture
def version(weights: Path, root: str) -> models.ModelVersion:
    return exported(weights, root, loader=embedder.load, signature=BATCH)


def exported(model: Any, root: str, **options: Any) -> models.ModelVersion:
    found = models.export(model, "any", root=root, **options)
    assert found is not None
    return found


def traced_of(version: models.ModelVersion) -> Any:
    """The default function of a version."""
    return read_loader_model(Path(version.path)).trace(Path(version.path))["serving_default"]


def expected() -> list[tuple[list[float], str, list[int]]]:
    return [
        (
            (WEIGHTS * len(text.split()) * scale).tolist(),
            (text.split() or [""])[0],
            [len(word) for word in text.split()],
        )
        for text, scale in zip(TEXTS.tolist(), BATCH["scale"].tolist(), strict=True)
    ]


def test_a_version_has_the_files_the_modules_and_what_was_learnt(
    version: models.ModelVersion,
) -> None:
    assert {*version.details["files"]} >= {
        "loader.json",
        "files/w.npy",
        "code/tests/models/embedder.py",
        "code/tests/models/embedder_words.py",
    }
    assert version.signature == {
        "inputs": {
            "text": {"dtype": "string", "shape": [None]},
            "scale": {"dtype": "float64", "shape": [None]},
        },
        "outputs": {
            "vector": {"dtype": "float32", "shape": [None, 2]},
            "first": {"dtype": "string", "shape": [None]},
            "lengths": {"dtype": "int64", "shape": [None, None]},
        },
    }


def test_a_version_brings_its_modules_to_another_program(
    version: models.ModelVersion, tmp_path: Path
) -> None:
    """The other program does not find the user's modules on its own path."""
    program = (
        "import sys; from sparkdl import models; import numpy as np;"
        "m = models.get('any', root=sys.argv[1]).model();"
        "print(m(np.array(['a b c'], object), np.array([2.0]))['vector'].tolist())"
    )
    import sparkdl

    shutil.copytree(Path(sparkdl.__file__).parent, tmp_path / "lib" / "sparkdl")
    root = version.path.rsplit("/", 3)[0]
    done = subprocess.run(
        [sys.executable, "-c", program, root],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "lib")},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[[6.0, 60.0]]"


@pytest.mark.slow
def test_predictions_are_those_of_the_function(
    version: models.ModelVersion, spark: SparkSession
) -> None:
    rows = [(i, text, scale) for i, (text, scale) in enumerate(zip(*BATCH.values(), strict=True))]
    rows = [(i, str(text), float(scale)) for i, text, scale in rows]
    df = spark.createDataFrame(rows, "id int, text string, scale double").repartition(3)
    features = {"text": "text", "scale": "scale"}
    found = experiment.predict(version, df, feature_cols=features, prediction_col="p")
    assert found.schema["p_vector"].dataType.simpleString() == "array<float>"
    collected = found.orderBy("id").collect()
    columns = ("p_vector", "p_first", "p_lengths")
    assert [tuple(row[name] for name in columns) for row in collected] == expected()
    bad = df.withColumn("text", df.text.substr(1, 0)).union(
        spark.createDataFrame([(9, "bad", 1.0)])
    )
    nulls = experiment.predict(version, bad, feature_cols=features, errors="null")
    assert [row["id"] for row in nulls.collect() if row["prediction_first"] is None] == [9]
    with pytest.raises(ConfigError, match="names the inputs 'text'; the model has"):
        experiment.predict(version, df, feature_cols={"text": "text"})
    with pytest.raises(ConfigError, match=r"'scale' expects float64, but.*text"):
        experiment.predict(version, df, feature_cols={"text": "text", "scale": "text"})


def ask(server: serving.Server, path: str, body: Any) -> tuple[int, Any]:
    request = urllib.request.Request(
        f"{server.url}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as exc:
        return exc.code, json.loads(exc.read())


@pytest.mark.parametrize("batching", [None, True])
def test_a_server_answers_from_a_process_of_the_model(
    version: models.ModelVersion, root: str, batching: Any
) -> None:
    instances = [
        {"text": str(text), "scale": float(scale)}
        for text, scale in zip(*BATCH.values(), strict=True)
    ]
    with serving.start("any", root=root, port=0, batching=batching) as server:
        status, answer = ask(server, "/v1/models/any:predict", {"instances": instances})
        assert status == 200
        found = [(row["vector"], row["first"], row["lengths"]) for row in answer["predictions"]]
        assert found == expected()
        # An exception of the model is the request's; a process that dies is started again.
        bad = {"instances": [{"text": "bad", "scale": 1.0}]}
        assert ask(server, "/v1/models/any:predict", bad) == (400, {"error": "bad is no text"})
        wrong = {"instances": [{"text": "die", "scale": 1.0}]}
        status, answer = ask(server, "/v1/models/any:predict", wrong)
        assert status == 503 and "ended with the code 7" in answer["error"]
        assert ask(server, "/v1/models/any:predict", {"instances": instances})[0] == 200
        described = _get(server, "/v2/models/any")
        names = {i["name"]: i for i in described["inputs"]}
        assert names["text"]["datatype"] == "BYTES"
        assert described["platform"] == "python"
        process = _process_of(os.getpid())
    assert eventually(lambda: not Path(f"/proc/{process}").exists(), 20)


def several(root: str, **options: Any) -> models.ModelVersion:
    return exported(
        None,
        root,
        loader=embedder.several,
        signature={"x": np.ones((2, 3), "float32")},
        signatures={"count": {"text": np.array(["a b", "c"])}, "negative": np.ones(2, "int32")},
        **options,
    )


@pytest.mark.parametrize("batching", [None, True])
def test_a_request_chooses_a_function_of_a_loader(root: str, batching: Any) -> None:
    version = several(root)
    assert version.details["signatures"]["count"] == {
        "inputs": {"text": {"dtype": "string", "shape": [None]}},
        "outputs": {"words": {"dtype": "int64", "shape": [None]}},
    }
    with serving.start("any", root=root, port=0, batching=batching) as server:
        path = "/v1/models/any:predict"
        assert ask(server, path, {"instances": [[1, 2, 3]]}) == (200, {"predictions": [6.0]})
        count = {"signature_name": "count", "instances": ["one two", "three"]}
        assert ask(server, path, count) == (200, {"predictions": [2, 1]})
        negative = {"name": "inputs", "datatype": "INT32", "shape": [2], "data": [4, -5]}
        body = {"inputs": [negative], "parameters": {"signature_name": "negative"}}
        status, answer = ask(server, "/v2/models/any/infer", body)
        assert (status, answer["outputs"][0]["data"]) == (200, [-4, 5])
        status, answer = ask(server, path, {**count, "signature_name": "none"})
        assert status == 400 and 'name: "none" not found' in answer["error"]
        definitions = _get(server, "/v1/models/any/metadata")["metadata"]["signature_def"]
        assert [*definitions["signature_def"]] == ["serving_default", "count", "negative"]
    model = version.model()
    assert [*model] == ["serving_default", "count", "negative"]
    assert model["count"](text=np.array(["a b c"]))["words"].tolist() == [3]


@pytest.mark.slow
def test_a_prediction_chooses_a_function_of_a_loader(root: str, spark: SparkSession) -> None:
    version = several(root)
    df = spark.createDataFrame([("one two",), ("three",)], "text string")
    options: dict[str, Any] = {"feature_cols": {"text": "text"}, "prediction_col": "n"}
    found = experiment.predict(version, df, signature="count", **options)
    assert {(row.text, row.n) for row in found.collect()} == {("one two", 2), ("three", 1)}
    with pytest.raises(ConfigError, match="no signature 'none'; it has serving_default, count"):
        experiment.predict(version, df, signature="none", **options)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"signatures": {"other": np.ones(2)}}, "none for 'other'; expected a dict"),
        ({"signatures": {"count": np.ones(2)}}, r"the rows of signatures\['count'\]"),
        ({"signatures": {"serving_default": np.ones(2)}}, "pass its rows as signature="),
        ({"signatures": {"../x": np.ones(2)}}, "name of the signature"),
        ({"signatures": {"count": TEXTS}, "loader": embedder.identity}, "none for 'count'"),
        ({"signatures": {"count": TEXTS}, "loader": None}, "without loader="),
    ],
)
def test_functions_that_a_loader_does_not_have_are_refused(
    root: str, options: dict[str, Any], match: str
) -> None:
    example = {"x": np.ones((2, 3), "float32")}
    with pytest.raises(ConfigError, match=match):
        exported(None, root, **{"loader": embedder.several, "signature": example} | options)
    assert models.list("any", root=root) == []


@pytest.mark.slow
def test_bytes_that_are_no_text_come_to_the_model_and_back(root: str, spark: SparkSession) -> None:
    images = [b"\xff\xd8\x00", b"", b"plain"]
    coded = [{"b64": base64.b64encode(image).decode()} for image in images]
    example = {"image": np.array(images, object)}
    exported(None, root, loader=embedder.picture, signature=example)
    df = spark.createDataFrame([(image,) for image in images], "image binary")
    found = experiment.predict(models.get("any", root=root), df, feature_cols={"image": "image"})
    rows = found.collect()
    assert [(row.prediction_size, bytes(row.prediction_raw_bytes)) for row in rows] == [
        (len(image), image[::-1]) for image in images
    ]
    with serving.start("any", root=root, port=0, batching=True) as server:
        body = {"instances": coded[:2] + ["plain"]}
        status, answer = ask(server, "/v1/models/any:predict", body)
        assert status == 200
        expected = [base64.b64encode(image[::-1]).decode() for image in images]
        assert [(row["size"], row["raw_bytes"]["b64"]) for row in answer["predictions"]] == [
            *zip(map(len, images), expected, strict=True)
        ]
        tensor = {"name": "image", "datatype": "BYTES", "shape": [3], "data": coded}
        status, answer = ask(server, "/v2/models/any/infer", {"inputs": [tensor]})
        outputs = {output["name"]: output["data"] for output in answer["outputs"]}
        assert status == 200 and outputs["size"] == [3, 0, 5]


def _get(server: serving.Server, path: str) -> Any:
    with urllib.request.urlopen(f"{server.url}{path}", timeout=60) as answer:
        return json.loads(answer.read())


def _process_of(parent: int) -> int:
    """The process of the model that this process serves."""
    (found,) = _processes_of(parent)
    return found


def _processes_of(parent: int) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            is_child = _parent_of(int(folder.name)) == parent
            line = (folder / "cmdline").read_text()
        except (OSError, ValueError):
            continue
        if is_child and "sparkdl.inference.model_worker import main" in line:
            found.append(int(folder.name))
    return found


def _parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_model_that_hangs_leaves_the_other_models_alone(
    version: models.ModelVersion, root: str
) -> None:
    models.export(None, "other", loader=embedder.identity, signature=np.ones((2, 3)), root=root)
    path = "/v1/models/any:predict"
    texts = ["hang", *["word"] * 80]
    requests = [{"instances": [{"text": text, "scale": 1.0}]} for text in texts]
    with (
        serving.start(["any", "other"], root=root, port=0) as server,
        ThreadPoolExecutor(len(texts)) as pool,
    ):
        processes = _processes_of(os.getpid())
        slow = pool.submit(ask, server, path, requests[0])
        # The loader has forked a process, which lives on when its own process is killed.
        assert eventually(lambda: any(map(_processes_of, processes)), 20)
        others = [pool.submit(ask, server, path, request) for request in requests[1:]]
        body = {"instances": [[1.0, 2.0, 3.0]]}
        assert ask(server, "/v1/models/other:predict", body) == (200, {"predictions": [[1, 2, 3]]})
        (forked,) = [each for process in processes for each in _processes_of(process)]
        os.kill(_parent_of(forked), signal.SIGKILL)
        status, answer = slow.result(60)
        assert (status, answer["error"][:44]) == (
            503,
            "the process of the model has ended with the ",
        )
        assert [other.result(60)[0] for other in others] == [200] * 80
    assert eventually(lambda: not Path(f"/proc/{forked}").exists(), 20)


def test_a_process_that_hangs_is_ended_after_the_limit_of_the_server(
    version: models.ModelVersion, root: str
) -> None:
    hang, plain = ({"instances": [{"text": text, "scale": 1.0}]} for text in ("hang", "a b"))
    path = "/v1/models/any:predict"
    with serving.start("any", root=root, port=0, timeout_s=2.0) as server:
        first = _process_of(os.getpid())
        status, answer = ask(server, path, hang)
        assert status == 504 and "deadline" in answer["error"]
        assert eventually(lambda: ask(server, path, plain)[0] == 200)
        assert _process_of(os.getpid()) != first
    assert not Path(f"/proc/{first}").exists()


def test_a_loader_that_fails_here_is_not_exported(weights: Path, root: str) -> None:
    with pytest.raises(ConfigError, match=r"FileNotFoundError: .*weights\.bin is missing"):
        exported(weights, root, loader=embedder.fail, signature=np.ones((2, 2)))
    assert models.list("any", root=root) == []


def test_a_folder_that_cannot_be_copied_is_refused(
    weights: Path, root: str, tmp_path: Path
) -> None:
    (weights / "link").symlink_to("nowhere")
    with pytest.raises(ConfigError, match="cannot be copied"):
        exported(weights, root, loader=embedder.load, signature=BATCH)
    with pytest.raises(ConfigError, match="holds the registry itself"):
        exported(tmp_path, root, loader=embedder.load, signature=BATCH)


def test_a_loader_that_fails_in_the_server_is_told(
    version: models.ModelVersion, root: str, capfd: Any
) -> None:
    (Path(version.path) / "files" / "w.npy").unlink()
    with pytest.raises(ModelDamagedError, match=r"embedder:load failed: .*w\.npy"):
        serving.start("any", root=root, port=0)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"loader": lambda folder: None}, "expected a function of a module"),
        ({"loader": "embedder"}, "expected 'module:function'"),
        ({"loader": "__main__:load"}, "expected 'module:function'"),
        ({"loader": "no_such_module:load"}, "cannot be imported: No module named"),
        ({"loader": "json:no_such_function"}, "cannot be imported: module 'json' has no attribute"),
        ({"signature": None}, "signature is missing"),
        ({"signature": {"text": "one"}}, "expected an array with a batch of rows"),
        ({"signature": {"x": np.array([b"1"])}}, "expected numbers, booleans, text or bytes"),
        ({"signature": {**BATCH, "scale": np.ones(3)}}, "different numbers of rows"),
        ({"onnx": True}, "for models of Keras"),
    ],
)
def test_wrong_arguments_are_refused(
    weights: Path, root: str, options: dict[str, Any], match: str
) -> None:
    if "onnx" in options:
        pytest.importorskip("tf2onnx")
    with pytest.raises(ConfigError, match=match):
        exported(weights, root, **{"loader": embedder.load, "signature": BATCH} | options)
    assert models.list("any", root=root) == []


def test_a_loader_needs_no_files_and_a_version_is_copied(root: str) -> None:
    version = exported(None, root, loader=embedder.identity, signature=np.ones((2, 3), "int32"))
    copy = models.export(version, "other", root=root)
    assert copy is not None
    assert copy.signature == version.signature
    assert copy.signature["outputs"] == {"output_0": {"dtype": "int32", "shape": [None, 3]}}
    assert copy.model()(5) == 5


def test_the_checkpoint_of_a_trial_is_what_the_loader_gets(
    root: str, weights: Path, tmp_path: Path
) -> None:
    from tests.helpers.runs import run_with_outputs

    run = run_with_outputs(root, {"accuracy": (0.7, 0.9)}, {"model": [weights / "w.npy"] * 2})
    version = exported(run, root, loader=embedder.load, signature=BATCH)
    assert version.metrics == {"accuracy": 0.9}
    assert version.run == run.id
    assert [*version.model()(**BATCH)["first"]] == [row[1] for row in expected()]


def test_kserve_runs_a_container_of_the_user(weights: Path) -> None:
    root = "memory://loader-models"
    exported(str(weights), root, loader=embedder.load, signature=BATCH)
    with pytest.raises(ConfigError, match=r"needs image=.*and token_secret="):
        serving.kserve("any", root=root)
    text = serving.kserve("any", root=root, image="registry/any:1", token_secret="any-token")
    predictor = yaml.safe_load(text)["spec"]["predictor"]
    (container,) = predictor["containers"]
    assert container["image"] == "registry/any:1"
    assert container["command"][:3] == ["sparkdl", "serve", "/mnt/models/any"]
    assert "--workers" not in container["command"]
    options: Any = {"image": "registry/any:1", "token_secret": "any-token", "workers": 4}
    assert serving.kserve("any", root=root, **options) == text.replace(
        "- /etc/sparkdl/token\n", "- /etc/sparkdl/token\n      - --workers\n      - '4'\n"
    )
    assert predictor["storageUris"] == [
        {"uri": f"{root}/models/any/1", "mountPath": "/mnt/models/any/1"}
    ]
    assert predictor["volumes"][0]["secret"] == {"secretName": "any-token"}


# ---- formats that hold no code


def rows(count: int = 20) -> Any:
    return np.random.default_rng(0).random((count, 4)).astype("float32")


def sklearn_model(kind: str) -> Any:
    ensemble = pytest.importorskip("sklearn.ensemble")
    linear = pytest.importorskip("sklearn.linear_model")
    pytest.importorskip("skops")
    made = {
        "linear": linear.LinearRegression,
        "logistic": linear.LogisticRegression,
        "forest": lambda: ensemble.RandomForestClassifier(5, random_state=0),
        "boosting": lambda: ensemble.GradientBoostingRegressor(n_estimators=5),
    }
    return made[kind]().fit(rows(), (rows().sum(1) > 2).astype(int))


@pytest.mark.parametrize("kind", ["linear", "logistic", "forest", "boosting"])
def test_scikit_learn_predicts_as_before(kind: str, root: str) -> None:
    model = sklearn_model(kind)
    version = exported(model, root, signature=rows(3))
    assert np.array_equal(version.model().predict(rows()), model.predict(rows()))
    names = {"prediction", "probabilities"} if hasattr(model, "predict_proba") else {"prediction"}
    assert version.signature["outputs"].keys() == names


def test_a_tree_with_wrong_nodes_is_not_read(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = sklearn_model("forest")
    model.estimators_[0].tree_.children_left[0] = 10**6
    with pytest.raises(ConfigError, match="node 0 names the nodes 1000000"):
        exported(model, root, signature=rows(3))
    model = sklearn_model("forest")
    model.estimators_[0].tree_.feature[0] = 4  # One more than the rows have.
    with pytest.raises(ConfigError, match="the feature 4, of"):
        exported(model, root, signature=rows(3))


def test_an_export_changes_neither_the_rows_nor_the_module(root: str) -> None:
    given = np.ones((2, 3))
    exported(None, root, loader=embedder.subtract, signature=given)
    assert (given == 1).all()
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).train()
    module[1].eval()  # Frozen, as in fine-tuning.
    exported(module, root, signature=rows(1))
    assert [part.training for part in module.modules()] == [True, True, False]


@pytest.mark.parametrize(
    ("loader", "match"),
    [
        (embedder.empty, "has returned no output"),
        (embedder.nested, "is a tuple; expected an array"),
        (embedder.leave, "SystemExit"),
        (embedder.numbered, "without '0'"),
    ],
)
def test_outputs_that_no_request_can_use_are_refused(root: str, loader: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        exported(None, root, loader=loader, signature=np.ones((2, 3)))


def test_another_number_of_rows_is_an_error(root: str) -> None:
    version = exported(None, root, loader=embedder.repeat, signature=np.zeros((2, 3)))
    traced = traced_of(version)
    assert len(traced([np.zeros((4, 3))])["output_0"]) == 4
    with pytest.raises(RuntimeError, match="has 5 rows for 4 rows of input"):
        traced([np.ones((4, 3))])


def test_an_estimator_of_xgboost_predicts_with_its_best_rounds(root: str) -> None:
    xgboost = pytest.importorskip("xgboost")
    labels = (np.random.default_rng(1).random(200) > 0.5).astype(int)
    options = {"n_estimators": 50, "early_stopping_rounds": 2}
    model = xgboost.XGBClassifier(**options)
    model.fit(rows(200), labels, eval_set=[(rows(40)[::-1], labels[:40])], verbose=False)
    version = exported(model, root, signature={"features": rows(3)})
    found = traced_of(version)([rows(20)])
    assert np.allclose(found["prediction"], model.predict_proba(rows(20))[:, 1])
    with pytest.raises(ConfigError, match=r"takes 0\.0 for a missing value"):
        exported(xgboost.XGBClassifier(missing=0.0).fit(rows(200), labels), root, signature=rows(3))


@pytest.mark.parametrize("change", ["size", "constant"])
def test_a_program_of_pytorch_with_code_is_refused(tmp_path: Path, change: str) -> None:
    """The archive of a program, in which a size or a constant would run code when it is loaded."""
    code = f"__import__('os').mkdir({str(tmp_path / 'hit')!r})"
    model = json.dumps({"symbols": [{"expr_str": code if change == "size" else "Symbol('s0')"}]})
    with zipfile.ZipFile(tmp_path / "m.pt2", "w") as archive:
        archive.writestr("m/archive_format", "pt2")
        archive.writestr("m/models/model.json", model)
        name = "opaque_obj_0/any" if change == "constant" else "tensor_0"
        archive.writestr(f"m/data/constants/{name}", b"")
    with pytest.raises(ValueError, match=r"PyTorch would run|pickled objects"):
        torch_format(tmp_path / "m.pt2")
    assert not (tmp_path / "hit").exists()


def xgboost_model() -> tuple[Any, Callable[[Any], Any]]:
    xgboost = pytest.importorskip("xgboost")
    model = xgboost.XGBClassifier(n_estimators=3).fit(rows(), (rows().sum(1) > 2).astype(int))
    return model, lambda x: model.predict_proba(x)[:, 1]


def torch_model() -> tuple[Any, Callable[[Any], Any]]:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    layers = torch.nn.Linear(4, 3), torch.nn.Dropout(), torch.nn.Softmax(-1)
    model = torch.nn.Sequential(*layers)
    return model, lambda x: model.eval()(torch.tensor(x)).detach().numpy()


@pytest.mark.slow
@pytest.mark.parametrize("make", [xgboost_model, torch_model])
def test_each_way_to_a_prediction_gives_the_same(
    make: Callable[[], Any], root: str, spark: SparkSession
) -> None:
    model, oracle = make()
    version = exported(model, root, signature=rows(3))
    df = spark.createDataFrame([(x.tolist(),) for x in rows()], "x array<float>").coalesce(1)
    predicted = experiment.predict(version, df, feature_cols="x").collect()
    assert np.allclose([row["prediction"] for row in predicted], oracle(rows()), atol=1e-6)
    with serving.start("any", root=root, port=0) as server:
        status, answer = ask(server, "/v1/models/any:predict", {"instances": rows().tolist()})
    assert status == 200
    assert np.allclose(answer["predictions"], oracle(rows()), atol=1e-6)


def test_a_module_of_pytorch_stays_as_it_is(root: str) -> None:
    torch = pytest.importorskip("torch")

    class Pair(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(10, 2)

        def forward(self, ids: Any, scale: Any) -> Any:
            return {"mean": self.embedding(ids).mean(1) * scale[:, None], "ids": ids}

    model = Pair().train()
    tensor_spec = type("TensorSpec", (), {})

    def spec(shape: tuple[int | None, ...], dtype: str) -> Any:
        made = tensor_spec()
        made.shape, made.dtype = shape, dtype
        return made

    signature = {"ids": spec((None, None), "int64"), "scale": spec((None,), "float32")}
    version = exported(model, root, signature=signature)
    assert model.training
    assert version.signature["outputs"]["ids"] == {"dtype": "int64", "shape": [None, None]}
    ids, scale = torch.arange(6).reshape(1, 6), torch.ones(1)
    loaded = version.model()(ids=ids, scale=scale)
    assert torch.equal(loaded["mean"], model(ids, scale)["mean"])


def test_a_model_that_a_function_returned_is_exported(root: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    run = experiment.launch(lambda: torch.nn.Linear(4, 2), root=root, progress=False)
    version = exported(run, root, signature=rows(2))
    x = torch.tensor(rows())
    assert torch.allclose(version.model()(x), run.trials[0].model()(x))
    assert version.run == run.id


def test_a_program_that_a_function_returned_is_exported(root: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from tests.helpers.runs import run_with_outputs

    module = torch.nn.Linear(4, 2)
    program = torch.export.export(module, (torch.ones(1, 4),))  # For one row at a time.
    torch.export.save(program, tmp_path / "net.pt2")
    run = run_with_outputs(root, {"accuracy": (0.9,)}, {"model": [tmp_path / "net.pt2"]})
    version = exported(run, root, signature=rows(2))
    assert version.metrics == {"accuracy": 0.9}
    x = torch.tensor(rows(1))
    assert torch.allclose(version.model()(x), module(x))
    traced = traced_of(version)
    for count in (0, 1, 5):
        expected = module(torch.tensor(rows(count))).detach().numpy()
        assert np.allclose(traced([rows(count)])["output_0"], expected)


def test_onnx_describes_itself(root: str, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from onnx import TensorProto, helper, numpy_helper

    weights = np.arange(12, dtype="float32").reshape(4, 3)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8
    onnx.save(model, tmp_path / "m.onnx")
    version = exported(tmp_path / "m.onnx", root)
    assert version.signature["inputs"] == {"x": {"dtype": "float32", "shape": [None, 4]}}
    assert np.allclose(version.model().run(None, {"x": rows()})[0], rows() @ weights)


def test_a_missing_package_is_named(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = sklearn_model("linear")
    monkeypatch.setitem(sys.modules, "skops", None)
    with pytest.raises(MissingPackageError, match="sklearn"):
        exported(model, root, signature=rows(2))


@pytest.mark.parametrize("floats", ["float32", "float64"])
def test_a_module_is_exported_in_the_dtype_of_its_weights(root: str, floats: str) -> None:
    """The rows of `np.zeros` are doubles, which a module of float32 refuses."""
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(2, 1).to(getattr(torch, floats))
    version = models.export(module, "net", signature=np.zeros((1, 2)), root=root)
    assert version is not None
    assert version.signature["inputs"]["inputs"]["dtype"] == floats
    x = torch.tensor([[0.1, 2.0]], dtype=getattr(torch, floats))
    assert torch.equal(version.model()(x), module(x))
