"""Readers would find flags and tables of an earlier version.

Documents that are made from the program's tables are what would be made now.
"""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autolayers.flags.own import COMMANDS, FLAGS

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_made_pages_are_current() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "make.py"), "--check"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_form_that_a_flag_s_help_names_is_one_of_its_commands() -> None:
    """--gpumem was said to go with --format lws, which a plan refuses."""
    forms = {
        command: {*flag.choices}
        for flag in FLAGS
        if "--format" in flag.names
        for command in flag.commands
    }
    for flag in FLAGS:
        for named in re.findall(
            r"--format ([a-z-]+(?:,? or [a-z-]+(?: of autolayers \w+)?)*)", flag.help
        ):
            for form, _, of in (
                each.partition(" of autolayers ") for each in re.split(",? or ", named)
            ):
                missing = [
                    c for c in [of] * bool(of) or flag.commands if form not in forms.get(c, {form})
                ]
                assert not missing, (flag.names, form, missing)


def test_a_page_shows_windows_paths_for_both_shells() -> None:
    page = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    assert '"C:\\llama.cpp\\llama-server.exe"' in page
    assert "cmd.exe" in page and "PowerShell" in page


MADE = "api architectures best builds plans reliability rules speeds troubleshooting"


def columns(page: str) -> Iterator[tuple[str, list[str]]]:
    """Each column of a page's tables of at least five rows, after its head."""
    for table in re.findall(r"^(\|.*\|)\n\|[-:|]+\|\n((?:\|.*\|\n)+)", page, re.MULTILINE):
        rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in table[1].splitlines()]
        if len(rows) >= 5:
            yield from zip(
                re.split(r"(?<!\\)\|", table[0])[1:-1],
                map(list, zip(*rows, strict=True)),
                strict=True,
            )


@pytest.mark.parametrize("name", MADE.split())
def test_a_made_page_says_what_every_row_has_in_a_sentence(name: str) -> None:
    """Columns said "exact", "yes" or nothing 150 times."""
    page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    assert [head for head, cells in columns(page) if len({*cells}) == 1] == []
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    heads = {line for line in lines if lines.count(line) > 1}
    assert {line for line in heads if f"{line}\n|---" not in page} == set()


def test_pages_are_short() -> None:
    """The made ones had 36,900 words, all 77,700, and with CONTRIBUTING 44,700."""
    pages = (ROOT / "docs").glob("*.md")
    words = {path.stem: len(path.read_text("utf-8").split()) for path in pages}
    assert sum(words[name] for name in MADE.split()) < 16_000
    assert sum(words.values()) + len((ROOT / "CONTRIBUTING.md").read_text("utf-8").split()) < 42_500


def test_a_table_is_whole() -> None:
    """A row that went left a blank line, after which rows were no table."""
    for page in (*(ROOT / "docs").glob("*.md"), ROOT / "CONTRIBUTING.md"):
        for table in re.findall(r"(?:^\|.*\|\n)+", page.read_text("utf-8"), re.MULTILINE):
            assert re.match(r".*\n\|[-:|]+\|\n", table), (page.name, table[:80])


def test_the_site_leads_to_every_page() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r": ([\w-]+\.md)$", text, re.MULTILINE)
    assert sorted(listed) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))


def test_the_house_has_every_room_and_its_files_are_there() -> None:
    text = (ROOT / "docs" / "house.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)/` \|.*\| (.*) \|$", text, re.MULTILINE)
    rooms = {path.parent.name for path in (ROOT / "autolayers").glob("*/__init__.py")}
    assert {room for room, _ in rows} == rooms
    for room, files in rows:
        for name in re.findall(r"`([^`]+)`", files):
            assert (ROOT / "autolayers" / room / name).exists(), (room, name)


def test_every_anchor_is_a_heading() -> None:
    for page in (*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)", text):
            led = (page.parent / target if target else page).read_text(encoding="utf-8")
            heads = re.findall(r"^#+ (.*)$", led, re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
            assert anchor in slugs, (page.name, target, anchor)


def test_every_link_of_the_pages_leads_somewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the site too, where files beside docs/ are words or lie in the repository."""
    for page in (ROOT / "docs").glob("*.md"):
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text):
            assert (page.parent / target).exists(), (page.name, target)
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    shown = importlib.import_module("site_links").on_page_markdown
    text = "the [README](../README.md), [web](web.md)"
    assert shown(text, config={"repo_url": ""}) == "the README, [web](web.md)"
    assert shown(text, config={"repo_url": "https://x/y/"}) == (
        "the [README](https://x/y/blob/main/README.md), [web](web.md)"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("12 GiB", "gpt-oss-20b-mxfp4"),
        ("24 GiB", "llama-3.3-70b-q4_k_m"),
        ("24 + 8 GiB", "qwen3-30b-a3b-q4_k_m"),
    ],
)
def test_plans_are_current(monkeypatch: pytest.MonkeyPatch, title: str, name: str) -> None:
    """Some of them: all take a minute (docs/make.py plans --check)."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    plans = importlib.import_module("make_plans")
    page = (ROOT / "docs" / "plans.md").read_text(encoding="utf-8")
    section = page[page.index(f"## {title} (") :].partition("\n\n## ")[0]
    assert plans.planned(name, dict(plans.MACHINES)[title]) in section.splitlines()


def test_every_finding_has_tests_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    findings = importlib.import_module("make_reliability").FINDINGS
    assert [name for name, _, _ in findings][:16] == [f"F{number}" for number in range(1, 17)]
    for _, _, tests in findings:
        for test in tests:
            file, _, name = test.partition("::")
            assert f"\ndef {name}(" in (ROOT / file).read_text(encoding="utf-8"), test


def test_the_man_page_is_readable_and_whole() -> None:
    if shutil.which("groff") is None:
        pytest.skip("no groff here")
    done = subprocess.run(
        [
            "groff",
            "-man",
            "-Tascii",
            "-ww",
            "-P-c",
            "-rLL=200n",
            str(ROOT / "docs" / "autolayers.1"),
        ],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert (done.returncode, done.stderr) == (0, "")
    plain = re.sub(".\b", "", done.stdout)  # bold is a letter printed twice
    assert [
        name
        for flag in FLAGS
        for name in flag.names
        if name not in plain and "--help" not in flag.names
    ] == []
    assert [
        command.usage for command in COMMANDS.values() if f"autolayers {command.usage}" not in plain
    ] == [COMMANDS["ollama"].usage]


def test_the_first_picture_shows_a_gain_that_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """It showed llama.cpp alone with 42 tokens/s beside 39. In both schemes, and of letters that a
    phone of 360 pixels shows with 11."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    made = importlib.import_module("make_gain")
    yours, better = made.planned()
    assert better.speed.generation > 1.5 * yours.speed.generation
    assert better.speed.prompt > 1.5 * yours.speed.prompt
    drawn = made.IMAGE.read_text(encoding="utf-8")
    assert drawn == made.drawing(yours, better) and "prefers-color-scheme:dark" in drawn
    assert 15 * 360 / made.WIDTH >= 11
    assert "](docs/images/gain.svg)" in (ROOT / "README.md").read_text(encoding="utf-8")
