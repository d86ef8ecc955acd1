"""The page and the command line would answer the same question differently.

Random questions: the page's answer is the command line's, in both engines, whatever is asked.
"""

from __future__ import annotations

import json
import os
import pathlib
import random
import shutil
import subprocess
from typing import Any

import pytest
from support import swept

import autolayers
from autolayers import bundled
from autolayers.cli.plan import main
from autolayers.devices.cards import CARDS
from autolayers.errors import AutolayersError
from autolayers.web.build import WHEEL, wheel
from autolayers.web.engine import Engine
from autolayers.web.form import FIELDS

NODE_MODULES = pathlib.Path(os.environ.get("AUTOLAYERS_NODE_MODULES", ""))
MACHINES = (
    *(name for name, card in CARDS.items() if 6000 < card.usable < 50000),
    "8GiB",
    "12GiB",
    "24GiB",
    "48GiB",
    "rtx-3090,rtx-3060",
    "24GiB,12GiB",
    "2x16GiB",
)
STACK = "--stack-size=400"  # KiB: Chromium's workers have less than Node
QUICK = (10,)
IGNORED = {"model": None, "warnings": None}  # the path, and that the header's file is short
# What a plan says it could not work out all of: how much depends on the number of processes
CUT = dict.fromkeys(("remedies", "levers", "alternatives"))


def has_header(name: str) -> bool:
    try:
        return bool(bundled.data(name))
    except AutolayersError:
        return False


def question(seed: int) -> dict[str, str]:
    """Model and machine, and some of the form's other fields."""
    pick = random.Random(seed)
    ram = pick.choice(("32GiB", "64GiB", "192GiB"))
    # a file can be made of a header of its own alone
    models = [name for name in bundled.models() if has_header(name)]
    asked = {"model": pick.choice(models), "gpu": pick.choice(MACHINES), "ram": ram}
    others = {
        "ctx": ("4096", "16384", "65536"),
        "np": ("1", "2", "4"),
        "ctk": ("q8_0", "f16"),
        "ub": ("128", "1024"),
        "fa": ("on", "auto"),
        "strategy": ("layers", "auto"),
        "workload": ("agent", "chat", "batch"),
    }
    for field in pick.sample(sorted(others), pick.choice((0, 1, 2, 3))):
        asked[field] = pick.choice(others[field])
    if asked.get("ctk") == "q8_0":
        asked["ctv"] = "q8_0"
    return asked


def told(answer: dict[str, Any]) -> dict[str, Any]:
    """What is compared of a plan, and whether its reasons were `cut`."""
    cut = any("not every other launch was" in line for line in answer["warnings"])
    return {**answer, **IGNORED, "cut": cut}


def on_the_command_line(
    asked: dict[str, str], folder: pathlib.Path, out: pytest.CaptureFixture[str]
) -> dict[str, Any]:
    """The JSON of autolayers, or its error: for a file of the right length, nearly all of which is
    a hole."""
    path = folder / f"{asked['model']}.gguf"
    path.write_bytes(bundled.data(asked["model"]))
    with path.open("r+b") as file:
        file.truncate(autolayers.read_header(path).files[0].promised)
    words = [
        word
        for field, (flag, _) in FIELDS.items()
        if field in asked
        for word in (flag, asked[field])
    ]
    try:
        main([str(path), "--json", *words])
    except Exception as error:
        return {"error": type(error).__name__}
    answer: dict[str, Any] = json.loads(out.readouterr().out)
    return told(answer)


def in_the_page(asked: dict[str, str]) -> dict[str, Any]:
    """The plan with all its reasons, as the page asks for them."""
    engine = Engine()
    answer = engine.call("plan", asked)
    while "error" not in answer and not (more := engine.call("more", asked)).get("done"):
        answer = more
    if "error" in answer:
        return {"error": answer["kind"]}
    plan: dict[str, Any] = json.loads(json.dumps(answer["plan"]))
    return told(plan)


@pytest.mark.parametrize("seed", swept(range(40), 10, QUICK))
def test_the_page_answers_as_the_command_line(
    seed: int, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = question(seed)
    assert_alike(in_the_page(asked), on_the_command_line(asked, tmp_path, capsys), asked)


def assert_alike(page: dict[str, Any], other: dict[str, Any], asked: dict[str, str]) -> None:
    if page.pop("cut", False) | other.pop("cut", False):
        page |= CUT
        other |= CUT
    assert page == other, asked


RUN = """
import fs from "node:fs";
const { loadPyodide } = await import(process.argv[2]);
const python = await loadPyodide();
python.unpackArchive(fs.readFileSync(process.argv[3]).buffer, "wheel");
python.runPython("import json\\nfrom autolayers.web.engine import Engine\\nengine = Engine()\\n"
  + "def call(method, question): return json.dumps(engine.call(method, json.loads(question)))");
const call = (method, question) =>
  JSON.parse(python.globals.get("call")(method, JSON.stringify(question)));
for (const question of JSON.parse(fs.readFileSync(process.argv[4]))) {
  let answer = call("plan", question);
  for (let more; !answer.error && !(more = call("more", question)).done;) answer = more;
  const plan = { ...answer.plan, model: null };
  console.log(JSON.stringify(answer.error ? { error: answer.kind } : plan));
}
"""


@pytest.mark.browser
@pytest.mark.skipif(
    not (NODE_MODULES / "pyodide").is_dir() or not shutil.which("node"), reason="no Pyodide"
)
def test_python_in_the_browser_answers_as_python_here(tmp_path: pathlib.Path) -> None:
    """As many as AUTOLAYERS_QUESTIONS, and two that once took more stack than a worker has."""
    asked = [
        question(seed)
        for seed in (*range(int(os.environ.get("AUTOLAYERS_QUESTIONS", "20"))), 107, 118)
    ]
    (tmp_path / "run.mjs").write_text(RUN)
    (tmp_path / WHEEL).write_bytes(wheel())
    (tmp_path / "asked.json").write_text(json.dumps(asked))
    done = subprocess.run(
        [
            "node",
            STACK,
            "run.mjs",
            str((NODE_MODULES / "pyodide" / "pyodide.mjs").resolve()),
            WHEEL,
            "asked.json",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for one, line in zip(asked, done.stdout.splitlines(), strict=True):
        found = json.loads(line)
        assert_alike(in_the_page(one), found if "error" in found else told(found), one)
