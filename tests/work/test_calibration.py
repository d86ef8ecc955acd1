"""Anyone who measured once would get worse predictions than before.

Predictions corrected by what was measured: of one class by what its launches share with each
other, more with each run, in part of the others, with the smaller doubt.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from support import gguf, says, write_gguf

from autolayers.machine import Ratio
from autolayers.work.calibration import SHARED, Calibration, counted
from autolayers.work.rates import CALIBRATED, DOUBT, ONE_RUN

MOE, DENSE = gguf("gpt-oss-20b-mxfp4:8"), gguf("llama-3.1-8b-q4_k_m:8")
ROW = {
    "kind": "tg",
    "class": "MoE in RAM",
    "backend": "CUDA",
    "build": 11549,
    "ratio": 0.81,
    "n": 3,
    "date": "2026-11-20",
}


@pytest.fixture
def plan(tmp_path: Path):
    models = {
        "moe": write_gguf(tmp_path / "moe.gguf", *MOE),
        "dense": write_gguf(tmp_path / "dense.gguf", *DENSE),
    }

    def planned(
        name: str, *words: str, measured: object = None
    ) -> subprocess.CompletedProcess[str]:
        file = tmp_path / "machine.json"
        file.write_text(
            json.dumps(
                {
                    "devices": [{"card": "rtx-3060"}],
                    "host": {"total": 64 << 30, "bandwidth": 70e9, "cores": 8},
                    **({} if measured is None else {"measured": measured}),
                }
            )
        )
        return says(models[name], "-c", "4096", "--machine", file, *words)

    return planned


def speed(done: subprocess.CompletedProcess[str]) -> dict:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["speed"]


@pytest.mark.slow
def test_a_measured_class_is_corrected_and_the_others_share_it(plan) -> None:
    in_ram, resident = ("-ngl", "99", "-ncmoe", "99", "--json"), ("-ngl", "99", "--json")
    before, after = speed(plan("moe", *in_ram)), speed(plan("moe", *in_ram, measured=[ROW]))
    rate = "generation_tokens_per_second"
    factor = 0.81 ** counted(3, ONE_RUN["MoE in RAM", "tg"])
    assert 0.81 <= factor < 0.82
    assert after[rate] == pytest.approx(factor * before[rate], rel=1e-3)
    assert after["prompt_tokens_per_second"] == before["prompt_tokens_per_second"]
    assert after["generation_uncertainty_factor"] < before["generation_uncertainty_factor"]
    assert after["calibrated"] == {
        "runs": 3,
        "date": "2026-11-20",
        "prompt_factor": 1.0,
        "generation_factor": pytest.approx(factor, abs=6e-4),
    }
    assert before["calibrated"] is None
    other = speed(plan("dense", *resident, measured=[ROW]))
    assert other[rate] == pytest.approx(
        0.81**SHARED * speed(plan("dense", *resident))[rate], rel=1e-3
    )


def test_a_plan_says_what_it_is_calibrated_by(plan) -> None:
    text = plan("moe", "-ngl", "99", "-ncmoe", "99", "--format", "text", measured=[ROW]).stdout
    assert "calibrated by 3 runs of 2026-11-20" in " ".join(text.split())
    assert "calibrated by 3 runs of 2026-11-20, other placements" in " ".join(
        plan("dense", "--format", "text", measured=[ROW]).stdout.split()
    )


@pytest.mark.slow
def test_another_build_makes_them_old_and_says_so(plan) -> None:
    words = ("-ngl", "99", "-ncmoe", "99", "--json", "--llama-build", "11311")
    done = plan("moe", *words, measured=[ROW])
    assert speed(done)["calibrated"] is None
    warnings = " ".join(json.loads(done.stdout)["warnings"])
    assert "the measured speeds of 2026-11-20 are old: of b11549, not of b11311" in warnings
    both = plan("moe", *words, measured=[ROW, {**ROW, "build": 11311, "ratio": 1.2}])
    assert 1.19 < speed(both)["calibrated"]["generation_factor"] <= 1.2
    assert "are old" not in both.stdout
    any_build = speed(plan("moe", *words, measured=[{**ROW, "build": None}]))
    assert 0.81 <= any_build["calibrated"]["generation_factor"] < 0.82


def test_another_backends_measurements_do_not_count(plan) -> None:
    done = plan("moe", "-ngl", "99", "--json", measured=[{**ROW, "backend": "Vulkan"}])
    assert speed(done)["calibrated"] is None


@pytest.mark.parametrize(
    ("row", "line"),
    [
        ({**ROW, "class": "sparse"}, "measured 1: class must be one of dense resident"),
        ({**ROW, "kind": "up"}, "measured 1: kind must be one of tg, pp"),
        ({**ROW, "ratio": 0}, "measured 1: ratio must be a number from"),
        ({**ROW, "n": 0.5}, "measured 1: n must be a whole number"),
        ({**ROW, "backend": "Glide"}, "measured 1: backend 'Glide' (known: "),
        ({**ROW, "speed": 1}, "measured 1 has an unknown key 'speed'"),
        (3, "measured 1 is not an object"),
    ],
)
def test_what_is_wrong_is_one_line(plan, row: object, line: str) -> None:
    done = plan("dense", measured=[row])
    assert done.returncode == 2 and line in done.stderr and len(done.stderr.splitlines()) == 1


def test_runs_of_a_class_count_by_their_number_and_classes_alike() -> None:
    rows = [
        Ratio("tg", "dense resident", 0.5, 1),
        Ratio("tg", "dense resident", 2.0, 3, date="2026-11-21"),
        Ratio("tg", "MoE in RAM", 0.5, 9, date="2026-11-20"),
    ]
    exact = dict.fromkeys(ONE_RUN, 1.0)
    own = Calibration(rows, exact).of("dense resident", "tg")
    assert (own.factor, own.runs, own.date, own.own) == (
        pytest.approx(2**0.5),
        4,
        "2026-11-21",
        True,
    )
    assert Calibration(rows).of("dense resident", "pp").factor == 1.0
    assert Calibration(rows[:1]).of("CPU", "tg").factor == pytest.approx(0.5**SHARED)


@pytest.mark.parametrize(("runs", "factor"), [(1, 0.5**0.5), (3, 0.5**0.75), (99, 0.5**0.99)])
def test_more_runs_say_more_of_the_machine(runs: int, factor: float) -> None:
    """A launch that shares half of its error with others of its class."""
    half = dict.fromkeys(ONE_RUN, 0.5)
    found = Calibration([Ratio("tg", "CPU", 0.5, runs)], half).of("CPU", "tg")
    assert found.factor == pytest.approx(factor)


def test_a_measured_class_is_less_uncertain() -> None:
    """docs/speeds.md has the figures."""
    assert CALIBRATED.keys() == DOUBT.keys()
