"""The documentation is true: its code runs, its links lead somewhere, and every name in it exists."""

import doctest
import importlib
import re
import runpy
import sys

import pytest

import maxinforl
from doc_blocks import PAGES, ROOT, blocks, run, shrink
from maxinforl import cli
from maxinforl.algorithms import CATALOGUE, algorithm
from maxinforl.cli import parser
from maxinforl.cli_docs import commands_of
from maxinforl.settings import has

WITH_CODE = [page for page in PAGES if blocks(page)]
# Flags of other programs that the pages name.
FOREIGN = {
    "--strict",
    "--array",
    "--time",
    "--requeue",
    "--signal",
    "--alg",
    "--env_name",
    "--kills",
    "--cases",
    "--torch",
}
DOCTESTED = ["maxinforl.agent", "maxinforl.config", "maxinforl.errors", "maxinforl.experiments.inspection"]


def name(page) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_CODE, ids=name)
def test_code_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for folder in ("results", "examples"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    shrink(monkeypatch)
    names = {"__name__": "__main__"}
    for block in blocks(page):
        run(block, names)


def test_blocks_are_found_and_marked():
    readme, start = blocks(ROOT / "README.md"), blocks(ROOT / "docs" / "quick-start.md")
    assert {b.language for b in readme} == {"python", "console"}
    assert [b.mark for b in start[:2]] == ["not run", None]


# --- links ---------------------------------------------------------------------------------------------------------


def anchors(page) -> set[str]:
    """The anchors that headings of a page get."""
    titles = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    plain = [re.sub(r"[^\w\s-]", "", re.sub(r"[*`]|\[|\]\([^)]*\)", "", t)).strip().lower() for t in titles]
    return {re.sub(r"[\s]+", "-", title) for title in plain}


@pytest.mark.parametrize("page", [*PAGES, *sorted((ROOT / "results").rglob("README.md"))], ids=name)
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = link.partition("#")
        if path.startswith(("http://", "https://", "mailto:")):
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name(page)}: {link}"
        assert not anchor or anchor in anchors(target), f"{name(page)}: {link}"


# --- names ---------------------------------------------------------------------------------------------------------


def code_of(page) -> str:
    """Everything on a page that is set as code."""
    text = page.read_text()
    return "\n".join([*(b.text for b in blocks(page)), *re.findall(r"`([^`\n]+)`", text)])


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_name_in_the_docs_exists(page):
    code = code_of(page)
    flags = {f for p in commands_of(parser()).values() for f in p._option_string_actions} | {"--version", *FOREIGN}
    for flag in re.findall(r"(?<![\w-])--[a-z][a-z0-9_-]*", code):
        assert flag in flags, f"{name(page)}: {flag}"
    metrics = known_metrics()
    for metric in re.findall(r"(?<![\w/.-])((?:train|explore|rollout|time)/\w+)(?![\w./])", code):
        assert metric in metrics, f"{name(page)}: {metric}"
    agents = [algorithm(algo) for algo in CATALOGUE]
    for path in re.findall(r"(?<![\w./])((?:base|intrinsic|weight|schedule)\.[a-z_.]+)(?![\w(])", code):
        assert any(has(agent, path) for agent in agents), f"{name(page)}: {path}"
    for dotted in re.findall(r"(?<![\w/.-])maxinforl((?:\.[a-zA-Z_]+)+)", code):
        assert resolves(dotted[1:].split(".")), f"{name(page)}: maxinforl{dotted}"


def resolves(parts: list[str]) -> bool:
    """Whether a dotted name below the package leads to something."""
    found = maxinforl
    for i, part in enumerate(parts):
        if not hasattr(found, part):
            try:
                importlib.import_module(".".join(["maxinforl", *parts[: i + 1]]))
            except ImportError:
                return False
        found = getattr(found, part)
    return True


def known_metrics() -> set[str]:
    """Every metric that the source names."""
    text = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    return set(re.findall(r'"((?:train|explore|model|rollout|time|eval)/[a-z0-9_]+)"', text)) - {"explore/info"}


def test_every_public_name_is_documented():
    metrics = set(re.findall(r"^\| `(\w+/\w+)` \|", (ROOT / "docs/reference/metrics.md").read_text(), re.MULTILINE))
    assert metrics == known_metrics()
    api = (ROOT / "docs/reference/api.md").read_text()
    assert [n for n in maxinforl.__all__ if f"maxinforl.{n}" not in api] == []


def test_reference_pages_are_those_of_the_code():
    """Where this fails: python tools/reference.py"""
    for file, text in runpy.run_path(str(ROOT / "tools" / "reference.py"))["pages"]().items():
        assert (ROOT / "docs" / "reference" / file).read_text() == text


def test_measured_tables_are_those_of_the_raw_runs(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    measured = runpy.run_path(str(ROOT / "benchmarks" / "measured.py"))
    page = (ROOT / "docs" / "choosing.md").read_text()
    assert measured["filled"](page) == page, "run `python benchmarks/measured.py`"


def test_errors_name_sections_that_exist(capsys):
    source = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    named = set(re.findall(r'"([a-z/-]+\.md(?:#[a-z0-9-]+)?)"', source))
    assert len(named) >= 8
    for name in named:
        page, _, anchor = name.partition("#")
        headings = re.findall(r"^#+ (.*)$", (ROOT / "docs" / page).read_text(), re.MULTILINE)
        slugs = {re.sub(r"[^\w-]", "", heading.lower().replace(" ", "-")) for heading in headings}
        assert not anchor or anchor in slugs, name
    assert cli.main(["train", "--env", "Pendulumm-v1"]) == 2
    assert "(docs/environments.md#names)" in capsys.readouterr().err


def test_the_paper_page_has_every_conflict():
    text = (ROOT / "docs" / "paper.md").read_text()
    assert [f"C{i}" for i in range(1, 20) if f"| C{i} |" not in text] == []


@pytest.mark.parametrize("module", DOCTESTED)
def test_docstrings(module):
    result = doctest.testmod(importlib.import_module(module), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted > 0 and result.failed == 0
