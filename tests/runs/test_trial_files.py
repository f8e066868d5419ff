"""The files of a trial on the user's disk: artifacts, the model, the whole folder."""

from pathlib import Path
from typing import Any

import pytest

from sparkdl.errors import ConfigError
from sparkdl.runs import Run
from tests.helpers.runs import run_with_outputs


@pytest.fixture
def files(tmp_path: Path) -> dict[str, list[Path]]:
    """A plot and a model for each of two trials."""
    paths = {"plot": [tmp_path / "0.png", tmp_path / "1.png"]}
    paths["model"] = [tmp_path / "0.keras", tmp_path / "1.keras"]
    for number in (0, 1):
        for values in paths.values():
            values[number].write_text(f"content of {values[number].name}")
    return paths


def test_local_artifacts_are_where_they_are_and_nowhere_else(
    root: str, files: Any, tmp_path: Path
) -> None:
    run = run_with_outputs(root, {"accuracy": (0.9, 0.7)}, files)
    path = run.best.artifact("plot")
    assert path == f"{run.best.path}/artifacts/plot/0.png"
    copy = run.best.artifact("plot", to=tmp_path / "here")
    assert Path(copy) == tmp_path / "here" / "0.png"
    assert Path(copy).read_text() == "content of 0.png"
    with pytest.raises(ConfigError, match=r"no artifact 'plots': .*Did you mean 'plot'"):
        run.best.artifact("plots")
    with pytest.raises(ConfigError, match=r"no artifact 'accuracy': it is 0\.9"):
        run.best.artifact("accuracy")
    # Text among the outputs is no file, and may be too long for the name of one.
    run.best.outputs = {"report": "precision " * 50, "optimizer": "adam", **run.best.outputs}
    assert run.best.model_path == f"{run.best.path}/artifacts/model/0.keras"
    for name in ("report", "optimizer"):
        with pytest.raises(ConfigError, match="a returned file: 'plot', 'model'"):
            run.best.artifact(name)
    without = run_with_outputs(f"{root}/other", {"accuracy": (0.9,)}, {})
    with pytest.raises(ConfigError, match="the trial returned none"):
        without.best.artifact("plot")
    with pytest.raises(ConfigError, match="has no model"):
        without.best.model()


def test_the_name_of_an_artifact_leads_out_of_no_trial(root: str, files: Any) -> None:
    run = run_with_outputs(root, {"accuracy": (0.9, 0.7)}, files)
    secret = Path(run.path).parent / "secret"
    secret.write_text("x")
    outside = {"up": "../../../secret", "absolute": str(secret)}
    run.best.outputs = {**outside, **run.best.outputs}
    for name in outside:
        with pytest.raises(ConfigError, match="a returned file: 'plot', 'model'"):
            run.best.artifact(name)


def test_remote_artifacts_are_copied(files: Any, tmp_path: Path) -> None:
    root = f"memory://{tmp_path.name}"
    run: Run = run_with_outputs(root, {"accuracy": (0.7, 0.9)}, files)
    assert run.best.model_path == f"{run.best.path}/artifacts/model/1.keras"
    for name, text in (("plot", "1.png"), ("model", "1.keras")):
        path = Path(run.best.artifact(name))
        assert path.name == text
        assert path.read_text() == f"content of {text}"
    folder = Path(run.best.download(tmp_path / "trial"))
    assert folder.joinpath("artifacts", "plot", "1.png").read_text() == "content of 1.png"


@pytest.mark.parametrize("work", ["work", "work-worker-0", "work-chief-0"])
def test_a_model_that_was_left_and_not_returned_is_the_model(root: str, work: str) -> None:
    run = run_with_outputs(root, {"accuracy": (0.9,)}, {})
    folder = Path(run.best.path, work)
    folder.mkdir(parents=True)
    for name in ("notes.txt", "model.weights.h5"):
        folder.joinpath(name).write_text("")
    with pytest.raises(ConfigError, match="has no model"):
        run.best.model_path  # noqa: B018
    folder.joinpath("model.keras").write_text("")
    assert run.best.model_path == f"{folder}/model.keras"
    folder.joinpath("saved").mkdir()
    folder.joinpath("saved", "saved_model.pb").write_text("")
    with pytest.raises(
        ConfigError, match=rf"left 2 of them: {folder}/model\.keras, {folder}/saved"
    ):
        run.best.model_path  # noqa: B018
    # A value that is kept as a whole, such as a model of another library, is no leftover's.
    result = Path(run.best.path, "result.json")
    result.write_text("{}")
    with pytest.raises(ConfigError, match="has no model"):
        run.best.model_path  # noqa: B018
    result.unlink()
    # What was returned is taken before what was left.
    run.best.outputs = {"accuracy": 0.9, "best": f"{work}/model.keras"}
    assert run.best.model_path == f"{run.best.path}/{work}/model.keras"
