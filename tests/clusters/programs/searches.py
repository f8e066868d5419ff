"""Searches whose trials wait for the test, and how often each trial was COMPLETE."""

import json
from typing import Any

import fsspec
from pyspark.sql import SparkSession

from sparkdl import context, experiment
from tests.clusters.programs.trials import held, summary


def completions(path: str) -> dict[str, int]:
    """Return how many events of a run's journal say that a trial is COMPLETE, by trial."""
    counts: dict[str, int] = {}
    for file in fsspec.open_files(f"{path}/journal/*.jsonl", "rt"):
        with file as lines:
            for event in map(json.loads, lines):
                if event["event"] == "trial" and event["state"] == "COMPLETE":
                    name = str(event["number"])
                    counts[name] = counts.get(name, 0) + 1
    return counts


def _held(x: float, folder: str) -> dict[str, Any]:
    return {**held(context.trial, folder), "value": x * x}


def held_search(spark: SparkSession, folder: str, num_trials: int) -> Any:
    """Run a search whose trials wait for the test."""

    def space(trial: Any) -> dict[str, Any]:
        return {"x": trial.suggest_float("x", -1.0, 1.0), "folder": folder}

    run = experiment.search(
        _held, space, num_trials=num_trials, metric="value", direction="min", seed=3, progress=False
    )
    return {**summary(run), "completions": completions(run.path)}
