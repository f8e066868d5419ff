"""A DAG of Airflow 3: the steps of train_and_serve.py, from data to a watched model, and again.

Each task starts one step of examples/train_and_serve.py with the Python of sparkdl, so that Airflow
needs neither sparkdl nor Spark nor TensorFlow. All steps of a run of the DAG have its time as the
name of their round: a task that is retried finishes what is unfinished.

The sensor `monitor` watches the log of the model server until there is a reason to train again, or
for 90 days. The last task then updates the asset `bikes-drift`, which schedules the next run.

Put this file into the folder of the DAGs, and set for the scheduler and the workers:

    SPARKDL_PYTHON      the Python in whose environment sparkdl is installed
    SPARKDL_CIRCLE      the path of examples/train_and_serve.py
    SPARKDL_FOLDER      a folder that all workers see, for runs, models, log and labels

and start the model server beside Airflow, as soon as the first version is there:

    sparkdl serve bikes --alias stable --weight canary=30 --root $SPARKDL_FOLDER/runs \\
        --log $SPARKDL_FOLDER/log
"""

import os
from datetime import datetime, timedelta, timezone

from airflow.providers.standard.sensors.bash import BashSensor
from airflow.sdk import Asset, dag, task

DRIFT = Asset("bikes-drift")
# How long a canary waits for labels, and a version for a reason to train again.
CANARY, VERSION = timedelta(days=7), timedelta(days=90)
# The time of the run of the DAG. One that an asset has started has no logical date.
ROUND = "{{ dag_run.run_after.strftime('%Y%m%d-%H%M%S') }}"
# Seconds between two looks at the log.
LOOK_S = float(os.environ.get("SPARKDL_LOOK_S", "3600"))
NOTHING_TO_DO = 99


def command(step: str) -> str:
    """Return the command of a step, with what the templates of Airflow put into it."""
    # The step takes the place of the shell, and gets the signals of Airflow.
    program = 'exec "$SPARKDL_PYTHON" "$SPARKDL_CIRCLE"'
    return f'{program} {step} --folder "$SPARKDL_FOLDER" --round {ROUND}'


@dag(
    schedule=[DRIFT],
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=min(60.0, LOOK_S))},
    tags=["sparkdl"],
)
def train_and_serve() -> None:
    """Train and serve a model, and watch it until it has to be trained again."""

    @task.bash
    def prepare() -> str:
        return command("prepare")

    @task.bash
    def search() -> str:
        return command("search")

    @task.bash
    def train() -> str:
        return command("train")

    @task.bash(skip_on_exit_code=NOTHING_TO_DO)
    def export_if_better() -> str:
        return command("export")

    @task.bash
    def canary() -> str:
        return command("canary")

    # A sensor looks again after each exit code but 0: errors, too, may be over by then. One that
    # has waited long enough is skipped, as a failure would end the circle.
    looks = {"mode": "reschedule", "poke_interval": LOOK_S, "soft_fail": True}
    promote_or_roll_back = BashSensor(
        task_id="promote_or_roll_back", bash_command=command("decide"), timeout=CANARY, **looks
    )
    # A model that was not better is not rolled out; the version before is watched on.
    monitor = BashSensor(
        task_id="monitor",
        bash_command=command("monitor"),
        timeout=VERSION,
        trigger_rule="none_failed",
        **looks,
    )

    @task.bash(outlets=[DRIFT], trigger_rule="none_failed")
    def next_round() -> str:
        return "echo the next round begins"

    steps = prepare() >> search() >> train() >> export_if_better() >> canary()
    steps >> promote_or_roll_back >> monitor >> next_round()


circle = train_and_serve()

if __name__ == "__main__":
    # One run in this process, to try it out.
    circle.test()
