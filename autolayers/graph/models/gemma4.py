"""Per-layer embeddings, and layers that read another's cache (src/models/gemma4.cpp)."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ..experts import Routing, build_moe_ffn
from ..llm import Llm


def matrix(llm: Llm, x: Tensor, index: int) -> Tensor:
    """Return the index-th matrix of a stack."""
    return llm.graph.view(x, x.ne[:2], (x.nb[1],), index * x.nb[2])


def per_layer_rows(llm: Llm) -> Tensor:
    g = llm.graph
    return g.get_rows(
        llm.need("per_layer_token_embd.weight"), g.input("inp_tokens", "i32", llm.n_tokens)
    )


def per_layer_inputs(llm: Llm, embd: Tensor, width: int, rows: Tensor | None = None) -> Tensor:
    """Return a matrix for each layer, from a second embedding, which may be given as `rows`, and a
    projection of the first (build_inp_per_layer and project_per_layer_inputs)."""
    g, n = llm.graph, llm.n_tokens
    if rows is not None:
        selected = g.reshape(g.scale(rows), width, llm.n_layer, n)
    else:
        selected = per_layer_rows(llm)
        selected = g.scale(g.reshape(selected, width, llm.n_layer, n))
        if llm.rules.layer_embd_with_input:
            g.expand(selected)
    projected = g.scale(g.mul_mat(llm.need("per_layer_model_proj.weight"), embd))
    projected = g.reshape(projected, width, llm.n_layer, n)
    projected = llm.build_norm(projected, llm.need("per_layer_proj_norm.weight"))
    both = g.add(projected, selected) if llm.rules.layer_embd_last else g.add(selected, projected)
    # [n_embd_per_layer, n_tokens, n_layer]: each layer reads one matrix
    return g.cont(g.permute(g.scale(both), 0, 2, 1, 3))


def query(llm: Llm, cur: Tensor, fused: Tensor | None, il: int, scaled: bool = True) -> Tensor:
    """Return Q, normed and before rope; a layer that reads another layer's cache needs nothing
    else."""
    g, hp = llm.graph, llm.hparams
    head, n_head = hp.head_k(il), hp.n_head(il)
    if fused is not None:
        q = g.cont(g.view(fused, (head * n_head, llm.n_tokens), (fused.nb[1],)))
    else:
        q = llm.linear(il, "attn_q", cur, scaled)
    return llm.rms_norm(il, "attn_q_norm", g.reshape(q, head, n_head, llm.n_tokens))


class Gemma4:
    keeps_inputs = True  # of its layers, for a draft

    def __call__(self, llm: Llm) -> Tensor:
        g = llm.graph
        per_layer = None
        twofold = llm.weight("per_layer_token_embd.weight") is not None
        # looked up first, so that it happens in the host's buffer
        if twofold and llm.rules.embeddings_first:
            per_layer = per_layer_rows(llm)
            g.expand(per_layer)
        cur = llm.build_inp_embd(scale=True)
        llm.build_inp_pos()
        llm.inp = llm.build_attn_inp_kv_iswa()
        llm.build_inp_out_ids()
        if twofold:
            per_layer = per_layer_inputs(llm, cur, llm.hparams.n_embd_per_layer, per_layer)
        for il in llm.layers:
            if il in llm.cparams.layer_inputs:
                llm.output(cur)
            cur = self.layer(llm, cur, il, per_layer)
        cur = llm.output_norm(cur)
        # a draft reads the normed state of every token (t_h_nextn), so rows are left out after it
        if llm.rules.gemma4_last_rows and not llm.crops_early:
            cur = g.get_rows(llm.output(cur), llm.out_ids)
        return self.head(llm, cur)

    def layer(self, llm: Llm, cur: Tensor, il: int, per_layer: Tensor | None) -> Tensor:
        g = llm.graph
        attn = self.attention(llm, llm.rms_norm(il, "attn_norm", cur), il)
        if llm.crops_early:
            attn, cur = llm.select_outputs(il, attn, cur)
        attn = llm.rms_norm(il, "post_attention_norm", attn)
        # older builds crop the last layer's rows before the sum
        early = il == llm.n_layer - 1 and not llm.rules.gemma4_last_rows
        if early:
            attn, cur = g.get_rows(attn, llm.out_ids), g.get_rows(cur, llm.out_ids)
        attn_out = g.add(attn, cur)
        cur = self.feed_forward(llm, attn_out, il)
        cur = g.add(llm.build_norm(cur, llm.layer_weight(il, "post_ffw_norm")), attn_out)
        if per_layer is not None:
            cropped = early or (llm.crops_early and il == llm.n_layer - 1)
            cur = self.with_embeddings(llm, cur, per_layer, il, llm.out_ids if cropped else None)
        scale = llm.layer_weight(il, "layer_output_scale")
        return cur if scale is None else g.mul(cur, scale)

    def head(self, llm: Llm, cur: Tensor) -> Tensor:
        """Return the logits of the normed hidden state."""
        g, logits = llm.graph, llm.finish(cur)
        if llm.hparams.f_final_logit_softcapping:
            logits = g.scale(g.unary("TANH", g.scale(logits)))
        if llm.hparams.suppresses_tokens and llm.rules.gemma4_logits_bias:
            logits = g.add(logits, g.new("f32", logits.ne[0]))
        return logits

    def with_embeddings(
        self, llm: Llm, cur: Tensor, per_layer: Tensor, il: int, rows: Tensor | None
    ) -> Tensor:
        """Return `cur` with the layer's own embeddings, of `rows` alone where the others were left
        out."""
        g = llm.graph
        gate = g.unary("GELU", llm.linear(il, "inp_gate", cur, scale=True))
        own = matrix(llm, per_layer, il)
        if rows is not None:
            own = g.get_rows(own, rows)
        extra = llm.linear(il, "proj", g.mul(gate, own))
        return g.add(cur, llm.rms_norm(il, "post_norm", extra))

    def attention(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        g, hp, n = llm.graph, llm.hparams, llm.n_tokens
        # proportional rope: rope_freqs is for layers of full attention
        factors = None if hp.is_swa(il) else llm.rope_factors(il)
        weight = llm.layer_weight(il, "attn_qkv")
        fused = (
            None
            if weight is None
            else llm.build_lora_mm(weight, cur, llm.layer_weight(il, "attn_qkv", "scale"))
        )
        q = llm.rope(query(llm, cur, fused, il), factors)
        # reads the cache of an earlier layer of its kind
        if not hp.has_kv(il):
            return llm.build_attn(q, None, None, il, wo_bias=False)
        head, n_head, n_kv = hp.head_k(il), hp.n_head(il), hp.n_head_kv(il)
        if fused is not None:
            width, size = head * n_kv, fused.nb[0]
            k = g.cont(g.view(fused, (width, n), (fused.nb[1],), head * n_head * size))
            v = g.cont(g.view(fused, (width, n), (fused.nb[1],), (head * n_head + width) * size))
        else:
            k = llm.linear(il, "attn_k", cur, scale=True)
            weight = llm.layer_weight(il, "attn_v")
            # layers without attn_v use K, before its norm, as V
            v = (
                k
                if weight is None
                else llm.build_lora_mm(weight, cur, llm.layer_weight(il, "attn_v", "scale"))
            )
        k = llm.rms_norm(il, "attn_k_norm", g.reshape(k, head, n_kv, n))
        v = g.rms_norm(g.reshape(v, head, n_kv, n))
        return llm.build_attn(q, llm.rope(k, factors), v, il, wo_bias=False)

    def feed_forward(self, llm: Llm, inp: Tensor, il: int) -> Tensor:
        """Build the FFN. In a layer with experts the dense FFN is the shared expert; the router
        reads its own norm of the input."""
        g = llm.graph

        def normed(x: Tensor, name: str) -> Tensor:
            return llm.rms_norm(il, name, x)

        cur = llm.build_ffn(normed(inp, "ffn_norm"), il, "gelu", biases=False)
        if llm.layer_weight(il, "ffn_gate_inp") is None:
            return cur
        shared = normed(cur, "post_ffw_norm_1")
        cur = normed(inp, "pre_ffw_norm_2")
        # the router works on attention's output, not on the norm that the experts read
        router = g.mul(g.scale(g.rms_norm(inp)), llm.need_layer(il, "ffn_gate_inp", "scale"))
        logits = llm.linear(il, "ffn_gate_inp", router)
        cur = build_moe_ffn(llm, cur, il, _ROUTING, probs_in=logits)
        return g.add(shared, normed(cur, "post_ffw_norm_2"))


_ROUTING = Routing(
    "softmax", norm_w=True, w_scale=0.0, act="gelu", probs_b=None, biases=False, scales=True
)

BUILDERS = {"gemma4": Gemma4()}
