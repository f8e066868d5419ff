"""Arrays and DataFrames in files of the project, compared with NumPy and pandas on local files."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sparkdl.hops import hdfs, numpy_helper, pandas_helper


@pytest.fixture(params=["local", "memory"], autouse=True)
def project(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    is_local = request.param == "local"
    url = str(tmp_path / "demo") if is_local else f"memory://{tmp_path.name}/demo"
    monkeypatch.setenv("SPARKDL_ROOT", url)
    return url


def test_arrays_are_kept() -> None:
    rows = np.arange(6.0).reshape(2, 3)
    numpy_helper.save("Resources/rows.npy", rows)
    numpy_helper.save(hdfs.project_path() + "/Resources/full", rows + 1)  # NumPy adds `.npy`.
    np.testing.assert_array_equal(numpy_helper.load("Resources/rows.npy"), rows)
    np.testing.assert_array_equal(numpy_helper.load("Resources/full.npy"), rows + 1)
    numpy_helper.save("Resources/rows.npy", rows * 2)
    np.testing.assert_array_equal(numpy_helper.load("Resources/rows.npy"), rows * 2)
    for write in (numpy_helper.savez, numpy_helper.savez_compressed):
        write("Resources/both.npz", rows, last=rows[-1])
        with numpy_helper.load("Resources/both.npz") as both:
            np.testing.assert_array_equal(both["arr_0"], rows)
            np.testing.assert_array_equal(both["last"], rows[-1])


def test_numbers_of_text_and_of_plain_bytes() -> None:
    text = "1,2\n,4\n"
    hdfs.dump(text, "Resources/holes.csv")
    Path("holes.csv").write_text(text)
    np.testing.assert_array_equal(
        numpy_helper.genfromtxt("Resources/holes.csv", delimiter=","),
        np.genfromtxt("holes.csv", delimiter=","),
    )
    hdfs.dump("1 2\n3 4\n", "Resources/rows.txt")
    assert numpy_helper.loadtxt("Resources/rows.txt").tolist() == [[1, 2], [3, 4]]
    options = {"regexp": r"(\d) (\d)", "dtype": [("a", int), ("b", int)]}
    assert numpy_helper.fromregex("Resources/rows.txt", **options)["b"].tolist() == [2, 4]
    hdfs.dump(np.arange(4, dtype="int16").tobytes(), "Resources/numbers.bin")
    assert numpy_helper.fromfile("Resources/numbers.bin", dtype="int16").tolist() == [0, 1, 2, 3]
    mapped = numpy_helper.memmap("Resources/numbers.bin", dtype="int16", mode="r", shape=(2, 2))
    assert mapped.tolist() == [[0, 1], [2, 3]]


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_frames_are_kept(kind: str) -> None:
    frame = pd.DataFrame({"x": [1, 2], "name": ["a", "ö"]})
    options = {"index": False} if kind == "csv" else {}
    for path in (f"Resources/rows.{kind}", f"{hdfs.project_path()}Resources/full.{kind}"):
        for rows in (frame, frame[:1]):  # The second replaces the first.
            getattr(pandas_helper, f"write_{kind}")(path, rows, **options)
            pd.testing.assert_frame_equal(getattr(pandas_helper, f"read_{kind}")(path), rows)
