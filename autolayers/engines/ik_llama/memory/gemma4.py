"""ik_llama.cpp's graph of gemma4 (src/graphs/build_gemma4.cpp, 8337e4cd), where no layer is cut."""

from __future__ import annotations

from ....ggml.tensor import Tensor
from .graph import Builder, Family


class Gemma4Family(Family):
    """Layers may have an embedding each, whose inputs the builder keeps as `per_layer`."""

    def embed(self, b: Builder) -> Tensor:
        hp, own = b.hp, b.hp.n_layer_kv_from_start
        # let the last layers read the cache of the last one of their kind that has one
        # (llm_build_kqv)
        shared = [il for il in range(hp.n_layer) if not hp.has_kv(il)]
        last = {il: b.caches[own - (2 if hp.is_swa(il) else 1)] for il in shared}
        b.caches = {**b.caches, **last}
        cur = super().embed(b)
        b.per_layer = _per_layer_inputs(b, cur)
        return cur

    def ffn(self, b: Builder, il: int, inp: Tensor) -> Tensor:
        g = b.graph
        if b.of(il, "ffn_gate_inp") is None:
            cur = b.ffn(il, inp, "ffn_norm")
        else:
            # Build the dense network and the experts, both of the attention's result; the router
            # has a norm of its own.
            dense = b.ffn(il, inp, "ffn_norm")
            scaled = b.norm(inp, b.need(il, "ffn_gate_inp", "scale"))
            logits = b.mul_mat(il, "ffn_gate_inp", scaled)
            routed = b.moe(il, b.normed(il, inp, "pre_ffw_norm_2"), logits)
            norms = [b.need(il, f"post_ffw_norm_{i}") for i in (1, 2)]
            cur = g.like("FUSED_RMS_RMS_ADD", dense, norms[0], routed, norms[1])
            g.expand(cur)
        cur = g.add(b.normed(il, cur, "post_ffw_norm"), inp)
        if b.per_layer is not None:
            width, n = b.per_layer.ne[:2]
            part = g.view(b.per_layer, (width, n), (4 * width,), 4 * il * width * n)
            (part,) = b.picked(il, part)
            gated = g.like("FUSED_MUL_UNARY", b.mul_mat(il, "inp_gate", cur), part)
            cur = g.add(cur, b.normed(il, b.mul_mat(il, "proj", gated), "post_norm"))
        scale = b.of(il, "layer_output_scale")
        return cur if scale is None else g.mul(cur, scale)


def _per_layer_inputs(b: Builder, embedded: Tensor) -> Tensor | None:
    """Return an embedding of its own for each layer (gemma4_project_per_layer_inputs; E2B, E4B)."""
    g, table = b.graph, b.w("per_layer_token_embd.weight")
    if table is None:
        return None
    shape = table.ne[0] // b.hp.n_layer, b.hp.n_layer, b.tokens
    rows = g.get_rows(table, b.inp_tokens)
    g.expand(rows)
    selected = g.scale(g.reshape(rows, *shape))
    projected = g.reshape(g.mul_mat(b.outside("per_layer_model_proj"), embedded), *shape)
    projected = b.norm(projected, b.w("per_layer_proj_norm.weight"))
    both = g.scale(g.add(projected, selected))
    # by layers last, so that each layer's part is a view
    return g.cont(g.permute(both, 0, 2, 1, 3))


def gemma4_qkv(b: Builder, il: int, cur: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return them with V normed; without K and V in layers without a cache."""
    g, head, heads, n = b.graph, b.hp.head_v(il), b.hp.n_head_kv(il), b.tokens
    if b.hp.has_kv(il) and b.of(il, "attn_v") is not None:
        q, k, v = b.qkv(il, cur)
        return q, k, g.rms_norm(g.reshape(v, head, heads, n))
    q = b.by_head(il, b.mul_mat(il, "attn_q", cur), "q")
    if not b.hp.has_kv(il):
        return q, None, None
    # without a matrix of its own V is K's result
    made = b.mul_mat(il, "attn_k", cur)
    return q, b.by_head(il, made, "k"), g.rms_norm(g.reshape(made, head, heads, n))
