"""Models as InferenceServices of KServe, compared with the published schema where it is."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkdl import models, serving
from sparkdl.cli.main import main
from sparkdl.errors import ConfigError, ModelNotFoundError
from tests.helpers.saved_models import write_saved_model

SCHEMA = Path(__file__).parents[3] / "shared/data/kserve-inferenceservice-v1beta1.schema.json"
ROOT = "memory://kserve-models"


@pytest.fixture(scope="module", autouse=True)
def digits(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Three versions on a store; `stable` is 2 and `canary` is 3."""
    model = write_saved_model(tmp_path_factory.mktemp("model") / "saved")
    for alias in ("old", "stable", "canary"):
        models.export(model, "Digits_cnn", root=ROOT, alias=alias)


def service(**options: Any) -> Any:
    """The service, which fits the schema of KServe."""
    content = yaml.safe_load(serving.kserve("Digits_cnn", root=ROOT, **options))
    if SCHEMA.exists():
        import jsonschema

        jsonschema.validate(content, json.loads(SCHEMA.read_text()))
    return content


def test_the_newest_version_is_served_from_the_registry() -> None:
    content = service()
    assert content["metadata"]["name"] == "digits-cnn"
    predictor = content["spec"]["predictor"]
    assert predictor["storageUris"] == [
        {"uri": f"{ROOT}/models/Digits_cnn/3", "mountPath": "/mnt/models/3"}
    ]
    assert "canary" not in content["spec"] and "batcher" not in predictor


def test_a_canary_has_a_predictor_of_its_own() -> None:
    content = service(
        version="stable",
        canary={"canary": 10},
        max_replicas=5,
        scale_on="cpu",
        batch=32,
        log_to="http://log.default/",
        gpus=1,
    )
    predictor, (canary,) = content["spec"]["predictor"], content["spec"]["canary"]
    assert (predictor["name"], canary["predictor"]["name"]) == ("v2", "v3")
    assert canary["trafficPercent"] == 10
    # KServe refuses these in a canary.
    assert not {"maxReplicas", "scaleTarget", "scaleMetric"} & canary["predictor"].keys()
    assert (predictor["scaleMetric"], predictor["scaleTarget"]) == ("cpu", 80)
    assert predictor["batcher"] == {"maxBatchSize": 32}
    # The service has another name than the model, so KServe adds the model's name to its events.
    assert content["metadata"]["annotations"]["sparkdl/model"] == "Digits_cnn"
    assert predictor["logger"] == {
        "mode": "all",
        "url": "http://log.default/",
        "metadataAnnotations": ["sparkdl/model"],
    }
    assert predictor["model"]["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_knative_shifts_the_share_of_the_new_revision() -> None:
    options: dict[str, Any] = {"mode": "Knative", "min_replicas": 0, "scale_on": "rps"}
    predictor = service(version=2, canary={3: 20}, **options)["spec"]["predictor"]
    assert predictor["canaryTrafficPercent"] == 20
    assert predictor["storageUris"][0]["mountPath"] == "/mnt/models/3"


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"mode": "Serverless"}, "'Standard' or 'Knative'"),
        ({"min_replicas": 0}, "only mode='Knative'"),
        ({"min_replicas": 3, "max_replicas": 2}, "0 to max_replicas"),
        ({"max_replicas": 0}, "at least 1"),
        ({"scale_on": "latency"}, "'cpu' or 'memory'"),
        ({"scale_on": "rps"}, "Pass mode='Knative'"),
        ({"canary": {1: 5, 2: 5}}, "expected one version"),
        ({"canary": {1: 101}}, "0 to 100"),
        ({"batch": 0}, "at least 1"),
        ({"log_to": "s3://bucket"}, "CloudEvents"),
        ({"gpus": -1}, "at least 0"),
        ({"workers": 0}, "at least 1"),
        ({"workers": 2}, "which TensorFlow Serving takes"),
    ],
)
def test_wrong_arguments_are_refused(options: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        serving.kserve("Digits_cnn", root=ROOT, **options)


def test_versions_must_exist_on_a_store(root: str, tmp_path: Path) -> None:
    for options in ({"version": 9}, {"version": "none"}, {"canary": {9: 10}}):
        with pytest.raises(ModelNotFoundError):
            serving.kserve("Digits_cnn", root=ROOT, **options)  # type: ignore[arg-type]
    models.export(write_saved_model(tmp_path / "saved"), "digits", root=root)
    with pytest.raises(ConfigError, match="a local disk"):
        serving.kserve("digits", root=root)


def command(capsys: Any, *options: str, model: str = "Digits_cnn") -> tuple[int, str, str]:
    code = main(["serve", model, "--root", ROOT, "--kserve", *options])
    output = capsys.readouterr()
    return code, output.out, output.err


def test_the_command_prints_what_the_function_returns(capsys: Any) -> None:
    options = "--alias stable --weight canary=10 --max-replicas 5 --min-replicas 2 --scale-on cpu"
    more = "--batching --log http://log.default/ --cpu 2 --memory 4Gi --gpus 1 --mode Standard"
    expected = serving.kserve(
        "Digits_cnn",
        version="stable",
        canary={"canary": 10},
        min_replicas=2,
        max_replicas=5,
        scale_on="cpu",
        batch=32,
        log_to="http://log.default/",
        cpu="2",
        memory="4Gi",
        gpus=1,
        root=ROOT,
    )
    assert command(capsys, *options.split(), *more.split()) == (0, expected, "")
    assert command(capsys) == (0, serving.kserve("Digits_cnn", root=ROOT), "")


def test_the_command_writes_a_file(capsys: Any, tmp_path: Path) -> None:
    options = ["--model-version", "1", "--weight", "3=20", "--batching", "--max-batch-size", "8"]
    file = tmp_path / "service.yaml"
    assert command(capsys, *options, "--output", str(file)) == (0, "", "")
    text = serving.kserve("Digits_cnn", version=1, canary={3: 20}, batch=8, root=ROOT)
    assert file.read_text() == text


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["--kserve", "--port", "80"], "--port is given, but with --kserve"),
        (["--kserve", "--memory-limit-mb", "80"], "--memory-limit-mb is given"),
        (["--kserve", "--workers", "2"], "which TensorFlow Serving takes"),
        (["--gpus", "1"], "--gpus is given, but it needs --kserve"),
        (["--output", "x.yaml"], "--output is given, but it needs --kserve"),
        (["other", "--kserve"], "--kserve got 2 models"),
        (["--kserve", "--alias", "stable", "--model-version", "1"], "expected one of them"),
        (["--kserve", "--max-batch-size", "8"], "without --batching"),
        (["--kserve", "--weight", "canary=2.5"], "gives 'canary' 2.5 percent"),
        (["--kserve", "--weight", "1=2", "--weight", "3=2"], "expected one version"),
        (["--kserve", "--scale-on", "rps"], "Pass mode='Knative'"),
        (["--kserve", "--alias", "none"], "has no alias 'none'"),
    ],
)
def test_options_without_a_meaning_are_refused(words: Any, match: str, capsys: Any) -> None:
    assert main(["serve", "Digits_cnn", *words, "--root", ROOT]) == 2
    assert match in capsys.readouterr().err
