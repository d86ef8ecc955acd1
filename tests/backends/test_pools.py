"""A launch would fail by what an operation takes beyond its buffers, or leave that much unused: the
bytes of single operations on cards of every generation, as they were.

pools.jsonl has a line for each operation; test_cuda_pool.py and test_vulkan.py work some out by
hand or compare them with measurements. AUTOLAYERS_WRITE=1 writes all of them again, and the
commit says why they changed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import WRITES, MiB

from autolayers.backends.cuda import pool
from autolayers.backends.ops import Matmul, Ops, Scan
from autolayers.backends.vulkan import pool as vulkan

PLACE = Path(__file__).with_name("pools.jsonl")
ROWS: list[dict[str, Any]] = [
    json.loads(line) for line in PLACE.read_text(encoding="utf-8").splitlines()
]
TWO = ((7, 5), (12, 0))  # with their own number of multiprocessors where none is known
GENERATIONS = ((5, 2), (6, 0), (6, 1), (7, 0), (7, 5), (8, 0), (8, 6), (9, 0))


def ops_of(row: dict[str, Any]) -> Ops:
    given = dict(row["ops"])
    weights = tuple(Matmul(*each) for each in given.pop("weights", ()))
    scan = given.pop("scan", None)
    return Ops(weights=weights, outputs=weights, scan=scan and Scan(*scan), **given)


def taken(row: dict[str, Any]) -> dict[str, Any]:
    """Of each generation with 28 multiprocessors, and without and with cooperative matrix 2."""
    ops = ops_of(row)
    found: dict[str, Any] = {
        "vulkan": [vulkan.temporaries(ops, with_2) for with_2 in (False, True)],
        "shaders": [vulkan.shaders(ops, with_2, row["sm"]) for with_2 in (False, True)],
        "pool": [pool.pool(ops, cc, row["sm"], nvidia) for nvidia in (True, False) for cc in TWO],
    }
    for cc in GENERATIONS:
        parts = [pool._attention(ops, cc, 28), pool._sort(ops), pool._scan(ops)]
        for weight in ops.weights:
            parts += [
                pool._matmul(weight, ops.n_tokens, nvidia, cc, 28) for nvidia in (True, False)
            ]
        found[".".join(map(str, cc))] = parts
    return found


@pytest.mark.parametrize("row", ROWS, ids=lambda row: json.dumps(row["ops"]))
def test_an_operation_takes_what_it_took(row: dict[str, Any]) -> None:
    found = taken(row)
    if WRITES:
        row["taken"] = found
        PLACE.write_text("".join(f"{json.dumps(each)}\n" for each in ROWS), encoding="utf-8")
    assert found == row["taken"]


@pytest.mark.parametrize(
    ("cc", "contexts", "kernels", "workspaces"),
    [
        ((5, 2), (859_308_032, 153_976_832), (119_537_664, 17_432_576), 12),
        ((6, 0), (274_399_232, 153_976_832), (34_865_152, 17_432_576), 12),
        ((6, 1), (162_578_432, 153_976_832), (18_677_760, 17_432_576), 12),
        ((7, 0), (394_821_632, 153_976_832), (52_297_728, 17_432_576), 12),
        ((7, 5), (188_383_232, 93_765_632), (22_413_312, 8_716_288), 12),
        ((8, 0), (498_040_832, 153_976_832), (67_239_936, 17_432_576), 12),
        ((8, 6), (485_064_704, 511_213_568), (39_223_296, 13_074_432), 12),
        ((8, 7), (652_869_632, 123_871_232), (89_653_248, 13_074_432), 12),
        ((8, 9), (457_048_064, 123_871_232), (67_239_936, 13_074_432), 12),
        ((9, 0), (601_260_032, 153_976_832), (82_182_144, 17_432_576), 96),
        ((10, 0), (721_682_432, 153_976_832), (99_614_720, 17_432_576), 96),
        ((12, 0), (652_869_632, 123_871_232), (89_653_248, 13_074_432), 56),
    ],
)
def test_what_a_process_keeps_follows_the_card(
    cc: tuple[int, int], contexts: tuple[int, int], kernels: tuple[int, int], workspaces: int
) -> None:
    """A context and its kernels on the largest card of a generation and with 28 multiprocessors,
    and cuBLAS's workspaces in MiB."""
    assert (pool.context(cc), pool.context(cc, 28)) == contexts
    assert (pool.kernels(cc), pool.kernels(cc, 28)) == kernels
    assert pool.workspaces(cc) == workspaces * MiB and pool.blas(cc) == (workspaces + 24) * MiB
