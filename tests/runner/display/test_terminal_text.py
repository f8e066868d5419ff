"""The output of a trial, as a terminal would show it."""

from pathlib import Path

import pytest

from sparkdl.cluster.plan import Plan, Role
from sparkdl.options import Options
from sparkdl.runner.display.terminal_text import visible_text, without_styles
from sparkdl.runner.display.trial_output import TrialOutput, logs_of
from sparkdl.runs import Run, Trial


def keras_epoch(num_steps: int) -> str:
    """Return the text that `keras.utils.Progbar` writes in one epoch."""
    text, width = "", 0
    for step in range(1, num_steps + 1):
        bar = (
            f"\x1b[1m{step}/{num_steps}\x1b[0m \x1b[32m{'━' * 20}\x1b[0m \x1b[1m0s\x1b[0m loss: 0.5"
        )
        text += "\b" * width + "\r" + bar + f" accuracy: {step / num_steps:.4f}"
        width = len(bar)
    return text


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("plain", "plain"),
        ("", ""),
        ("\r 10%|#   |\r100%|####|", "100%|####|"),
        ("long text\rshort", "shorttext"),
        ("long text\r\x1b[Kshort", "short"),
        ("abc\b\bXY", "aXY"),
        ("ab\b\b\bstart", "start"),
    ],
)
def test_visible_text_is_that_of_a_terminal(line: str, shown: str) -> None:
    assert visible_text(line) == shown


def test_styles_are_removed() -> None:
    assert without_styles("\x1b[31mred\x1b[0m \x1b]0;title\x07text") == "red text"


def test_bar_of_keras_is_one_short_line(tmp_path: Path) -> None:
    epoch = keras_epoch(1000)
    assert len(epoch) > 48_000
    trial = Trial(0, {}, str(tmp_path))
    (tmp_path / "log.txt").write_bytes(f"{epoch}\nEpoch 2\n".encode()[-30_000:])
    said: list[str] = []
    plan = Plan(kind="launch", roles=(Role(name="worker", count=1),))
    output = TrialOutput(
        Run("r", str(tmp_path), "r", "launch", trials=[trial]), plan, "all", said.append, False
    )
    output.show_new(trial, last=True)
    lines = "\n".join(said).splitlines()
    assert lines[-1] == "[trial 0] Epoch 2"
    assert lines[-2].endswith(f"1000/1000 {'━' * 20} 0s loss: 0.5 accuracy: 1.0000")
    assert not {"\b", "\r", "\x1b"} & set("".join(said))
    assert all(len(line) < 200 for line in lines)


def test_logs_follow_the_option_or_the_number_of_trials() -> None:
    assert logs_of(Options(logs="none"), 1, False) == "none"
    assert logs_of(Options(), 20, False) == "all"
    assert logs_of(Options(), 21, False) == "best"
    assert logs_of(Options(), float("inf"), False) == "best"
    assert logs_of(Options(wait=False), 1, False) == "best"
    assert logs_of(Options(wait=False), 1, True) == "all"
