"""Anyone who measured a machine would still be shown predictions of another one.

`autolayers tune --bench`: the rates of a file of llama-bench -o json correct later
predictions.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support import gguf, says, slow, write_gguf

from autolayers.work.rates import ONE_RUN

MODEL = gguf("gpt-oss-20b-mxfp4:8")
# as tools/llama-bench prints them
ROW = {
    "build_commit": "abcdef12",
    "build_number": 11549,
    "cpu_info": "A CPU",
    "gpu_info": "NVIDIA GeForce RTX 3060",
    "backends": "CUDA",
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_threads": 8,
    "type_k": "f16",
    "type_v": "f16",
    "n_gpu_layers": 99,
    "n_cpu_moe": 0,
    "split_mode": "layer",
    "main_gpu": 0,
    "no_kv_offload": False,
    "flash_attn": True,
    "devices": "auto",
    "tensor_split": "0.00",
    "tensor_buft_overrides": "none",
    "use_mmap": True,
    "embeddings": False,
    "no_op_offload": 0,
    "no_host": False,
    "n_prompt": 0,
    "n_gen": 128,
    "n_depth": 0,
}


class Files:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.model = write_gguf(path / "moe.gguf", *MODEL)
        self.machine = path / "machine.json"
        self.machine.write_text(
            json.dumps(
                {
                    "devices": [{"card": "rtx-3060"}],
                    "host": {"total": 64 << 30, "bandwidth": 70e9, "cores": 8},
                }
            )
        )
        self.environ = {**os.environ, "XDG_STATE_HOME": str(path / "state")}

    def bench(self, *rows: dict[str, object], form: str = "json") -> Path:
        file = self.path / "bench.json"
        rows = tuple({"model_filename": str(self.model), **ROW, **row} for row in rows)
        file.write_text(
            json.dumps(rows) if form == "json" else "".join(json.dumps(row) + "\n" for row in rows)
        )
        return file

    def predicted(self, *words: str) -> dict[str, float]:
        done = says(
            self.model,
            "-c",
            "640",
            "-np",
            "1",
            "-ngl",
            "99",
            "--workload",
            "60+8",
            "--json",
            *words,
            environ=self.environ,
        )
        return json.loads(done.stdout)["speed"]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.mark.parametrize("form", ["json", slow("jsonl")])
def test_a_machine_file_is_printed_with_the_results_and_predicts_them(
    files: Files, form: str
) -> None:
    file = files.bench(
        {"avg_ts": 60.0},
        {"avg_ts": 30.0, "n_cpu_moe": 8},
        {"avg_ts": 900.0, "n_prompt": 512, "n_gen": 0},
        {"avg_ts": 1.0, "n_prompt": 512},
        form=form,
    )
    done = says("tune", "--bench", file, "--machine", files.machine)
    assert done.returncode == 0 and "a prompt and an answer together do not count" in done.stderr
    machine = json.loads(done.stdout)
    assert {
        (row["class"], row["kind"], row["backend"], row["build"], row["n"])
        for row in machine["measured"]
    } == {
        ("MoE resident", "tg", "CUDA", 11549, 1),
        ("MoE in RAM", "tg", "CUDA", 11549, 1),
        ("MoE resident", "pp", "CUDA", 11549, 1),
    }
    files.machine.write_text(done.stdout)
    speed = files.predicted("--machine", str(files.machine), "-ncmoe", "8")
    # at another depth
    assert speed["generation_tokens_per_second"] == pytest.approx(30, rel=0.04)
    assert speed["calibrated"]["runs"] == 1
    # what is printed is read, and another file counts with it
    more = files.bench({"avg_ts": 40.0, "n_cpu_moe": 8, "test_time": "2026-09-01T10:00:00Z"})
    rows = json.loads(says("tune", "--bench", more, "--machine", files.machine).stdout)["measured"]
    assert rows[:-1] == machine["measured"] and rows[-1]["date"] == "2026-09-01"


def test_a_cpus_rates_are_kept_for_this_machine(files: Files) -> None:
    alone = files.predicted("-dev", "none")
    rate = 0.5 * alone["generation_tokens_per_second"]
    done = says(
        "tune",
        "--bench",
        files.bench({"backends": "CPU", "gpu_info": "", "avg_ts": rate}),
        "--json",
        environ=files.environ,
    )
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["measured"]
    assert (row["class"], row["backend"]) == ("CPU", "CPU") and row["ratio"] == pytest.approx(
        0.5, rel=0.02
    )
    after = files.predicted("-dev", "none")
    # of one run on the CPU a part belongs to its model and depth
    part = 0.5 ** ONE_RUN["CPU", "tg"] * alone["generation_tokens_per_second"]
    assert after["generation_tokens_per_second"] == pytest.approx(part, rel=0.02)
    assert rate < part < 1.3 * rate
    assert after["calibrated"]["runs"] == 1
    assert (
        "measured  CPU, CPU b11549: tokens at 0.5" in says("devices", environ=files.environ).stdout
    )
    assert json.loads(says("devices", "--json", environ=files.environ).stdout)["measured"] == [row]


@pytest.mark.parametrize(
    ("row", "line"),
    [
        (
            {"avg_ts": 9.0, "model_filename": "/elsewhere/m.gguf"},
            "/elsewhere/m.gguf is not here: name the model",
        ),
        ({"avg_ts": 1e6}, "not of this machine or model"),
        ({"avg_ts": "fast"}, "avg_ts is not a number"),
        ({"avg_ts": 9.0, "n_gen": 1}, "tests of fewer than 8 tokens"),
        (
            {"avg_ts": 9.0, "gpu_info": "NVIDIA GeForce RTX 4090"},
            "with NVIDIA GeForce RTX 4090, which is not here",
        ),
        ({"avg_ts": 9.0, "n_gpu_layers": [1]}, "-ngl"),
        ({"avg_ts": 9.0, "type_k": "q3"}, "-ctk"),
        ({"avg_ts": 9.0, "backends": "RPC,CUDA"}, "RPC servers do not count"),
    ],
)
def test_a_row_that_does_not_count_is_one_line(
    files: Files, row: dict[str, object], line: str
) -> None:
    done = says("tune", "--bench", files.bench(row), "--machine", files.machine)
    assert done.returncode == 1 and not done.stdout, done.stderr
    first, last = done.stderr.splitlines()
    assert line in first and last.endswith("bench.json: no row counts")


@pytest.mark.parametrize(
    ("text", "line"), [("[]", "no rows of llama-bench"), ("| model |", "no rows of llama-bench")]
)
def test_files_of_something_else_are_refused(files: Files, text: str, line: str) -> None:
    (files.path / "other").write_text(text)
    done = says("tune", "--bench", files.path / "other")
    assert done.returncode == 2 and line in done.stderr
    assert says("tune", "--bench", files.path / "none").returncode == 2
