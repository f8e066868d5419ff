"""Runs on the driver. Set the actions of runs and trials, when this module is imported."""

from typing import Any

from sparkdl.runs.actions import Actions


def _debug(*args: Any) -> Any:
    from sparkdl.runner.again.one_trial import debug_trial

    return debug_trial(*args)


def _tensorboard(*args: Any, **options: Any) -> Any:
    from sparkdl.board.start import start_tensorboard

    return start_tensorboard(*args, **options)


def _ui(*args: Any, **options: Any) -> Any:
    from sparkdl.ui import show

    return show(*args, **options)


Actions.debug = _debug
Actions.tensorboard = _tensorboard
Actions.ui = _ui
