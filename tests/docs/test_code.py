"""Code in the documentation: it is complete, and what it names exists."""

import ast
import json
import re

import pytest
import yaml

from tests.docs.checking import Checker, is_about, parse_span, standard_names
from tests.docs.names import ELSEWHERE, GIVEN, MIGRATION, MODULES
from tests.docs.pages import Block, Span, blocks_of, pages, spans_of
from tests.docs.shell import check_commands, check_setting, check_usage

BLOCKS = [block for page in pages() for block in blocks_of(page)]
SPANS = [span for page in pages() for span in spans_of(page)]
# `text` is output and pictures; nothing else is left alone.
LANGUAGES = {"json", "properties", "python", "sh", "text", "yaml"}
MARKERS = re.compile(r"(checked|skipped), .+")


def of_language(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language]


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_every_block_names_its_language_and_why_it_does_not_run(block: Block) -> None:
    assert block.language in LANGUAGES
    assert not block.marker or MARKERS.fullmatch(block.marker), block.marker
    if block.marker.startswith("skipped"):
        pytest.skip(block.marker)  # The summary of the tests lists the block.


@pytest.mark.parametrize("page", sorted({block.page for block in of_language("python")}))
def test_python_blocks_name_and_call_what_exists(page: str) -> None:
    checker = Checker(GIVEN)
    for block in of_language("python"):
        if block.page == page and not block.marker.startswith("skipped"):
            checker.check_block(block.text)
            assert checker.problems == [], block


@pytest.mark.parametrize("block", of_language("sh"), ids=str)
def test_shell_blocks_have_commands_that_exist(block: Block) -> None:
    assert list(check_commands(block.text)) == []


@pytest.mark.parametrize("block", of_language("properties"), ids=str)
def test_configurations_have_settings_that_exist(block: Block) -> None:
    lines = [line for line in block.text.splitlines() if line and not line.startswith("#")]
    assert [p for line in lines for p in check_setting(line.split()[0])] == []


@pytest.mark.parametrize("block", of_language("json") + of_language("yaml"), ids=str)
def test_documents_can_be_read(block: Block) -> None:
    assert json.loads(block.text) if block.language == "json" else yaml.safe_load(block.text)


def is_about_sparkdl(span: Span) -> bool:
    return span.page not in MIGRATION or "sparkdl" in span.column


@pytest.mark.parametrize("page", sorted({span.page for span in SPANS}))
def test_code_in_sentences_names_and_calls_what_exists(page: str) -> None:
    checker = Checker({**standard_names(), **GIVEN})
    roots = {*MODULES, *(name for name, kind in GIVEN.items() if isinstance(kind, type))}
    problems = []
    for span in SPANS:
        if span.page != page or span.text in ELSEWHERE or not is_about_sparkdl(span):
            continue
        for expression in parse_span(span.text):
            if is_about(expression, dict.fromkeys(roots)):
                for node in ast.walk(expression):
                    if isinstance(node, ast.Attribute | ast.Call):
                        checker.value_of(node)
        problems += [f"{span}: {problem}" for problem in checker.problems]
        checker.problems.clear()
    assert problems == []


@pytest.mark.parametrize("page", sorted({span.page for span in SPANS}))
def test_commands_and_settings_in_sentences_exist(page: str) -> None:
    problems = []
    for span in SPANS:
        if span.page == page:
            problems += [f"{span}: {problem}" for problem in check_usage(span.text)]
    assert problems == []
