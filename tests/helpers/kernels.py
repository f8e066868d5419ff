"""A real Jupyter kernel, in which tests run notebooks and cells."""

import os
import time
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

__all__ = ["Kernel", "html_of", "outputs_of", "text_of"]

# Slots of the kernel's embedded Spark; notebooks ask for as many by themselves.
MASTER = "local[4]"
START = "from pyspark.sql import SparkSession\nSparkSession.builder.getOrCreate()"
CELL_S = 240


class Kernel:
    """A kernel in which notebooks run one after the other, in one Spark application.

    A user has a kernel for each notebook; starting Spark and TensorFlow anew for each would take
    longer than all notebooks together.
    """

    def __init__(self) -> None:
        self._manager = KernelManager(
            client_class="jupyter_client.asynchronous.client.AsyncKernelClient"
        )
        env = {**os.environ, "PYSPARK_SUBMIT_ARGS": f"--master {MASTER} pyspark-shell"}
        # With it, a kernel shows nothing of what native code prints.
        env.pop("PYTEST_CURRENT_TEST", None)
        self._manager.start_kernel(env=env)
        self._client = self._manager.blocking_client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=CELL_S)
        # Spark prints warnings when it starts; the cells of notebooks print none.
        self.run(START)

    def begin(self, folder: Path) -> None:
        """Forget everything that was run before, and work in a folder with its own runs."""
        self.run(
            "import os\n"
            f"os.chdir({str(folder)!r})\n"
            f"os.environ['SPARKDL_ROOT'] = {str(folder / 'runs')!r}\n"
            "get_ipython().reset(new_session=True)"
        )

    def run_notebook(self, notebook: Path) -> nbformat.NotebookNode:
        """Run all cells; return the notebook with its outputs."""
        read = nbformat.read(notebook, as_version=4)
        options = {"timeout": CELL_S, "coalesce_streams": True}
        client = NotebookClient(read, km=self._manager, **options)
        client.execute()
        client.kc.stop_channels()
        return read

    def run(self, code: str, allow_errors: bool = False) -> str:
        """Run a cell; return what it printed, and the name of its error if errors are allowed."""
        return self.finish(self.start(code), allow_errors)

    def start(self, code: str) -> str:
        """Start a cell in the background; return the id of its request."""
        request: str = self._client.execute(code)
        return request

    def finish(self, request: str, allow_errors: bool = False) -> str:
        """Wait for the end of a cell; return what it printed, and the name of its error."""
        printed, deadline = "", time.monotonic() + CELL_S
        while True:
            message = self._client.get_iopub_msg(timeout=max(0.0, deadline - time.monotonic()))
            content, kind = message["content"], message["msg_type"]
            if message["parent_header"].get("msg_id") != request:
                continue
            if kind == "stream":
                printed += content["text"]
            elif kind == "error":
                assert allow_errors, "\n".join(content["traceback"])
                printed += content["ename"]
            elif kind == "status" and content["execution_state"] == "idle":
                return printed

    def interrupt(self) -> None:
        """Do what the stop button of a notebook does."""
        self._manager.interrupt_kernel()

    def stop(self) -> None:
        self.run(f"{START}.stop()")
        self._client.stop_channels()
        self._manager.shutdown_kernel()


def outputs_of(notebook: nbformat.NotebookNode, beginning: str) -> list[Any]:
    """The outputs of the cell that is this text, or begins with it."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    same = [cell for cell in cells if cell.source == beginning]
    (cell,) = same or [cell for cell in cells if cell.source.startswith(beginning)]
    return list(cell.outputs)


def text_of(notebook: nbformat.NotebookNode, beginning: str) -> str:
    """Return what a cell printed, and the text of what it displayed."""
    outputs = outputs_of(notebook, beginning)
    return "".join(o.get("text") or o.get("data", {}).get("text/plain", "") for o in outputs)


def html_of(notebook: nbformat.NotebookNode, beginning: str) -> str:
    """Return what a cell displayed as HTML."""
    return "".join(o.get("data", {}).get("text/html", "") for o in outputs_of(notebook, beginning))
