"""A damaged file would end in a traceback, or hang.

Seeded mutations of every fixture, and the heaviest files that the limits let through.

They run in a process of their own that may use 200 MiB of memory and five seconds of processor time
for each file; whatever is neither a Header nor a ModelError ends it.
"""

from __future__ import annotations

import io
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SEED = 2026
ODD = (
    0,
    1,
    2,
    3,
    7,
    8,
    9,
    12,
    13,
    31,
    63,
    64,
    255,
    256,
    65535,
    65536,
    (1 << 20) + 1,
    (1 << 30) - 1,
    1 << 30,
    (1 << 30) + 1,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    1 << 40,
    (1 << 62) - 1,
    1 << 62,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 9,
    (1 << 64) - 8,
    (1 << 64) - 1,
)


def mutate(data: bytearray, seed: random.Random) -> bytearray:
    for _ in range(seed.choice((1, 1, 1, 2, 4))):
        at = (
            seed.randrange(len(data) + 1)
            if seed.random() < 0.8
            else seed.randrange(min(len(data), 64) + 1)
        )
        kind = seed.randrange(7)
        if kind == 0:
            data[at : at + 1] = bytes([seed.randrange(256)])
        elif kind == 1:
            data[at : at + 8] = seed.choice(ODD).to_bytes(8, "little")
        elif kind == 2:
            data[at : at + 4] = (seed.choice(ODD) & 0xFFFFFFFF).to_bytes(4, "little")
        elif kind == 3:
            del data[at : at + seed.choice((1, 4, 8, 100))]
        elif kind == 4:
            data[at:at] = seed.randbytes(seed.choice((1, 4, 8, 100)))
        elif kind == 5:
            other = seed.randrange(len(data) + 1)
            data[at:at] = data[other : other + seed.choice((8, 50, 400))]
        else:
            del data[at:]
        if not data:
            return data
    return data


def work(mutations: int) -> None:
    from test_hostile import HEAVY, Stream

    from autolayers.errors import ModelError
    from autolayers.gguf import Header, read_header

    def outcome(source: object) -> type:
        signal.setitimer(signal.ITIMER_PROF, 5.0)  # its signal ends the process
        try:
            header = read_header(source)  # type: ignore[arg-type]
            assert type(header) is Header
            assert isinstance(header.warnings, tuple)
            return Header
        except ModelError as error:
            assert str(error).count("\n") == 0 and len(str(error)) < 1000, error
            return ModelError
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    seed = random.Random(SEED)
    paths = sorted((ROOT / "fixtures").glob("*/*.gguf"))
    counts = {Header: 0, ModelError: 0}
    limit = 200 << 20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for path in paths:
        whole = path.read_bytes()[: read_header(path).data_offset + 64]
        for i in range(mutations // len(paths) + 1):
            data = bytes(mutate(bytearray(whole), seed))
            counts[outcome(Stream(data) if i % 2 else io.BytesIO(data))] += 1
    with tempfile.TemporaryDirectory() as folder:
        for make in HEAVY if mutations > 100 else ():
            heavy = Path(folder, make.__name__)
            make(heavy)
            print(make.__name__, outcome(str(heavy)).__name__, flush=True)
            os.unlink(heavy)
    print(*counts.values(), peak_rss_mib())


def peak_rss_mib() -> int:
    """Of this program alone: ru_maxrss would count what the parent had before exec."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().partition("VmHWM:")[2].split()[0]) >> 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


@pytest.mark.parametrize("mutations", [100, pytest.param(5_000, marks=pytest.mark.slow)])
def test_mutations_and_heavy_files_end_in_a_header_or_a_typed_error(mutations: int) -> None:
    done = subprocess.run(
        [sys.executable, __file__, str(mutations)], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
    *heavy, last = done.stdout.splitlines()
    headers, errors, mib = map(int, last.split())
    assert headers + errors >= mutations
    # the mutations reach behind the first check
    assert headers > mutations // 20 and errors > mutations // 2
    assert mib < 200
    assert mutations <= 100 or heavy == [
        "many_empty_strings Header",
        "strings_of_a_mebibyte ModelError",
        "longest_strings Header",
        "longest_arrays Header",
        "most_keys Header",
        "fattest_keys ModelError",
        "most_kept_numbers ModelError",
        "most_kept_text ModelError",
        "most_tensors Header",
    ]


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[1]))  # test_hostile takes from support
    work(int(sys.argv[1]))
