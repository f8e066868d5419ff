"""Keep a run of this version of sparkdl, for the tests of this version and of all later ones.

A release calls it once, and what it has written is never changed. The host is called `driver` and
the user `ann` in the run, which is made in /tmp, so that nothing of this machine is in it:

    unshare --uts sh -c 'hostname driver && LOGNAME=ann python tests/data/kept_runs/keep.py'
"""

import hashlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PROGRAM, ROOT = Path("/tmp/program"), Path("/tmp/runs")
RUN = "line"
RATES = [0.5, 0.4, 0.05, 1.5, 0.3, 0.6, 0.2]


def make_run() -> str:
    """Search with trials that complete, fail and are pruned; export the model of the best."""
    import keras
    import numpy as np
    from line_search import train

    import sparkdl
    from sparkdl import experiment, models, search

    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.set_weights([np.full((1, 1), 2.0)])
    model.save("line.keras")
    run = experiment.search(
        train,
        {"learning_rate": search.Categorical(RATES)},
        algorithm="grid",
        num_trials=5,
        pruner={"median": {"startup": 2}},
        parallelism=1,
        metric="loss",
        direction="min",
        name=RUN,
        run_id=RUN,
        description="Kept to be read by all later versions.",
        versioned_resources=["line.keras"],
        seed=7,
        root=str(ROOT),
    )
    run.tag("kept")
    run.note("The slope of the best trial is near 2.")
    models.export(run.best, "line", metrics={"loss": run.best.value})
    models.alias("line", "stable", 1)
    return sparkdl.__version__


def plain_table(run: Path) -> dict[str, Any]:
    """Return the values of a run by a plain reading of its files, without sparkdl."""
    description = json.loads((run / "run.json").read_text())
    segments = sorted((run / "journal").glob("*.jsonl"))
    events = [json.loads(line) for path in segments for line in path.read_text().splitlines()]
    trials: dict[int, dict[str, Any]] = {}
    table: dict[str, Any] = {"trials": trials}
    for name in ("id", "name", "kind", "metric", "direction", "user"):
        table[name] = description[name]
    for event in events:
        match event["event"]:
            case "trials":
                for added in event["trials"]:
                    values = {"params": added["params"], "reports": []}
                    trials[added["number"]] = {**values, "checkpoints": {}, "attempts": 0}
            case "trial":
                names = ("state", "value", "metrics", "outputs", "failure", "error")
                trials[event["number"]] |= {name: event.get(name) for name in names}
                trials[event["number"]]["attempts"] = event["attempt"] + 1
            case "end":
                table |= {"state": event["state"], "duration_s": event["duration_s"]}
    for number, trial in trials.items():
        folder = run / "trials" / str(number)
        for line in (folder / "metrics.jsonl").read_text().splitlines():
            report = json.loads(line)
            trial["reports"].append([report["step"], report["metrics"]["loss"]])
        for marker in folder.glob("checkpoints/*/checkpoint.json"):
            step = json.loads(marker.read_text())["step"]
            trial["checkpoints"][step] = (marker.parent / "slope.txt").read_text()
    notes = [json.loads(path.read_text()) for path in sorted((run / "notes").iterdir())]
    table["tags"] = [tag for note in notes for tag in note.get("tags", ())]
    table["notes"] = [note["note"] for note in notes if "note" in note]
    model = run / "resources" / "line.keras"
    table["model_sha256"] = hashlib.sha256(model.read_bytes()).hexdigest()
    return table


def main() -> None:
    """Make a run of this version, and keep it with the table of its values."""
    shutil.copytree(HERE, PROGRAM, ignore=shutil.ignore_patterns("[0-9]*", "__pycache__"))
    os.chdir(PROGRAM)
    os.environ["SPARKDL_ROOT"] = str(ROOT)
    sys.path.insert(0, str(PROGRAM))
    kept = HERE / make_run()
    (ROOT / RUN / "report.html").unlink()  # It is 2 MB, and made of the rest.
    shutil.copytree(ROOT, kept / "runs")
    table = plain_table(ROOT / RUN)
    (kept / "table.json").write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
