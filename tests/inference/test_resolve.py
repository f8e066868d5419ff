"""The model of a trial: among its outputs, or in the checkpoint of its value."""

from pathlib import Path

from sparkdl import checkpoints
from sparkdl.runs import Trial, TrialState


def test_model_is_that_of_the_checkpoint_with_the_value(tmp_path: Path) -> None:
    source = tmp_path / "made"
    source.mkdir()
    for step, value in enumerate([0.5, 0.9, 0.7]):
        (source / "model.keras").write_text(str(value))
        checkpoints.commit(source, str(tmp_path / "trial"), step, {"accuracy": value})
    trial = Trial(0, {}, str(tmp_path / "trial"), state=TrialState.COMPLETE, metric="accuracy")
    for value, kept in ((0.9, "0.9"), (0.7, "0.7"), (0.6, "0.7")):
        trial.value = value
        assert Path(trial.model_path).read_text() == kept
