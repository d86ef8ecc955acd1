"""Lightning attention; residuals start from the normed inputs (src/models/minimax-01.cpp)."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ..experts import Routing
from ..llm import Llm
from ..recurrent import F32, Hybrid, build_rs, state


class MiniMax01(Hybrid):
    def __call__(self, llm: Llm) -> Tensor | None:
        g, n_tok, n_seqs, n_head = llm.graph, llm.n_seq_tokens, llm.n_seqs, llm.n_head
        cur = llm.build_inp_embd()
        llm.build_inp_pos()
        llm.inp = llm.build_attn_inp()
        llm.build_inp_out_ids()
        slopes = g.input("slopes", "f32", n_head)
        # exponents are inputs, so that one graph serves every layer: a layer only scales them
        decays = [g.input(f"{x}_decay_exp", "f32", 1, n_head, n_tok, n_seqs) for x in "qk"]
        decays.append(g.input("diag_decay_exp", "f32", n_tok, n_tok, n_head, n_seqs))
        for il in llm.layers:
            residual = self.normed(llm, cur, il, "attn_norm")
            if llm.hparams.is_recr(il):
                cur = self.lightning(llm, residual, il, slopes, decays)
            else:
                cur = self.attention(llm, residual, il)
            cur, residual = llm.select_outputs(il, cur, residual)
            cur = self.normed(llm, g.add(cur, g.scale(residual)), il, "ffn_norm")
            cur = g.add(self.feed_forward(llm, cur, il), g.scale(cur))
        return self.head(llm, llm.output_norm(cur))

    def lightning(
        self, llm: Llm, cur: Tensor, il: int, slopes: Tensor, decays: list[Tensor]
    ) -> Tensor:
        """Build linear attention in blocks: by scores within the batch, by the state for everything
        before it."""
        g, n_tok, n_seqs = llm.graph, llm.n_seq_tokens, llm.n_seqs
        n_head, head = llm.n_head, llm.head_v
        # this architecture has no convolution, yet llama.cpp clears and copies that state
        build_rs(llm, state(llm, il, 0))
        slope = g.scale(slopes)
        cur = g.reshape(cur, cur.ne[0], n_tok, 1, n_seqs)
        qkv = g.unary("SILU", llm.linear(il, "attn_qkv", cur))
        qkv = g.reshape(qkv, 3 * head, n_head, n_tok, n_seqs)
        q, k, v = (
            g.view(qkv, (head, n_head, n_tok, n_seqs), qkv.nb[1:], part * head * F32)
            for part in range(3)
        )
        states = state(llm, il, 1)
        old = g.reshape(build_rs(llm, states), head, head, n_head, n_seqs)
        q_decay, k_decay, diagonal = (g.unary("EXP", g.scale(t)) for t in decays)
        # from the state, which holds everything before the batch
        before = g.mul_mat(old, g.permute(g.mul(q, q_decay), 0, 2, 1, 3))
        # within the batch, with the decay between each pair of tokens
        scores = g.mul_mat(g.permute(k, 0, 2, 1, 3), g.permute(q, 0, 2, 1, 3))
        scores = g.mul(scores, diagonal)
        v = g.cont(g.permute(v, 1, 2, 0, 3))
        out = g.add(before, g.mul_mat(v, scores))
        g.expand(out)
        block = g.reshape(g.unary("EXP", g.scale(slope)), 1, 1, n_head)
        k = g.cont(g.permute(g.mul(k, k_decay), 1, 2, 0, 3))
        # the old state decays over the batch, then the batch is added
        new = g.add(g.mul(old, block), g.mul_mat(k, v))
        g.expand(g.cpy(new, g.view(states, (states.ne[0] * n_seqs,))))
        out = g.cont(g.permute(out, 0, 2, 1, 3))
        out = g.reshape(out, out.ne[0] * out.ne[1], out.ne[2], 1, out.ne[3])
        out = llm.build_norm(out, llm.need_layer(il, "attn_norm_2"), None, "rms", il)
        gate = g.unary("SIGMOID", llm.linear(il, "attn_gate", cur))
        out = llm.linear(il, "attn_output", g.mul(gate, out))
        return g.reshape(out, out.ne[0], n_tok * n_seqs)


BUILDERS = {
    "minimax-01": MiniMax01(
        wo_bias=False, moe=Routing("softmax", norm_w=True, gate_up=None, biases=False)
    ),
}
