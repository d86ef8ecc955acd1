"""A line of a log would be read as another, by `explain`, `run` and `check` alike.

The table of log lines: each row by a real line, and what its figures are.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from support import LOGS, TESTS

from autolayers.diagnosis.lines import lines
from autolayers.logs import LAUNCH, ROWS, fields, lines_with, pairs, rows_of, size_of
from autolayers.ollama.log import Log

# of the rows that no recorded log has: a line, and its fields
LINES = {
    "load_hparams: model size:         811.82 MiB": {"projector": {"mib": "811.82"}},
    'msg="server config" env="map[OLLAMA_NUM_PARALLEL:1 HTTP_PROXY:]"': {
        "settings": {"map": "OLLAMA_NUM_PARALLEL:1 HTTP_PROXY:"}
    },
    'msg="starting llama-server" cmd="/usr/bin/llama-server -c 8192"': {
        "started": {"command": "/usr/bin/llama-server -c 8192"}
    },
    "  Device 0: AMD Radeon RX 7900 XTX, gfx1100 (0x1100), VMM: no, Wave Size: 32, VRAM: 24560 "
    "MiB": {
        "started_device": {
            "index": "0",
            "description": "AMD Radeon RX 7900 XTX",
            "mib": "24560",
            "value": "ROCm",
        }
    },
    "ggml_metal_device_init: GPU name:   MTL0 (Apple M4 Max)": {
        "started_device": {"description": "Apple M4 Max", "value": "MTL"}
    },
    "llama_params_fit_impl: context size reduced from 131072 to 8192 -> need 3000 MiB less "
    "memory": {"reduced": {"before": "131072", "after": "8192"}},
    'msg="inference compute" name="AMD Radeon 780M" libdirs=rocm type=iGPU total="16.0 GiB"': {
        "gpu": {"fields": 'name="AMD Radeon 780M" libdirs=rocm type=iGPU total="16.0 GiB"'},
        "shared": {"name": '"AMD Radeon 780M"'},
    },
    "prompt eval time =    2034.21 ms /   612 tokens (    3.32 ms per token,   300.86 tokens per "
    "second)": {"rate": {"n": "612", "rate": "300.86", "value": "prompt"}},
    "slot print_timing: id  0 | task 0 |        eval time =   11872.67 ms /   200 tokens (   59.36 "
    "ms per token,    "
    "16.85 tokens per second)": {"rate": {"n": "200", "rate": "16.85", "value": "answer"}},
    "llama_print_timings:        eval time =   11872.67 ms /   199 runs   (   59.66 ms per token,  "
    "  16.76 tokens per "
    "second)": {"rate": {"n": "199", "rate": "16.76", "value": "answer"}},
    "| qwen3 8B Q4_K - Medium | 4.68 GiB | 8.19 B | CUDA | 99 | pp512 | 4321.10 ± 12.30 |": {
        "rate": {"value": "bench"}
    },
    "sched_reserve: fused Gated Delta Net (chunked) not supported, set to disabled": {
        "unfused": {}
    },
    "system_info: n_threads = 8 (n_threads_batch = 8) / 16 | CUDA : ARCHS = 860 |": {
        "threads": {"n": "8", "total": "16"}
    },
    "rocBLAS error: Cannot read TensileLibrary.dat: No such file or directory for GPU arch : "
    "gfx1031": {"chip": {"chip": "gfx1031"}},
    "NvMapMemAllocInternalTagged: 1075072515 error 12": {"shared": {"name": "NvMap"}},
    "llama_new_context_with_model: attn_max_b = 512": {"ik": {}},
    "/home/me/ik_llama.cpp/build/bin/llama-server -m a.gguf": {"ik": {}},
}


@cache
def recorded() -> list[str]:
    """The lines of every log that the tests have."""
    logs = [path.read_bytes() for path in sorted(LOGS.iterdir())]
    for name in ("failures", "unseen"):
        cases = (TESTS / "diagnosis" / f"{name}.jsonl").read_text("utf-8").splitlines()
        logs += [json.loads(case)["log"].encode() for case in cases]
    return [line.text for log in logs for line in lines(log)]


def test_every_line_has_its_fields() -> None:
    for line, expected in LINES.items():
        found = dict(fields(line))
        assert {name: found[name] for name in expected} == expected


def test_every_row_has_a_real_line() -> None:
    known = [*recorded(), *LINES]
    # those are proven in tests/backends
    rows = [row for row in ROWS if row.field != "backend"]
    assert [row for row in rows if not any(row.match(line) is not None for line in known)] == []


def test_the_lines_with_a_word_are_those_that_a_loop_finds() -> None:
    text = "\n".join(recorded())
    rows = (*LAUNCH, *rows_of("started"))
    expected = [line for line in text.split("\n") if any(row.word in line for row in rows)]
    assert list(lines_with(text, rows)) == expected and len(expected) > 100
    assert list(lines_with("x model loaded", rows)) == ["x model loaded"]


def test_figures_as_ollama_writes_them() -> None:
    assert pairs(r'a=1 b="x \"y\" z" c=') == {"a": "1", "b": 'x "y" z', "c": ""}
    assert [
        size_of(text) for text in ("11.5 GiB", "512 B", "512B", "1.0 GB", "", "9" * 400 + " GiB")
    ] == [23 << 29, 512, 512, 0, 0, 0]


def test_weights_of_builds_before_2025_count_on_the_gpu(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("")
    log = Log({}, str(path))
    path.write_text(
        "llm_load_tensors:        CPU buffer size =   281.81 MiB\n"
        "llm_load_tensors:      CUDA0 buffer size =  4403.50 MiB\n"
    )
    assert log.on_gpu() == 4403.5 * (1 << 20)
