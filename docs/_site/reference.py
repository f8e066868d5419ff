"""The pages of the reference, as reStructuredText: each public module, and the command line."""

import argparse
import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterator
from enum import Enum
from types import ModuleType
from typing import Any

__all__ = ["HIDDEN", "modules", "names_of", "pages"]

# PyTorch is no dependency of sparkdl.
_TORCH_MODULES = ("sparkdl.horovod.torch", "sparkdl.horovod.torch.elastic")
# Modules of the reference beside those of `sparkdl.__all__`.
API_MODULES = (
    *("sparkdl.options", "sparkdl.runs.views.comparison", "sparkdl.data.batching"),
    *("sparkdl.horovod.tensorflow", "sparkdl.horovod.elastic"),
    *(
        "sparkdl.horovod.tensorflow.callbacks",
        "sparkdl.horovod.spark",
        "sparkdl.horovod.spark.keras",
    ),
    *("sparkdl.horovod.spark.common.backend", "sparkdl.horovod.spark.common.store"),
    *("sparkdl.horovod.spark.conf", "sparkdl.horovod.spark.task"),
    "sparkdl.horovod.runner.common.util.timeout",
    *(_TORCH_MODULES if importlib.util.find_spec("torch") else ()),
    *(["sparkdl.lightning"] if importlib.util.find_spec("lightning") else ()),
    *(["sparkdl.huggingface"] if importlib.util.find_spec("transformers") else ()),
    *("sparkdl.hops.experiment", "sparkdl.hops.hdfs", "sparkdl.hops.model"),
    *("sparkdl.hops.tensorboard", "sparkdl.hops.devices", "sparkdl.hops.util"),
    *("sparkdl.tfos.TFCluster", "sparkdl.tfos.TFNode", "sparkdl.tfos.TFParallel"),
    *("sparkdl.tfos.pipeline", "sparkdl.tfos.dfutil", "sparkdl.tfos.compat", "sparkdl.tfos.util"),
    *("sparkdl.tfos.gpu_info", "sparkdl.tfos.TFManager", "sparkdl.tfos.reservation"),
)
# Public to the other modules of sparkdl, and of no use to programs.
HIDDEN = {
    "sparkdl.context": {
        "VARIABLE",
        "acting_as",
        "activate",
        "current",
        "elect",
        "this_committer",
        "this_reporter",
    },
    "sparkdl.devices": {"is_busy"},
    "sparkdl.distribute": {"warmed_up"},
    "sparkdl.errors": {"RemoteTraceback", "suggest"},
}
# Modules of which only some names are public.
ONLY = {"sparkdl.options": {"Options"}, "sparkdl.data.batching": {"Batches"}}
NOT_CONSTRUCTED = {
    *("sparkdl.context.Context", "sparkdl.data.batching.Batches", "sparkdl.options.Options"),
    *("sparkdl.models.AliasMove", "sparkdl.models.ModelVersion", "sparkdl.runs.Run"),
    *("sparkdl.runs.Trial", "sparkdl.runs.Usage", "sparkdl.runs.views.comparison.Comparison"),
    *("sparkdl.serving.Server", "sparkdl.tfos.TFCluster.TFCluster"),
}
HIDDEN_MEMBERS = (
    *("apply", "attach", "view", "how_to_finish", "raise_unless_complete", "annotations"),
    *("checkpoint_of_value", "reported_values", "counts_text", "of", "is_shown"),
)


def pages() -> dict[str, str]:
    """Return the text of each page, by its name."""
    written = {name: _module_page(name) for name in modules()}
    return {"index": _index(), "command-line": _command_line(), **written}


def names_of(module: str) -> list[str]:
    """Return the names of a module that its page describes, in the order of their kinds."""
    public = importlib.import_module(module)
    names = [name for name in public.__all__ if name not in HIDDEN.get(module, set())]
    names = [name for name in names if name in ONLY.get(module, names)]
    return [name for name in names if _directive(getattr(public, name))]


def modules() -> list[str]:
    """Return the public modules, in the order of the menu."""
    sparkdl = importlib.import_module("sparkdl")
    own = [f"sparkdl.{n}" for n in sparkdl.__all__ if isinstance(getattr(sparkdl, n), ModuleType)]
    own.sort(key=lambda name: (name != "sparkdl.experiment", name))
    return [*(name for name in own if name != "sparkdl.tfos"), "sparkdl", *API_MODULES]


def _index() -> str:
    names = "".join(f"   {name}\n" for name in modules())
    rows = "".join(f"- :doc:`{name}`: {_summary(name)}\n" for name in modules())
    return (
        f"{_title('API reference')}The public names of sparkdl, from their docstrings, by module. "
        f"The commands are on the page :doc:`command-line`.\n\n{rows}\n"
        f".. toctree::\n   :hidden:\n\n   command-line\n{names}"
    )


def _summary(name: str) -> str:
    """Return the first sentence about a module, without the place where the module runs."""
    text = (importlib.import_module(name).__doc__ or "").split("\n\n")[0]
    text = re.sub(r"^Runs [^.]*\. | \(runs? [^)]*\)| \(on the driver\)", "", " ".join(text.split()))
    return text.replace("`", "``")


def _module_page(name: str) -> str:
    module = importlib.import_module(name)
    text = f"{_title(name)}.. automodule:: {name}\n   :no-members:\n\n"
    for member in names_of(name):
        thing = getattr(module, member)
        text += f".. {_directive(thing)}:: {name}.{member}\n{_options(thing)}\n"
    return text


def _directive(thing: Any) -> str | None:
    if isinstance(thing, ModuleType | str | int | float):
        return None
    if inspect.isclass(thing):
        return "autoexception" if issubclass(thing, BaseException) else "autoclass"
    return "autofunction" if callable(thing) else "py:data"


def _options(thing: Any) -> str:
    if not inspect.isclass(thing) or issubclass(thing, BaseException):
        return ""
    own = "   :undoc-members:\n" if issubclass(thing, Enum) else "   :inherited-members: object\n"
    if any(not base.__module__.startswith("sparkdl") for base in thing.__mro__[1:-1]):
        own = own if issubclass(thing, Enum) else ""
    return f"   :members:\n   :exclude-members: {', '.join(HIDDEN_MEMBERS)}\n{own}"


def _command_line() -> str:
    from sparkdl.cli.main import make_parser

    parser = make_parser()
    text = f"{_title('Command line')}{_help(parser)}"
    for name, verb in _verbs(parser):
        text += f"\nsparkdl {name}\n{'-' * (len(name) + 8)}\n\n{_help(verb)}"
        for action, sub in _verbs(verb):
            text += f"\nsparkdl {name} {action}\n{'^' * (len(name + action) + 9)}\n\n{_help(sub)}"
    return text


def _verbs(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def _help(parser: argparse.ArgumentParser) -> str:
    parser.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=88)
    lines = parser.format_help().splitlines()
    return ".. code-block:: text\n\n" + "".join(f"   {line}".rstrip() + "\n" for line in lines)


def _title(text: str) -> str:
    return f"{text}\n{'=' * len(text)}\n\n"
