"""Anyone who runs several machines would be shown a table that does not say what is served where.

`autolayers fleet`: what a user sees.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from support import HEADERS, ROOT, check_examples, model, seldom

from autolayers.cli import main
from autolayers.units import GiB

DOCUMENTED = ("llama-3.1-8b-q4_k_m", "qwen3-30b-a3b-q4_k_m")
ONE = str(HEADERS / "llama-3.2-1b-q8_0.gguf")
SMALL = {"devices": [{"card": "rtx-3060"}], "host": {"total": 32 * GiB}}


@pytest.fixture
def answer(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("autolayers.planner.compare.fleet.plan.USUAL", ("rtx-3060",))

    def run(machines: Any, *words: str) -> tuple[int, str, str]:
        (tmp_path / "fleet.json").write_text(json.dumps({"machines": machines}))
        code = main(["fleet", "fleet.json", *words])
        return code, *capfd.readouterr()

    return run


@pytest.mark.slow
def test_text_json_flags_and_files_say_the_same_fleet(answer, tmp_path: Path) -> None:
    words = (ONE, "--users", "20", "--min-rate", "30")
    code, out, err = answer({"rack": {**SMALL, "count": 3}}, *words, "--format", "text")
    assert code == 0 and out.startswith("20 users are served with 30 tokens/s each; up to ")
    assert "rack-1 and 1 more" in out and "the others have slots for all its users" in out
    assert "\nfree      rack-3: NVIDIA GeForce RTX 3060" in out
    assert "another rack-1: NVIDIA GeForce RTX 3060" in out
    found = json.loads(answer({"rack": {**SMALL, "count": 3}}, *words, "--json")[1])
    (server,) = found["servers"]
    assert (found["schema"], found["fits"], found["users"]["asked"]) == (1, True, 20)
    assert (
        server["replicas"] == 2
        and server["slots"] == 20
        and server["per_user_tokens_per_second"] >= 30
    )
    assert server["plan"]["host"]["limit"] and server["plan"]["fits"]
    assert list(found["machines"]) == ["rack-1", "rack-2", "rack-3"]
    assert found["failing"] == [
        {"kind": 0, "machine": "rack-1", "waiting": 0, "replanned": found["users"]["most"] * 2 // 3}
    ]
    lines = answer({"rack": {**SMALL, "count": 3}}, *words)[1].splitlines()
    assert [line.split()[0] for line in lines] == [
        "rack-1",
        "rack-2",
    ] and " -np 20" in lines[0]
    code, out, err = answer(
        {"rack": {**SMALL, "count": 3}}, *words, "--format", "haproxy", "-o", str(tmp_path)
    )
    assert (
        (code, out) == (0, "")
        and (tmp_path / "haproxy.cfg").exists()
        and "haproxy.cfg written" in err
    )


def test_users_that_cannot_be_served(answer) -> None:
    code, out, err = answer({"pc": SMALL}, ONE, "--users", "5000", "--min-rate", "40")
    assert code == 5 and out.startswith("pc ")
    assert err.splitlines()[-1].startswith("autolayers: 5000 users cannot be served: ")
    assert err.splitlines()[-1].endswith(" can")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "name the machines and the models"),
        ((ONE, ONE), 2, "is given twice"),
        ((ONE, "--rpc", "a:1"), 2, "omit --rpc"),
        ((ONE, "--gpu", "24GiB"), 2, "--gpu is no flag of autolayers fleet"),
        ((ONE, "--users", "0"), 2, "a number of users, 1 to 1000000"),
        ((ONE, "-o", "x", "--json"), 2, "--output and --image need --format compose"),
        (("none.gguf",), 3, "none.gguf: no such file"),
        ((f"{ONE}@0",), 2, "a model's weight is more than 0"),
        (
            (ONE, "--min-rate", "100000"),
            5,
            "no machine gives 100000 tokens/s each; the fastest gives one user",
        ),
    ],
)
def test_bad_input_is_one_line(words: tuple[str, ...], code: int, said: str, answer) -> None:
    found = answer({"pc": SMALL}, *words)
    line = found[2].splitlines()[-1] if found[2] else ""
    assert found[0] == code and said in line and "Traceback" not in found[2]
    assert found[2].count("\n") == 1


def test_bad_machines_are_one_line(answer) -> None:
    code, _, err = answer({"pc": {}}, ONE)
    assert code == 2 and err.count("\n") == 1 and "pc: a machine without memory" in err


@seldom
def test_a_model_without_a_machine_is_named(answer) -> None:
    """One is served, the other one is named, and a machine for both."""
    large = str(HEADERS / "qwen3-30b-a3b-q4_k_m.gguf")
    code, out, _ = answer(
        {"pc": SMALL}, str(HEADERS / "llama-3.3-70b-q4_k_m.gguf"), large, "--json"
    )
    found = json.loads(out)
    assert code == 5 and len(found["servers"]) == 1 and found["users"]["most"] > 0
    (unserved,) = found["unserved"]
    assert unserved["why"] == f"{unserved['model']}: no machine is left for it"
    assert unserved["model"] not in found["servers"][0]["model"]
    assert any(each["kind"] == 0 and each["users"] > 0 for each in found["next"])


@pytest.mark.slow
def test_the_documented_example_prints_what_the_page_shows(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in DOCUMENTED:
        shutil.copy(HEADERS / f"{name}.gguf", tmp_path)
        (warning,) = model(name).header.warnings
        # sparse
        os.truncate(tmp_path / f"{name}.gguf", int(warning.rpartition("promises ")[2]))
    shutil.copy(ROOT / "docs" / "fleet.json", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "110")

    def run(words: list[str]) -> str:
        assert main(words) == 0
        return capfd.readouterr().out

    assert check_examples(ROOT / "docs" / "fleet.md", run) == 1
