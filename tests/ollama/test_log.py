"""A strange line in Ollama's log would end in a traceback.

The server's log, whatever is in it. What a good one tells: tests/cli/test_ollama.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from autolayers.ollama.log import Log, started
from autolayers.units import MiB

FINE = "x: CUDA0 model buffer size = 1.00 MiB\n"


@pytest.mark.parametrize(
    "line",
    [
        "x: CUDA0 model buffer size = ... MiB",
        "x: CUDA0 KV buffer size = 1.2.3 MiB",
        f"x: CUDA0 model buffer size = {'9' * 5000}.00 MiB",
        f"offloaded {'9' * 5000}/1 layers to GPU",
    ],
)
def test_numbers_that_are_none_count_for_nothing(tmp_path: Path, line: str) -> None:
    path = tmp_path / "server.log"
    path.write_text("")
    log = Log({}, str(path))
    path.write_text(f"{line}\n{FINE}")
    assert log.on_gpu() == MiB and log.offloaded() is None


@pytest.mark.parametrize("field", [f"compute={'9' * 5000}.0", f'total="{"9" * 5000} GiB"'])
def test_a_gpu_of_impossible_numbers_is_no_traceback(field: str) -> None:
    line = f'msg="inference compute" library=CUDA name=CUDA0 total="12.0 GiB" {field}\n'
    assert all(gpu.compute_capability is None for gpu in started(line).gpus)
