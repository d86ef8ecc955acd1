"""Plans would not be exact for the models that most people run.

The whole estimate against llama.cpp's own numbers (fixtures/truth): every launch, every device,
all three parts.

The tests read as the specification does: what llama.cpp measures is what autolayers says of its
measuring, byte for byte (what launches allocate: test_launched.py); what llama.cpp refuses is
refused; nothing that claims to be exact is low; and the largest n_gpu_layers that fits is the one
chosen.
"""

from __future__ import annotations

import json

import pytest
from support import FIXTURES, RECORDED, WHOLE, hypothetical_gpus, model, sample, some_and_whole

import autolayers
from autolayers import estimate
from autolayers.flags.parse import parse

PARTS = ("model", "context", "compute")


def lines(name: str) -> list[dict]:
    return [
        json.loads(line) for line in (FIXTURES / "truth" / f"{name}.jsonl").read_text().splitlines()
    ]


def build(case: dict) -> int:
    return case.get("build", RECORDED)


def by_model(name: str) -> dict[str, list[dict]]:
    groups: dict[str, list[dict]] = {}
    for case in lines(name):
        groups.setdefault(case["model"], []).append(case)
    return groups


REAL, OTHER = by_model("cases_models"), by_model("cases_archs")
CASES = {**REAL, **OTHER}
SAMPLE = {**sample(REAL, 24), **sample(OTHER, 12)}
OLDER = ("b11311", "b11434")  # samples of other builds' launches


@WHOLE
@pytest.mark.parametrize("name", CASES)
def test_every_launch_is_equal_to_the_byte(
    name: str, whole: bool, figures: dict[str, tuple[int, int]]
) -> None:
    cases = CASES[name] if whole else SAMPLE[name]
    wrong = differences(name, cases)
    what = f"launches of {'real models' if name in REAL else 'other architectures'}, exact"
    right, of = figures.get(what, (0, 0))
    figures[what] = (right + len(cases) - len(wrong), of + len(cases))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("kind", ["models", "archs"])
@some_and_whole("older", OLDER, 2)
def test_older_builds_are_equal_to_the_byte(
    older: str, kind: str, whole: bool, figures: dict[str, tuple[int, int]]
) -> None:
    groups = by_model(f"{older}/cases_{kind}")
    groups = groups if whole else sample(groups, 30)
    wrong = [each for name, cases in groups.items() for each in differences(name, cases)]
    count = sum(map(len, groups.values()))
    right, of = figures.get(f"launches of {older}, exact", (0, 0))
    figures[f"launches of {older}, exact"] = (right + count - len(wrong), of + count)
    assert not wrong, "\n".join(wrong)


def differences(name: str, cases: list[dict]) -> list[str]:
    """A line for each launch that is predicted otherwise; none may be low and called exact."""
    wrong = []
    for case in cases:
        params = parse(case["args"].split()).params
        devices = hypothetical_gpus(case["gpus_mib"])
        if "error" in case:
            with pytest.raises(autolayers.LaunchRefused):
                estimate(model(name), params, devices, build=build(case))
            continue
        found = estimate(model(name), params, devices, build=build(case), measuring=True)
        got = {
            device: [getattr(use, part) for part in PARTS]
            for device, use in [*found.devices.items(), ("Host", found.host)]
        }
        want = {
            device: [sizes[part] for part in PARTS] for device, sizes in case["devices"].items()
        }
        differs = {
            device: (got[device], sizes) for device, sizes in want.items() if got[device] != sizes
        }
        if differs:
            wrong.append(f"{case['gpus_mib']} {case['args']}: {differs}")
            low = any(sum(got[device]) < sum(sizes) for device, sizes in want.items())
            assert not (found.exact and low), wrong[-1]
    return wrong


DECISIONS = by_model("decisions")
BOTH = {name: cases + by_model("b11311/decisions")[name] for name, cases in DECISIONS.items()}


@some_and_whole("name", BOTH, 2)
def test_the_largest_n_gpu_layers_that_fits(
    name: str, whole: bool, figures: dict[str, tuple[int, int]]
) -> None:
    for case in (BOTH if whole else sample(BOTH, 12))[name]:
        words = [
            *case["args"].split(),
            "--strategy",
            "layers",
            "--fit-target",
            str(case["margin_mib"]),
            "--llama-build",
            str(build(case)),
        ]
        plan = autolayers.plan(model(name), words, devices=hypothetical_gpus([case["vram_mib"]]))
        right, of = figures.get("decisions, right", (0, 0))
        chosen = min(plan.n_gpu_layers, case["n_layer"] + 1)
        good = not plan.fits if case["max_ngl"] is None else chosen == case["max_ngl"]
        figures["decisions, right"] = (right + good, of + 1)
        assert good, (
            f"{case['args']} in {case['vram_mib']} MiB: {chosen}, llama.cpp's sizes allow "
            f"{case['max_ngl']}"
        )


def test_older_builds_reserve_logits_for_a_whole_micro_batch() -> None:
    """The "CUDA0 compute buffer size = 258.50 MiB" of many public logs of Llama 3 8B."""
    words, devices = (
        parse(["-ngl", "99", "-c", "8192", "-fa", "on"]).params,
        hypothetical_gpus([24576]),
    )
    llama = model("llama-3.1-8b-q4_k_m")
    old, new = (estimate(llama, words, devices, build=build) for build in (6000, None))
    assert old.devices["CUDA0"].compute == 258.5 * 2**20 and old.n_seq_max == 1
    assert new.devices["CUDA0"].compute < 125 * 2**20 and new.n_seq_max == 4
    assert new.exact and not old.exact and "older" in old.warnings[-1]
