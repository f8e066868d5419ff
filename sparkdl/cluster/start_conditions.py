"""Runs on the driver. The conditions under which the training processes of a plan are forked."""

from sparkdl.cluster.plan import Plan
from sparkdl.cluster.process.server_connection import PreloadCall, Start
from sparkdl.cluster.program.packaging import Program
from sparkdl.cluster.program.preloading import order_of, preloadable


def start_of(plan: Plan, program: Program, application: str, run: str = "", seed: int = 0) -> Start:
    """Return the conditions under which the training processes of a plan are forked.

    Args:
        plan: the plan.
        program: the user's program.
        application: the id of the Spark application.
        run: the id of the run.
        seed: the seed of the run, for the function of `preload=`.
    """
    # A server that has imported Keras has fixed its backend, for all that it forks.
    sets_backend = bool(program.backend_variables(plan.env))
    # What each rank of a gang imports before its function is called.
    first = ("sparkdl.distribute.strategies",) if plan.is_gang else ()
    sets_hub = bool(program.hub_variables(plan.env))
    preload = preloadable((*first, *program.imports), plan.framework, sets_backend, sets_hub)
    return Start(
        application=application,
        order=order_of(preload),
        preload=preload if plan.fork_server else (),
        env=plan.env,
        call=PreloadCall(run, call) if (call := program.preload_request(seed)) else None,
        shared=plan.fork_server,
    )
