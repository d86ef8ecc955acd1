"""A fresh install would lack a file, or start slowly.

What a user gets: the archives, the two commands of the README, and a start that imports nothing
heavy.
"""

from __future__ import annotations

import doctest
import importlib
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest

import autolayers

ROOT = Path(__file__).parent.parent
HEADER = "fixtures/headers/llama-3.1-8b-q4_k_m.gguf"
HEAVY = {"numpy", "requests", "rich", "gguf", "pynvml", "psutil"}
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _python(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"},
    )


def _commands(pattern: str) -> list[str]:
    return re.findall(rf"^    ({pattern})$", README, re.MULTILINE)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names in the wheel."""
    pytest.importorskip("hatchling")
    out = tmp_path_factory.mktemp("dist")
    built = _python("-m", "hatchling", "build", "-t", "wheel", "-d", str(out))
    assert built.returncode == 0, built.stderr
    (path,) = out.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names in the source archive below its top folder."""
    pytest.importorskip("hatchling")
    out = tmp_path_factory.mktemp("dist")
    built = _python("-m", "hatchling", "build", "-t", "sdist", "-d", str(out))
    assert built.returncode == 0, built.stderr
    (sdist,) = out.glob("*.tar.gz")
    with tarfile.open(sdist) as tar:
        return {name.partition("/")[2] for name in tar.getnames()}


def test_wheel_holds_the_package_and_nothing_else(wheel: set[str]) -> None:
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "autolayers").rglob("*.py")}
    tables = {path.relative_to(ROOT).as_posix() for path in (ROOT / "autolayers").rglob("*.[ct]sv")}
    assert len(tables) > 2 and modules | tables | {"autolayers/py.typed"} <= wheel
    info = f"autolayers-{autolayers.__version__}.dist-info"
    assert {name.split("/")[0] for name in wheel} == {
        "autolayers",
        info,
        f"autolayers-{autolayers.__version__}.data",
    }
    share = f"autolayers-{autolayers.__version__}.data/data/share"
    assert {
        f"{share}/man/man1/autolayers.1",
        f"{share}/bash-completion/completions/autolayers",
        f"{share}/zsh/site-functions/_autolayers",
        f"{share}/fish/vendor_completions.d/autolayers.fish",
    } <= wheel
    assert f"{info}/licenses/LICENSE" in wheel


@pytest.mark.slow
def test_source_archive_can_run_its_own_tests(sdist: set[str]) -> None:
    assert {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        HEADER,
        "tests/test_packaging.py",
        "docs/rules.md",
        ".ci/run",
    } <= sdist
    assert not any("__pycache__" in name or name.startswith((".git/", ".venv/")) for name in sdist)


def test_the_version_is_the_packages() -> None:
    answer = _python("-m", "autolayers", "--version")
    assert (answer.returncode, answer.stdout.strip()) == (0, f"autolayers {autolayers.__version__}")


@pytest.mark.parametrize("words", [["--version"], [HEADER, "-q", "--gpu", "24GiB"]])
def test_start_imports_nothing_heavy(words: list[str]) -> None:
    answer = _python("-X", "importtime", "-m", "autolayers", *words)
    assert answer.returncode == 0, answer.stderr[-2000:]
    imported = {
        line.rpartition("|")[2].strip().partition(".")[0]
        for line in answer.stderr.splitlines()
        if line.startswith("import time:")
    }
    assert "autolayers" in imported
    assert not imported & HEAVY


def test_readme_plan_command_plans() -> None:
    (command,) = _commands(r"python3 -m venv .* --gpu 24GiB")
    setup, install, plan = command.split(" && ")
    assert (setup, install) == ("python3 -m venv .venv", ".venv/bin/pip install -q .")
    program, *words = plan.split()
    assert program == ".venv/bin/autolayers"
    answer = _python("-m", "autolayers", *words)
    assert answer.returncode == 0, answer.stderr
    assert "-ngl 33" in answer.stdout


@pytest.mark.skipif(os.name == "nt", reason="no pty")
def test_readme_shows_what_a_terminal_shows() -> None:
    """It showed another screen: that of --table."""
    import pty

    ours, theirs = pty.openpty()
    subprocess.run(
        [sys.executable, "-m", "autolayers", HEADER, "--gpu", "24GiB"],
        cwd=ROOT,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        check=True,
        timeout=600,
        env={**os.environ, "COLUMNS": "80", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"},
    )
    os.close(theirs)
    answer = os.read(ours, 1 << 16).decode()
    os.close(ours)
    shown = README.partition("the answer begins\n\n")[2].partition("\n\n(That")[0]
    real = [line.rstrip() for line in answer.splitlines()]
    lines = [
        line.removeprefix("    ").rstrip()
        for line in shown.splitlines()
        if not line.startswith("<!--")
    ]
    lines = "\n".join(lines).strip().splitlines()
    assert len(lines) > 8 and real[: len(lines)] == lines, "README.md shows an older answer"


def test_readme_library_example_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert "model.gguf" in code
    names: dict[str, Any] = {}
    exec(code.replace("model.gguf", (ROOT / HEADER).as_posix()), names)
    assert names["plan"].n_gpu_layers == 33
    assert names["plan"].to_dict()["schema"] == 1


def test_readme_test_command_is_what_ci_runs() -> None:
    (command,) = _commands(r"python3 -m venv .* -m pytest")
    assert (
        command
        == "python3 -m venv .venv && .venv/bin/pip install -q '.[test]' && .venv/bin/python -m "
        "pytest"
    )
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    assert os.access(ROOT / ".ci/run", os.X_OK)
    (expression,) = re.findall(r"sed -n '([^']*)' README.md", script)
    found = subprocess.run(
        ["sed", "-n", expression, "README.md"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert found.stdout.splitlines() == [command]
    assert "ruff" in script and 'mypy" --strict' in script


def test_ci_runs_all_tests_where_a_path_is_awkward() -> None:
    """A test that holds a path's length, or splits a line at its blanks, fails there."""
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    (copy,) = re.findall(r'^copy="\$made/(.*)"$', script, re.MULTILINE)
    assert len(copy) > 90 and " " in copy and not copy.isascii()
    assert len(max(copy.replace(" ", "/").split("/"), key=len)) > 80
    steps = [script.index(step) for step in ('cd "$copy"', 'eval "$test_command"', "-m pytest -m")]
    assert steps == sorted(steps) and "cd" not in script[steps[0] + 2 : steps[-1]]


def test_readme_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target


def test_an_index_shows_whole_links_and_the_projects_urls(tmp_path: Path) -> None:
    """Both are made of the one line of pyproject.toml that names the owner."""
    built = _python("-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path))
    assert built.returncode == 0, built.stderr
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        found = Parser().parsestr(archive.read(name).decode())
    (project,) = re.findall(
        r"^repository = "
        r'"(\S+)"$',
        (ROOT / "pyproject.toml").read_text(),
        re.MULTILINE,
    )
    urls = dict(url.split(", ") for url in found.get_all("Project-URL"))
    assert urls["Repository"] == project and all(url.startswith(project) for url in urls.values())
    assert urls["Issues"] == f"{project}/issues"
    links = re.findall(r"\]\(([^)]+)\)", str(found.get_payload()))
    assert f"{project}/blob/v{autolayers.__version__}/docs/index.md" in links
    assert all(link.startswith(("https://", "#")) for link in links)
    assert str(found.get_payload()).count("](") == README.count("](")
    owner = project.split("/")[3]
    hosted = [
        file
        for file in (*ROOT.glob("*.*"), *ROOT.glob(".github/**/*.*"))
        if file.is_file()
        and file.name not in ("pyproject.toml",)
        and f"{owner}/" in file.read_text(encoding="utf-8")
    ]
    assert not hosted


WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_pin_what_they_run_and_may_do_little(path: Path) -> None:
    reader = pytest.importorskip("yaml")
    text = path.read_text(encoding="utf-8")
    file = reader.safe_load(text)
    assert file["permissions"] == {"contents": "read"}
    for used in re.findall(r"uses: (\S+)(.*)", text):
        assert re.fullmatch(r"\./\S+|[\w.-]+/[\w./-]+@[0-9a-f]{40}", used[0]), used
        assert used[0].startswith("./") or re.fullmatch(r" # v\d+\.\d+\.\d+", used[1]), used
    assert "${{ secrets." not in text and "pull_request_target" not in text
    for name, job in file["jobs"].items():
        if name != "assets":
            assert job.get("permissions", {}).get("contents", "read") == "read"
        for step in job.get("steps", ()):
            for script in re.findall(r"(?<!\S)(\.ci/\w+)", step.get("run", "")):
                assert os.access(ROOT / script, os.X_OK), script
            assert (
                "checkout" not in step.get("uses", "")
                or step["with"]["persist-credentials"] is False
            )
            assert not re.search(r"\$\{\{\s*github\.(event|head_ref)", step.get("run", ""))


PUBLISHING = [path for path in WORKFLOWS if "tags:" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", PUBLISHING, ids=lambda path: path.stem)
def test_nothing_is_published_before_the_tests(path: Path) -> None:
    jobs = pytest.importorskip("yaml").safe_load(path.read_text(encoding="utf-8"))["jobs"]
    assert jobs["test"]["uses"] == "./.github/workflows/ci.yml"
    for name in jobs:
        chain = [name]
        while chain[-1] != "test":
            chain.append(jobs[chain[-1]]["needs"])


@pytest.mark.parametrize(("name", "least"), [("release", 10), ("runtime", 6)])
def test_what_a_release_runs_and_ships_has_digests(name: str, least: int) -> None:
    rows = re.split(r"\n(?=\S)", (ROOT / f".ci/{name}.txt").read_text(encoding="utf-8"))
    tools = [row for row in rows if not row.startswith("#")]
    assert len(tools) > least and all("==" in row and "--hash=sha256:" in row for row in tools)


def test_nothing_is_installed_without_digests_where_a_release_is_attested() -> None:
    build = (ROOT / ".ci/build").read_text(encoding="utf-8")
    installs = re.findall(r'run\([^\n]*"pip", "(?:install|wheel)"[^\n]*', build)
    assert len(installs) > 3
    for line in installs:
        alone = "--no-deps" in line and ("--no-index" in line or "--no-build-isolation" in line)
        assert "*HASHED" in line or alone, line
    image = (ROOT / "Containerfile").read_text(encoding="utf-8")
    for line in re.findall(r"pip install[^\n]*", image):
        assert "--require-hashes" in line or "--no-index" in line, line


def test_what_builds_the_page_may_only_read() -> None:
    path = ROOT / ".github/workflows/page.yml"
    jobs = pytest.importorskip("yaml").safe_load(path.read_text(encoding="utf-8"))["jobs"]
    for job in jobs.values():
        if any("run" in step for step in job.get("steps", ())):
            assert "permissions" not in job


def test_the_image_is_built_on_one_that_nobody_can_exchange() -> None:
    text = (ROOT / "Containerfile").read_text(encoding="utf-8")
    images = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert images and all(re.fullmatch(r"\S+@sha256:[0-9a-f]{64}", image) for image in images)
    # a digest is no version: it is brought up to date by a change that somebody reads
    assert "package-ecosystem: docker" in (ROOT / ".github/dependabot.yml").read_text("utf-8")


def test_every_python_that_the_metadata_names_is_tested() -> None:
    reader = pytest.importorskip("yaml")
    matrix = reader.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]["test"][
        "strategy"
    ]["matrix"]
    said = re.findall(
        r'"Programming Language :: Python :: '
        r'(3\.\d+)"',
        (ROOT / "pyproject.toml").read_text(),
    )
    assert matrix["python"] == said and {name.split("-")[0] for name in matrix["os"]} == {
        "ubuntu",
        "macos",
        "windows",
    }


def test_the_citation_is_of_this_version() -> None:
    reader = pytest.importorskip("yaml")
    found = reader.safe_load((ROOT / "CITATION.cff").read_text())
    assert found["version"] == autolayers.__version__ and {
        "cff-version",
        "message",
        "title",
        "authors",
    } <= set(found)
    for form in (ROOT / ".github/ISSUE_TEMPLATE").glob("[!c]*.yml"):
        fields = reader.safe_load(form.read_text())
        assert {"name", "description", "body"} <= set(fields) and all(
            field["attributes"]["label"] for field in fields["body"]
        )


def test_a_release_without_an_owner_or_date_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, ".ci/build", "--release"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "GITHUB_REF_NAME": "v9.9.9"},
        timeout=600,
    )
    assert done.returncode == 1 and "the tag is v9.9.9 and the version" in done.stderr


def test_examples_in_docstrings_are_true() -> None:
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in (ROOT / "autolayers").rglob("*.py")
        if ">>>" in path.read_text(encoding="utf-8")
    ]
    assert names
    assert not [name for name in names if doctest.testmod(importlib.import_module(name)).failed]
