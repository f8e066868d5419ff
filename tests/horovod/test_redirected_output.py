"""The lines of ranks on the streams of the driver."""

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparkdl.horovod.redirected_output import RedirectedOutput


class Ranks:
    """A run whose ranks print into files, and the streams of the driver."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self._printed = folder / "printed"
        self._printed.mkdir()
        self.run: Any = SimpleNamespace(trials=[SimpleNamespace(path=str(folder))])
        self.stdout = io.StringIO()
        self.output = RedirectedOutput({"stdout": self.stdout, "stderr": None}, **options)

    def prints(self, rank: int, text: bytes, stream: str = "stdout") -> None:
        with (self._printed / f"{stream}-{rank}-0af1").open("ab") as file:
            file.write(text)
        self.output.on_interval(self.run)

    def all(self) -> str:
        self.output.on_run_end(self.run)
        return self.stdout.getvalue()


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    return Ranks(tmp_path)


def test_each_line_has_its_prefix(ranks: Ranks) -> None:
    ranks.prints(3, b"a\r\nb\rc\n\nd")
    lines = ["a\r\n", "b\r", "c\n", "\n", "d"]
    assert ranks.all() == "".join(f"[3]<stdout>:{line}" for line in lines)


def test_pieces_of_lines_are_joined_and_those_of_ranks_are_not(ranks: Ranks) -> None:
    ranks.prints(0, b"first ")
    ranks.prints(1, b"of the other\n")
    ranks.prints(0, "\u00e9".encode()[:1])
    ranks.prints(0, "\u00e9".encode()[1:] + b"\r")
    ranks.prints(0, b"\nends by a return\r")
    ranks.prints(0, b"no line", "stderr")
    expected = ["[1]<stdout>:of the other\n", "[0]<stdout>:first \u00e9\r\n"]
    assert ranks.all() == "".join(expected) + "[0]<stdout>:ends by a return\r"


def test_lines_may_begin_with_the_time(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, with_time=True)
    ranks.prints(0, b"x\n")
    assert ranks.all().endswith("[0]<stdout>:x\n") and not ranks.all().startswith("[0]")
