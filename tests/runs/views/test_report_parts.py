"""The sections of a report that are made of files: images, data, code, and what has changed."""

import json
import os
import re
import struct
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from sparkdl.files import storage
from sparkdl.files.layout import RunPaths, TrialPaths
from sparkdl.runs import Run
from sparkdl.runs.earlier_run import find_earlier
from sparkdl.runs.views.images_part import MAX_BYTES, MAX_OF_TRIAL
from sparkdl.runs.views.report import write_report
from tests.helpers.stored_runs import ended

SVG = "<svg xmlns='http://www.w3.org/2000/svg'><script>document.owned = 1</script></svg>"


def png(width: int = 2, height: int = 2) -> bytes:
    """A PNG as https://www.w3.org/TR/png-3/ describes it, with the pixels of a small one."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(b"\0\0\0" * 2))
    return b"\x89PNG\r\n\x1a\n" + header + pixels + chunk(b"IEND", b"")


def jpeg(width: int, height: int) -> bytes:
    """The beginning of a JPEG: a comment, then the frame with its size (ITU-T T.81, B.2.2)."""
    comment = b"\xff\xfe" + struct.pack(">H", 7) + b"hello"
    return b"\xff\xd8" + comment + b"\xff\xc0\x00\x11\x08" + struct.pack(">HH", height, width)


class Elements(HTMLParser):
    """The elements of a page with their attributes, and the texts in each section."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self._title: str | None = None
        self._in_title = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._in_title = tag == "h2"

    def handle_endtag(self, tag: str) -> None:
        self._in_title = False

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self._title = data
        if self._title:
            self.texts[self._title] = self.texts.get(self._title, "") + data + "\n"

    def sources(self) -> list[str]:
        return [str(attributes["src"]) for tag, attributes in self.elements if tag == "img"]


def shown(run: Run) -> Elements:
    return Elements(Path(write_report(run)).read_text())


def started(run: Run, created: str, **facts: Any) -> Run:
    """Change the start of a run, and other facts of its `run.json`."""
    file = Path(RunPaths(run.path).run)
    file.write_text(json.dumps({**json.loads(file.read_text()), "created": created, **facts}))
    return run


def keep(run: Run, files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        storage.write(storage.join(run.path, name), content)


def test_images_are_shown_once_and_only_images(root: str) -> None:
    run = ended(root, "r").run
    keep(
        run,
        {
            "trials/1/work/plots/roc.svg": SVG,
            "trials/1/work/confusion.PNG": png(),
            "trials/1/artifacts/confusion.PNG": png(),
            "trials/1/work/photo.jpeg": jpeg(640, 480),
            "trials/1/work/notes.png": "no image",
            "trials/1/work/bomb.png": png(60_000, 60_000),
            "trials/1/work/bomb.jpg": jpeg(65_000, 65_000),
            "trials/1/work/large.png": png() + bytes(MAX_BYTES),
            "trials/0/work/other.svg": SVG.replace("owned", "other"),
            "trials/0/scratch/hidden.png": png(3, 3),
        },
    )
    os.mkfifo(Path(run.path, "trials/1/work/pipe.png"))
    page = shown(run)
    kinds = [re.match(r"data:image/([a-z+]+);base64,", source) for source in page.sources()]
    # The best trial is the second one.
    assert [kind[1] for kind in kinds if kind] == ["png", "jpeg", "svg+xml", "svg+xml"]
    text = page.texts["Images"]
    assert text.index("trial 1: plots/roc.svg") < text.index("trial 0: other.svg")
    for name in ("notes.png", "bomb.png", "bomb.jpg", "large.png", "pipe.png"):
        assert name in text[: text.index("\n\n")].split("not shown")[1]
    assert not {tag for tag, _ in page.elements} & {"svg", "object", "embed", "iframe"}


def test_images_are_bounded_in_number(root: str) -> None:
    run = ended(root, "r").run
    for number in range(MAX_OF_TRIAL + 5):
        keep(run, {f"trials/1/work/{number:02}.svg": SVG + "<!--" + str(number) + "-->"})
    page = shown(run)
    assert len(page.sources()) == MAX_OF_TRIAL
    assert "trial 1: 16.svg" in page.texts["Images"]


def test_data_has_columns_rows_and_fingerprint(root: str) -> None:
    run = ended(root, "r").run
    schema = "id: int64, size: decimal128(15, 2), near: list<element: struct<a: int32, b: float>>"
    keep(
        run,
        {
            "data.json": json.dumps({"train": {"schema": schema, "rows": 640, "hash": "00ab12"}}),
            "trials/1/data.jsonl": 2
            * (
                '{"data": "train", "rows": 640, "batch_size_per_worker": 32, '
                '"global_batch_size": 64, "steps": 10, "padded": 0, "dropped": 3}\n'
            ),
            "trials/1/columns.jsonl": '{"data": "train", "features": {"list": ["id", "near"]}, '
            '"labels": "size", "fill": {"id": 7, "city": ""}}\n{"data": "val", "features": "id"}\n',
            "trials/1/files.jsonl": '{"paths": ["/data/x"], "num_files": 3, "num_bytes": 99, '
            '"names": "abcdef", "marks": "012345"}\n',
        },
    )
    lines = shown(run).texts["Data"].splitlines()

    def after(name: str) -> str:
        return lines[lines.index(name) + 1]

    assert after("Data") == "as trial 1 has read it"
    assert after("rows") == "640"
    assert after("fingerprint") == "00ab12"
    assert after("columns and types") == "id"
    types = lines[lines.index("columns and types") + 1 :][:6]
    assert types[2:] == ["size", "decimal128(15, 2)", "near", schema.partition("near: ")[2]]
    assert after("columns") == "3"
    assert after("features") == "id, near"
    assert after("labels") == "size"
    assert after("nulls filled") == "id: 7, city: ''"
    assert after("batch") == "32 rows, 64 of all ranks"
    assert after("rows left out in an epoch") == "3"
    assert after("files of /data/x") == "files"
    assert lines.count("train") == 1
    assert "val" in lines


BEFORE = "def train(lr):\n    a = 1\n    b = 2\n    return lr\n"
NOW = "def train(lr):\n    a = 1\n    b = 3\n    return lr\n"


def test_changes_are_those_since_the_run_before_of_the_same_name(root: str) -> None:
    created = {f"nightly-2026110{day}-120000-00ab": f"2026-11-0{day}T12:00:00" for day in (2, 3, 5)}
    for number, (run_id, time) in enumerate(created.items()):
        run = started(ended(root, run_id).run, f"{time}+0000")
        keep(run, {"source/function.py": f"# {number}\n" + BEFORE, "environment.txt": "numpy==1\n"})
    other = ended(root, "nightly-20261103-130000-00ab", name="nightly too").run
    started(other, "2026-11-03T13:00:00+0000")
    now = ended(root, "nightly-20261104-120000-00ab", params=[{"lr": 0.1}, {"lr": 0.9}]).run
    started(now, "2026-11-04T12:00:00+0000", git_commit="def")
    keep(now, {"source/function.py": "# 1\n" + NOW, "environment.txt": "numpy==2\nnew-one==3\n"})
    read = {"paths": ["/x"], "num_files": 3, "num_bytes": 99, "names": "ab", "marks": "cd"}
    table = {**read, "paths": ["/t"]}
    for path, mark, version in (("nightly-20261103-120000-00ab", "cd", 4), (now.id, "ef", 5)):
        records = {**read, "marks": mark}, {**table, "version": version}, {**read, "paths": ["/y"]}
        text = "".join(json.dumps(record) + "\n" for record in records)
        storage.write(f"{root}/{path}/trials/0/files.jsonl", text)
    page = shown(now)
    lines = page.texts["What has changed"].splitlines()
    assert "since run nightly-20261103-120000-00ab" in lines[1]
    assert lines[1].endswith("COMPLETE, accuracy 0.75")

    def after(name: str) -> list[str]:
        return lines[lines.index(name) + 1 :][:2]

    assert after("code function.py") == ["1 line", "1 other line"]
    assert after("parameter lr") == ["0.1, 0.2", "0.1, 0.9"]
    assert after("files of /x") == ["3 files, 99 bytes", "3 files, 99 bytes, others or later ones"]
    assert after("files of /t") == ["version 4: 3 files, 99 bytes", "version 5: 3 files, 99 bytes"]
    assert "files of /y" not in lines
    assert after("package numpy (driver)") == ["1", "2"]
    assert after("package new-one (driver)") == ["absent", "3"]
    assert after("git commit") == ["abc", "def"]
    assert "-    b = 2" in lines
    assert "+    b = 3" in lines
    assert {"ins", "del"} <= {tag for tag, _ in page.elements}
    assert "    b = 3" in page.texts["Code"].splitlines()
    # The first run of a name has no section on changes.
    assert "What has changed" not in shown(other).texts


def test_an_earlier_run_is_found_by_an_id_of_the_user(root: str) -> None:
    old = started(ended(root, "mine").run, "2026-11-02T12:00:00+0000")
    now = started(ended(root, "yours").run, "2026-11-02T13:00:00+0100")
    description = json.loads(Path(RunPaths(now.path).run).read_text())
    assert find_earlier(now.path, description) is None  # Both at 12:00 UTC.
    description["created"] = "2026-11-02T13:00:01+0100"
    assert find_earlier(now.path, description) == old.path


def test_damage_of_an_earlier_run_hides_no_result(root: str) -> None:
    old = started(ended(root, "old").run, "2026-11-02T12:00:00+0000", request="damaged")
    keep(old, {"data.json": "{"})
    now = started(ended(root, "now").run, "2026-11-03T12:00:00+0000")
    keep(now, {"data.json": "[1]", "trials/1/data.jsonl": '{"data": 7}\n'})
    texts = shown(now).texts
    assert "It cannot be shown" in texts["What has changed"]
    assert "It cannot be shown" in texts["Data"]
    assert "0.75" in texts["The best"]


def test_an_earlier_run_of_another_user_holds_up_no_report(root: str) -> None:
    """The driver compares with it when its own run has ended."""
    old = started(ended(root, "old").run, "2026-11-02T12:00:00+0000")
    now = started(ended(root, "now").run, "2026-11-03T12:00:00+0000")
    os.mkdir(f"{root}/odd")
    os.mkfifo(f"{root}/odd/run.json")
    keep(old, {"source/function.py": BEFORE})
    keep(now, {"source/function.py": NOW})
    assert "-    b = 2" in shown(now).texts["What has changed"].splitlines()
    os.truncate(f"{old.path}/source/function.py", 100 << 30)
    assert "It cannot be shown" in shown(now).texts["What has changed"]


HOSTILE = "</pre></script><script>x()</script><img src=x onerror='x()'>\"'&amp;"


@pytest.mark.parametrize("is_reproduced", [False, True])
def test_what_a_user_wrote_is_escaped(root: str, is_reproduced: bool) -> None:
    before = ended(root, "before", params=[{"lr": HOSTILE, HOSTILE: 1}, {"lr": 2}]).run
    started(before, "2026-11-02T12:00:00+0000", user=HOSTILE, function=HOSTILE)
    now = ended(root, "now", params=[{"lr": 1, HOSTILE: HOSTILE}, {"lr": HOSTILE}]).run
    facts = {"reproduces": {"id": HOSTILE}} if is_reproduced else {}
    started(now, "2026-11-03T12:00:00+0000", **facts)
    item = {"subject": HOSTILE, "before": HOSTILE, "now": HOSTILE, "where": HOSTILE}
    keep(now, {"differences.json": json.dumps([{**item, "lines": ["+" + HOSTILE, HOSTILE]}])})
    for number, run in enumerate((before, now)):
        columns = {HOSTILE + str(number): HOSTILE}
        print_of = {
            "schema": f"{HOSTILE}: {HOSTILE}",
            "rows": HOSTILE,
            "hash": f"{number}{HOSTILE}",
        }
        record = {"data": HOSTILE, "rows": HOSTILE, "steps": HOSTILE, "types": columns}
        record |= {"features": HOSTILE, "fill": columns, "function": HOSTILE, "paths": [HOSTILE]}
        record |= {"num_files": HOSTILE, "version": HOSTILE, "names": HOSTILE}
        keep(
            run,
            {
                "source/function.py": f"# {number}\n{HOSTILE}\n",
                "source/main.py": f"{HOSTILE}\n# {number}\n",
                "environment.txt": f"{HOSTILE}=={number}{HOSTILE}\n",
                "data.json": json.dumps({HOSTILE: print_of}),
            },
        )
        for name in ("data", "columns", "files"):
            storage.write(
                getattr(TrialPaths(run.trials[1].path), name), json.dumps(record).encode() + b"\n"
            )
    name = "<img src=x onerror=x()>\"'&.svg"
    keep(now, {f"trials/1/work/{name}": SVG, f"trials/1/work/{name}.png": "none"})
    storage.write(storage.join(now.path, f"source/{name}.py"), HOSTILE)
    page = Elements(Path(write_report(now)).read_text().partition("<h2>Trial by trial")[0])
    whole = Path(write_report(now)).read_text()
    # The figures' library is a script of ours; the sections of files come after the figures.
    rest = Elements(whole[whole.index("<h2>Images") : whole.rindex("</main>")])
    for part in (page, rest):
        tags = {tag for tag, _ in part.elements}
        assert not tags & {"script", "svg", "iframe", "object", "link"}
        attributes = {key for _, each in part.elements for key in each}
        assert not [key for key in attributes if key.startswith("on")]
        assert all(source.startswith("data:image/") for source in part.sources())
    assert len(rest.sources()) == 1
    for title in ("Data", "What has changed", "Code", "Images"):
        assert "<img src=x onerror=" in rest.texts[title]
        assert "cannot be shown" not in rest.texts[title]


def test_use_has_a_line_for_each_process_with_one_scale(root: str) -> None:
    run = ended(root, "r").run
    samples = [(0, 0.5, 512), (10, 1.5, 1024), (20, float("nan"), 768)]
    lines = [json.dumps({"time": 100 + t, "cpu": c, "memory_mb": m}) for t, c, m in samples]
    keep(
        run,
        {
            "trials/0/attempts/0.use-chief-0.jsonl": "\n".join(lines[:2]),
            "trials/0/attempts/1.use-chief-0.jsonl": 'no line\n{"time": "x"}\n' + lines[2] + "\n",
            "trials/0/attempts/0.use-<b>-1.jsonl": json.dumps(
                {"time": 1, "cpu": 2.6, "memory_mb": 1, "gpu": 40, "gpu_memory_mb": 2048}
            ),
            "trials/0/attempts/0.claim": "{}",
        },
    )
    page = shown(run)
    points = [each["points"] for tag, each in page.elements if tag == "polyline"]
    # The times of both attempts are 0 to 20 s; CPU is drawn from 0 to 3 cores, 34 pixels high.
    assert points[0] == f"0.0,{34 * (1 - 0.5 / 3):.1f} 130.0,{34 * (1 - 1.5 / 3):.1f}"
    assert points[1] == "0.0,17.0 130.0,0.0"
    assert points[2] == f"260.0,{34 * (1 - 0.75):.1f}"
    text = page.texts["CPU, memory and GPUs over time"]
    assert "CPU, 0 to 3 cores" in text
    assert "memory, 0 to 1 GiB" in text
    assert "trial 0, chief 0\n20.0 s\n" in text
    assert "trial 0, <b> 1" in text
    assert "mean 40, most 40 %" in text
    assert "mean 1, most 1.5 cores" in text
