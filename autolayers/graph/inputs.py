"""A graph's view of its caches: views of their tensors, and the inputs of attention to them.
Sources: llama_kv_cache::get_k, cpy_k, ... of src/llama-kv-cache.cpp, llm_graph_input_attn_* of
src/llama-graph.cpp (as modelled)."""

from __future__ import annotations

from ..ggml.tensor import Graph, Tensor, row_size
from .llm_before import copy_k, copy_v


class CacheView:
    """One KV cache of the model as the graph sees it: preallocated tensors and the shapes of its
    inputs."""

    def __init__(
        self,
        graph: Graph,
        n_kv: int,
        n_stream: int,
        layers: dict[int, tuple[Tensor, Tensor | None]],
        v_trans: bool,
        k_rot: int = 0,
        v_rot: int = 0,
        n_embd_v_gqa_max: int = 0,
    ) -> None:
        self.graph = graph
        self.n_kv = n_kv
        self.n_stream = n_stream
        self.layers = layers
        self.v_trans = v_trans
        self.k_rot = k_rot  # side of the Hadamard matrix of quantised caches, 0: none
        self.v_rot = v_rot
        self.n_embd_v_gqa_max = n_embd_v_gqa_max

    def get_k(self, il: int, head: int, n_head: int) -> Tensor:
        k = self.layers[il][0]
        # a row is a cell with all heads; a stream has k.ne[1] cells
        width = k.ne[0]
        # all cells, used or not: n_kv of a reserved graph is the cache's size
        return self.graph.view(
            k,
            (head, n_head, self.n_kv, self.n_stream),
            (row_size(k.type, head), row_size(k.type, width), row_size(k.type, width * k.ne[1])),
        )

    def get_v(self, il: int, head: int, n_head: int) -> Tensor:
        v = self.layers[il][1]
        assert v is not None
        g, t = self.graph, v.type
        # transposed, a row is one element of all cells, so that scores times V reads rows
        width, size = v.ne[0], v.ne[1]
        if not self.v_trans:
            return g.view(
                v,
                (head, n_head, self.n_kv, self.n_stream),
                (row_size(t, head), row_size(t, width), row_size(t, width * size)),
            )
        return g.view(
            v,
            (self.n_kv, n_head, head, self.n_stream),
            (row_size(t, size * head), row_size(t, size), row_size(t, size * width)),
        )

    def cpy_k(self, cur: Tensor, ids: Tensor | None, il: int) -> Tensor:
        g, k = self.graph, self.layers[il][0]
        width = cur.ne[0] * cur.ne[1]
        # builds before Rules.set_rows copied to the head of the cache
        if ids is None:
            return copy_k(g, k, cur)
        cur = g.view(cur, (width, cur.ne[2]), (cur.nb[2],))
        # streams are folded into one long column, because row indices count over all of them
        if k.ne[2] > 1:
            k = g.reshape(k, width, k.ne[1] * k.ne[2])
        return g.set_rows(k, cur, ids)

    def cpy_v(self, cur: Tensor, ids: Tensor | None, il: int) -> Tensor:
        g, v = self.graph, self.layers[il][1]
        assert v is not None
        width, n_tokens = cur.ne[0] * cur.ne[1], cur.ne[2]
        if ids is None:
            return copy_v(g, v, cur, self.v_trans)
        if not self.v_trans:
            cur = g.view(cur, (width, n_tokens), (cur.nb[2],))
            if v.ne[2] > 1:
                v = g.reshape(v, width, v.ne[1] * v.ne[2])
            return g.set_rows(v, cur, ids)
        if row_size(cur.type, width) == cur.nb[2]:
            cur = g.reshape(cur, width, n_tokens)
        else:
            # V as a part of a fused row has gaps: a transposed store wants none
            cur = g.cont(cur, width, n_tokens)
        # with layers of unequal widths V's rows are as wide as the widest (n_embd_v_gqa_max)
        if width < v.ne[0]:
            cur = g.pad(cur, v.ne[0] - width)
        # every element is a row of its own here: see the indices in Llm.attn_input
        rows = g.reshape(v, 1, v.nelements)
        return g.set_rows(rows, g.reshape(cur, 1, cur.nelements), ids)


class StateView:
    """Recurrent states as the graph sees them: layers[il] is (r, s, p), or (kv, score) of a
    compressor."""

    def __init__(self, n_rows: int, layers: dict[int, tuple[Tensor | None, ...]]) -> None:
        self.n_rows = n_rows
        self.layers = layers
        # the rows to start from (recurrent.build_rs)
        self.ids: tuple[Tensor, Tensor, Tensor] | None = None


class AttnInput:
    """Inputs of one kind of attention: row indices, mask, rotations (llm_graph_input_attn_*)."""

    def __init__(
        self,
        cache: CacheView | None,
        mask: Tensor | None,
        k_idxs: Tensor | None = None,
        v_idxs: Tensor | None = None,
        k_rot: Tensor | None = None,
        v_rot: Tensor | None = None,
        swa: AttnInput | None = None,
        rows: Tensor | None = None,
    ) -> None:
        self.cache = cache
        self.mask = mask
        self.k_idxs = k_idxs
        self.v_idxs = v_idxs
        self.k_rot = k_rot
        self.v_rot = v_rot
        self.rows = rows  # of each sequence in a unified cache
        self.swa = swa  # the sliding-window layers', if the model has both
        self.padded = False  # keys and values that no cache has, for a multiple of tokens

    def at(self, is_swa: bool) -> AttnInput:
        return self.swa if is_swa and self.swa is not None else self
