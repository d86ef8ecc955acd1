"""Readers of docs/memory-model.md would compute other numbers than the program.

docs/memory-model.md tells the truth: every number of its worked example, and every size it
quotes, is computed here.
"""

from __future__ import annotations

import json
import re

import pytest
from support import ROOT

import autolayers
from autolayers import Breakdown, estimate
from autolayers.flags.parse import parse
from autolayers.ggml import allocator
from autolayers.machine import Device
from autolayers.memory.graphs import laid_out

DOC = (ROOT / "docs" / "memory-model.md").read_text()
EXAMPLE = "-ngl 3 -c 2048 -np 1"
BUILD = 11311  # of the page's numbers


def launch(name: str, args: str, n_gpus: int = 1) -> Breakdown:
    model = autolayers.read_model(str(ROOT / "fixtures" / "headers" / f"{name}.gguf"))
    devices = [Device.hypothetical("24GiB", f"CUDA{i}") for i in range(n_gpus)]
    return estimate(model, parse(args.split()).params, devices, build=BUILD)


def quoted(number: int) -> str:
    return f"{number:,}"


def test_the_example_is_what_llama_cpp_measured() -> None:
    recorded = ROOT / "fixtures" / "truth" / f"b{BUILD}" / "cases_archs.jsonl"
    cases = [json.loads(line) for line in recorded.read_text().splitlines()]
    truth = next(
        c["devices"] for c in cases if c["model"] == "internlm2-dense" and c["args"] == EXAMPLE
    )
    for device, sizes in truth.items():
        assert (
            f"| {device} | {sizes['model']:,} | {sizes['context']:,} | {sizes['compute']:,} |"
            in DOC
        )


def test_the_examples_weights_and_host_add_up() -> None:
    tables = re.findall(r"(?:^\|.*\n)+", DOC, re.M)
    for last in ("a layer", "together"):
        rows = next(t for t in tables if f"| {last} |" in t).splitlines()[2:]
        parts = [int(row.split("|")[2].replace(",", "")) for row in rows]
        assert sum(parts[:-1]) == parts[-1]
    assert launch("internlm2-dense", EXAMPLE).host.compute == parts[-1]


def test_the_examples_trace_is_the_allocators(monkeypatch: pytest.MonkeyPatch) -> None:
    documented = [
        (
            (1 if sign == "+" else -1) * int(size.replace(",", "")),
            int(at.replace(",", "")),
            int(end.replace(",", "")),
        )
        for sign, size, at, end in re.findall(
            r"^ +([+−])([\d,]+) +([\d,]+) +([\d,]+)  ",
            DOC,
            re.M,
        )
    ]
    traces: list[list[tuple[int, int, int]]] = []

    class Traced(allocator.Arena):
        def __init__(self, alignment, *more):
            super().__init__(alignment, *more)
            self.trace = []
            if alignment == 128:
                traces.append(self.trace)

        def take(self, size):
            where, at = super().take(size)
            self.trace.append((size, at, self.peak))
            return where, at

        def give(self, chunk, offset, size):
            super().give(chunk, offset, size)
            self.trace.append((-size, offset, self.peak))

    monkeypatch.setattr(laid_out, "Arena", Traced)
    found = launch("internlm2-dense", EXAMPLE).devices["CUDA0"].compute
    prompt = traces[0]
    assert len(documented) > 20
    assert prompt[: len(documented)] == documented
    assert documented[-1][2] == max(end for _, _, end in prompt) == found


@pytest.mark.parametrize(
    ("name", "args", "n_gpus", "what"),
    [
        (
            "llama-3.2-1b-q8_0",
            "-ngl 17 -c 8192 -np 1",
            1,
            ("CUDA0.model", "Host.model", "CUDA0.compute"),
        ),
        ("llama-3.2-1b-q8_0", "-ngl 17 -c 8192 -np 1 -fa off", 1, ("CUDA0.compute",)),
        ("llama-3.2-1b-q8_0", "-ngl 0 -c 8192 -np 1", 1, ("CUDA0.compute",)),
        ("llama-3.2-1b-q8_0", "-ngl 8 -c 8192 -np 1 -ub 31", 1, ("CUDA0.compute",)),
        ("llama-3.2-1b-q8_0", "-ngl 8 -c 8192 -np 1 -ub 32", 1, ("CUDA0.compute",)),
        ("llama-3.2-1b-q8_0", "-c 8192 -np 1", 2, ("CUDA0.compute", "CUDA1.compute")),
        (
            "llama-3.2-1b-q8_0",
            "-c 8192 -np 1 -ot nothing=CPU",
            2,
            ("CUDA0.compute", "CUDA1.compute"),
        ),
        ("gemma-3-4b-q8_0", "-c 32768 -np 1", 1, ("CUDA0.context",)),
        ("gemma-3-4b-q8_0", "-c 32768 -np 1 --swa-full", 1, ("CUDA0.context",)),
    ],
)
def test_the_sizes_that_the_page_quotes_are_computed(
    name: str, args: str, n_gpus: int, what: tuple[str, ...]
) -> None:
    found = launch(name, args, n_gpus)
    for one in what:
        device, part = one.split(".")
        usage = found.host if device == "Host" else found.devices[device]
        assert quoted(getattr(usage, part)) in DOC, (args, one, getattr(usage, part))


def test_without_op_offload_an_unused_gpu_needs_nothing() -> None:
    assert (
        launch("llama-3.2-1b-q8_0", "-ngl 0 -c 8192 -np 1 --no-op-offload").devices["CUDA0"].total
        == 0
    )
