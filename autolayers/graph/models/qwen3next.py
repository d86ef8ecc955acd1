"""Gated delta nets with their projections interleaved by head (src/models/qwen3next.cpp)."""

from __future__ import annotations

from ...builds import Rules
from ...ggml.tensor import Tensor
from ..gated_delta_net import ROUTING, GatedDeltaNet
from ..llm import Llm
from ..recurrent import F32


class Qwen3Next(GatedDeltaNet):
    def query_and_gate(
        self, llm: Llm, both: Tensor, head: int, n_head: int
    ) -> tuple[Tensor, Tensor]:
        g, n = llm.graph, llm.n_tokens
        # by head: the query, then its gate
        both = g.reshape(both, 2 * head, n_head, n, 1)
        q, gate = (g.view(both, (head, n_head, n, 1), both.nb[1:], at) for at in (0, head * F32))
        return q, g.cont(gate, head * n_head, n)

    def opened(self, llm: Llm, gate: Tensor) -> Tensor:
        opened = super().opened(llm, gate)
        # not in place
        return (
            opened if llm.rules.qwen3next_last_rows else llm.graph.reshape(opened, *opened.ne[:2])
        )

    def linear(self, llm: Llm, cur: Tensor, il: int, name: str) -> Tensor:
        return llm.linear(il, name, cur)

    def qkvz(self, llm: Llm, cur: Tensor, il: int) -> tuple[Tensor, Tensor]:
        if llm.layer_weight(il, "attn_qkv") is not None:
            return super().qkvz(llm, cur, il)
        # files of the first converter: one matrix, by key head (legacy path of build_qkvz)
        g, hp, n_tok, n_seqs = llm.graph, llm.hparams, llm.n_seq_tokens, llm.n_seqs
        head_k, n_k = hp.ssm_d_state, hp.ssm_n_group
        head_v = hp.ssm_d_inner // n_k  # of all value heads that share a key head
        sizes = (head_k, head_k, head_v, head_v)
        both = g.reshape(self.linear(llm, cur, il, "ssm_in"), sum(sizes), n_k, n_tok, n_seqs)
        q, k, v, z = (
            g.view(both, (size, n_k, n_tok, n_seqs), both.nb[1:], sum(sizes[:i]) * F32)
            for i, size in enumerate(sizes)
        )
        z = g.cont(z)
        q, k, v = (g.cont(t, t.ne[0] * n_k, n_tok, n_seqs) for t in (q, k, v))
        return g.concat(g.concat(q, k, 0), v, 0), z

    def beta_and_gate(self, llm: Llm, cur: Tensor, il: int) -> tuple[Tensor, Tensor]:
        g, hp, n_tok, n_seqs = llm.graph, llm.hparams, llm.n_seq_tokens, llm.n_seqs
        n_k, n_v = hp.ssm_n_group, hp.ssm_dt_rank
        per = n_v // n_k
        # by key head: the betas of its value heads, then their alphas
        both = g.reshape(self.linear(llm, cur, il, "ssm_ba"), 2 * per, n_k, n_tok, n_seqs)
        b, a = (g.view(both, (per, n_k, n_tok, n_seqs), both.nb[1:], at) for at in (0, per * F32))
        beta = g.unary("SIGMOID", g.cont(b))
        return g.reshape(beta, 1, n_v, n_tok, n_seqs), g.cont(a, n_v, n_tok, n_seqs)

    def repeat_heads(self, llm: Llm, t: Tensor, n_v: int) -> Tensor:
        g = llm.graph
        size, n_k, n_tok, n_seqs = t.ne
        if n_k == n_v:
            return t
        t = g.reshape(t, size, 1, n_k, n_tok * n_seqs)
        return g.reshape(
            g.repeat(t, size, n_v // n_k, n_k, n_tok * n_seqs), size, n_v, n_tok, n_seqs
        )


BUILDERS = {
    "qwen3next": Qwen3Next(
        ffn_norm="post_attention_norm",
        ffn_scales=True,
        ffn_bias=False,
        select="last",
        select_before=((Rules.qwen3next_last_rows, "attention"),),
        moe=ROUTING,
        shexp="gated",
    ),
}
