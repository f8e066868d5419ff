"""Arguments of verbs that are refused before Spark is needed."""

from collections.abc import Callable
from typing import Any

import pytest

from sparkdl import experiment
from sparkdl.errors import ConfigError


@pytest.mark.parametrize(
    ("verb", "options"),
    [
        (experiment.allreduce, {"num_workers": 2}),
        (experiment.horovod, {"num_workers": 2}),
        (experiment.mirrored, {}),
        (experiment.parameter_server, {"num_workers": 1, "num_ps": 1}),
    ],
)
def test_arguments_of_the_function_are_refused_with_the_remedy(
    verb: Callable[..., Any], options: dict[str, Any]
) -> None:
    with pytest.raises(TypeError, match=r"got \{'a': 1\} too.*functools\.partial\(train, \.\.\.\)"):
        verb(lambda a: a, {"a": 1}, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"logs": "some"}, "logs is 'some'; expected 'all', 'best' or 'none'"),
        ({"if_exists": "overwrite"}, "if_exists is 'overwrite'; expected 'error', 'resume'"),
        ({"retry": "all", "if_exists": "resume"}, "retry is 'all'; expected 'failed'"),
        ({"retry": [1.5], "if_exists": "resume"}, r"retry is \[1\.5\]"),
        ({"retry": True, "if_exists": "resume"}, "retry is True"),
        ({"retry": "failed"}, "retry='failed' applies to a run that exists"),
    ],
)
def test_options_are_refused_with_the_expected_values(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        experiment.launch(lambda: 1.0, **options)
