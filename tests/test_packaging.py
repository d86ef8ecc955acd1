"""What a user gets: the archives, the two commands of the README, and a start that imports nothing heavy."""

from __future__ import annotations

import doctest
import importlib
import os
import pkgutil
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

import autolayers

ROOT = Path(__file__).parent.parent
HEADER = "fixtures/headers/llama-3.1-8b-q4_k_m.gguf"
HEAVY = {"numpy", "requests", "rich", "gguf", "pynvml", "psutil"}
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _python(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
                          env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"})


def _commands(pattern: str) -> list[str]:
    return re.findall(rf"^    ({pattern})$", README, re.MULTILINE)


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[set[str], set[str]]:
    """Names in the wheel, and in the source archive below its top folder."""
    pytest.importorskip("hatchling")
    out = tmp_path_factory.mktemp("dist")
    built = _python("-m", "hatchling", "build", "-d", str(out))
    assert built.returncode == 0, built.stderr
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive, tarfile.open(sdist) as tar:
        return set(archive.namelist()), {name.partition("/")[2] for name in tar.getnames()}


def test_wheel_holds_the_package_and_nothing_else(archives: tuple[set[str], set[str]]) -> None:
    wheel, _ = archives
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "autolayers").rglob("*.py")}
    assert modules | {"autolayers/py.typed"} <= wheel
    info = f"autolayers-{autolayers.__version__}.dist-info"
    assert {name.split("/")[0] for name in wheel} == {"autolayers", info, f"autolayers-{autolayers.__version__}.data"}
    assert f"autolayers-{autolayers.__version__}.data/data/share/man/man1/autolayers.1" in wheel
    assert f"{info}/licenses/LICENSE" in wheel


def test_source_archive_can_run_its_own_tests(archives: tuple[set[str], set[str]]) -> None:
    _, sdist = archives
    assert {"pyproject.toml", "README.md", "LICENSE", HEADER, "tests/test_packaging.py", "docs/rules.md",
            ".ci/run"} <= sdist
    assert not any("__pycache__" in name or name.startswith((".git/", ".venv/")) for name in sdist)


def test_version() -> None:
    answer = _python("-m", "autolayers", "--version")
    assert (answer.returncode, answer.stdout.strip()) == (0, f"autolayers {autolayers.__version__}")


@pytest.mark.parametrize("words", [["--version"], [HEADER, "-q", "--gpu", "24GiB"]])
def test_start_imports_nothing_heavy(words: list[str]) -> None:
    answer = _python("-X", "importtime", "-m", "autolayers", *words)
    assert answer.returncode == 0, answer.stderr[-2000:]
    imported = {line.rpartition("|")[2].strip().partition(".")[0]
                for line in answer.stderr.splitlines() if line.startswith("import time:")}
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


def test_readme_shows_the_real_answer() -> None:
    answer = _python("-m", "autolayers", HEADER, "--gpu", "24GiB", "--format", "text")
    shown = README.partition("the answer begins\n\n")[2].partition("\n\n(That")[0]
    real = [line.rstrip() for line in answer.stdout.splitlines()]
    assert real[:9] == [line.removeprefix("    ").rstrip() for line in shown.splitlines()], (
        "README.md shows an older answer"
    )


def test_readme_library_example_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert "model.gguf" in code
    names: dict[str, Any] = {}
    exec(code.replace("model.gguf", (ROOT / HEADER).as_posix()), names)
    assert names["plan"].n_gpu_layers == 33
    assert names["plan"].to_dict()["schema"] == 1


def test_readme_test_command_is_what_ci_runs() -> None:
    (command,) = _commands(r"python3 -m venv .* -m pytest")
    assert command == "python3 -m venv .venv && .venv/bin/pip install -q '.[test]' && .venv/bin/python -m pytest"
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    assert os.access(ROOT / ".ci/run", os.X_OK)
    (expression,) = re.findall(r"sed -n '([^']*)' README.md", script)
    found = subprocess.run(["sed", "-n", expression, "README.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.splitlines() == [command]
    assert "ruff" in script and "mypy\" --strict" in script


def test_readme_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target


@pytest.mark.parametrize("name", [m.name for m in pkgutil.walk_packages(autolayers.__path__, "autolayers.")
                                  if not m.name.endswith("__main__")])
def test_examples_in_docstrings(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
