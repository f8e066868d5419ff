"""The templates below conf/: Spark knows all their settings, and accepts the files unchanged."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from sparkdl.config import SETTINGS
from tests.helpers.spark import JAVA_OPTIONS

SPARK = Path(pyspark.__file__).parent
CONF = Path(__file__).parents[1] / "conf"
TEMPLATES = sorted(CONF.glob("spark-defaults.*.conf"))

# An active setting, or a setting behind "# " that a user may uncomment.
SETTING = re.compile(r"^(?P<off># )?(?P<key>spark\.\S+)(?: +(?P<value>\S.*))?$", re.MULTILINE)
# Spark builds these names from parts, so no class file contains them. The test of the standalone
# template runs with the settings of GPUs.
COMPOSED = re.compile(
    r"spark\.(worker|executor|task)\.resource\.gpu\.(amount|discoveryScript|vendor)"
    r"|spark\.(executorEnv|yarn\.appMasterEnv|kubernetes\.driverEnv)\.[A-Z_]+"
    r"|spark\.kubernetes\.authenticate\.driver\.serviceAccountName"
    r"|spark\.kubernetes\.(driver|executor)\.secretKeyRef\.[A-Z_]+"
    r"|spark\.kubernetes\.(driver|executor)\.volumes\.persistentVolumeClaim\.runs"
    r"\.(options\.claimName|mount\.path)"
)

# Each trial waits for the other to have started, so that both hold their GPUs at once.
PROGRAM = """
import time
from pathlib import Path
from sparkdl import devices, experiment

def train(x, folder):
    Path(folder, f"started-{x}").touch()
    deadline = time.monotonic() + 240
    while len(list(Path(folder).glob("started-*"))) < 2:
        if time.monotonic() > deadline:
            raise TimeoutError("the other trial did not start")
        time.sleep(0.01)
    return {"x": x, "gpus": devices.gpus()}

run = experiment.launch(
    train, {"x": [0, 1], "folder": [str(Path.cwd())]}, metric="x", direction="max"
)
print("gpus:", sorted(trial.outputs["gpus"] for trial in run.trials))
run.raise_for_failures()
"""


@pytest.fixture(scope="module")
def classes() -> list[bytes]:
    """Return the bytes of all classes of the installed Spark that name settings."""
    contents = []
    for jar in SPARK.glob("jars/spark-*.jar"):
        if re.match(r"spark-(core|common|sql|yarn|kubernetes|launcher)", jar.name):
            with zipfile.ZipFile(jar) as archive:
                names = [name for name in archive.namelist() if name.endswith(".class")]
                contents += [archive.read(name) for name in names]
    return contents


def _constant(text: str) -> bytes:
    """Return a string as in a class file: tag, length, bytes (JVM specification, 4.4.7)."""
    data = text.encode()
    return b"\x01" + len(data).to_bytes(2, "big") + data


def _settings(template: Path) -> Iterator[re.Match[str]]:
    return SETTING.finditer(template.read_text())


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_every_setting_exists(template: Path, classes: list[bytes]) -> None:
    own = {setting.conf for setting in SETTINGS.values()}
    keys = {match["key"] for match in _settings(template)}
    assert len(keys) > 5
    unknown = [
        key
        for key in sorted(keys - own)
        if not COMPOSED.fullmatch(key) and not any(_constant(key) in data for data in classes)
    ]
    assert unknown == []


def test_an_unknown_setting_is_detected(classes: list[bytes]) -> None:
    assert any(_constant("spark.task.cpus") in data for data in classes)
    assert not any(_constant("spark.task.cpu") in data for data in classes)


def test_all_settings_of_sparkdl_are_explained() -> None:
    shown = {match["key"] for template in TEMPLATES for match in _settings(template)}
    assert {setting.conf for setting in SETTINGS.values()} <= shown


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_no_value_contains_a_comment(template: Path) -> None:
    values = [match["value"] for match in _settings(template) if match["value"]]
    assert not [value for value in values if " #" in value]


@pytest.mark.parametrize(
    ("answer", "addresses"),
    [
        (r"printf '0\n1\n'", ["0", "1"]),
        (r"printf ' 7 \r\n'", ["7"]),
        ("echo 'NVIDIA-SMI has failed because it could not reach the driver'; exit 9", []),
        (None, []),
    ],
    ids=["two GPUs", "spaces", "broken driver", "no nvidia-smi"],
)
def test_gpu_discovery(tmp_path: Path, answer: str | None, addresses: list[str]) -> None:
    folder = _commands(tmp_path, answer)
    done = subprocess.run(
        [CONF / "gpu_discovery.sh"], env={"PATH": folder}, capture_output=True, check=True
    )
    assert json.loads(done.stdout) == {"name": "gpu", "addresses": addresses}
    assert done.stderr == b""


@pytest.mark.parametrize(
    ("visible", "addresses"), [("4,6,7", ["0", "1", "2"]), ("-1", []), ("2,-1,3", ["0"])]
)
def test_gpu_discovery_numbers_the_visible_gpus_from_zero(
    visible: str, addresses: list[str]
) -> None:
    environ = {"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": visible}
    done = subprocess.run([CONF / "gpu_discovery.sh"], env=environ, capture_output=True, check=True)
    assert json.loads(done.stdout)["addresses"] == addresses


def _commands(tmp_path: Path, nvidia_smi: str | None) -> str:
    """Make a folder with the commands that the script calls, and nvidia-smi if it is given."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("bash", "sed", "paste"):
        (folder / name).symlink_to(str(shutil.which(name)))
    if nvidia_smi is not None:
        script = folder / "nvidia-smi"
        arguments = "--query-gpu=index --format=csv,noheader"
        script.write_text(f'#!/bin/sh\n[ "$*" = "{arguments}" ] || exit 2\n{nvidia_smi}\n')
        script.chmod(0o755)
    return str(folder)


def _run(tmp_path: Path, defaults: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run PROGRAM with spark-submit, the given defaults and the log4j2.properties of conf/."""
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text(defaults)
    shutil.copy(CONF / "log4j2.properties", conf)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    outer = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK", "PYSPARK"))}
    return subprocess.run(
        [SPARK / "bin" / "spark-submit", program],
        env={
            **outer,
            "SPARK_HOME": str(SPARK),
            "SPARK_CONF_DIR": str(conf),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_SUBMIT_OPTS": JAVA_OPTIONS,
            **env,
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.slow
def test_local_template_and_a_quiet_console(tmp_path: Path) -> None:
    defaults = (CONF / "spark-defaults.local.conf").read_text().replace("local[*]", "local[2]")
    done = _run(tmp_path, defaults, PYSPARK_PYTHON=sys.executable)
    assert done.returncode == 0, done.stderr
    assert "2 slots of local[2]" in done.stdout
    assert "gpus: [[], []]" in done.stdout
    assert len(list((tmp_path / "runs").iterdir())) == 1
    # The JVM itself prints a warning about a module, which no logger configures.
    lines = [line for line in done.stderr.splitlines() if "incubator modules" not in line]
    assert lines == []


@pytest.mark.slow
def test_standalone_template_with_gpus(tmp_path: Path) -> None:
    defaults = re.sub(r"^# (spark\.\S*\.gpu\.)", r"\1", _standalone(tmp_path), flags=re.MULTILINE)
    folder = _commands(tmp_path, r"printf '0\n1\n'")
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    done = _run(tmp_path, defaults, PATH=path)
    assert done.returncode == 0, done.stderr
    assert "gpus: [['0'], ['1']]" in done.stdout
    assert len(list((tmp_path / "shared").iterdir())) == 1


def _standalone(tmp_path: Path) -> str:
    """Return the template with an embedded executor and the paths of this machine."""
    text = (CONF / "spark-defaults.standalone.conf").read_text()
    for example, local in (
        ("spark://spark-master.example.org:7077", "local-cluster[1,2,1024]"),
        ("/opt/sparkdl/bin/python", sys.executable),
        ("/opt/sparkdl/conf", str(CONF)),
        ("/shared/sparkdl", str(tmp_path / "shared")),
    ):
        assert example in text
        text = text.replace(example, local)
    return text
