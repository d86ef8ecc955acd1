"""The page's scripts would fail where no test with a browser looks.

The page's JavaScript without a browser: its modules under node, and their types.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess

import pytest
from support import ROOT

from autolayers.report.look import FREE, GPU, MARK, RAM, SHADES

STATIC = ROOT / "autolayers" / "web" / "static"
NODE = shutil.which("node")
TSC = pathlib.Path(os.environ.get("AUTOLAYERS_NODE_MODULES", "")) / "typescript" / "bin" / "tsc"


@pytest.mark.skipif(NODE is None, reason="no node here")
def test_modules_run_under_node() -> None:
    done = subprocess.run(
        [str(NODE), "--test", str(pathlib.Path(__file__).with_name("modules.test.mjs"))],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.browser
@pytest.mark.skipif(
    not TSC.is_file(), reason="no typescript: AUTOLAYERS_NODE_MODULES names npm's folder"
)
def test_types_of_the_modules_agree() -> None:
    words = [
        "--noEmit",
        "--checkJs",
        "--allowJs",
        "--strict",
        "false",
        "--target",
        "es2022",
        "--module",
        "es2022",
        "--moduleResolution",
        "bundler",
        "--lib",
        "es2022,dom,dom.iterable",
    ]
    done = subprocess.run(
        [str(NODE), str(TSC), *words, *map(str, sorted(STATIC.glob("*.js")))],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def test_every_module_is_checked() -> None:
    for path in STATIC.glob("*.js"):
        assert path.read_text().startswith("// @ts-check\n"), path.name


def test_the_page_fetches_all_modules_at_once() -> None:
    """One trip to the host, not one for each floor of imports."""
    page = (STATIC / "index.html").read_text()
    preloaded = {
        line.split('"')[3]
        for line in page.splitlines()
        if line.startswith('<link rel="modulepreload"')
    }
    assert preloaded == {path.name for path in STATIC.glob("*.js")} - {
        "app.js",
        "sw.js",
        "worker.js",
    }


def test_page_icon_and_docs_have_the_colours_of_pictures() -> None:
    style, icon = (STATIC / "style.css").read_text(), (STATIC / "icon.svg").read_text()
    assert f"--gpu: light-dark({GPU}," in style and f"--ram: light-dark({RAM}," in style
    assert MARK in icon and FREE in style
    docs = (ROOT / "docs" / "look.css").read_text()
    assert (
        GPU in docs and RAM in docs and (ROOT / "docs" / "images" / "mark.svg").read_text() == icon
    )
    for part, share in SHADES.items():
        assert f".{part} {{ --share: {share:.0%}; }}" in style
