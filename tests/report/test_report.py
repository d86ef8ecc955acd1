"""Text that people read, from plans whose numbers are known."""

from __future__ import annotations

import io
import itertools
import re
from functools import cache

import pytest
from support import HEADERS, model

import autolayers
from autolayers import Device
from autolayers.api import plan_together
from autolayers.flags.params import Params
from autolayers.memory.layers import model_layers
from autolayers.quoting import shell
from autolayers.records import replace
from autolayers.report.inspect import inspect_text
from autolayers.report.multi import together_text
from autolayers.report.table import Style, table
from autolayers.report.text import plan_text


@cache
def plan(name: str, flags: str, *gib: float) -> autolayers.Plan:
    devices = [Device(f"CUDA{i}", round(size * 2**30), round(size * 2**30), "a card") for i, size in enumerate(gib)]
    return autolayers.plan(model(name), flags.split(), devices=devices or None, explain=True)


def test_a_table_is_aligned() -> None:
    assert table(["device", "MiB"], [["CUDA0", "1.00"], ["a", "-20.00"]]) == [
        "device     MiB",
        "CUDA0     1.00",
        "a       -20.00",
    ]


def test_negative_numbers_are_red_where_there_is_colour() -> None:
    assert table(["x", "n"], [["a", "-1"]], Style(True))[1] == "a  \x1b[31m-1\x1b[0m"


def test_colour_follows_the_readers_environment() -> None:
    pipe = io.StringIO()
    assert not Style.of(pipe, {}).on
    assert Style.of(pipe, {"FORCE_COLOR": "1"}).on
    assert not Style.of(pipe, {"FORCE_COLOR": "1", "NO_COLOR": "1"}).on


def test_every_part_of_the_bill_is_in_the_table() -> None:
    found = plan("llama-3.2-1b-q8_0", "-c 8192", 8)
    row = next(line for line in plan_text(found).splitlines() if line.startswith("CUDA0"))
    device = found.devices[0]
    sizes = (device.free, device.model, device.context, device.compute, device.margin, device.remaining)
    assert row.split()[3:] == [f"{size / 2**20:.2f}" for size in sizes]


def test_what_is_missing_is_said_for_every_device() -> None:
    found = plan("llama-3.2-1b-q8_0:8", "-c 65536 -ngl 9", 0.7, 0.7)
    text = plan_text(found)
    assert "does not fit: " in text
    for device in found.devices:
        assert f"{-device.remaining / 2**20:.2f} MiB missing on {device.name}" in text


def test_a_prediction_never_looks_like_a_measurement() -> None:
    assert "predicted, not measured: " in plan_text(plan("llama-3.2-1b-q8_0", "", 8))


CASES = {
    "fits": ("qwen3-30b-a3b-q4_k_m:8", "--gpu 2GiB --ram 32GiB"),
    "does not fit": ("llama-3.3-70b-q4_k_m:8", "--gpu 1500MiB --ram 2GiB"),
    "alike": ("llama-3.3-70b-q4_k_m:8", "--gpu 4x2GiB,1GiB --ram 900GiB"),
    "processor": ("llama-3.2-1b-q8_0", "-dev none --gpu 8GiB"),
    "draft": ("llama-3.2-1b-q8_0:8", f"--gpu 1GiB -md {HEADERS}/llama-moe.gguf -c 8192"),
}


@pytest.mark.parametrize("case", CASES)
def test_text_is_laid_out_for_the_width_and_cuts_no_word(case: str) -> None:
    found = replace(plan(*CASES[case]), warnings=())           # of the fixtures' paths
    for verbose, width in itertools.product((False, True), (60, 80, 120)):
        wide = plan_text(found, Style(width=400), verbose=verbose).split()
        text = plan_text(found, Style(width=width), verbose=verbose)
        *lines, flags = text.splitlines()
        assert text.isascii() and flags == shell(found.flags)
        assert all(len(line) <= width for line in lines), max(lines, key=len)
        assert set(text.split()) - set(wide) <= {cell for line in lines for cell in line.split() if cell[-1:].isdigit()
                                                 or cell == "cache"}          # columns with fewer decimals
        coloured = plan_text(found, Style(True, width), verbose=verbose)
        assert re.sub(r"\x1b\[\d+m", "", coloured) == text


def test_cards_that_are_alike_share_a_row_and_v_shows_each() -> None:
    found = plan(*CASES["alike"])
    rows = [line for line in plan_text(found).splitlines() if line.startswith("CUDA") and "identical" not in line]
    assert [row.split()[0] for row in rows] == ["CUDA0-3", "CUDA4"]
    fullest = min(found.devices[:4], key=lambda device: device.remaining)
    assert rows[0].split()[-1] == f"{fullest.remaining / 2**20:.2f}"
    every = [line.split()[0] for line in plan_text(found, verbose=True).splitlines() if line.startswith("CUDA")]
    assert every == [f"CUDA{i}" for i in range(5)]


def test_a_full_devices_row_is_coloured_and_the_margin_is_one_number() -> None:
    found = plan("llama-3.1-8b-q4_k_m:8", "--strategy layers", 1.8)
    rows = plan_text(found, Style(True)).splitlines()
    assert any(row.startswith("\x1b[33mCUDA0") for row in rows)
    assert "margin on" not in plan_text(found) and "margin on CUDA0: CUDA context" in plan_text(found, verbose=True)


def test_what_would_fit_is_said_below_what_is_missing() -> None:
    lines = plan_text(plan("llama-3.2-1b-q8_0:8", "-c 65536 -ngl 9", 1)).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("does not fit: "))
    assert lines[at + 1].startswith("  fits with -ngl ") and any(" more on CUDA0" in line for line in lines[at:])


def test_alternatives_say_what_they_buy() -> None:
    found = plan("llama-3.1-8b-q4_k_m:8", "-c 131072", 4)
    assert found.speed and 0 < len(found.alternatives) <= 5
    for other in found.alternatives:
        assert other.n_ctx > found.breakdown.n_ctx or other.speed.generation > found.speed.generation \
            or other.speed.prompt > found.speed.prompt
    text = " ".join(plan_text(found).split())
    assert re.search(r"-ctk q8_0 -ctv q8_0 \d+\.\d+ tokens/s instead of \d+\.\d+, .*\d+ of 9 layers", text)


def test_words_for_a_shell_are_shell() -> None:
    assert shell(["-ot", r"blk\.1\.(up|down)=CPU"]) == r"-ot 'blk\.1\.(up|down)=CPU'"


def test_slots_and_cache_types_are_named() -> None:
    text = plan_text(plan("llama-3.2-1b-q8_0", "-np 2 -c 8192 -ctk q8_0", 8))
    assert "context 8192 (2 slots of 4096), f16/q8_0 cache" in text


TOGETHER = (("llama-3.2-1b-q8_0", "gpt-oss-20b-mxfp4:8"), ("llama-3.3-70b-q4_k_m:4",) * 2)


@pytest.mark.parametrize("names", TOGETHER)
@pytest.mark.parametrize("gpus", ["6GiB", "6GiB,4GiB,2GiB", "8x3GiB"])
def test_several_models_are_laid_out_for_the_width(names: tuple[str, ...], gpus: str) -> None:
    found = plan_together([model(name) for name in names], ["--gpu", gpus, "--ram", "16GiB", "-c", "8192"])
    for width in (60, 80, 120):
        lines = together_text(found, Style(width=width)).splitlines()
        assert all(len(line) <= width for line in lines if not line.startswith(("  llama-server", "! "))), lines
        cells = [line.split() for line in lines]
        shown = {name for line in lines if line.startswith("MiB ") for name in line.split()[1:]}
        assert shown == {*(device.name for device in found.machine.devices), "Host"}
        left = [size for row in cells if row[:1] == ["left"] for size in row[1:]]
        assert left == [f"{size / 2**20:.2f}" for size in (*found.left().values(), found.ram_left())]
        assert ("does not fit" in " ".join(lines)) is not found.fits


@pytest.mark.parametrize("name", ["llama-3.2-1b-q8_0", "qwen3-30b-a3b-q4_k_m", "llama-3.3-70b-q4_k_m"])
def test_layers_of_a_model_are_laid_out_for_the_width(name: str) -> None:
    found = replace(model_layers(model(name), Params()), warnings=())
    for width in (60, 80, 120):
        lines = inspect_text(found, Style(width=width)).splitlines()
        assert all(len(line) <= width for line in lines), max(lines, key=len)
        text = " ".join(lines)
        for part in ("weights", "attention", "FFN", "experts", "other", "cache of", "type", "n_layer"):
            assert f" {part} " in f" {text} ", part
