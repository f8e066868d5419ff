"""A program for `spark-submit`: a grid whose later trials wait for the test.

The last line that it prints is a JSON object.
"""

import argparse
import json
import socket
from pathlib import Path
from typing import Any

from sparkdl import experiment
from tests.clusters.programs.searches import completions
from tests.clusters.programs.trials import meet, summary


def train(number: int, folder: str) -> dict[str, Any]:
    """Wait for the test, unless this is one of the first two trials."""
    if number < 2:
        Path(folder, f"trial-{number}@{socket.gethostname()}").touch()
    else:
        meet(folder, f"trial-{number}")
    return {"host": socket.gethostname(), "value": number}


def main() -> None:
    """Run the grid, or go on with it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True)
    parser.add_argument("--run-id", required=True)
    arguments = parser.parse_args()
    run = experiment.launch(
        train,
        {"number": list(range(4)), "folder": [arguments.folder]},
        run_id=arguments.run_id,
        if_exists="resume",
    )
    print(json.dumps({**summary(run), "completions": completions(run.path)}), flush=True)
    run.raise_for_failures()


if __name__ == "__main__":
    main()
