"""Graphs would be split at other nodes than llama.cpp's, with other copies in other buffers.

The scheduler's rules, on small graphs over real backends: two CUDA devices and the CPU with
pinned memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from support import FIXTURES, gpus

from autolayers.backends import Backend, Cpu, Cuda, on
from autolayers.builds import NEWEST_RULES
from autolayers.errors import LaunchRefused
from autolayers.ggml.scheduler import SplitGraph, assign, split
from autolayers.ggml.tensor import Buffer, Graph, Tensor
from autolayers.machine import Device

HOST = Buffer("CUDA_Host", -1, 32, host=True)
REPACK = Buffer("CPU_REPACK", -1, 32, host=False, repack=True)


class Machine:
    """Backends and the means to build a graph over weights that lie somewhere."""

    def __init__(self, n_gpus: int = 1) -> None:
        self.gpus = [on(device, i) for i, device in enumerate(gpus(*[8192] * n_gpus))]
        self.backends: list[Backend] = [*self.gpus, Cpu(HOST)]
        self.cpu = n_gpus
        self.g = Graph()

    def weight(self, where: int | Buffer, *ne: int, type_: str = "f16") -> Tensor:
        t = self.g.new(type_, *ne)
        t.buffer = where if isinstance(where, Buffer) else self.backends[where].buffer
        t.weight = True
        return t

    def x(self, n: int = 64, width: int = 128) -> Tensor:
        return self.g.input("x", "f32", width, n)

    def split(self, op_offload: bool = True, n_copies: int = 1) -> SplitGraph:
        assign(self.g, self.backends, op_offload, NEWEST_RULES)
        return split(self.g, self.backends, NEWEST_RULES, n_copies)


@pytest.fixture
def one() -> Machine:
    return Machine(1)


def copies(result: SplitGraph, backend: int) -> list[Tensor]:
    """Tensors that were made on a backend to hold a copy."""
    return [t for t, b in result.nodes if b == backend and t.op == "NONE" and t.view_src is None]


def test_a_weight_decides(one: Machine) -> None:
    g = one.g
    a = g.mul_mat(one.weight(0, 128, 128), one.x(4))
    b = g.mul_mat(one.weight(one.cpu, 128, 128), a)
    g.expand(b)
    assign(g, one.backends, True, NEWEST_RULES)
    assert (a.backend, b.backend) == (0, one.cpu)


def test_what_has_no_weight_follows_its_neighbours_gpus_first(one: Machine) -> None:
    g = one.g
    on_host = g.mul_mat(one.weight(one.cpu, 128, 128), one.x(4))
    between = g.unary("SILU", on_host)
    on_gpu = g.mul_mat(one.weight(0, 128, 128), between)
    after = g.unary("SILU", on_gpu)
    g.expand(after)
    assign(g, one.backends, True, NEWEST_RULES)
    assert between.backend == on_gpu.backend == after.backend == 0


def test_what_comes_before_the_first_weight_goes_where_that_is() -> None:
    for where in range(3):
        m = Machine(3)
        first = m.g.unary("SILU", m.x(4))
        m.g.expand(m.g.mul_mat(m.weight(where, 128, 128), first))
        assign(m.g, m.backends, True, NEWEST_RULES)
        assert first.backend == where


@pytest.mark.parametrize(
    ("rows", "op_offload", "backend"),
    [(31, True, 1), (32, True, 0), (512, True, 0), (512, False, 1)],
)
def test_op_offload_needs_32_rows(one: Machine, rows: int, op_offload: bool, backend: int) -> None:
    t = one.g.mul_mat(one.weight(one.cpu, 128, 128), one.x(rows))
    one.g.expand(t)
    assign(one.g, one.backends, op_offload, NEWEST_RULES)
    assert t.backend == backend


def test_op_offload_never_moves_lookups_nor_repacked_weights(one: Machine) -> None:
    g = one.g
    ids = g.input("ids", "i32", 64)
    looked_up = g.get_rows(one.weight(one.cpu, 128, 1000), ids)
    repacked = g.mul_mat(one.weight(REPACK, 128, 128, type_="q4_0"), looked_up)
    g.expand(repacked)
    assign(g, one.backends, True, NEWEST_RULES)
    assert looked_up.backend == repacked.backend == one.cpu


def test_offloaded_ops_go_to_the_first_gpu() -> None:
    m = Machine(2)
    t = m.g.mul_mat(m.weight(m.cpu, 128, 128), m.x())
    m.g.expand(t)
    assign(m.g, m.backends, True, NEWEST_RULES)
    assert t.backend == 0


def test_what_a_gpu_cannot_run_falls_to_the_cpu(one: Machine) -> None:
    g = one.g
    a = g.mul_mat(one.weight(0, 128, 128), one.x())
    b = g.unary("NOT_AN_OP_OF_CUDA", a)
    c = g.mul_mat(one.weight(0, 128, 128), b)
    g.expand(c)
    result = one.split()
    assert (a.backend, b.backend, c.backend) == (0, one.cpu, 0)
    assert result.n_splits == 3


def test_inputs_start_on_the_host_and_are_copied_once_per_device(one: Machine) -> None:
    g, x = one.g, one.x()
    g.expand(g.add(g.mul_mat(one.weight(0, 128, 128), x), x))
    result = one.split()
    assert x.backend == one.cpu
    assert [t.ne for t in copies(result, 0)] == [(128, 64, 1, 1)]
    assert result.n_splits == 1


def test_two_devices_get_a_copy_each() -> None:
    m = Machine(2)
    g, x = m.g, m.x()
    first = g.mul_mat(m.weight(0, 128, 128), x)
    g.expand(g.mul_mat(m.weight(1, 128, 128), g.add(first, x)))
    g.expand(g.mul_mat(m.weight(1, 128, 128), x))
    result = m.split()
    assert result.n_splits == 2
    # x; x and what the first device made
    assert len(copies(result, 0)) == 1 and len(copies(result, 1)) == 2


def test_a_copy_keeps_the_strides_of_its_source() -> None:
    m = Machine(2)
    g = m.g
    made = g.mul_mat(m.weight(0, 128, 128), m.x())
    g.expand(made)
    part = g.view(made, (64, 64), (made.nb[1],))
    g.expand(g.mul_mat(m.weight(1, 64, 128), part))
    copy = next(t for t in copies(m.split(), 1) if t.ne == (64, 64, 1, 1))
    assert copy.nb == part.nb and copy.nbytes == 63 * 512 + 256  # not 64 * 256


def test_each_weight_from_the_host_opens_a_split(one: Machine) -> None:
    g, cur = one.g, one.x()
    for _ in range(3):
        cur = g.mul_mat(one.weight(one.cpu, 128, 128), cur)
    g.expand(cur)
    result = one.split()
    assert result.n_splits == 3
    assert [len(inputs) for inputs in result.inputs] == [2, 1, 1]  # the first brings x too
    assert {b for t, b in result.nodes if t.op == "MUL_MAT"} == {0}


def test_weights_on_the_device_open_none(one: Machine) -> None:
    g, cur = one.g, one.x()
    for _ in range(3):
        cur = g.mul_mat(one.weight(0, 128, 128), cur)
    g.expand(cur)
    assert one.split().n_splits == 1


def test_a_pinned_node_stays_where_it_was_asked_to_run(one: Machine) -> None:
    g = one.g
    a = g.mul_mat(one.weight(0, 128, 128), one.x())
    b = g.rms_norm(a)
    b.pinned = one.cpu
    c = g.mul_mat(one.weight(0, 128, 128), b)
    g.expand(c)
    assert one.split().n_splits == 3
    assert b.backend == one.cpu


def test_a_view_runs_with_what_it_looks_at(one: Machine) -> None:
    g = one.g
    a = g.mul_mat(one.weight(one.cpu, 128, 128), one.x(4))
    view = g.reshape(a, 64, 8)
    g.expand(g.mul_mat(one.weight(0, 64, 128), view))
    assign(g, one.backends, True, NEWEST_RULES)
    assert view.backend == a.backend == one.cpu


def test_a_pipeline_holds_four_of_every_input_for_good() -> None:
    m = Machine(2)
    g, x = m.g, m.x()
    first = g.mul_mat(m.weight(0, 128, 128), x)
    g.expand(g.mul_mat(m.weight(1, 128, 128), first))
    result = m.split(n_copies=4)
    on = {b: [t for t, where in result.leafs if where == b and t.buffer is None] for b in range(3)}
    for b, count in ((0, 4), (1, 4)):  # copies of x there; copies of the hidden state here
        assert len(on[b]) == count
        assert all(t.is_input and t.is_output for t in on[b])
    held = {id(t) for t in on[m.cpu]}
    assert len(held) == 4 and id(x) in held  # the input itself is the first of its four


def test_without_a_pipeline_copies_are_ordinary_tensors() -> None:
    m = Machine(2)
    g = m.g
    g.expand(g.mul_mat(m.weight(1, 128, 128), g.mul_mat(m.weight(0, 128, 128), m.x())))
    assert not any(t.is_output for t, _ in m.split().nodes)


def test_before_a_copy_its_source_is_read() -> None:
    """So that it lives until then: a node without work whose source it is."""
    m = Machine(2)
    g = m.g
    first = g.mul_mat(m.weight(0, 128, 128), m.x())
    g.expand(g.mul_mat(m.weight(1, 128, 128), first))
    nodes = m.split().nodes
    at = next(i for i, (t, b) in enumerate(nodes) if b == 1)
    reader, where = nodes[at - 1]
    assert reader.op == "NONE" and reader.src == (first,) and where == 0


# what a backend may do with its splits, and refuse


class Reversing(Cuda):
    """Runs the nodes of a split backwards and keeps the first alive until the next split."""

    def graph_optimize(
        self,
        nodes: list[Tensor],
        after: Tensor | None,
        add_alloc_dep: Callable[[Tensor, Tensor], None],
    ) -> list[Tensor]:
        if after is not None:
            add_alloc_dep(nodes[0], after)
            add_alloc_dep(nodes[0], after)  # once is enough
        return nodes[::-1]


def test_a_backend_may_reorder_its_splits_and_keep_tensors_into_the_next() -> None:
    m = Machine()
    m.backends[0] = gpu = Reversing(gpus(8192)[0])
    g, w = m.g, m.g.new("f16", 128, 128)
    w.buffer, w.weight = gpu.buffer, True
    pair = [g.unary(kind, g.mul_mat(w, m.x())) for kind in ("SILU", "RELU")]
    on_host = g.unary("NOT_AN_OP_OF_CUDA", g.add(*pair))
    g.expand(on_host)
    order = list(g.nodes)
    out = m.split().nodes
    ran = [t for t, _ in out if t.op != "NONE"]
    assert ran == [*order[:-1][::-1], on_host]  # each split by itself
    at = [t for t, _ in out].index(on_host)
    kept, where = out[at + 1]
    assert kept.op == "NONE" and kept.src == (order[0],) and where == m.cpu
    assert len(out) == at + 2


def test_a_cache_whose_type_nobody_writes_is_refused_as_llama_cpp_aborts(one: Machine) -> None:
    g = one.g
    cache = g.new("iq4_xs", 256, 64)
    cache.buffer = one.backends[0].buffer
    g.expand(g.set_rows(cache, one.x(4, 256), g.input("ids", "i64", 4)))
    with pytest.raises(
        LaunchRefused,
        match=r"no backend can run SET_ROWS on a tensor of 8704 bytes \(iq4_xs\) in "
        r"CUDA0",
    ):
        one.split()


def test_what_no_neighbour_can_run_goes_where_its_views_lie() -> None:
    """Pass 3: views have no backend yet, what they look at has one. CUDA could sort these rows
    too."""
    m = Machine(2)
    limits = json.loads((FIXTURES / "truth" / "vulkan" / "profiles.json").read_text())["nvidia"]
    vulkan = on(
        Device(
            "Vulkan0",
            1 << 33,
            1 << 33,
            backend="Vulkan",
            limits={**limits, "vulkan_memory_model": 0},
        )
    )
    m.backends[0] = vulkan
    g = m.g
    on_host = g.mul_mat(m.weight(m.cpu, 128, 4096), m.x(4))
    on_gpu = g.mul_mat(m.weight(0, 128, 128), m.x(4))
    order = g.argsort(g.reshape(on_host, 4096, 4, 1))
    after = g.mul_mat(m.weight(0, 128, 128), on_gpu)
    for node in (on_host, on_gpu, order, after):
        g.expand(node)
    assign(g, m.backends, True, NEWEST_RULES)
    assert [t.backend for t in (on_host, on_gpu, order, after)] == [m.cpu, 0, m.cpu, 0]
    assert m.backends[1].supports_op(order) and not vulkan.supports_op(order)
