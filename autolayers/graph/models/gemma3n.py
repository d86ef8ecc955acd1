"""AltUp: each layer predicts a stack of hidden states, computes one of them and corrects the rest
(src/models/gemma3n.cpp).
"""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ..llm import Llm
from .gemma4 import matrix, per_layer_inputs, query

_N_ALTUP = 4  # llama_hparams::n_altup; the active one is the first
# the first ones zero most of the FFN's gate (llama_model_gemma3n::graph::n_layer_sparsity)
_SPARSE_LAYERS = 10


class Gemma3n:
    def __call__(self, llm: Llm) -> Tensor:
        g, n = llm.graph, llm.n_tokens
        embd = llm.build_inp_embd(scale=True)
        llm.build_inp_pos()
        llm.inp = llm.build_attn_inp_kv_iswa()
        per_layer = per_layer_inputs(llm, embd, llm.need("per_layer_proj_norm.weight").ne[0])
        others = g.mul_mat(
            llm.need("altup_proj.weight"), g.repeat(embd, llm.n_embd, n, _N_ALTUP - 1, 1)
        )
        # [n_embd, n_tokens, n_altup], all of the same magnitude
        cur = g.concat(embd, self.rescaled(llm, others, embd), 2)
        for il in llm.layers:
            cur = self.layer(llm, cur, il, per_layer)
        # the stack becomes one again: the mean of all, each at the active one's magnitude
        others = g.mul_mat(llm.need("altup_unembd_proj.weight"), self.rest(llm, cur))
        others = self.rescaled(llm, others, matrix(llm, cur, 0))
        cur = matrix(llm, cur, 0)
        for i in range(_N_ALTUP - 1):
            cur = g.add(cur, matrix(llm, others, i))
        llm.build_inp_out_ids()
        cur = g.get_rows(g.scale(cur), llm.out_ids)
        cur = llm.finish(llm.output_norm(cur))
        return g.scale(g.unary("TANH", g.scale(cur)))

    def rescaled(self, llm: Llm, x: Tensor, like: Tensor) -> Tensor:
        """Return `x` with the magnitude of `like`."""
        g = llm.graph
        target = g.sqrt(g.sum_rows(g.sqr(like)))
        return g.div(g.mul(x, target), g.sqrt(g.sum_rows(g.sqr(x))))

    def rest(self, llm: Llm, x: Tensor) -> Tensor:
        """Return all of the stack except the active one."""
        return llm.graph.view(x, (x.ne[0], x.ne[1], _N_ALTUP - 1), x.nb[1:3], x.nb[2])

    def layer(self, llm: Llm, inp_l: Tensor, il: int, per_layer: Tensor) -> Tensor:
        g = llm.graph

        def normed(x: Tensor, name: str, pinned: bool = True) -> Tensor:
            return llm.build_norm(x, llm.layer_weight(il, name), None, "rms", il if pinned else -1)

        def linear(name: str, x: Tensor) -> Tensor:
            return llm.linear(il, name, x)

        predictions = self.predict(llm, inp_l, il)
        active = matrix(llm, predictions, 0)
        cur = normed(active, "attn_norm")
        # a low-rank residual around attention
        laurel = g.add(normed(linear("laurel_r", linear("laurel_l", cur)), "laurel_post_norm"), cur)
        # what attention computes is added to the prediction, not to the input
        cur = g.add(normed(self.attention(llm, cur, il), "post_attention_norm"), active)
        residual = g.scale(g.add(cur, laurel))
        cur = normed(residual, "ffn_norm")
        up, gate = linear("ffn_up", cur), linear("ffn_gate", cur)
        # activation_sparsity_pattern of the original: 95 % of the gate is zeroed there
        if il < _SPARSE_LAYERS:
            gate = self.sparse(llm, gate)
        cur = linear("ffn_down", g.mul(up, g.unary("GELU", gate)))
        cur = g.add(normed(cur, "post_ffw_norm", pinned=False), residual)
        corrected = self.correct(llm, predictions, cur, il)
        # the active one decides what the per-layer embedding adds to the others
        first = g.mul(matrix(llm, corrected, 0), llm.need_layer(il, "altup_correct_scale"))
        first = g.mul(g.unary("GELU", linear("inp_gate", first)), matrix(llm, per_layer, il))
        first = normed(linear("proj", first), "post_norm")
        head = matrix(llm, corrected, 0)
        return g.concat(head, g.add(self.rest(llm, corrected), first), 2)

    def attention(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        g = llm.graph
        # later layers read the cache of an earlier one, so they need Q alone
        if not llm.hparams.has_kv(il):
            weight = llm.layer_weight(il, "attn_qkv")
            q = query(
                llm,
                cur,
                None if weight is None else llm.build_lora_mm(weight, cur),
                il,
                scaled=False,
            )
            return llm.build_attn(llm.rope(q), None, None, il, wo_bias=False)
        q, k, v = llm.build_qkv(cur, il)
        q = llm.rms_norm(il, "attn_q_norm", q)
        k = llm.rms_norm(il, "attn_k_norm", k)
        return llm.build_attn(llm.rope(q), llm.rope(k), g.rms_norm(v), il, wo_bias=False)

    def sparse(self, llm: Llm, x: Tensor) -> Tensor:
        """Keep values above a multiple of the standard deviation (gaussian_topk)."""
        g = llm.graph
        mean = g.mean(x)
        deviation = g.sqrt(g.scale(g.sum_rows(g.sqr(g.sub(x, mean)))))
        return g.unary("RELU", g.sub(x, g.add(mean, g.scale(deviation))))

    def router_modalities(self, llm: Llm, x: Tensor, il: int) -> Tensor:
        """Mirror altup_compute_router_modalities."""
        g = llm.graph
        x = g.scale(llm.rms_norm(il, "altup_router_norm", x))
        return g.unary("TANH", llm.linear(il, "altup_router", x))

    def predict(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        """Mirror altup_predict."""
        g = llm.graph
        coefs = llm.linear(
            il, "altup_predict_coef", self.router_modalities(llm, matrix(llm, cur, 0), il)
        )
        # of every state to every state; they multiply [n_altup, n_embd, n_tokens]
        coefs = g.reshape(coefs, _N_ALTUP, _N_ALTUP, llm.n_tokens)
        made = g.mul_mat(g.cont(g.permute(cur, 1, 2, 0, 3)), coefs)
        return g.add(g.cont(g.permute(made, 0, 2, 1, 3)), cur)

    def correct(self, llm: Llm, predictions: Tensor, activated: Tensor, il: int) -> Tensor:
        """Mirror altup_correct."""
        g, n = llm.graph, llm.n_tokens
        modalities = self.router_modalities(llm, activated, il)
        innovation = g.sub(activated, matrix(llm, predictions, 0))
        # plus 1 (scale_bias): [n_altup, n_tokens]
        coefs = g.scale(llm.linear(il, "altup_correct_coef", modalities))
        coefs = g.cont(g.transpose(coefs), 1, n, _N_ALTUP)
        innovation = g.repeat(innovation, llm.n_embd, n, _N_ALTUP, 1)
        return g.add(g.mul(innovation, coefs), predictions)


BUILDERS = {"gemma3n": Gemma3n()}
