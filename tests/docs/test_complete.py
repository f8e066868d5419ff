"""The pages mention what users may type: options, commands, and public names."""

import argparse
import re
from types import ModuleType

import pytest

from sparkdl.cli.main import make_parser
from tests.docs.pages import REPOSITORY, blocks_of, pages, spans_of
from tests.docs.test_site import reference  # noqa: F401
from tests.test_public_api import OPTIONS, PUBLIC

CODE = "\n".join(code.text for page in pages() for code in (*spans_of(page), *blocks_of(page)))
# Classes of objects that users get from calls, beside the names that the reference hides.
UNMENTIONED = {
    *("Context", "AliasMove", "RunState", "TrialState", "Usage"),
    "__version__",
}
# The pages of these systems' programs have tables of what differs, not of all names.
OTHER_SYSTEMS = ("sparkdl.horovod", "sparkdl.tfos", "sparkdl.hops", "sparkdl.maggy")


def mentions(name: str) -> bool:
    return re.search(rf"\b{re.escape(name)}\b", CODE) is not None


@pytest.mark.parametrize("module", [name for name in PUBLIC if not name.startswith(OTHER_SYSTEMS)])
def test_public_names_are_on_a_page(module: str, reference: ModuleType) -> None:  # noqa: F811
    unmentioned = UNMENTIONED | reference.HIDDEN.get(module, set())
    assert [n for n in PUBLIC[module] if not mentions(n) and n not in unmentioned] == []


def test_options_are_on_the_page_of_the_verbs() -> None:
    page = (REPOSITORY / "docs/search.md").read_text()
    assert [option for option in sorted(OPTIONS) if f"`{option}`" not in page] == []


def commands() -> list[tuple[str, argparse.ArgumentParser]]:
    actions = make_parser()._actions
    choices = next(a.choices for a in actions if isinstance(a, argparse._SubParsersAction))
    return list(choices.items())


@pytest.mark.parametrize("name", [name for name, _ in commands()])
def test_commands_are_on_a_page(name: str) -> None:
    assert mentions(f"sparkdl {name}")
