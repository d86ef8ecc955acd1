"""A key of the JSON that no page explains, or a page that explains one which is never there."""

from __future__ import annotations

import json
import re
import shlex

import pytest
from support import FIXTURES, HEADERS, ROOT

from autolayers.cli import main

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


@pytest.mark.slow
def test_the_page_explains_every_key(capfd: pytest.CaptureFixture[str]) -> None:
    found: set[str] = set()
    for line in LINES:
        main([*shlex.split(line), "--json"])
        found |= keys_of(json.loads(capfd.readouterr().out))
    page = (ROOT / "docs" / "reading-a-plan.md").read_text()
    rows = re.findall(r"^\| (`.+?`) \|", page.partition("## The JSON")[2], re.MULTILINE)
    explained = {key.strip("`") for row in rows for key in row.split(", ")}
    found = {re.sub(r"^(alternatives\[\]|fit)\.speed", "speed", key) for key in found}
    lists = {"devices", "extras", "levers", "alternatives", "remedies", "speed.requests.table"}
    assert found - explained - lists == set()
    assert explained - found == set()
