"""Runs on the driver. The one way from a request to a run, for every verb."""

import secrets
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from sparkdl import checkpoints, config, storage
from sparkdl.cluster.plan import Plan
from sparkdl.cluster.preflight import check_pair, start_of
from sparkdl.cluster.program.packaging import Program, pack
from sparkdl.cluster.slots import check_gang
from sparkdl.cluster.spark import Cluster
from sparkdl.cluster.trial_task import RunRef, TrialSpec, TrialTask
from sparkdl.data.dataframe.inputs import Data, session_of
from sparkdl.errors import ConfigError
from sparkdl.runner.concurrency import Pace
from sparkdl.runner.display.progress import Progress
from sparkdl.runner.display.reports import Pages
from sparkdl.runner.handle import Live
from sparkdl.runner.planning import check_elastic, initial_of, plan_of, stays_in_memory
from sparkdl.runner.preflight import preflight
from sparkdl.runner.request import Request
from sparkdl.runner.retries import Limits
from sparkdl.runner.stopping import Stops
from sparkdl.runner.submitted import SubmittedTrials
from sparkdl.runner.trial_loop import Execution
from sparkdl.runs import Run, Trial, provenance
from sparkdl.runs.ids_and_seeds import new_run_id
from sparkdl.runs.opening import IfExists, OpenRun, Wanted, open_run
from sparkdl.search.trial_source import Source

__all__ = ["Prepared", "execute"]


def execute(request: Request) -> Run:
    """Run what was asked for.

    Raises:
        ConfigError, FunctionError, PreflightError, RunExistsError: before anything was started.
        AllTrialsFailedError, TrainingFailedError: no trial completed.
    """
    options = request.options
    versioned = _check_resources(request)
    prepared = Prepared.of(request, pack(request.called))
    opened = open_run(
        storage.absolute(options.root or prepared.cluster.root()),
        prepared.wanted(),
        cast(IfExists, options.if_exists),
    )
    if opened.finished_before:
        opened.owner.release()
        return opened.run
    return prepared.start(opened, versioned)


def _check_resources(request: Request) -> list[Path]:
    paths = [Path(path) for path in request.options.versioned_resources]
    for path in paths:
        if not path.exists():
            raise ConfigError(f"versioned_resources has {str(path)!r}, which does not exist.")
    return paths


@dataclass(frozen=True)
class Prepared:
    """A request, and the cluster that was found able to run it; nothing was started."""

    request: Request
    program: Program
    cluster: Cluster
    plan: Plan
    pace: Pace
    data: Data | None
    init_from: tuple[str, int] | None

    @classmethod
    def of(cls, request: Request, program: Program) -> "Prepared":
        """See that the cluster can run it.

        Raises:
            ConfigError, PreflightError: it cannot.
        """
        options = request.options
        cluster = Cluster(options.spark or session_of(request.data))
        plan = plan_of(request, program, cluster)
        readers = len(plan.readers)
        given = None if request.data is None else Data.of(request.data, cluster.spark, readers)
        initial = initial_of(request)
        if request.search:
            from sparkdl.search.samplers import pruner_of, sampler_of

            sampler_of(request.search.algorithm, seed=0)
            pruner_of(request.search.pruner)
        cluster.check(plan)
        check_pair(plan, config.resolve("allow_untested", None, cluster.conf))
        cluster.wait_for_executors(plan.size)
        override = config.resolve("slots", None, cluster.conf)
        pace = Pace(
            lambda: cluster.slots(plan.resources, override),
            options.parallelism,
            cluster.enforces(plan.resources),
            plan.size,
            # One after the other, as a sampler would have it.
            ahead=request.search is None or options.parallelism is None,
        )
        if plan.elastic:
            check_elastic(program, cluster.conf)
        if plan.is_gang:
            check_gang(plan, pace.slots, cluster.conf, cluster.master)
        return cls(request, program, cluster, plan, pace, given, initial)

    @property
    def _secrets(self) -> tuple[str, ...]:
        return tuple(self.request.options.env.values())

    def wanted(self) -> Wanted:
        """What the run directory says of it."""
        request, options, cluster = self.request, self.request.options, self.cluster
        function = provenance.function_name(request.train) if request.train else "train"
        name = options.name or function
        kept = request.kept()
        return Wanted(
            id=options.run_id or new_run_id(name),
            name=name,
            kind=request.kind,
            description=options.description,
            metric=options.metric,
            direction=cast(Literal["max", "min"], options.direction),
            params=request.params,
            count=request.search.count if request.search else None,
            seed=secrets.randbits(31) if options.seed is None else options.seed,
            secrets=self._secrets,
            facts={
                "function": function,
                "objectives": dict(request.objectives),
                "space": request.search and request.search.kept_space(),
                "repeats": request.search.repeats if request.search else 1,
                "plan": str(self.plan),
                "framework": self.plan.framework,
                "env": sorted(options.env),
                "spark": {
                    "master": cluster.master,
                    "application": cluster.application,
                    "version": cluster.spark.version,
                },
                "request": kept,
                "versions": provenance.versions(),
                "git_commit": provenance.git_commit(Path.cwd()),
                **provenance.who(),
            },
        )

    def start(self, opened: OpenRun, versioned: list[Path] | None = None) -> Run:
        """Run its trials.

        Args:
            opened: the run directory.
            versioned: files to keep with a new run; None where it was written before.
        """
        options = self.request.options
        with opened.failing():
            self._keep_initial(opened)
            kept = self.request.train is None or self._keep_program(opened, self.request.train)
            execution = self._execution(opened, kept)
        with execution.failing():
            if versioned is not None:
                storage.write(opened.paths.environment, provenance.environment())
                for path in versioned:
                    storage.copy(path, storage.join(opened.paths.resources, path.name))
            if not self.plan.is_gang:  # Its tasks check their executors when they meet.
                preflight(opened, self.cluster, self.plan, self.program)
        live = Live(execution)
        opened.run.attach(live)
        if options.wait:
            execution.execute()
        else:
            live.start()
        return opened.run

    def _keep_initial(self, opened: OpenRun) -> None:
        """Copy the checkpoint that trials begin with: its own trial may remove it at any time."""
        kept = opened.paths.initial
        if self.init_from and not checkpoints.committed(kept):
            with tempfile.TemporaryDirectory(prefix="sparkdl-") as folder:
                local = checkpoints.fetch(*self.init_from, folder)
                checkpoints.commit(local, kept, checkpoints.step_of(local), {})

    def _keep_program(self, opened: OpenRun, train: Callable[..., Any]) -> bool:
        """Keep the source to read, and the program to go on with; whether it may be kept."""
        values = self._secrets
        texts = {name: source.text for name, source in self.program.modules.items()}
        provenance.write_source(opened.paths, train, texts, values)
        return provenance.write_program(opened.paths, self.program.to_dict(), values)

    def _execution(self, opened: OpenRun, kept: bool) -> Execution:
        request, options, plan = self.request, self.request.options, self.plan
        limits = Limits(
            options.parallelism,
            options.timeout_s,
            options.max_failed_trials,
            options.fail_fast_identical,
            options.max_restarts,
            options.max_losses,
        )
        run = opened.run
        ended = [trial for trial in run.trials if trial.state.is_final]
        stops = Stops(limits, request.search, run.directions, plan.size, ended)
        progress = Progress(run, plan, options.progress)
        progress.say(f"Run {run.id}: {plan}")
        progress.say(f"Everything is kept in {opened.paths.folder}")
        if self.program.warning:
            progress.say(f"Note: {self.program.warning}")
        if not kept:
            progress.say(
                "Note: the function, or a module that travels with it, holds what looks like a "
                "credential, so it is not kept: experiment.resume will need train=."
            )
        rows = self.data.rows(plan.size, plan.readers, plan.is_gang) if self.data else None
        flights = SubmittedTrials(self.cluster, plan, self.request.topology, opened.paths, rows)
        source = self._source(opened, progress)
        task = self._make_task(opened, source)
        pages = Pages(run, progress.say)
        return Execution(opened, plan, flights, task, self.pace, stops, progress, pages, source)

    def _source(self, opened: OpenRun, progress: Progress) -> Source:
        search = self.request.search
        if search is None:
            return Source()
        from sparkdl.search.study_source import Proposals

        return Proposals.of(opened, search, self.request.learn_from, progress.say)

    def _make_task(self, opened: OpenRun, source: Source) -> Any:
        request, options, plan = self.request, self.request.options, self.plan
        feed = self.data.feed(plan.readers) if self.data else None
        start = start_of(plan, self.program, self.cluster.application)
        is_private = stays_in_memory(self.program, self.cluster.conf)
        carries_secret = plan.meets_by_files and is_private
        run = RunRef(
            id=opened.run.id,
            path=opened.paths.folder,
            application=self.cluster.application,
            versions=provenance.versions(),
            driver=self.cluster.conf("spark.driver.host") or "",
        )

        def params_of(trial: Trial) -> dict[str, Any]:
            known = request.params
            return source.params_of(trial) if known is None else known[trial.number]

        def make_task(trial: Trial, cores: int) -> TrialTask:
            spec = TrialSpec(
                number=trial.number,
                params=params_of(trial),
                seed=trial.seed,
                attempt=trial.attempts,
                metrics=tuple(request.metrics),
                direction=opened.run.direction,
                keep_checkpoints=options.keep_checkpoints,
                init_from=self.init_from and (opened.paths.initial, 1),
                secret=secrets.token_bytes(32) if carries_secret else b"",
            )
            return TrialTask(
                plan=plan,
                program=self.program,
                run=run,
                trial=spec,
                start=start,
                cores=cores,
                feed=feed,
            )

        return make_task
