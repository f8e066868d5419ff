"""The pages that users read: their links resolve, and their tables agree with the code."""

import re
from pathlib import Path

import pytest

from sparkdl.cli.main import make_parser
from sparkdl.config import SETTINGS

REPOSITORY = Path(__file__).parents[1]
PAGES = [
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
    REPOSITORY / "CHANGELOG.md",
    REPOSITORY / "benchmarks/results/README.md",
    REPOSITORY / "conf/README.md",
    *sorted((REPOSITORY / "docs").rglob("*.md")),
]
NUM_SCENARIOS = 25

_CODE_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"\]\(([^)\s]+)\)")
_DEFINITION = re.compile(r"^\[([^\]]+)\]: +(\S+)$", re.MULTILINE)
_REFERENCE = re.compile(r"\[([^\]\[]+)\](?:\[([^\]\[]+)\])?(?![\](:])")
_MARKER = re.compile(r"""mark\.acceptance\(\s*((?:["']A\d+["'],?\s*)+)\)""")


def name_of(page: Path) -> str:
    return page.relative_to(REPOSITORY).as_posix()


def anchors_of(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", _CODE_BLOCK.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def rows_of(page: str) -> list[list[str]]:
    """Return the cells of all table rows of a page below docs/."""
    lines = (REPOSITORY / "docs" / page).read_text().splitlines()
    rows = [line.strip("|").split("|") for line in lines if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_resolve(page: Path) -> None:
    text = _CODE.sub("", page.read_text())
    targets = [*_INLINE.findall(text), *(url for _, url in _DEFINITION.findall(text))]
    for target in targets:
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{name_of(page)} links to {target}, which does not exist"
        assert not anchor or anchor in anchors_of(linked), f"{target} has no such heading"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_reference_links_are_defined_and_used(page: Path) -> None:
    text = _CODE.sub("", page.read_text())
    defined = {name for name, _ in _DEFINITION.findall(text)}
    body = _INLINE.sub("](", _DEFINITION.sub("", text))
    used = {target or name for name, target in _REFERENCE.findall(body)}
    assert used == defined


def test_readme_stays_a_front_page() -> None:
    assert len((REPOSITORY / "README.md").read_text().splitlines()) <= 160


def test_every_setting_is_documented() -> None:
    rows = {row[0]: row[1:4] for row in rows_of("settings.md") if len(row) == 5}
    for setting in SETTINGS.values():
        default = "none" if setting.default is None else str(setting.default).lower()
        expected = [f"`{setting.variable}`", f"`{setting.conf}`", default]
        assert rows.pop(f"`{setting.name}`") == expected
    assert set(rows) == {"name", "---"}, "docs/settings.md has settings that do not exist"


def test_every_command_is_documented() -> None:
    (verbs,) = (a for a in make_parser()._actions if isinstance(a.choices, dict))
    text = (REPOSITORY / "docs/run-directory.md").read_text()
    table = text[text.index("## Command line") :]
    documented = set(re.findall(r"`(?:sparkdl )?([a-z]+)", table))
    assert set(verbs.choices or ()) <= documented


def marked_tests() -> dict[str, set[str]]:
    """Return the test files that are marked with each acceptance scenario."""
    marked: dict[str, set[str]] = {}
    for path in sorted((REPOSITORY / "tests").rglob("test_*.py")):
        for ids in _MARKER.findall(path.read_text()):
            for scenario in re.findall(r"A\d+", ids):
                marked.setdefault(scenario, set()).add(path.name)
    return marked


def test_acceptance_scenarios_are_complete() -> None:
    documented = [row[0] for row in rows_of("acceptance.md") if re.fullmatch(r"A\d+", row[0])]
    assert sorted(documented) == sorted(f"A{i + 1}" for i in range(NUM_SCENARIOS))


def test_acceptance_scenarios_link_to_their_tests() -> None:
    marked = marked_tests()
    if not marked:
        pytest.skip("no test is marked with a scenario")
    linked = {
        row[0]: set(re.findall(r"\[(test_\w+\.py)\]", row[3]))
        for row in rows_of("acceptance.md")
        if re.fullmatch(r"A\d+", row[0])
    }
    assert linked == marked
