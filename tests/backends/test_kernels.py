"""An operation would run on a GPU that has no kernel for it, or on the CPU although there is one.

What the words of ops.tsv say, on operations made for them.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from autolayers.backends import kernels
from autolayers.builds import rules
from autolayers.ggml.tensor import Tensor


def tensor(type_: str, *ne: int) -> Tensor:
    return Tensor("NONE", type_, (ne[0], ne[1], 1, 1))


ROWS, COLUMNS = tensor("f32", 64, 8), tensor("f16", 64, 8)
GAPS = tensor("f32", 64, 8)
GAPS.nb = (4, 512, 4096, 4096)
SWAPPED = tensor("f32", 64, 8)
SWAPPED.nb = (256, 4, 2048, 2048)


@pytest.mark.parametrize(
    ("cell", "sources", "runs"),
    [
        ("always", (), True),
        ("src0=f32|f16", (COLUMNS,), True),
        ("src0=f32", (COLUMNS,), False),
        ("src0!=f32", (COLUMNS,), True),
        ("src1=MUL_MAT", (ROWS, tensor("q4_0", 64, 8)), True),
        ("src1=MUL_MAT", (ROWS, tensor("i32", 64, 8)), False),
        ("dst=src0", (ROWS,), True),
        ("dst=src0", (COLUMNS,), False),
        ("all=f32", (ROWS, GAPS), True),
        ("all=f32", (ROWS, COLUMNS), False),
        ("all=src0", (ROWS, GAPS), True),
        ("all=src0", (ROWS, COLUMNS), False),
        ("src0.ne0=32|64", (ROWS,), True),
        ("src0.ne0=32|128", (ROWS,), False),
        ("src0:rows", (GAPS,), True),
        ("src0:rows", (SWAPPED,), False),
        ("src0:contiguous", (GAPS,), False),
        ("src0:contiguous1", (GAPS,), True),
        ("srcs:contiguous", (ROWS, GAPS), False),
        ("+cuda_indexer", (), True),
        ("src0=f32 few_rows", (ROWS,), True),
        ("few_rows src0=f16", (ROWS,), False),
        ("UNARY", (), False),
    ],
)
def test_all_words_of_a_cell_must_hold(
    monkeypatch: pytest.MonkeyPatch, cell: str, sources: tuple[Tensor, ...], runs: bool
) -> None:
    def few_rows(op: Tensor, device: object) -> bool:
        return op.src[0].ne[1] <= 8

    rows = [{"op": "ROLL", "CUDA": cell}, {"op": "ARANGE", "CUDA": "-"}]
    monkeypatch.setattr(kernels, "_ROWS", rows)
    found = kernels.kernels_of("CUDA", few_rows)
    op = Tensor("ROLL", "f32", (64, 8, 1, 1), sources)
    assert found.keys() == {"ROLL"}
    assert found["ROLL"](op, SimpleNamespace(rules=rules(None))) is runs


def test_a_build_without_the_rule_has_no_kernel() -> None:
    of_today, before = (SimpleNamespace(rules=rules(build)) for build in (11549, 9093))
    holds = kernels._condition("+cuda_indexer", "CUDA", {})
    op = Tensor("LIGHTNING_INDEXER", "f32", (64, 8, 1, 1))
    assert (holds(op, of_today), holds(op, before)) == (True, False)


@pytest.mark.parametrize("word", ["src0=", "row", "+no_such_rule", "src9=f32", "src0:straight"])
def test_a_word_that_says_nothing_is_refused_when_it_is_read(word: str) -> None:
    with pytest.raises((KeyError, AttributeError)):
        kernels._condition(word, "CUDA", {})
