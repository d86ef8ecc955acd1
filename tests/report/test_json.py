"""Keys of the JSON that are not of the one table, or that no plan has."""

from __future__ import annotations

import json
import re
import shlex

import pytest
from support import FIXTURES, HEADERS, gpu, model, seldom

from autolayers import plan
from autolayers.cli import main
from autolayers.keys import written
from autolayers.planner.plan import Confirmed, Elsewhere, Faster, Smaller
from autolayers.records import replace
from autolayers.tables import rows
from autolayers.work.calibration import Correction

LLAMA = shlex.quote(str(HEADERS / "llama-3.1-8b-q4_k_m.gguf"))
SMALL = shlex.quote(str(HEADERS / "llama-3.2-1b-q8_0.gguf"))
NOMIC = shlex.quote(str(FIXTURES / "more" / "headers" / "nomic-embed-text-v1.5-f16.gguf"))
MOE = shlex.quote(str(HEADERS / "qwen3-30b-a3b-q4_k_m.gguf"))
LINES = (
    f"{MOE} --gpu rtx-3060 --ram 32GiB",
    f"{NOMIC} --gpu rtx-3060",
    f"{LLAMA} --gpu rtx-3060 --ram 32GiB --users 4",
    f"{LLAMA} --gpu 4GiB --ram 6GiB -ngl 33 -c 8192",
    f"{LLAMA} --gpu rtx-3060 -md {SMALL} --ram 32GiB",
)
# Their keys are names of devices, of parts and of texts
NAMED = ("devices[].margin_parts", "speed.assumed", "remedies[].devices")
NAMED += ("speed.draft.tokens_per_second",)


def keys_of(value: object, place: str = "") -> set[str]:
    """Every key that has a value, e.g. devices[].name."""
    if isinstance(value, list):
        return set().union(*[keys_of(each, f"{place}[]") for each in value]) or {place}
    if not isinstance(value, dict):
        return {place.removesuffix("[]")}
    place = re.sub(r"^(alternatives\[\]|fit)\.speed", "speed", place)
    if place in NAMED:
        return {place}
    return set().union(*[keys_of(each, f"{place}.{key}".strip(".")) for key, each in value.items()])


@seldom
def test_every_key_is_written_by_the_table(capfd: pytest.CaptureFixture[str]) -> None:
    found: set[str] = set()
    for line in LINES:
        main([*shlex.split(line), "--json"])
        found |= keys_of(json.loads(capfd.readouterr().out))
    found = {re.sub(r"^(alternatives\[\]|fit)\.speed", "speed", key) for key in found}
    table = {row["key"] for row in rows("keys.csv")}
    assert found - table == set()
    # Parts have a row of their own; those below only a plan with such a part has
    inner = {key.rpartition(".")[0].removesuffix("[]") for key in table}
    rare = ("confirmed", "faster", "smaller_file", "other_backend", "measured", "speed.calibrated")
    missing = {key for key in table - found - inner if not key.startswith(rare)}
    assert missing == {"speed.unsure", "alternatives[].speed", "fit.speed"}


def test_parts_that_few_plans_have_are_written_by_the_table() -> None:
    launch, said = ("-ngl", "9"), {"CUDA0": {"model": 1}}
    confirmed = Confirmed("llama-server", 11549, 1, True, said, ("-ts",))
    answer = written("confirmed", confirmed)
    assert list(answer.values()) == ["llama-server", 11549, 1, True, said, ["-ts"]]
    assert Faster(launch, 1.23456).to_dict() == {"flags": [*launch], "tokens_per_second": 1.235}
    assert Smaller("Q4_K", 7).to_dict() == {"type": "Q4_K", "size": 7, "tokens_per_second": 0}
    found = plan(model("llama-3.2-1b-q8_0"), ["-c", "512"], devices=[gpu(4)])
    ran = Correction(1.25, 3, "2026-11-29")
    speed = replace(found.speed, generation_correction=ran, unsure=("it swaps",))
    answer = Elsewhere("Vulkan", launch, speed).to_dict()
    assert answer["backend"] == "Vulkan" and answer["flags"] == [*launch]
    said = answer["speed"]
    assert said["unsure"] == ["it swaps"] and said["calibrated"] == {
        "runs": 3,
        "date": "2026-11-29",
        "prompt_factor": 1.0,
        "generation_factor": 1.25,
    }
    assert found.speed.to_dict()["calibrated"] is None and "unsure" not in found.speed.to_dict()
    assert "confirmed" not in found.to_dict()
