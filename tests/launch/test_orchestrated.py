"""What a validator cannot see in a file: whom it reaches, what a balancer does, which name it
takes."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from support import HEADERS, says

from autolayers.flags.formats import FORMATS
from autolayers.flags.own import own_flags
from autolayers.units import GiB

SMALL = HEADERS / "llama-3.2-1b-q8_0.gguf"


def test_two_long_names_are_two_services(tmp_path: Path) -> None:
    names = []
    for kind in ("Q4_K_XL", "Q8_K_XL"):
        path = tmp_path / f"Mega-Distill-Reasoning-Coder-Instruct-2507-UD-{kind}.gguf"
        shutil.copy(SMALL, path)
        text = says("plan", path, "--gpu", "8GiB", "--format", "kubernetes").stdout
        found = set(re.findall(r"^  name: (.+)$", text, re.MULTILINE))
        assert len(found) == 1 and len(min(found)) <= 40
        names += found
    assert len(set(names)) == 2


@pytest.mark.parametrize("form", ["docker", "compose", "kubernetes"])
def test_vulkan_on_nvidia_asks_for_its_graphics_driver(form: str) -> None:
    words = ("plan", SMALL, "--gpu", "rtx-3060", "--backend", "vulkan", "--format", form)
    text = says(*words).stdout
    assert "NVIDIA_DRIVER_CAPABILITIES" in text and "compute,utility,graphics" in text
    assert "/dev/dri" not in text


@pytest.mark.slow
def test_a_fleets_balancer_lets_users_wait_and_sends_nothing_twice(tmp_path: Path) -> None:
    card = {"card": "rtx-3060"}
    machine = {"devices": [card], "host": {"total": 32 * GiB}, "address": "10.0.0.1"}
    fleet = tmp_path / "fleet.json"
    fleet.write_text(json.dumps({"machines": {"one": machine}}))
    words = ("fleet", fleet, SMALL, "--users", "4", "--format")
    slots = int(re.findall(r"-np (\d+)", says(*words, "flags").stdout)[0])
    swap = says(*words, "llama-swap").stdout
    # llama-swap refuses what is above its limit: it is far above the slots
    limits = [int(text) for text in re.findall(r"concurrencyLimit: (\d+)", swap)]
    assert limits and min(limits) >= 10 * slots
    assert "num_retries: 0" in says(*words, "litellm").stdout


def test_an_options_help_names_formats_that_its_commands_have() -> None:
    """lws is cluster's alone: with plan it is refused."""
    row = own_flags("plan")["--gpumem"]
    before, _, after = row.help.partition("--format ")[2].partition("of autolayers cluster")
    assert after
    assert [word for word in re.findall(r"\w+", before) if word in FORMATS] == ["kubernetes"]
    assert re.search(r"\blws $", before)
