"""Runs in the training process. Advice for programs of Keras 2, which Keras 3 refuses."""

import os
import re
import sys

__all__ = ["keras_2_advice"]

# What Keras 3 says of arguments, methods and paths that only Keras 2 has.
_REFUSALS = re.compile(
    r"unexpected keyword argument '(experimental_run_tf_function|lr|sample_weight_mode)'"
    r"|Argument\(s\) not recognized: \{'(lr|decay)'"
    r"|must end in `\.(weights\.h5|keras)`"
    r"|Invalid filepath extension for saving"
    r"|Keras 3 only supports"
    r"|'\w+' object has no attribute '(lr|fit_generator|predict_generator|evaluate_generator)'"
    r"|module 'keras\S*\.?backend' has no attribute '(get_value|set_value|get_session|set_session)'"
)
# An optimizer's list of variables, which was a method.
_CALLED_LIST = "'list' object is not callable"


def keras_2_advice(exc: BaseException) -> str | None:
    """Return advice for an error that Keras 3 raises for programs of Keras 2, or None.

    Args:
        exc: the exception of the user's function.

    Example:
        >>> keras_2_advice(KeyError("lr")) is None
        True
    """
    keras = sys.modules.get("keras")
    version = str(getattr(keras, "__version__", "2"))
    if int(version.partition(".")[0]) < 3 or os.environ.get("TF_USE_LEGACY_KERAS") == "1":
        return None
    text = str(exc)
    is_refusal = isinstance(exc, TypeError | ValueError | AttributeError) and (
        _REFUSALS.search(text) is not None or (_CALLED_LIST in text and _calls_variables(exc))
    )
    if not is_refusal:
        return None
    return (
        f"This is Keras {version}, and the program seems to be one of Keras 2. Either install "
        "tf_keras and set the variable TF_USE_LEGACY_KERAS=1 where the program starts (on a "
        "cluster spark.executorEnv.TF_USE_LEGACY_KERAS=1 too), or update the program"
    )


def _calls_variables(exc: BaseException) -> bool:
    """Return True if the line that failed has to do with `variables`."""
    if "variables()" in str(exc):  # AutoGraph quotes the line.
        return True
    trace = exc.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    return trace is not None and "variables" in trace.tb_frame.f_code.co_names
