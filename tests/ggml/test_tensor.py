"""Sizes of tensors would be wrong, and with them all plans.

Shapes, strides and sizes as ggml makes them, and the order in which a graph lists its
operations.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from autolayers.ggml.tensor import VIEW_OPS, Graph, Tensor, row_size


@pytest.fixture
def g() -> Graph:
    return Graph()


def test_strides_follow_the_shape(g: Graph) -> None:
    assert g.new("f32", 4, 3, 2).nb == (4, 16, 48, 96)
    assert g.new("q8_0", 64, 3).nb == (34, 68, 204, 204)
    assert g.new("q4_K", 512, 2).nbytes == 2 * 2 * 144


def test_rows_of_quantised_types_count_blocks() -> None:
    assert row_size("q8_0", 64) == 68
    assert row_size("f16", 100) == 200
    assert row_size("mxfp4", 64) == 34


def test_bytes_of_a_view_span_its_strides(g: Graph) -> None:
    t = g.new("f32", 100, 50)
    part = g.view(t, (10, 50), (t.nb[1],))
    assert part.nbytes == 49 * 400 + 40
    assert not part.contiguous() and t.contiguous()
    k = g.view(
        g.new("q8_0", 1024, 256), (128, 8, 256), (row_size("q8_0", 128), row_size("q8_0", 1024))
    )
    permuted = g.permute(k, 0, 2, 1, 3)
    assert permuted.ne == (128, 256, 8, 1)
    assert permuted.nbytes == 136 + 255 * 1088 + 7 * 136 == 256 * 1088


def test_a_view_of_a_view_looks_at_the_root(g: Graph) -> None:
    t = g.new("f32", 100)
    first = g.view(t, (50,), (), 40)
    second = g.view(first, (10,), (), 20)
    assert second.view_src is t and second.view_offs == 60
    assert second.src == (first,)


@pytest.mark.parametrize(
    ("make", "ne", "type_"),
    [
        (lambda g, a, b: g.mul_mat(a, b), (32, 5, 1, 1), "f32"),
        (lambda g, a, b: g.get_rows(a, g.new("i32", 7)), (64, 7, 1, 1), "f32"),
        (lambda g, a, b: g.glu("SWIGLU", b), (32, 5, 1, 1), "f32"),
        (lambda g, a, b: g.glu("SWIGLU", b, b), (64, 5, 1, 1), "f32"),
        (lambda g, a, b: g.concat(b, b, 1), (64, 10, 1, 1), "f32"),
        (lambda g, a, b: g.pad(b, 3, 1), (67, 6, 1, 1), "f32"),
        (lambda g, a, b: g.sum_rows(b), (1, 5, 1, 1), "f32"),
        (lambda g, a, b: g.argsort_top_k(b, 2), (2, 5, 1, 1), "i32"),
        (lambda g, a, b: g.transpose(b), (5, 64, 1, 1), "f32"),
        (lambda g, a, b: g.cast(b, "f16"), (64, 5, 1, 1), "f16"),
        (
            lambda g, a, b: g.ssm_conv(g.new("f32", 8, 64, 2), g.new("f32", 4, 64)),
            (64, 5, 2, 1),
            "f32",
        ),
        (
            lambda g, a, b: g.ssm_scan(
                g.new("f32", 16, 1, 64, 2),
                g.new("f32", 1, 64, 5, 2),
                *[g.new("f32", 1)] * 4,
                g.new("i32", 2),
            ),
            (640 + 16 * 64 * 2, 1, 1, 1),
            "f32",
        ),
    ],
)
def test_results_have_ggmls_shapes(g: Graph, make, ne, type_) -> None:
    t = make(g, g.new("f16", 64, 32), g.new("f32", 64, 5))
    assert (t.ne, t.type) == (ne, type_)


def test_a_matmul_of_experts_has_ggmls_shape(g: Graph) -> None:
    experts, x, ids = g.new("q4_K", 256, 768, 128), g.new("f32", 256, 1, 512), g.new("i32", 8, 512)
    assert g.mul_mat_id(experts, x, ids).ne == (768, 8, 512, 1)


def test_flash_attention_swaps_heads_and_tokens(g: Graph) -> None:
    q, kv = g.new("f32", 128, 512, 32), g.new("f16", 128, 4096, 8)
    assert g.flash_attn(q, kv, kv, g.new("f16", 4096, 512)).ne == (128, 32, 512, 1)


@pytest.mark.parametrize(
    "make",
    [
        lambda g, t: g.reshape(t, 33),
        lambda g, t: g.reshape(g.view(t, (4, 4), (32,)), 16),
        lambda g, t: g.reshape(g.transpose(t), 32),
        lambda g, t: g.cont(t, 8, 5),
        lambda g, t: g.view(t, (8, 5)),
        lambda g, t: g.view(t, (8, 4), (), 4),
        lambda g, t: g.view(g.view(t, (8,), (), 32), (24,), (), 8),
        lambda g, t: g.permute(t, 0, 1, 1, 3),
    ],
    ids=range(8),
)
def test_shapes_on_which_ggml_aborts_are_refused(
    g: Graph, make: Callable[[Graph, Tensor], Tensor]
) -> None:
    """Other counts, rows with gaps, parts that end behind their tensor, an axis twice."""
    with pytest.raises(ValueError, match=r"f32\[|axes"):
        make(g, g.new("f32", 8, 4))


def test_shapes_that_ggml_takes(g: Graph) -> None:
    t = g.new("f32", 8, 4)
    assert g.reshape(g.view(t, (16,), (), 64), 4, 2, 2).ne == (4, 2, 2, 1)
    assert g.cont(g.transpose(t), 32).ne == (32, 1, 1, 1)
    assert g.view(t, (0, 4), (32,), 512).nbytes == 0  # nothing ends nowhere
    assert g.view(t, (4, 4), (64,), 64).nbytes == 3 * 64 + 16  # ggml does not look at strides


def test_only_these_take_no_memory(g: Graph) -> None:
    t = g.new("f32", 8, 4)
    views = [g.reshape(t, 32), g.view(t, (4, 4), (32,)), g.permute(t, 1, 0, 2, 3), g.transpose(t)]
    assert {v.op for v in views} == VIEW_OPS
    writes = [
        g.set_rows(t, g.new("f32", 8, 1), g.new("i64", 1)),
        g.cpy(g.new("f32", 8, 4), t),
        g.scale_inplace(t),
        g.add_inplace(t, t),
    ]
    assert all(v.view_src is t for v in (*views, *writes))
    assert all(v.op not in VIEW_OPS for v in writes)  # they do work, where their root lies
    assert g.scale(t).view_src is None


def test_operations_come_after_their_sources_and_once(g: Graph) -> None:
    a, b = g.input("a", "f32", 4), g.input("b", "f32", 4)
    left, right = g.unary("SILU", a), g.unary("RELU", b)
    top = g.add(left, right)
    again = g.mul(top, left)
    g.expand(again)
    g.expand(top)
    assert g.nodes == [left, right, top, again]
    assert g.leafs == [a, b]
    assert (left.uses, right.uses, top.uses, again.uses) == (2, 1, 1, 0)


@pytest.mark.slow
def test_deep_graphs_do_not_overflow(g: Graph) -> None:
    t: Tensor = g.input("x", "f32", 4)
    for _ in range(20_000):
        t = g.scale(t)
    g.expand(t)
    assert len(g.nodes) == 20_000


def test_who_keeps_a_tensor_does_not_keep_the_graph() -> None:
    """Else the last one would free thousands in one chain of calls."""
    graph = Graph()
    first = tensor = graph.new("f32", 8)
    for _ in range(3):
        tensor = graph.add(tensor, first)
    graph.expand(tensor)
    del graph
    assert tensor.src == () and sys.getrefcount(first) == 2


def test_what_is_repeated_has_the_given_dimensions() -> None:
    g = Graph()
    x = g.input("x", "f32", 8)
    for ne in ((8, 3), (8, 3, 5), (8, 3, 5, 2)):
        assert g.repeat(x, *ne).ne == (*ne, 1, 1)[:4]
