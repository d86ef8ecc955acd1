"""ik_llama.cpp's graph of gemma4 (src/graphs/build_gemma4.cpp, 8337e4cd), where no layer is cut."""

from __future__ import annotations

from ....ggml.tensor import Tensor
from .graph import Experts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .graph import Builder


def gemma4(b: Builder) -> Tensor:
    """Mirror build_gemma4."""
    g, hp = b.graph, b.hp
    # let the last layers read the cache of the last one of their kind that has one (llm_build_kqv)
    own = b.hp.n_layer_kv_from_start
    shared = [il for il in range(hp.n_layer) if not hp.has_kv(il)]
    b.caches = {**b.caches, **{il: b.caches[own - (2 if hp.is_swa(il) else 1)] for il in shared}}
    embedded = b.embeddings()
    cur = g.scale(embedded)
    pos, mask, window = b.positions(), b.mask(), b.mask()
    ids = b.output_ids() if b.tokens > 1 else None
    per_layer = _per_layer_inputs(b, embedded.src[1], cur)
    for il in range(hp.n_layer):
        slides = hp.is_swa(il)
        rows = ids if il == hp.n_layer - 1 else None
        # e.g. "rope_freqs.weight@5": layers with a window turn without factors
        factors = None if slides else b.w(f"rope_freqs.weight@{il}")
        attended = _attention(b, il, cur, pos, rows, window if slides else mask, factors)
        if b.of(il, "ffn_gate_inp.weight") is None:
            cur = b.ffn(il, attended, b.of(il, "ffn_norm.weight"), "GELU")
            cur = b.norm(cur, b.of(il, "post_ffw_norm.weight"))
        else:
            # Build the dense network and the experts, both of the attention's result; the router
            # has a norm of its own.
            dense = b.norm(attended, b.of(il, "ffn_norm.weight"))
            dense = b.ffn(il, dense, None, "GELU")
            routed = b.norm(attended, b.of(il, "pre_ffw_norm_2.weight"))
            scaled = b.norm(attended, b.need(il, "ffn_gate_inp.scale"))
            logits = b.graph.mul_mat(b.need(il, "ffn_gate_inp.weight"), scaled)
            routed = b.moe(il, routed, Experts("GELU", normalised=True, bias=False), logits=logits)
            norms = [b.need(il, f"post_ffw_norm_{i}.weight") for i in (1, 2)]
            sources = (dense, norms[0], routed, norms[1])
            both = Tensor("FUSED_RMS_RMS_ADD", "f32", dense.ne, sources)
            b.graph.expand(both)
            cur = b.norm(both, b.of(il, "post_ffw_norm.weight"))
        cur = g.add(cur, attended)
        if per_layer is not None:
            width, n = per_layer.ne[0], per_layer.ne[1]
            part = g.view(per_layer, (width, n), (4 * width,), 4 * il * width * n)
            if rows is not None:
                part = g.get_rows(part, rows)
            gated = g.mul_mat(b.need(il, "inp_gate.weight"), cur)
            gated = Tensor("FUSED_MUL_UNARY", "f32", gated.ne, (gated, part), param="GELU")
            made = g.mul_mat(b.need(il, "proj.weight"), gated)
            cur = g.add(cur, b.norm(made, b.of(il, "post_norm.weight")))
        scale = b.of(il, "layer_output_scale.weight")
        if scale is not None:
            cur = g.mul(cur, scale)
    cur = b.head(cur)
    capped = bool(hp.get("final_logit_softcapping"))
    return Tensor("SOFTCAP", "f32", cur.ne, (cur,)) if capped else cur


def _per_layer_inputs(b: Builder, tokens: Tensor, embedded: Tensor) -> Tensor | None:
    """Return an embedding of its own for each layer (gemma4_project_per_layer_inputs; E2B, E4B)."""
    g, table = b.graph, b.w("per_layer_token_embd.weight")
    if table is None:
        return None
    width = table.ne[0] // b.hp.n_layer
    rows = g.get_rows(table, tokens)
    g.expand(rows)
    selected = g.scale(g.reshape(rows, width, b.hp.n_layer, b.tokens))
    matrix = b.w("per_layer_model_proj.weight")
    assert matrix is not None
    projected = g.reshape(g.mul_mat(matrix, embedded), width, b.hp.n_layer, b.tokens)
    projected = b.norm(projected, b.w("per_layer_proj_norm.weight"))
    both = g.scale(g.add(projected, selected))
    # by layers last, so that each layer's part is a view
    return g.cont(g.permute(both, 0, 2, 1, 3))


def _attention(
    b: Builder,
    il: int,
    start: Tensor,
    pos: Tensor,
    ids: Tensor | None,
    mask: Tensor,
    factors: Tensor | None,
) -> Tensor:
    """Mirror build_std_attention with V normed; or, without V's matrix or without a cache, as
    build_gemma4 writes it out."""
    g, hp = b.graph, b.hp
    head, heads, heads_kv, n = hp.head_k(il), hp.n_head(il), hp.n_head_kv(il), b.tokens
    cur = b.norm(start, b.of(il, "attn_norm.weight"))
    k = v = None
    if hp.has_kv(il) and b.of(il, "attn_v.weight") is not None:
        q, k, v = b.qkv_normed(il, cur)
        v = g.rms_norm(g.reshape(v, hp.head_v(il), heads_kv, n))
    else:
        q = g.reshape(g.mul_mat(b.need(il, "attn_q.weight"), cur), head, heads, n)
        q = b.norm(q, b.of(il, "attn_q_norm.weight"))
        if hp.has_kv(il):
            made = g.mul_mat(b.need(il, "attn_k.weight"), cur)
            k = b.norm(g.reshape(made, head, heads_kv, n), b.of(il, "attn_k_norm.weight"))
            v = g.rms_norm(g.reshape(made, head, heads_kv, n))
    q = g.rope(q, pos, factors)
    if k is not None:
        k = g.rope(k, pos, factors)
    cur = b.kv(il, k, v, q, mask, b.of(il, "attn_output.weight"), None)
    if ids is not None:
        cur, start = g.get_rows(cur, ids), g.get_rows(start, ids)
    cur = b.norm(cur, b.of(il, "post_attention_norm.weight"))
    return g.add(cur, start)
