"""EmbeddingGemma 2: a projection of the embeddings for each layer
(src/models/gemma-embedding2.cpp)."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ..decoder import Encoder
from ..llm import Llm, Qkv
from .gemma4 import matrix


class GemmaEmbedding2(Encoder):
    def build(self, llm: Llm) -> Tensor | None:
        cur = llm.build_inp_embd(scale=True)
        llm.build_inp_pos()
        llm.inp = self.inputs(llm)
        llm.build_inp_out_ids()
        per_layer = self.per_layer_inputs(llm, cur)
        for il in llm.layers:
            cur = self.layer(llm, cur, il)
            cur = self.with_per_layer(
                llm, cur, il, llm.select_outputs(il, matrix(llm, per_layer, il))[0]
            )
        return self.head(llm, llm.build_norm(cur, llm.need("output_norm.weight")))

    def per_layer_inputs(self, llm: Llm, embd: Tensor) -> Tensor:
        """Return a matrix for each layer (build_inp_per_layer)."""
        g, width = llm.graph, llm.hparams.n_embd_per_layer
        # unlike in Gemma 4 there is no second embedding: the projection is all
        cur = g.scale(g.mul_mat(llm.need("per_layer_model_proj.weight"), embd))
        cur = llm.build_norm(
            g.reshape(cur, width, llm.n_layer, llm.n_tokens), llm.need("per_layer_proj_norm.weight")
        )
        # [n_embd_per_layer, n_tokens, n_layer]: each layer reads one matrix
        return g.cont(g.permute(cur, 0, 2, 1, 3))

    def with_per_layer(self, llm: Llm, cur: Tensor, il: int, mine: Tensor) -> Tensor:
        g = llm.graph
        gate = g.unary("GELU", llm.linear(il, "inp_gate", cur))
        extra = llm.linear(il, "proj", g.mul(gate, mine))
        return g.mul(
            g.add(cur, llm.rms_norm(il, "post_norm", extra)),
            llm.need_layer(il, "layer_output_scale"),
        )

    def heads(self, llm: Llm, cur: Tensor, il: int) -> Qkv:
        """Return them with V normed too, without a weight."""
        g, hp, n = llm.graph, llm.hparams, llm.n_tokens
        q, k, v = (llm.linear(il, name, cur, scale=True) for name in ("attn_q", "attn_k", "attn_v"))
        head, n_kv = hp.head_k(il), hp.n_head_kv(il)
        q = llm.rms_norm(il, "attn_q_norm", g.reshape(q, head, hp.n_head(il), n))
        k = llm.rms_norm(il, "attn_k_norm", g.reshape(k, head, n_kv, n))
        return q, k, g.rms_norm(g.reshape(v, head, n_kv, n))

    def head(self, llm: Llm, cur: Tensor) -> Tensor:
        """Return the output matrix's product, which is the embeddings, not logits."""
        return llm.finish(
            llm.build_lora_mm(llm.need("output.weight"), cur, llm.weight("output.scale")), head=None
        )


BUILDERS = {
    "gemma-embedding2": GemmaEmbedding2(
        wo_bias=False,
        attn_post_norm="post_attention_norm",
        act="gelu",
        ffn_bias=False,
        ffn_scales=True,
        ffn_post_norm="post_ffw_norm",
    )
}
