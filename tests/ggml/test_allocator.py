"""Compute buffers would be off by what one block is misplaced.

The allocator's rules, one at a time: where a block goes, when it comes back, what shares its
space.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autolayers.ggml.allocator import Arena, allocate
from autolayers.ggml.tensor import Graph, Tensor


def arena(max_chunk: int | None = None, alignment: int = 1) -> Arena:
    def size(t: Tensor) -> int:
        return t.nbytes

    return Arena(alignment, size) if max_chunk is None else Arena(alignment, size, max_chunk)


def filled(*sizes: int) -> Arena:
    """Blocks one behind the other."""
    a = arena()
    for size in sizes:
        a.take(size)
    return a


def test_blocks_follow_each_other() -> None:
    a = arena()
    assert [a.take(size) for size in (10, 20, 30)] == [(0, 0), (0, 10), (0, 30)]
    assert a.peak == 60


def test_the_smallest_gap_that_fits() -> None:
    a = filled(100, 1, 30, 1, 50, 1)
    for offset, size in ((0, 100), (101, 30), (132, 50)):
        a.give(0, offset, size)
    assert a.take(25) == (0, 101)
    assert a.take(40) == (0, 132)
    assert a.take(80) == (0, 0)


def test_the_later_of_equal_gaps_is_taken() -> None:
    a = filled(30, 1, 30, 1)
    a.give(0, 0, 30)
    a.give(0, 31, 30)
    assert a.take(30) == (0, 31)


def test_the_end_grows_only_if_no_gap_fits() -> None:
    a = filled(30, 1)
    a.give(0, 0, 30)
    assert a.take(31) == (0, 31)
    assert a.peak == 62
    assert a.take(30) == (0, 0)
    assert a.peak == 62


def test_touching_gaps_become_one() -> None:
    for order in ((0, 10, 20), (20, 10, 0), (0, 20, 10)):
        a = filled(10, 10, 10, 1)
        for offset in order:
            a.give(0, offset, 10)
        assert a.take(30) == (0, 0), order


def test_a_block_at_the_end_joins_the_free_end() -> None:
    a = filled(10, 10)
    a.give(0, 10, 10)
    assert a.chunks[0].free[0][0] == 10 and len(a.chunks[0].free) == 1


def test_sizes_are_rounded_up_to_the_alignment() -> None:
    a = arena(alignment=128)
    g = Graph()
    assert [a.size_of(g.new("f32", n)) for n in (1, 32, 33)] == [128, 128, 256]


def test_a_full_chunk_opens_another() -> None:
    a = arena(max_chunk=100)
    assert a.take(60) == (0, 0)
    assert a.take(60) == (1, 0)
    assert a.take(40) == (0, 60)  # fills the first chunk exactly
    assert a.take(200) == (2, 0)  # larger than a chunk may be: one of its own
    assert a.peak == 100 + 60 + 200


def test_the_sixteenth_chunk_has_no_limit() -> None:
    a = arena(max_chunk=10)
    for i in range(15):
        assert a.take(10) == (i, 0)
    assert a.take(10) == (15, 0)
    assert a.take(10) == (15, 10)


def test_the_chunk_that_need_not_grow_is_taken() -> None:
    a = arena(max_chunk=100)
    a.take(80)
    a.take(50)
    a.give(0, 0, 80)  # chunk 0 was 80 high once
    assert a.take(70) == (0, 0)
    assert a.peak == 130


@given(st.integers(0, 1 << 32))
def test_blocks_never_overlap_and_all_comes_back(seed: int) -> None:
    rng = random.Random(seed)
    a = arena(max_chunk=rng.choice([64, 1000, 1 << 62]))
    live: list[tuple[int, int, int]] = []
    for _ in range(60):
        if live and rng.random() < 0.45:
            a.give(*live.pop(rng.randrange(len(live))))
            continue
        size = rng.randint(1, 90)
        where, offset = a.take(size)
        assert all(c != where or offset + size <= o or o + s <= offset for c, o, s in live)
        assert offset + size <= a.chunks[where].peak
        live.append((where, offset, size))
    for block in live:
        a.give(*block)
    assert all(len(chunk.free) == 1 and chunk.free[0][0] == 0 for chunk in a.chunks)


# whole graphs; x is an input of 1 KiB

KIB = 1024


def peak(build) -> int:
    """Bytes of the graph that `build(g, x)` expands, on one backend."""
    g = Graph()
    build(g, g.input("x", "f32", 16, 16))
    a = arena()
    allocate([(t, 0) for t in g.nodes], [(t, 0) for t in g.leafs], [a])
    return a.peak


def test_a_sum_is_written_over_its_first_operand() -> None:
    def chain(g: Graph, x: Tensor) -> None:
        y = g.norm(x)
        for _ in range(5):
            y = g.scale(g.unary("SILU", y))
        g.expand(y)

    assert peak(chain) == 2 * KIB


def test_a_product_never_is() -> None:
    # norm writes new space; its source is then free for the next one: two blocks in turn
    assert peak(lambda g, x: g.expand(g.norm(g.norm(g.norm(x))))) == 2 * KIB
    assert peak(lambda g, x: g.expand(g.mul_mat(x, g.mul_mat(x, x)))) == 3 * KIB


def test_not_over_what_somebody_else_still_reads() -> None:
    def twice(g: Graph, x: Tensor) -> None:
        x.is_output = True  # keeps its space, so that only y's could be taken
        y = g.norm(x)
        g.expand(g.add(g.scale(y), y))

    assert peak(twice) == 3 * KIB


def test_nothing_is_written_over_what_a_view_looks_at() -> None:
    # rope runs in place, but never over a reshape of its source
    assert peak(lambda g, x: g.expand(g.rope(g.norm(x), g.input("pos", "i32", 16)))) == 2 * KIB + 64
    assert (
        peak(
            lambda g, x: g.expand(g.rope(g.reshape(g.norm(x), 4, 4, 16), g.input("pos", "i32", 16)))
        )
        == 3 * KIB + 64 - KIB
    )


def test_what_is_still_read_stays_where_it_is() -> None:
    """By another node, or through a view of it: neither is written over before."""
    for by_view in (False, True):
        g = Graph()
        x = g.input("x", "f32", 16, 16)
        y = g.norm(x)
        later = g.view(y, (16, 16), (64,)) if by_view else y
        g.expand(later)
        scaled = g.scale(y)
        g.expand(scaled)
        g.expand(g.mul_mat(scaled, later))
        a = arena()
        allocate([(node, 0) for node in g.nodes], [(leaf, 0) for leaf in g.leafs], [a])
        assert scaled.place != y.place, by_view


def test_a_view_keeps_its_root_and_takes_nothing() -> None:
    def viewed(g: Graph, x: Tensor) -> None:
        y = g.norm(x)
        part = g.view(y, (16, 8), (64,))
        g.expand(part)
        z = g.norm(g.norm(x))
        g.expand(z)
        g.expand(g.mul_mat(part, z))

    without = peak(lambda g, x: g.expand(g.norm(g.norm(x))))
    assert without == 2 * KIB
    assert peak(viewed) == 3 * KIB


def test_inputs_are_freed_after_their_last_use_and_outputs_never() -> None:
    def build(keep: bool):
        def inner(g: Graph, x: Tensor) -> None:
            first = g.norm(x)
            first.is_output = keep
            g.expand(g.norm(g.norm(g.norm(first))))

        return inner

    assert peak(build(False)) == 2 * KIB
    assert peak(build(True)) == 3 * KIB


def test_an_input_nobody_reads_stays() -> None:
    def build(g: Graph, x: Tensor) -> None:
        g.expand(g.input("inp_embd", "f32", 16, 16))
        g.expand(g.norm(g.norm(g.norm(x))))

    assert peak(build) == 3 * KIB


def test_what_lies_in_a_buffer_already_takes_nothing() -> None:
    def build(g: Graph, x: Tensor) -> None:
        from autolayers.ggml.tensor import Buffer

        weight = g.new("f32", 16, 1 << 20)
        weight.buffer = Buffer("CUDA0", 0, 128, host=False)
        g.expand(g.mul_mat(weight, g.view(x, (16, 1))))

    assert peak(build) == KIB + 4 * (1 << 20)


def test_what_a_node_reads_is_placed_before_it() -> None:
    """A source that no list of leafs has gets memory of its reader's backend, and it is free behind
    the last one that reads it."""
    g = Graph()
    x, late = g.input("x", "f32", 16, 16), g.new("f32", 16, 16)
    total = g.add(g.norm(x), late)
    g.expand(total)
    last = g.norm(g.norm(total))
    g.expand(last)
    leafs = [leaf for leaf in g.leafs if leaf is not late]
    host, device = arena(), arena()
    allocate([(node, 1) for node in g.nodes], [(leaf, 0) for leaf in leafs], [host, device])
    assert host.peak == KIB  # x
    assert late.place[0] == 1 and late.place != total.place
    assert device.peak == 2 * KIB  # the sum is in place; late's memory serves the norms behind it


@pytest.mark.parametrize(
    ("kind", "inplace"),
    [
        ("ADD", True),
        ("MUL", True),
        ("RMS_NORM", True),
        ("SOFT_MAX", True),
        ("ROPE", True),
        ("NORM", False),
        ("GLU", False),
        ("CONT", False),
        ("CPY", False),
    ],
)
def test_which_operations_may_run_in_place(kind: str, inplace: bool) -> None:
    def held(g: Graph, x: Tensor) -> None:
        x.is_output = True
        g.expand(g.like(kind, g.norm(x)))

    assert peak(held) == (2 if inplace else 3) * KIB


def test_layers_that_are_laid_out_alike_are_told_from_others() -> None:
    """`marks` let a long graph be laid out by its first layers alone."""
    for kept in (False, True):
        g = Graph()
        x = g.input("x", "f32", 16, 16)
        layers = [g.norm(x)]
        for i in range(4):
            layers.append(g.norm(g.norm(layers[-1])))
            layers[-1].is_output = kept and i == 1
        g.expand(layers[-1])
        nodes, leafs = [(t, 0) for t in g.nodes], [(t, 0) for t in g.leafs]
        pair = (layers[2], layers[4])
        assert allocate(nodes, leafs, [arena()], [pair]) is not kept
