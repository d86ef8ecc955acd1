"""Text that people read, from plans whose numbers are known."""

from __future__ import annotations

import io

from support import HEADERS

import autolayers
from autolayers import Device
from autolayers.quoting import shell
from autolayers.report.table import Style, table
from autolayers.report.text import plan_text


def plan(name: str, flags: str, *gib: float) -> autolayers.Plan:
    devices = [Device(f"CUDA{i}", round(size * 2**30), round(size * 2**30), "a card") for i, size in enumerate(gib)]
    return autolayers.plan(
        autolayers.read_model(HEADERS / f"{name}.gguf"), flags.split(), devices=devices, explain=True
    )


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
    found = plan("llama-3.2-1b-q8_0", "-c 65536 -ngl 17", 1, 1)
    text = plan_text(found)
    assert "does not fit: " in text
    for device in found.devices:
        assert f"{-device.remaining / 2**20:.2f} MiB missing on {device.name}" in text


def test_a_prediction_never_looks_like_a_measurement() -> None:
    assert "predicted, not measured: " in plan_text(plan("llama-3.2-1b-q8_0", "", 8))


def test_words_for_a_shell_are_shell() -> None:
    assert shell(["-ot", r"blk\.1\.(up|down)=CPU"]) == r"-ot 'blk\.1\.(up|down)=CPU'"


def test_slots_and_cache_types_are_named() -> None:
    text = plan_text(plan("llama-3.2-1b-q8_0", "-np 2 -c 8192 -ctk q8_0", 8))
    assert "context 8192 (2 slots of 4096), f16/q8_0 cache" in text
