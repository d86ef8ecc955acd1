"""The static page: complete, and its wheel is the package."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from zipfile import ZipFile

from autolayers.web.build import PYODIDE_FILES, WHEEL


def build(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "autolayers.web", *words], capture_output=True, text=True)


def test_the_site_and_its_wheel(tmp_path: pathlib.Path) -> None:
    site = tmp_path / "site"
    assert build("build", str(site)).returncode == 0
    config = json.loads((site / "config.json").read_text())
    assert all(source.startswith("https://") for source in config["pyodide"])
    assert {path.name for path in site.iterdir()} == {
        "config.json", *config["files"]}
    first = (site / WHEEL).read_bytes()
    assert build("build", str(site)).returncode == 0 and (site / WHEEL).read_bytes() == first
    found = subprocess.run([sys.executable, "-S", "-I", "-c", f"import sys; sys.path.insert(0, {str(site / WHEEL)!r});"
                            "from autolayers.web.engine import Engine; print(Engine().call('plan', {'model': "
                            "'bundled:qwen3-8b-q4_k_m', 'gpu': '12GiB'})['verdict']['state'])"],
                           capture_output=True, text=True)
    assert found.stdout == "if\n", found.stderr
    first = json.loads((site / "first.json").read_text())
    assert first["answer"]["verdict"]["title"] == "Fits" and first["question"] == first["offer"]["preset"]
    assert config["sha256"].keys() == PYODIDE_FILES.keys() and config["sizes"][WHEEL] == (site / WHEEL).stat().st_size
    with ZipFile(site / WHEEL) as wheel:
        assert any(name.endswith(".dist-info/RECORD") for name in wheel.namelist())


def test_pyodide_is_copied_from_a_folder(tmp_path: pathlib.Path) -> None:
    pyodide = tmp_path / "pyodide"
    pyodide.mkdir()
    done = build("build", str(tmp_path / "site"), "--pyodide", str(pyodide))
    assert done.returncode == 2 and done.stderr == (f"autolayers: {pyodide}: not a Pyodide folder: it lacks "
                                                        f"{', '.join(PYODIDE_FILES)}\n")
    for name in PYODIDE_FILES:
        (pyodide / name).write_text(name)
    assert build("build", str(tmp_path / "site"), "--pyodide", str(pyodide)).returncode == 0
    assert (tmp_path / "site" / "pyodide" / "pyodide.asm.js").read_text() == "pyodide.asm.js"


def test_usage_is_told_on_stderr(tmp_path: pathlib.Path) -> None:
    for words in ([], ["build"], ["build", "-x"], ["serve", "x"]):
        done = build(*words)
        assert done.returncode == 2 and done.stderr.startswith("usage: ") and not done.stdout
    (tmp_path / "file").write_text("")
    done = build("build", str(tmp_path / "file"))
    assert done.returncode == 1 and "Traceback" not in done.stderr
