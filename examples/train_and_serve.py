"""The whole circle: train, export, serve, watch the requests, train again, roll out.

A model forecasts how many bicycles a city rents out in an hour. It is trained with the hours of a
summer, and served. Then winter comes: requests no longer look like the training data, and
monitoring raises an alarm. The model is trained again, with the requests and the true numbers that
became known later. The new version answers a share of the requests first, and is promoted if its
forecasts are better, otherwise rolled back.

On a laptop, with embedded Spark:     python examples/train_and_serve.py
One step, as a scheduler starts it:   python examples/train_and_serve.py search --round 1

A step that is started again finishes what is unfinished, and repeats nothing. A step that has
nothing to do exits with code 99.
"""

import argparse
import functools
import json
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sparkdl import experiment, models, monitoring, serving
from sparkdl import search as spaces

NAME = "bikes"
FEATURES = ["temperature", "wind", "hour"]
LABEL = "id string, row int, bikes float"
SPACE = {"units": spaces.Int(16, 64), "learning_rate": spaces.Float(3e-3, 3e-2, log=True)}
# The percentage of the requests that a new version answers, and the labelled rows that judge it.
SHARE = 30
MIN_LABELLED = 300
# An hour of a real log; here, the demo would take a day.
WINDOW_S = 2
NOTHING_TO_DO = 99


@dataclass(frozen=True)
class Place:
    """The files of this program, in a folder that the driver and the executors see."""

    folder: Path

    @property
    def root(self) -> str:
        """The folder of runs, models and the results of monitoring."""
        return str(self.folder / "runs")

    @property
    def log(self) -> str:
        """The folder to which the model server writes a record of each request."""
        return str(self.folder / "log")

    @property
    def labels(self) -> Path:
        """The folder of the true numbers, which become known after the requests."""
        return self.folder / "labels"

    def data(self, round_name: str, part: str) -> str:
        """Return the folder of the rows of a round: `train`, `validation` or `recent`."""
        return str(self.folder / "data" / round_name / part)

    def has(self, rows: str) -> bool:
        """Return True if a folder of rows was written to its end."""
        return Path(rows, "_SUCCESS").exists()

    def write(self, rows: DataFrame, folder: str) -> None:
        """Write a folder of rows, in place of what a killed step has left there."""
        rows.coalesce(2).write.mode("overwrite").parquet(folder)

    def read(self, rows: str) -> DataFrame:
        """Return a folder of rows."""
        return session().read.parquet(rows)

    def known_numbers(self) -> DataFrame | None:
        """Return the true numbers so far, by request and row; None before there is any."""
        if not self.labels.exists():
            return None
        return session().read.json(str(self.labels), LABEL)

    def is_logged(self) -> bool:
        """Return True if there is a log of the model server."""
        return Path(self.log).exists()

    def watch_options(self, version: models.ModelVersion) -> dict[str, Any]:
        """Return the options of `monitoring.watch` that depend on the place."""
        return {"window_s": WINDOW_S, "late_s": 0, "alerts": tell}


def session() -> SparkSession:
    """Return the Spark session: the one of spark-submit, or embedded Spark."""
    builder = SparkSession.builder.appName(NAME)
    return builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()


# ---- the world: hours, and how many bicycles were rented in them


def hours(season: str, number: int, seed: int | None = None) -> pd.DataFrame:
    """Return hours of a season, with the number of bicycles that were rented."""
    rng = np.random.default_rng(seed)
    mean, spread = {"summer": (22, 4), "winter": (1, 4)}[season]
    temperature = rng.normal(mean, spread, number)
    wind = rng.gamma(2.0, 2.0, number)
    hour = rng.integers(0, 24, number).astype(float)
    rush = np.exp(-(((hour - 8) / 3) ** 2)) + np.exp(-(((hour - 17) / 4) ** 2))
    warm = 1 / (1 + np.exp((10 - temperature) / 4))
    bikes = 400 * (0.2 + rush) * warm / (1 + wind / 10) + rng.normal(0, 10, number)
    rows = {"temperature": temperature, "wind": wind, "hour": hour, "bikes": bikes}
    return pd.DataFrame(rows).astype("float32")


def ask(place: Place, url: str, season: str, duration_s: float = 3 * WINDOW_S) -> str:
    """Send the hours of a season to the model server; write down what was rented in them."""
    labels, end = [], time.monotonic() + duration_s
    while time.monotonic() < end:
        rows, request = hours(season, 50), uuid.uuid4().hex
        body = json.dumps({"instances": rows[FEATURES].to_dict(orient="records")}).encode()
        headers = {"X-Request-Id": request, "Content-Type": "application/json"}
        address = f"{url}/v1/models/{NAME}:predict"
        with urllib.request.urlopen(urllib.request.Request(address, body, headers)) as answer:
            json.load(answer)
        labels += [
            {"id": request, "row": row, "bikes": float(bikes)}
            for row, bikes in enumerate(rows["bikes"])
        ]
        time.sleep(0.1)
    place.labels.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(label) + "\n" for label in labels)
    (place.labels / f"{request}.jsonl").write_text(text)
    _wait_for_log(place, request)
    return f"{len(labels)} hours of {season}"


def _wait_for_log(place: Place, request: str) -> None:
    """Wait until the record of a request is in the log, which is written every second."""
    end = time.monotonic() + 30
    while not any(request in file.read_text() for file in Path(place.log).rglob("*.jsonl")):
        if time.monotonic() > end:
            raise TimeoutError(f"the request {request} is not in the log {place.log}")
        time.sleep(0.2)


# ---- the steps; each returns a sentence, or None if there was nothing to do


def prepare(place: Place, round_name: str) -> str:
    """Write the rows of a round: a summer, and the requests whose true number is known."""
    spark = session()
    folders = [place.data(round_name, part) for part in ("recent", "validation", "train")]
    if not all(map(place.has, folders)):
        rows = spark.createDataFrame(hours("summer", 4000, seed=0))
        labelled = known_requests(place)
        recent = rows
        if labelled is not None:
            # What is read once has the same rows in each part, though requests go on.
            labelled = labelled.cache()
            recent = labelled.orderBy(F.desc("time")).limit(2000).select(*FEATURES, "bikes")
            rows = rows.unionByName(labelled.select(*FEATURES, "bikes"))
        unseen, seen = rows.cache().randomSplit([0.2, 0.8], seed=0)
        for part, folder in zip((recent, unseen, seen), folders, strict=True):
            place.write(part, folder)
        spark.catalog.clearCache()
    # The drift that was told has led to this round. The call before may have been killed here.
    if "stable" in aliased(place):
        monitoring.acknowledge(f"{NAME}@stable", root=place.root)
    number = place.read(folders[-1]).count()
    return f"{number} hours to train with"


def known_requests(place: Place) -> DataFrame | None:
    """Return the requests with the number that became known; None before there is a server."""
    labels = place.known_numbers()
    if labels is None or "stable" not in aliased(place):
        return None
    log = monitoring.read_log(place.log, f"{NAME}@stable", root=place.root)
    known = log.join(labels, on=["id", "row"])
    return known.select("time", *(F.col(name).cast("float") for name in [*FEATURES, "bikes"]))


def train(rows: str, unseen: str, epochs: int, units: int, learning_rate: float) -> dict[str, Any]:
    """Train a small network, in a trial or in each of several workers."""
    import keras

    from sparkdl import data, distribute
    from sparkdl.keras import save

    columns = {"feature_cols": {name: name for name in FEATURES}, "label_cols": "bikes"}
    inputs = {name: keras.layers.Input((), name=name) for name in FEATURES}
    scaled = [(inputs["temperature"] - 10) / 10, inputs["wind"] / 5, (inputs["hour"] - 12) / 6]
    x = keras.layers.Concatenate()([keras.layers.Reshape((1,))(value) for value in scaled])
    for _ in range(2):
        x = keras.layers.Dense(units, activation="swish")(x)
    model = keras.Model(inputs, 100 * keras.ops.squeeze(keras.layers.Dense(1)(x), -1))
    model.compile(distribute.optimizer(keras.optimizers.Adam(learning_rate)), "mse")
    shuffled = data.parquet(rows, global_batch_size=128, shuffle=True, **columns)
    model.fit(shuffled, epochs=epochs, verbose=0)
    # The share of the variance that the model explains: months of little rent can be compared.
    validation = data.parquet(unseen, global_batch_size=512, **columns)
    mse = model.evaluate(validation, verbose=0)  # Of the rows of all ranks.
    variance = float(pd.read_parquet(unseen)["bikes"].var())
    return {"explained": 1 - mse / variance, "model": save(model, "bikes.keras")}


def search(place: Place, round_name: str) -> str:
    """Search for parameters; the sampler begins with what earlier rounds have found."""
    run_id = f"{NAME}-{round_name}-search"
    known = experiment.history(place.root, f"name == '{NAME}-search' and state == 'COMPLETE'")
    earlier = [f"{place.root}/{run}" for run in known["run"] if run != run_id]
    run = experiment.search(
        functools.partial(train, *_rows(place, round_name), 8),
        SPACE,
        num_trials=4,
        learn_from=earlier[:1],
        metric="explained",
        direction="max",
        name=f"{NAME}-search",
        seed=7,
        **_options(place, run_id),
    )
    learned = f", learned from {Path(earlier[0]).name}" if earlier else ""
    return f"{run.counts()['COMPLETE']} trials, best {run.best.value:.3f}{learned}"


def train_best(place: Place, round_name: str) -> str:
    """Train the model with the best parameters, in two workers at once."""
    best = experiment.load(f"{place.root}/{NAME}-{round_name}-search").best.params
    run = experiment.allreduce(
        functools.partial(train, *_rows(place, round_name), 15, **best),
        num_workers=2,
        metric="explained",
        direction="max",
        name=f"{NAME}-train",
        seed=7,
        **_options(place, f"{NAME}-{round_name}-train"),
    )
    return f"2 workers, explained {run.result['explained']:.3f}"


def _rows(place: Place, round_name: str) -> tuple[str, str]:
    return place.data(round_name, "train"), place.data(round_name, "validation")


def _options(place: Place, run_id: str) -> dict[str, Any]:
    """Return the options that let a run be finished when its step is started again."""
    return {"run_id": run_id, "if_exists": "resume", "root": place.root, "progress": False}


def export(place: Place, round_name: str) -> str | None:
    """Export the model if it is better than all versions, with the profile of recent rows."""
    if version := version_of(place, round_name):
        return f"{version.name}/{version.version}"
    recent = place.read(place.data(round_name, "recent"))
    version = models.export(
        experiment.load(f"{place.root}/{NAME}-{round_name}-train"),
        NAME,
        profile=recent.select(*FEATURES),
        if_better="explained",
        root=place.root,
    )
    return version and f"{version.name}/{version.version}"


def version_of(place: Place, round_name: str) -> models.ModelVersion | None:
    """Return the version that a round has exported."""
    run_id = f"{NAME}-{round_name}-train"
    found = [v for v in models.list(NAME, root=place.root) if v.run == run_id]
    return found[0] if found else None


def aliased(place: Place) -> dict[str, models.ModelVersion]:
    """Return the versions that have an alias, by their aliases."""
    return {alias: v for v in models.list(NAME, root=place.root) for alias in v.aliases}


def canary(place: Place, round_name: str) -> str | None:
    """Let the version of a round answer a share of the requests; the first one answers all."""
    version = version_of(place, round_name)
    if version is None:
        return None
    if "stable" not in aliased(place):
        models.alias(NAME, "stable", version.version, root=place.root)
    # The call before may have been killed, and the version may have been rolled back since.
    moves = models.alias_history(NAME, "canary", root=place.root)
    if version.version not in [move.version for move in moves]:
        models.alias(NAME, "canary", version.version, root=place.root)
    aliases = aliased(place)
    new, old = aliases["canary"].version, aliases["stable"].version
    return f"{'all' if new == old else f'{SHARE} % of the'} requests to {NAME}/{new}"


def decide(place: Place, round_name: str) -> str | None:
    """Promote the canary if its forecasts are better than those of the stable version.

    Returns:
        The decision; None if too few true numbers are known.
    """
    aliases = aliased(place)
    if "canary" not in aliases:
        return "no version is served yet"
    new, old = aliases["canary"], aliases["stable"]
    if new.version == old.version:
        return f"{NAME}/{old.version} is stable"
    labels = place.known_numbers()
    if labels is None:
        return None
    since = models.alias_history(NAME, "canary", root=place.root)[-1].time
    log = monitoring.read_log(place.log, old, outputs={"output_0": "forecast"}, root=place.root)
    found = monitoring.performance(
        log.where(F.col("time") >= F.lit(datetime.fromisoformat(since))),
        labels,
        prediction="forecast",
        label="bikes",
        metric="mae",
    )
    # The days since the canary began count together, each by the number of its true numbers.
    found = found[found["labelled"] > 0]
    found["error"] = found["mae"] * found["labelled"]
    sums = found.groupby("version")[["labelled", "error"]].sum()
    sums = sums.reindex([old.version, new.version], fill_value=0)
    if sums["labelled"].min() < MIN_LABELLED:
        return None
    errors = (sums["error"] / sums["labelled"]).to_dict()
    text = ", ".join(f"{NAME}/{version} errs by {error:.1f}" for version, error in errors.items())
    if errors[new.version] < errors[old.version]:
        models.promote(NAME, root=place.root)
        return f"promoted: {text}"
    models.alias(NAME, "canary", old.version, root=place.root)
    return f"rolled back: {text}"


def tell(alert: dict[str, Any]) -> None:
    """Print an alarm."""
    print("ALARM", alert["text"], flush=True)


def monitor(place: Place, round_name: str = "") -> str | None:
    """Watch what is new in the log.

    Returns:
        The reasons to train again; None if there is no reason.
    """
    stable = models.get(NAME, alias="stable", root=place.root)
    if not place.is_logged():
        return None
    watch = monitoring.watch(
        place.log,
        stable,
        metrics=["psi"],
        min_rows=200,
        available_now=True,
        root=place.root,
        spark=session(),
        **place.watch_options(stable),
    )
    # Windows without drift were judged by earlier calls, and drift until a round has begun.
    if not watch.new_drift.drifted:
        return None
    decision = monitoring.should_retrain(stable, min_drifted=2, last=3, root=place.root)
    return str(decision) if decision else None


STEPS: dict[str, Callable[[Place, str], str | None]] = {
    "prepare": prepare,
    "search": search,
    "train": train_best,
    "export": export,
    "canary": canary,
    "decide": decide,
    "monitor": monitor,
}


# ---- the circle


class Table:
    """The steps that were done, with their seconds and results."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, float, str]] = []

    def do(self, round_name: str, name: str, step: Callable[[], str | None], none: str) -> bool:
        """Do a step, and print what came out of it; return False if it was nothing."""
        start = time.monotonic()
        result = step()
        self.rows.append((round_name, name, time.monotonic() - start, result or none))
        print(f"round {round_name}, {name}: {result or none}", flush=True)
        return result is not None

    def __str__(self) -> str:
        width = max(len(row[-1]) for row in self.rows)
        lines = [f"{'round':7}{'step':9}{'seconds':>7}  result", "-" * (25 + width)]
        lines += [f"{r:7}{name:9}{s:7.1f}  {text}" for r, name, s, text in self.rows]
        return "\n".join(lines)


def circle(place: Place) -> Table:
    """Go round once: train with a summer, serve until winter comes, train again, roll out."""
    table = Table()

    def do(round_name: str, *names: str) -> bool:
        steps = [(name, functools.partial(STEPS[name], place, round_name)) for name in names]
        # A model that is not better is not rolled out.
        return all(table.do(round_name, name, step, "nothing to do") for name, step in steps)

    new = ("prepare", "search", "train", "export", "canary")
    do("1", *new)
    weights = {"canary": SHARE}
    with serving.start(
        NAME, alias="stable", weights=weights, port=0, log=place.log, root=place.root
    ) as server:
        print(server)

        def watch(round_name: str, season: str) -> bool:
            asked = functools.partial(ask, place, server.url, season)
            table.do(round_name, "ask", asked, "")
            see = functools.partial(monitor, place)
            return table.do(round_name, "monitor", see, "no reason to train again")

        watch("1", "summer")
        while not watch("1", "winter"):
            pass
        if do("2", *new):
            asked = functools.partial(ask, place, server.url, "winter")
            table.do("2", "ask", asked, "")
            do("2", "decide")
        watch("2", "winter")
    return table


def main() -> int:
    """Go round the circle, or do one step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("step", nargs="?", choices=[*STEPS, "ask"], help="default: all steps")
    parser.add_argument("--folder", type=Path, help="default: a new temporary folder")
    parser.add_argument("--round", default="1", help="name of the round; default: %(default)s")
    parser.add_argument("--season", default="summer", choices=["summer", "winter"], help="to ask")
    parser.add_argument("--url", default="http://127.0.0.1:8501", help="the server to ask")
    args = parser.parse_args()
    folder = args.folder or Path(tempfile.mkdtemp(prefix=f"{NAME}-"))
    place = Place(folder.resolve())
    if args.step is None:
        print(circle(place))
        return 0
    if args.step == "ask":
        print(ask(place, args.url, args.season))
        return 0
    result = STEPS[args.step](place, args.round)
    print(result or "nothing to do")
    return 0 if result else NOTHING_TO_DO


if __name__ == "__main__":
    sys.exit(main())
