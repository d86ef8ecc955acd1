"""Multi-head latent attention (MLA): keys and values pass through a small latent vector. Absorbed,
the cache holds the latent itself and all heads share it. Expanded, keys and values are computed for
every head before they are cached (files older than key_length_mla). Source:
src/models/deepseek2.cpp (as modelled)."""

from __future__ import annotations

from ..ggml.tensor import Tensor
from .decoder import Decoder
from .llm import Llm, Qkv


def latent(llm: Llm, cur: Tensor, il: int) -> tuple[Tensor, Tensor]:
    """Return (normed latent [rank, n_tokens], the keys' rope part [n_rot, 1, n_tokens], not yet
    rotated)."""
    g, n = llm.graph, llm.n_tokens
    norm = llm.need_layer(il, "attn_kv_a_norm")
    rank = norm.ne[0]
    # one projection for both: the latent, then the rotated part that all heads share
    both = llm.linear(il, "attn_kv_a_mqa", cur)
    compressed = g.view(both, (rank, n), (both.nb[1],))
    k_pe = g.view(both, (both.ne[0] - rank, 1, n), (both.nb[1], both.nb[1]), rank * both.nb[0])
    return llm.build_norm(compressed, norm, None, "rms", il), k_pe


def absorbed(
    llm: Llm,
    q: Tensor,
    compressed: Tensor,
    k_pe: Tensor,
    il: int,
    *,
    rope_first: bool = False,
) -> Qkv:
    """Return Q, K and V with one head of keys for all: attn_k_b is applied to Q instead of the
    keys. No positions: no rope.

    `q` holds complete heads, [head_k, n_head, n_tokens] or flat. `rope_first`: heads begin with the
    rope part.
    """
    # a list of heads may leave out an MTP block, which has those of layer 0 (bailingmoe3)
    n_head = llm.hparams.n_head(il) or llm.n_head
    g, n_rot, n = llm.graph, k_pe.ne[0], llm.n_tokens
    head = q.nelements // (n_head * n)
    # strides of whole heads, for views of a part of each
    strides = (head * q.nb[0], head * n_head * q.nb[0])
    q_nope = g.view(q, (head - n_rot, n_head, n), strides)
    q_pe = g.view(q, (n_rot, n_head, n), strides, (head - n_rot) * q.nb[0])
    if llm.pos is not None:
        q_pe, k_pe = llm.rope(q_pe), llm.rope(k_pe)
    # attn_k_b has a matrix per head, so the heads become the batch dimension of the product
    moved = llm.linear(il, "attn_k_b", g.permute(q_nope, 0, 2, 1, 3))
    moved = g.permute(moved, 0, 2, 1, 3)
    # the latent itself: attn_v_b is applied to attention's result (v_mla)
    v = g.reshape(compressed, compressed.ne[0], 1, n)
    if rope_first:
        return g.concat(q_pe, moved, 0), g.concat(k_pe, v, 0), v
    return g.concat(moved, q_pe, 0), g.concat(v, k_pe, 0), v


def expanded(
    llm: Llm,
    q: Tensor,
    compressed: Tensor,
    k_pe: Tensor,
    il: int,
    factors: Tensor | None = None,
    *,
    rope_first: bool = False,
) -> Qkv:
    """Return Q, K and V with separate keys and values for every head: `q` is [head_k, n_head,
    n_tokens]."""
    g, n = llm.graph, llm.n_tokens
    n_head, n_rot = q.ne[1], k_pe.ne[0]
    nope = q.ne[0] - n_rot
    if llm.pos is not None:
        q, k_pe = llm.rope_end(q, n_rot, factors, first=rope_first), llm.rope(k_pe, factors)
    kv = llm.linear(il, "attn_kv_b", compressed)
    # each head of kv: keys without rope, then values
    strides = (kv.nb[1] // n_head, kv.nb[1])
    head_v = kv.ne[0] // n_head - nope
    v = g.cont(g.view(kv, (head_v, n_head, n), strides, nope * kv.nb[0]))
    k_nope = g.view(kv, (nope, n_head, n), strides)
    # the rotated part is one for all heads, the cache wants it in each
    k_pe = g.repeat(k_pe, n_rot, n_head, n, 1)
    k = g.concat(k_pe, k_nope, 0) if rope_first else g.concat(k_nope, k_pe, 0)
    return q, k, v


class LatentAttention(Decoder):
    """The deepseek2 graph, with or without experts and absorbed weights."""

    def queries(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        """Return the queries, [head_k, n_head, n_tokens]; lite models have no latent for Q."""
        # lite: Q in one step
        weight = llm.layer_weight(il, "attn_q")
        if weight is None:
            cur = llm.rms_norm(il, "attn_q_a_norm", llm.linear(il, "attn_q_a", cur))
            weight = llm.need_layer(il, "attn_q_b")
        n_head = llm.hparams.n_head(il)
        return llm.graph.reshape(
            llm.build_lora_mm(weight, cur), weight.ne[1] // n_head, n_head, llm.n_tokens
        )

    def attention(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        mla = llm.hparams.is_mla
        q = self.queries(llm, cur, il)
        compressed, k_pe = latent(llm, cur, il)
        if mla:
            # the cache holds [rank + n_rot] per token, one head
            q, k, v = absorbed(llm, q, compressed, k_pe, il, rope_first=self.rope_first(llm))
        else:
            q, k, v = expanded(
                llm,
                q,
                compressed,
                k_pe,
                il,
                llm.rope_factors(il) if self.rope_factors else None,
                rope_first=self.rope_first(llm),
            )
            v = self.cached_v(llm, v)
        if llm.attn_temp is not None:
            q = llm.graph.mul(q, llm.attn_temp)
        v_mla = llm.layer_weight(il, "attn_v_b") if mla else None
        return llm.build_attn(q, k, v, il, mla=mla, v_mla=v_mla, wo_bias=False)

    def rope_first(self, llm: Llm) -> bool:
        """Whether heads begin with the rope part."""
        return False

    def cached_v(self, llm: Llm, v: Tensor) -> Tensor:
        """Return V as it is stored in a cache of full heads."""
        return v
