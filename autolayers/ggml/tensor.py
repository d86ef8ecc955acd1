"""Tensors and operations by shape alone: the result of each call in ggml.c, without any data.

Shapes are ggml's: `ne` counts elements per dimension, fastest first; `nb` is the stride in bytes.
An operation allocates memory unless it is a view; which of them are views is half of what decides a
compute buffer. Source: ggml/src/ggml.c as modelled (ggml_mul_mat, ggml_view_impl, ggml_set_rows,
...).
"""

from __future__ import annotations

from .types import IK_TYPES, TYPES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_BLOCK = {row.name: row.blck_size for row in (*TYPES, *IK_TYPES)}
_SIZE = {row.name: row.type_size for row in (*TYPES, *IK_TYPES)}
_META = {row.name: row.meta for row in (*TYPES, *IK_TYPES)}  # bytes at the start of a row
# pads dimensions to GGML_MAX_DIMS
_ONES: tuple[Any, ...] = ((1, 1, 1, 1), (1, 1, 1), (1, 1), (1,), ())
Ne = tuple[int, int, int, int]  # a tensor's dimensions, or its strides
VIEW_OPS = frozenset(("VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE"))


def block_size(type_: str) -> int:
    return _BLOCK[type_]


def type_size(type_: str) -> int:
    return _SIZE[type_]


def row_size(type_: str, ne0: int) -> int:
    """Return the bytes of `ne0` elements (ggml_row_size); exact even if `ne0` is not a multiple of
    the block."""
    # multiplied first, because callers ask for parts of a block too
    return _META[type_] + _SIZE[type_] * ne0 // _BLOCK[type_]


# as good as infinite, but an int: sizes are added to it
ENDLESS = 1 << 62


class Buffer:
    """ggml_backend_buffer_type as the scheduler sees it: its owner, and how sizes are rounded in
    it."""

    __slots__ = ("alignment", "device", "host", "max_size", "name", "repack")

    def __init__(
        self,
        name: str,
        device: int,
        alignment: int,
        host: bool,
        repack: bool = False,
        max_size: int = ENDLESS,
    ) -> None:
        self.name = name
        self.device = device  # index of the backend that owns it; -1: the CPU's
        self.alignment = alignment
        self.host = host  # is_host: readable by the CPU, so also by op offload
        self.repack = repack  # CPU_REPACK and the like: only the CPU's own kernels read it
        self.max_size = max_size  # of one buffer; larger needs are split over several

    def __repr__(self) -> str:
        return f"Buffer({self.name})"


class Tensor:
    """One node or leaf. The attributes from `seen` on belong to the scheduler and the allocator."""

    __slots__ = (
        "backend",
        "buffer",
        "copies",
        "is_input",
        "is_output",
        "n_children",
        "n_views",
        "name",
        "nb",
        "ne",
        "op",
        "own",
        "param",
        "pinned",
        "place",
        "seen",
        "size",
        "src",
        "type",
        "uses",
        "view_offs",
        "view_src",
        "weight",
    )
    # declared, but not set: a tensor without `own` has neither, and a read would be a bug
    place: tuple[int, int, int]
    size: int

    def __init__(
        self,
        op: str,
        type_: str,
        ne: Ne,
        src: tuple[Tensor, ...] = (),
        nb: Ne | None = None,
        view_src: Tensor | None = None,
        view_offs: int = 0,
        param: object = None,
    ) -> None:
        self.op = op
        self.type = type_
        self.ne = ne
        # ggml_new_tensor_impl: no gaps between rows and dimensions
        if nb is None:
            ts = _SIZE[type_]
            n1 = _META[type_] + ts * (ne[0] // _BLOCK[type_])
            n2 = n1 * ne[1]
            nb = (ts, n1, n2, n2 * ne[2])
        self.nb = nb
        self.src = src
        self.name = ""
        self.weight = False  # is in a buffer of model weights
        self.is_input = self.is_output = False
        self.seen = False  # reached by expand()
        self.uses = 0  # how many nodes read it
        # the backend that the graph builder pinned it to, if that can run it
        self.pinned = self.backend = -1
        self.n_children = self.n_views = 0
        # has its own memory now: `place` (backend, chunk, offset), `size` bytes
        self.own = False
        self.copies: dict[int, list[Tensor]] | None = None
        self.view_src: Tensor | None = None
        self.view_offs = 0
        self.buffer: Buffer | None = None
        self.param = param
        if view_src is not None:
            # flattened to the root, as ggml_new_tensor_impl does
            if view_src.view_src is not None:
                view_offs += view_src.view_offs
                view_src = view_src.view_src
            self.view_src = view_src
            self.view_offs = view_offs
            # a view of a weight or of a cache lies in that buffer already
            if view_src.buffer is not None:
                self.buffer = view_src.buffer

    @property
    def nbytes(self) -> int:
        """ggml_nbytes: the span in memory, strides included."""
        ne, nb = self.ne, self.nb
        # empty views occur: the states of no further sequences
        if min(ne) <= 0:
            return 0
        bs = _BLOCK[self.type]
        # the last element of each dimension, not the product: a view with gaps spans more than its
        # elements
        first = _SIZE[self.type] + (ne[0] - 1) * nb[0] if bs == 1 else ne[0] * nb[0] // bs
        first += _META[self.type]
        return first + (ne[1] - 1) * nb[1] + (ne[2] - 1) * nb[2] + (ne[3] - 1) * nb[3]

    @property
    def nelements(self) -> int:
        ne = self.ne
        return ne[0] * ne[1] * ne[2] * ne[3]

    @property
    def nrows(self) -> int:
        return self.ne[1] * self.ne[2] * self.ne[3]

    def contiguous(self, from_dim: int = 0) -> bool:
        """Whether dimensions above `from_dim` follow each other without gaps
        (ggml_is_contiguous_n)."""
        ne, nb = self.ne, self.nb
        ts = type_size(self.type)
        bs = block_size(self.type)
        expect = ts
        # a row of one block has no stride to compare
        if ne[0] != bs and nb[0] != expect:
            return False
        expect *= ne[0] // bs
        for i in (1, 2, 3):
            if i > from_dim:
                # the stride of a dimension of one element does not matter
                if ne[i] != 1 and nb[i] != expect:
                    return False
                expect *= ne[i]
            else:
                expect = ne[i] * nb[i]
        return True

    def contiguous_rows(self) -> bool:
        return self.ne[0] == block_size(self.type) or self.nb[0] == type_size(self.type)

    @property
    def transposed(self) -> bool:
        """ggml_is_transposed."""
        return self.nb[0] > self.nb[1]

    @property
    def permuted(self) -> bool:
        """ggml_is_permuted."""
        nb = self.nb
        return nb[0] > nb[1] or nb[1] > nb[2] or nb[2] > nb[3]

    def __repr__(self) -> str:
        return f"{self.op}({self.name or '-'} {self.type}{list(self.ne)})"


class Graph:
    """Operations create tensors; expand() puts them in llama.cpp's order
    (ggml_build_forward_expand)."""

    def __init__(self, clamp_copies: bool = True) -> None:
        """`clamp_copies`: CLAMP has its own result; in older builds it overwrites its
        source."""
        self.clamp_copies = clamp_copies
        self.nodes: list[Tensor] = []
        self.leafs: list[Tensor] = []
        self.max_nodes = 1 << 16
        self._knots: list[Tensor] = []  # tensors that refer to themselves

    def release(self) -> None:
        """Undo references between tensors, so that a used graph is freed at once instead of waiting
        for the collector, and one by one: a chain of thousands is more calls than a browser's
        worker has stack."""
        for tensor in self.nodes:
            tensor.src = ()
        for tensor in self._knots:
            tensor.src = ()

    __del__ = release

    def expand(self, tensor: Tensor) -> None:
        """Add a tensor after its sources, depth first and in order (ggml_visit_parents_graph).
        Raises ValueError if the graph is full, where ggml aborts."""
        if tensor.seen:
            return
        # GGML_ASSERT(cgraph->n_nodes < cgraph->size)
        if len(self.nodes) > self.max_nodes:
            raise ValueError(f"more than {self.max_nodes} nodes")
        tensor.seen = True
        nodes = self.nodes
        # a stack where ggml recurses: graphs are thousands of nodes deep
        stack = [(tensor, iter(tensor.src))]
        while stack:
            node, sources = stack[-1]
            for source in sources:
                # ggml's use_counts, which decide what may be fused
                source.uses += 1
                if not source.seen:
                    source.seen = True
                    if source.src:
                        stack.append((source, iter(source.src)))
                        break
                    (self.leafs if source.op == "NONE" else nodes).append(source)
            else:
                stack.pop()
                (self.leafs if node.op == "NONE" else nodes).append(node)

    # leafs

    def new(self, type_: str, *ne: int) -> Tensor:
        return Tensor("NONE", type_, (*ne, 1, 1, 1, 1)[:4])  # type: ignore[arg-type]

    def input(self, name: str, type_: str, *ne: int) -> Tensor:
        tensor = self.new(type_, *ne)
        tensor.name = name
        tensor.is_input = True
        return tensor

    # views

    def reshape(self, a: Tensor, *ne: int) -> Tensor:
        """Reshape. Raises ValueError if ggml_reshape_1d..4d abort: the counts differ, or rows have
        gaps."""
        n0, n1, n2, n3 = shape = ne + _ONES[len(ne)]
        m0, m1, m2, m3 = a.ne
        # only views can have gaps
        if n0 * n1 * n2 * n3 != m0 * m1 * m2 * m3 or (
            a.view_src is not None and not a.contiguous()
        ):
            raise ValueError(f"{a} is not {list(shape)} in another shape")
        return Tensor("RESHAPE", a.type, shape, (a,), None, a)

    def view(
        self, a: Tensor, ne: tuple[int, ...], nb: tuple[int, ...] = (), offset: int = 0
    ) -> Tensor:
        """View a part of a tensor (ggml_view_1d..4d): `nb` gives the strides from dimension 1 on;
        missing ones continue without gaps. Raises ValueError where ggml_new_tensor_impl aborts:
        without gaps it would end outside its tensor."""
        n0, n1, n2, n3 = shape = ne + _ONES[len(ne)]
        type_, root = a.type, a.view_src or a
        size = _SIZE[type_]
        row = _META[type_] + size * n0 // _BLOCK[type_]
        if (
            row * n1 * n2 * n3 + a.view_offs + offset > root.nb[3] * root.ne[3]
            and row * n1 * n2 * n3
        ):
            raise ValueError(f"{a} has no part {list(shape)} at byte {offset}")
        # ggml_view_4d, _3d, _2d and _1d give three, two, one and no strides
        if len(nb) == 3:
            strides = (size, *nb)
        elif len(nb) == 2:
            strides = (size, *nb, nb[1] * n2)
        else:
            row = nb[0] if nb else row
            strides = (size, row, row * n1, row * n1 * n2)
        return Tensor("VIEW", type_, shape, (a,), strides, a, offset)

    def permute(self, a: Tensor, *axes: int) -> Tensor:
        """Permute. Raises ValueError if ggml_permute aborts: an axis occurs twice."""
        ne, nb = [0, 0, 0, 0], [-1, -1, -1, -1]
        i, j, k, m = axes
        # axis i says where dimension 0 goes, as in ggml_permute
        ne[i], ne[j], ne[k], ne[m] = a.ne
        nb[i], nb[j], nb[k], nb[m] = a.nb
        if -1 in nb:
            raise ValueError(f"no order of axes: {axes}")
        return Tensor("PERMUTE", a.type, tuple(ne), (a,), tuple(nb), a, param=axes)  # type: ignore[arg-type]

    def transpose(self, a: Tensor) -> Tensor:
        ne, nb = a.ne, a.nb
        return Tensor(
            "TRANSPOSE", a.type, (ne[1], ne[0], ne[2], ne[3]), (a,), (nb[1], nb[0], nb[2], nb[3]), a
        )

    def dup(self, a: Tensor) -> Tensor:
        return Tensor("DUP", a.type, a.ne, (a,))

    def set_rows(self, a: Tensor, b: Tensor, ids: Tensor) -> Tensor:
        """Write rows of `b` into `a`: a view of `a`, without its own memory."""
        return Tensor("SET_ROWS", a.type, a.ne, (b, ids, a), a.nb, a)

    def cpy(self, a: Tensor, b: Tensor) -> Tensor:
        return Tensor("CPY", b.type, b.ne, (a, b), b.nb, b)

    def scale_inplace(self, a: Tensor) -> Tensor:
        return Tensor("SCALE", a.type, a.ne, (a,), a.nb, a)

    # operations with their own memory

    def like(self, op: str, a: Tensor, *more: Tensor, param: object = None) -> Tensor:
        """Return an operation whose result has `a`'s type and shape, laid out without gaps."""
        return Tensor(op, a.type, a.ne, (a, *more), param=param)

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        return Tensor("ADD", a.type, a.ne, (a, b))

    def add_inplace(self, a: Tensor, b: Tensor) -> Tensor:
        return Tensor("ADD", a.type, a.ne, (a, b), a.nb, a)

    def sub(self, a: Tensor, b: Tensor) -> Tensor:
        return Tensor("SUB", a.type, a.ne, (a, b))

    def mul(self, a: Tensor, b: Tensor) -> Tensor:
        return Tensor("MUL", a.type, a.ne, (a, b))

    def div(self, a: Tensor, b: Tensor) -> Tensor:
        return Tensor("DIV", a.type, a.ne, (a, b))

    def add_id(self, a: Tensor, b: Tensor, ids: Tensor) -> Tensor:
        return Tensor("ADD_ID", a.type, a.ne, (a, b, ids))

    def scale(self, a: Tensor) -> Tensor:
        return Tensor("SCALE", a.type, a.ne, (a,))

    def clamp(self, a: Tensor) -> Tensor:
        if self.clamp_copies:
            return Tensor("CLAMP", a.type, a.ne, (a,))
        return Tensor("CLAMP", a.type, a.ne, (a,), a.nb, a)

    def sqr(self, a: Tensor) -> Tensor:
        return Tensor("SQR", a.type, a.ne, (a,))

    def sqrt(self, a: Tensor) -> Tensor:
        return Tensor("SQRT", a.type, a.ne, (a,))

    def unary(self, kind: str, a: Tensor) -> Tensor:
        """Apply SILU GELU RELU SIGMOID TANH SOFTPLUS EXP NEG ..."""
        return Tensor("UNARY", a.type, a.ne, (a,), param=kind)

    def rms_norm(self, a: Tensor) -> Tensor:
        return Tensor("RMS_NORM", a.type, a.ne, (a,))

    def norm(self, a: Tensor) -> Tensor:
        return Tensor("NORM", a.type, a.ne, (a,))

    def l2_norm(self, a: Tensor) -> Tensor:
        return Tensor("L2_NORM", a.type, a.ne, (a,))

    def group_norm(self, a: Tensor) -> Tensor:
        return Tensor("GROUP_NORM", a.type, a.ne, (a,))

    def rope(self, a: Tensor, pos: Tensor, factors: Tensor | None = None) -> Tensor:
        return Tensor("ROPE", a.type, a.ne, (a, pos) if factors is None else (a, pos, factors))

    def mul_mat(self, a: Tensor, b: Tensor, param: object = None) -> Tensor:
        return Tensor("MUL_MAT", "f32", (a.ne[1], b.ne[1], b.ne[2], b.ne[3]), (a, b), param=param)

    def mul_mat_id(self, a: Tensor, b: Tensor, ids: Tensor, param: object = None) -> Tensor:
        return Tensor(
            "MUL_MAT_ID", "f32", (a.ne[1], ids.ne[0], b.ne[2], 1), (a, b, ids), param=param
        )

    def get_rows(self, a: Tensor, ids: Tensor) -> Tensor:
        return Tensor(
            "GET_ROWS",
            "i32" if a.type == "i32" else "f32",
            (a.ne[0], ids.ne[0], ids.ne[1], ids.ne[2]),
            (a, ids),
        )

    def cont(self, a: Tensor, *ne: int) -> Tensor:
        """Copy without gaps. Raises ValueError if ggml_cont_1d..4d abort: the counts differ."""
        if not ne:
            return Tensor("CONT", a.type, a.ne, (a,))
        made = Tensor("CONT", a.type, ne + _ONES[len(ne)], (a,))
        if made.nelements != a.nelements:
            raise ValueError(f"{a} is not {list(ne)} in another shape")
        return made

    def cast(self, a: Tensor, type_: str) -> Tensor:
        result = Tensor("CPY", type_, a.ne, (a,))
        result.src = (a, result)  # its own second source, as in ggml_cast
        self._knots.append(result)
        return result

    def concat(self, a: Tensor, b: Tensor, dim: int) -> Tensor:
        ne = list(a.ne)
        ne[dim] += b.ne[dim]
        return Tensor("CONCAT", a.type, tuple(ne), (a, b), param=dim)  # type: ignore[arg-type]

    def repeat(self, a: Tensor, *ne: int) -> Tensor:
        return Tensor("REPEAT", a.type, (*ne, 1, 1, 1, 1)[:4], (a,))  # type: ignore[arg-type]

    def pad(self, a: Tensor, *by: int) -> Tensor:
        by = (*by, 0, 0, 0, 0)[:4]
        ne = tuple(n + p for n, p in zip(a.ne, by, strict=True))
        return Tensor("PAD", a.type, ne, (a,))  # type: ignore[arg-type]

    def set(self, a: Tensor, b: Tensor) -> Tensor:
        """Return a copy of `a` with `b` written into it."""
        return Tensor("SET", a.type, a.ne, (a, b))

    def im2col(self, kernel: Tensor, x: Tensor, padding: int) -> Tensor:
        """Return the rows that a convolution multiplies: ggml_im2col of one dimension with stride
        1."""
        width = x.ne[0] + 2 * padding - kernel.ne[0] + 1
        type_ = "f32" if kernel.type == "bf16" else "f16"
        return Tensor(
            "IM2COL", type_, (kernel.ne[1] * kernel.ne[0], width, x.ne[2], 1), (kernel, x)
        )

    def conv_1d(self, kernel: Tensor, x: Tensor) -> Tensor:
        """Convolve with half padding, so that the length stays (ggml_conv_1d_ph)."""
        columns = self.im2col(kernel, x, kernel.ne[0] // 2)
        made = self.mul_mat(
            self.reshape(columns, columns.ne[0], columns.ne[2] * columns.ne[1]),
            self.reshape(kernel, kernel.ne[0] * kernel.ne[1], kernel.ne[2]),
        )
        return self.reshape(made, columns.ne[1], kernel.ne[2], columns.ne[2])

    def conv_1d_depthwise(self, kernel: Tensor, x: Tensor) -> Tensor:
        """Convolve each channel with its own kernel (ggml_conv_1d_dw_ph)."""
        columns = self.im2col(
            kernel, self.reshape(x, x.ne[0], 1, x.ne[1], x.ne[2]), kernel.ne[0] // 2
        )
        made = self.mul_mat(columns, kernel)
        return self.reshape(made, made.ne[0], made.ne[2], 1)

    def argmax(self, a: Tensor) -> Tensor:
        return Tensor("ARGMAX", "i32", (a.ne[1], 1, 1, 1), (a,))

    def fill(self, a: Tensor) -> Tensor:
        return Tensor("FILL", a.type, a.ne, (a,))

    def soft_max(
        self, a: Tensor, mask: Tensor | None = None, sinks: Tensor | None = None
    ) -> Tensor:
        sources = [t for t in (a, mask, sinks) if t is not None]
        return Tensor(
            "SOFT_MAX", a.type, a.ne, tuple(sources), param=(mask is not None, sinks is not None)
        )

    def sum_rows(self, a: Tensor) -> Tensor:
        return Tensor("SUM_ROWS", a.type, (1, a.ne[1], a.ne[2], a.ne[3]), (a,))

    def mean(self, a: Tensor) -> Tensor:
        return Tensor("MEAN", a.type, (1, a.ne[1], a.ne[2], a.ne[3]), (a,))

    def argsort(self, a: Tensor) -> Tensor:
        return Tensor("ARGSORT", "i32", a.ne, (a,))

    def argsort_top_k(self, a: Tensor, k: int) -> Tensor:
        order = self.argsort(a)
        return self.view(order, (k, order.ne[1], order.ne[2], order.ne[3]), order.nb[1:])

    def top_k(self, a: Tensor, k: int) -> Tensor:
        return Tensor("TOP_K", "i32", (k, a.ne[1], a.ne[2], a.ne[3]), (a,))

    def top_k_mask(self, mask: Tensor, *chosen: Tensor) -> Tensor:
        """Return the mask, closed everywhere but at `chosen` positions (ggml_top_k_mask)."""
        return Tensor("TOP_K_MASK", mask.type, mask.ne, (mask, *chosen))

    def lightning_indexer(self, q: Tensor, k: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
        """Return the scores of every key for every token: [n_kv, n_tokens, 1, n_stream]."""
        return Tensor(
            "LIGHTNING_INDEXER", "f32", (k.ne[2], q.ne[2], 1, q.ne[3]), (q, k, weights, mask)
        )

    def pool_rows(self, a: Tensor, size: int) -> Tensor:
        """Pool `size` neighbours in the first dimension (ggml_pool_2d)."""
        return Tensor("POOL_2D", "f32", (a.ne[0] // size, *a.ne[1:]), (a,))

    def arange(self, n: int) -> Tensor:
        return Tensor("ARANGE", "f32", (n, 1, 1, 1))

    def glu(self, kind: str, a: Tensor, b: Tensor | None = None) -> Tensor:
        """Apply a gated activation: of two tensors, or of the two halves of one."""
        if b is not None:
            return Tensor("GLU", a.type, a.ne, (a, b), param=kind)
        return Tensor("GLU", a.type, (a.ne[0] // 2, a.ne[1], a.ne[2], a.ne[3]), (a,), param=kind)

    def ssm_conv(self, a: Tensor, kernel: Tensor) -> Tensor:
        return Tensor(
            "SSM_CONV", "f32", (kernel.ne[1], a.ne[0] - kernel.ne[0] + 1, a.ne[2], 1), (a, kernel)
        )

    def ssm_scan(
        self,
        s: Tensor,
        x: Tensor,
        dt: Tensor,
        a: Tensor,
        b: Tensor,
        c: Tensor,
        ids: Tensor | None,
        snapshots: int = 1,
    ) -> Tensor:
        """Return the scan's output, then the state after each of the last `snapshots` tokens, in
        one row. `ids`: the states that it reads; None: all."""
        n = x.nelements + snapshots * s.ne[0] * s.ne[1] * s.ne[2] * (
            s.ne[3] if ids is None else ids.ne[0]
        )
        sources = (s, x, dt, a, b, c) if ids is None else (s, x, dt, a, b, c, ids)
        return Tensor("SSM_SCAN", "f32", (n, 1, 1, 1), sources, param=snapshots)

    def gated_delta_net(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        gate: Tensor,
        beta: Tensor,
        state: Tensor,
        snapshots: int = 1,
    ) -> Tensor:
        """Return the rows of outputs, then of states."""
        size, heads, n_tokens, n_seqs = v.ne
        rows = n_tokens * n_seqs + snapshots * size * n_seqs
        return Tensor(
            "GATED_DELTA_NET", "f32", (size * heads, rows, 1, 1), (q, k, v, gate, beta, state)
        )

    def wkv(self, op: str, k: Tensor, state: Tensor, *sources: Tensor) -> Tensor:
        """Build RWKV_WKV6, RWKV_WKV7 or GATED_LINEAR_ATTN over heads like `k`: rows of outputs,
        then of states."""
        size, heads, n_tokens, _ = k.ne
        return Tensor(
            op, "f32", (size * heads, n_tokens + size * state.ne[1], 1, 1), (*sources, state)
        )

    def hc_pre(self, streams: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted sum of residual streams: [n_embd, streams, n_tokens] -> [n_embd,
        n_tokens]."""
        return Tensor(
            "DSV4_HC_PRE", "f32", (streams.ne[0], streams.ne[2], 1, 1), (streams, weights)
        )

    def hc_comb(self, mixes: Tensor, scale: Tensor, base: Tensor, streams: int) -> Tensor:
        return Tensor(
            "DSV4_HC_COMB", "f32", (streams, streams, mixes.ne[1], 1), (mixes, scale, base)
        )

    def hc_post(
        self, cur: Tensor, streams: Tensor, post: Tensor, comb: Tensor | None = None
    ) -> Tensor:
        """Return a block's result [n_embd, n_tokens] spread over the streams, these mixed by
        `comb`."""
        sources = (cur, streams, post) if comb is None else (cur, streams, post, comb)
        return Tensor("DSV4_HC_POST", "f32", (cur.ne[0], streams.ne[1], cur.ne[1], 1), sources)

    def rope_back(self, a: Tensor, pos: Tensor) -> Tensor:
        return Tensor("ROPE_BACK", a.type, a.ne, (a, pos))

    def flash_attn(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        sinks: Tensor | None = None,
        alibi: bool = False,
        n_kv_max: int = 0,
        softcap: bool = False,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Build flash attention. `param` is (mask, alibi, n_kv_max, softcap): what the choice of a
        kernel depends on; `rows`: which keys each sequence has."""
        sources = [t for t in (q, k, v, mask, sinks, rows) if t is not None]
        return Tensor(
            "FLASH_ATTN_EXT",
            "f32",
            (v.ne[0], q.ne[2], q.ne[1], q.ne[3]),
            tuple(sources),
            param=(mask, alibi, n_kv_max, softcap),
        )
