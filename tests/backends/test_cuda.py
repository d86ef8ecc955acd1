"""On NVIDIA cards plans would be a few MiB off: too much is asked, or CUDA runs out of memory.

CUDA's own rules: which flash-attention kernel runs, the scratch behind its result, what fusions
keep alive.
"""

from __future__ import annotations

import pytest
from support import gpus

from autolayers.backends import Cuda, on
from autolayers.backends.backend import batch_size
from autolayers.backends.cuda.fattn import AMD, flash_kernel, generation
from autolayers.builds import NEWEST_RULES, rules
from autolayers.ggml.tensor import Graph, Tensor, row_size
from autolayers.machine import Device

CUDA = Cuda()
alloc_size, supports = CUDA.alloc_size, CUDA.supports_op


def keep_alive(nodes: list[Tensor], after: Tensor | None = None) -> dict[int, list[Tensor]]:
    """id(node) -> what must not be freed before it. The order stays."""
    deps: dict[int, dict[int, Tensor]] = {}

    def add_alloc_dep(tensor: Tensor, until: Tensor) -> None:
        deps.setdefault(id(until), {})[id(tensor)] = tensor

    assert CUDA.graph_optimize(nodes, after, add_alloc_dep) == nodes
    return {until: list(kept.values()) for until, kept in deps.items()}


def attention(
    head: int = 128,
    n_head: int = 32,
    n_head_kv: int = 8,
    n: int = 512,
    n_kv: int = 4096,
    k: str = "f16",
    v: str = "f16",
    head_v: int = 0,
    alibi: bool = False,
    masked: bool = True,
) -> Tensor:
    g = Graph()
    mask = g.new("f16", n_kv, n) if masked else None
    return g.flash_attn(
        g.new("f32", head, n, n_head),
        g.new(k, head, n_kv, n_head_kv),
        g.new(v, head_v or head, n_kv, n_head_kv),
        mask,
        None,
        alibi,
    )


@pytest.mark.parametrize(
    ("shape", "kernel"),
    [
        ({}, "mma"),  # a prompt
        ({"n": 1}, "vec"),  # one token, unquantised
        # 4 heads per KV head are not more than 4
        ({"n": 1, "n_kv": 8192}, "vec"),
        ({"n": 1, "n_kv": 8192, "n_head_kv": 4}, "mma"),  # 8 are, and the cache is long
        ({"n": 1, "head": 256, "n_head_kv": 4}, "mma"),
        ({"n": 2, "k": "q8_0", "v": "q8_0"}, "vec"),  # quantised: up to two tokens
        ({"n": 3, "k": "q8_0", "v": "q8_0"}, "mma"),
        ({"head": 40}, "tile"),
        ({"head": 72}, "tile"),  # no tensor-core kernel for these
        ({"head": 64}, "mma"),
        ({"head": 80}, "mma"),
        ({"head": 96}, "mma"),
        ({"head": 112}, "mma"),
        ({"head": 256}, "mma"),
        ({"head": 32}, "none"),
        ({"head": 48}, "none"),
        ({"head": 160}, "none"),
        ({"head": 224}, "none"),
        ({"head": 128, "head_v": 64}, "none"),
        # DeepSeek without absorption: 8 heads per KV head
        ({"head": 192, "head_v": 128, "n_head_kv": 4}, "mma"),
        ({"head": 192, "head_v": 128, "n_head_kv": 8}, "none"),
        ({"head": 192, "head_v": 192}, "none"),
        ({"head": 320, "head_v": 256, "n_head_kv": 1}, "mma"),
        ({"head": 320, "head_v": 256, "n_head_kv": 2}, "none"),
        ({"head": 576, "head_v": 512, "n_head_kv": 1}, "mma"),  # MLA
        ({"head": 576, "head_v": 512, "n_head_kv": 32}, "none"),  # not grouped
        ({"head": 576, "head_v": 512, "n_head_kv": 1, "masked": False}, "none"),
        ({"head": 512, "n_head_kv": 1, "alibi": True}, "none"),
        ({"k": "iq4_nl"}, "none"),
        ({"v": "q6_K"}, "none"),
        ({"k": "q5_1", "v": "q4_1"}, "mma"),
        ({"k": "bf16", "v": "bf16"}, "mma"),
    ],
)
def test_ada_chooses_the_kernel_by_shape_and_types(shape: dict, kernel: str) -> None:
    op = attention(**shape)
    assert flash_kernel(op, 890, NEWEST_RULES) == kernel
    assert supports(op) == (kernel != "none")


@pytest.mark.parametrize(
    ("cc", "shape", "kernel"),
    [
        (610, {}, "tile"),
        (610, {"n": 1, "n_head_kv": 32}, "vec"),
        (610, {"n": 2, "k": "q8_0"}, "vec"),
        (700, {}, "mma"),
        (700, {"n": 4}, "tile"),
        (700, {"n": 1, "n_head_kv": 32}, "vec"),
        (750, {}, "mma"),
        (750, {"n": 2, "k": "q8_0"}, "mma"),
        (750, {"n": 1, "k": "q8_0"}, "vec"),
        (860, {"n": 1}, "mma"),
    ],
)
def test_older_cards_choose_otherwise(cc: int, shape: dict, kernel: str) -> None:
    assert flash_kernel(attention(**shape), cc, NEWEST_RULES) == kernel


def test_f16_caches_take_nothing_more() -> None:
    op = attention()
    assert alloc_size(op) == op.nbytes == 128 * 32 * 512 * 4


@pytest.mark.parametrize(
    ("k", "v", "converted"),
    [("q8_0", "q8_0", 2), ("q8_0", "f16", 1), ("f16", "q4_0", 1), ("bf16", "bf16", 2)],
)
def test_other_caches_are_converted_beside_the_result(k: str, v: str, converted: int) -> None:
    op = attention(k=k, v=v)
    assert alloc_size(op) == op.nbytes + converted * 2 * 128 * 4096 * 8  # all cells, f16


def test_the_vector_kernel_reads_some_pairs_as_they_are() -> None:
    for k, v, extra in (
        ("q8_0", "q8_0", 0),
        ("q4_0", "q4_0", 0),
        ("q5_1", "q5_1", 2),
        ("q8_0", "q4_0", 2),
    ):
        op = attention(n=1, k=k, v=v)
        assert flash_kernel(op, 890, NEWEST_RULES) == "vec"
        assert alloc_size(op) == op.nbytes + extra * 2 * 128 * 4096 * 8, (k, v)


def test_values_inside_the_keys_are_converted_once() -> None:
    g = Graph()
    k = g.new("q8_0", 576, 4096, 1)
    v = g.view(k, (512, 4096, 1), k.nb[1:3])
    op = g.flash_attn(g.new("f32", 576, 512, 128), k, v, g.new("f16", 4096, 512))
    assert alloc_size(op) == op.nbytes + 2 * 576 * 4096


def test_quantised_rows_are_padded_to_512() -> None:
    g = Graph()
    assert alloc_size(g.new("q4_0", 512, 7)) == 7 * row_size("q4_0", 512)
    assert alloc_size(g.new("q4_0", 544, 7)) == 7 * row_size("q4_0", 544) + row_size("q4_0", 480)
    assert alloc_size(g.new("f16", 544, 7)) == 7 * 544 * 2


def test_each_operation_counts_its_rows_of_work() -> None:
    g = Graph()
    x = g.new("f32", 128, 40)
    assert batch_size(g.mul_mat(g.new("f16", 128, 16), x)) == 40
    assert (
        batch_size(
            g.mul_mat_id(g.new("f16", 128, 16, 8), g.new("f32", 128, 1, 40), g.new("i32", 2, 40))
        )
        == 40
    )
    assert batch_size(g.get_rows(x, g.new("i32", 1000))) == 0
    assert batch_size(g.rms_norm(x)) == 40


def test_another_cards_memory_is_out_of_reach() -> None:
    g, first, second = Graph(), *(Cuda(Device(f"CUDA{i}", 1, 1), i) for i in range(2))
    weight = g.new("f16", 128, 128)
    weight.buffer = first.buffer
    op = g.mul_mat(weight, g.new("f32", 128, 4))
    assert first.supports_op(op) and not second.supports_op(op)


def test_operations_that_cuda_lacks_are_not_placed_there() -> None:
    g = Graph()
    x = g.new("f32", 128, 40)
    assert not supports(g.mul_mat(g.new("q4_0", 128, 16), g.new("f16", 128, 40)))
    assert supports(g.mul_mat(g.new("f16", 128, 16), g.new("f16", 128, 40)))
    gaps = g.unary("SILU", g.view(x, (64, 40), (512,)))
    assert supports(gaps) and not on(gpus(8192)[0], rules=rules(11434)).supports_op(gaps)
    assert not supports(g.ssm_conv(g.new("f32", 8, 100, 1), g.new("f32", 4, 100)))
    assert supports(g.ssm_conv(g.new("f32", 8, 128, 1), g.new("f32", 4, 128)))
    assert not supports(g.add(x, g.new("bf16", 128, 40)))


# fusions


def experts(used: int, n: int = 32, leak: bool = False) -> tuple[Graph, Tensor, Tensor]:
    """The weighted sum of `used` experts, the experts' results, their weights."""
    g = Graph()
    made = g.norm(g.new("f32", 64, used, n))
    weights = g.norm(g.new("f32", 1, used, n))
    product = g.mul(made, weights)
    g.expand(product)
    views = []
    for i in range(used):
        views.append(g.view(product, (64, n), (product.nb[2],), i * product.nb[1]))
        g.expand(views[-1])
    total = views[0]
    for view in views[1:]:
        total = g.add(total, view)
        g.expand(total)
    if leak:
        g.expand(g.unary("SILU", product))
    return g, made, weights


@pytest.mark.parametrize(
    ("used", "kept"), [(1, False), (2, True), (8, True), (15, True), (16, False)]
)
def test_a_weighted_sum_of_experts_keeps_its_operands_to_the_end(used: int, kept: bool) -> None:
    g, made, weights = experts(used)
    deps = keep_alive(g.nodes)
    assert deps == ({id(g.nodes[-1]): [made, weights]} if kept else {})


def test_not_if_somebody_else_reads_the_product() -> None:
    g, _, _ = experts(4, leak=True)
    deps = keep_alive(g.nodes)
    assert not deps


def routing(n_expert: int, used: int = 8, n: int = 32) -> tuple[Graph, Tensor]:
    g = Graph()
    probs = g.soft_max(g.mul_mat(g.new("f32", 64, n_expert), g.new("f32", 64, n)))
    chosen = g.argsort_top_k(probs, used)
    weights = g.get_rows(g.reshape(probs, 1, n_expert, n), chosen)
    g.expand(weights)
    g.expand(g.unary("SILU", weights))
    return g, weights


@pytest.mark.parametrize(
    ("n_expert", "fused"),
    [(64, True), (128, True), (512, True), (288, True), (576, True), (60, False), (1024, False)],
)
def test_the_choice_of_experts_is_one_operation_for_some_counts(n_expert: int, fused: bool) -> None:
    g, weights = routing(n_expert)
    deps = keep_alive(g.nodes)
    if not fused:
        assert not deps
        return
    ((until, kept),) = deps.items()
    assert until == id(g.nodes[-1])  # the first node after the weights
    assert {t.op for t in kept if t.op != "NONE"} == {
        "MUL_MAT",
        "SOFT_MAX",
        "RESHAPE",
        "ARGSORT",
        "VIEW",
        "GET_ROWS",
    }
    assert any(t is weights for t in kept)


def test_a_fusion_at_the_end_of_its_split_holds_until_the_next() -> None:
    g, _ = routing(64)
    assert list(keep_alive(g.nodes[:-1], g.nodes[-1])) == [id(g.nodes[-1])]
    assert not keep_alive(g.nodes[:-1])  # nothing follows


@pytest.mark.parametrize(
    ("gfx", "shape", "kernel"),
    [
        # more than 8 columns, 4 heads of each group
        (0x1100, {"n": 2}, "tile"),
        (0x1100, {"n": 3}, "mma"),
        # more than 16
        (0x1100, {"n": 4, "head": 256}, "tile"),
        (0x1100, {"n": 5, "head": 256}, "mma"),
        (0x1100, {"head": 512}, "tile"),
        (0x1100, {"n_head_kv": 32}, "tile"),
        (0x1030, {}, "tile"),
        (0x908, {"n": 2, "head": 64}, "tile"),
        (0x908, {"n": 3, "head": 64}, "mma"),
        (0x90A, {"n": 4}, "tile"),
        (0x90A, {"n": 5}, "mma"),
        # more than 64
        (0x942, {"n": 16, "head": 256}, "tile"),
        (0x942, {"n": 17, "head": 256}, "mma"),
    ],
)
def test_amds_matrix_cores_pay_off_from_some_columns_on(gfx: int, shape: dict, kernel: str) -> None:
    assert flash_kernel(attention(**shape), 0x1000000 + gfx, NEWEST_RULES) == kernel


def test_cards_of_one_generation_have_the_same_kernels() -> None:
    """What a launch allocates on one of them is taken for all: Backend.kind."""
    ccs = [350, 520, 610, 700, 720, 750, 800, 860, 890, 900, 1030, 1200, 1210]
    ccs += [
        AMD + gfx
        for gfx in (0, 0x803, 0x906, 0x908, 0x90A, 0x942, 0x1010, 0x1030, 0x1100, 0x1151, 0x1201)
    ]
    values = {192: 128, 320: 256, 576: 512}
    shapes = [
        attention(head, heads, kv, n, 4096, k, k, values.get(head, head))
        for head in (40, 64, 128, *values)
        for heads, kv in ((32, 32), (32, 8), (32, 1))
        for n in (1, 2, 4, 17, 512)
        for k in ("f16", "q8_0")
    ]
    found: dict[tuple[int, int], set[tuple[str, ...]]] = {}
    for cc in ccs:
        for build in (NEWEST_RULES, rules(6100)):
            row = tuple([flash_kernel(op, cc, build) for op in shapes])
            found.setdefault((generation(cc), build.number), set()).add(row)
    assert len(found) > 9 and all(len(rows) == 1 for rows in found.values())


def test_a_kind_has_one_generation_of_cards_and_one_build_option() -> None:
    ada, blackwell, turing = [
        on(Device("CUDA0", 1, 1, compute_capability=cc)) for cc in ((8, 9), (12, 0), (7, 5))
    ]
    quants = on(Device("CUDA0", 1, 1, compute_capability=(8, 9), limits={"fa_all_quants": 1}))
    assert ada.kind == blackwell.kind and len({ada.kind, turing.kind, quants.kind}) == 3


@pytest.mark.parametrize(
    ("heads", "more_q", "more_k", "runs"),
    [
        (64, 0, 0, True),
        (4, 0, 0, True),
        (16, 0, 0, False),
        (64, 8, 0, False),
        (64, 0, 8, False),
    ],
)
def test_an_indexer_wants_its_heads_and_aligned_rows(
    heads: int, more_q: int, more_k: int, runs: bool
) -> None:
    """ggml_cuda_lightning_indexer_supported of b11549: rows of 16 bytes, in the queries and in the
    keys."""

    def rows(type_: str, ne: tuple[int, int, int, int], size: int) -> Tensor:
        nb = size * ne[1]
        return Tensor("NONE", type_, ne, nb=(row_size(type_, 1), size, nb, nb * ne[2]))

    q = rows("f32", (128, heads, 512, 1), 512 + more_q)
    k = rows("f16", (128, 1, 4096, 1), 256 + more_k)
    op = Tensor("LIGHTNING_INDEXER", "f32", (4096, 512, 1, 1), (q, k))
    assert supports(op) is runs
