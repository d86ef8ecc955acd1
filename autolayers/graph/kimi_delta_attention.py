"""Kimi delta attention (KDA): gated delta nets with a decay per channel, between layers of latent
attention.

Sources: build_kda_layer and build_mla_layer of src/models/kimi-k3.cpp, bailingmoe3.cpp (as
modelled).
"""

from __future__ import annotations

from ..ggml.tensor import Tensor
from .gated_delta_net import build_gdn_l2_norm, build_recurrent_attn
from .latent_attention import absorbed, latent
from .llm import Llm
from .recurrent import F32, Hybrid, build_rs, n_cells, snapshots, state


class KimiDeltaAttention(Hybrid):
    """The bailingmoe3 graph; subclasses override the steps that differ."""

    expand_input = False  # the normed input comes before everything else in its layer
    flat_states = False  # states are stored as one row

    def attention(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        if self.expand_input:
            llm.graph.expand(cur)
        return self.recurrent(llm, cur, il) if llm.hparams.is_recr(il) else self.mla(llm, cur, il)

    # linear attention

    def recurrent(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        g, n_tok, n_seqs, n_head = llm.graph, llm.n_seq_tokens, llm.n_seqs, llm.n_head
        head = llm.hparams.n_embd_head_kda
        # gathered once for the three convolutions
        gathered = build_rs(llm, state(llm, il, 0))
        q, k, v = (
            self.conv(llm, gathered, il, part, x) for part, x in enumerate(self.qkv(llm, cur, il))
        )
        gate = g.reshape(self.decay(llm, cur, il), head, n_head, n_tok, n_seqs)
        # how much of a key's old value is replaced
        beta = llm.linear(il, "ssm_beta", cur)
        beta = g.unary("SIGMOID", g.reshape(beta, 1, n_head, n_tok, n_seqs))
        start = g.reshape(build_rs(llm, state(llm, il, 1)), head, head, n_head, n_seqs)
        q, k = build_gdn_l2_norm(llm, q), build_gdn_l2_norm(llm, k)
        out = build_recurrent_attn(
            llm, state(llm, il, 1), q, k, v, gate, beta, start, il, self.flat_states
        )
        out = g.cont(out)
        output_gate = g.reshape(self.output_gate(llm, cur, il), head, n_head, llm.n_tokens)
        out = g.reshape(out, head, n_head, llm.n_tokens)
        out = llm.build_norm(out, llm.need_layer(il, "ssm_norm"), None, "rms", il)
        out = g.cont(g.mul(out, g.unary("SIGMOID", output_gate)), head * n_head, llm.n_tokens)
        return llm.linear(il, "attn_output", out)

    def qkv(self, llm: Llm, cur: Tensor, il: int) -> list[Tensor]:
        return [llm.linear(il, f"attn_{x}", cur) for x in "qkv"]

    def conv(self, llm: Llm, gathered: Tensor, il: int, part: int, x: Tensor) -> Tensor:
        """Return Q, K or V, each with its third of the convolution's state."""
        g, hp, n_tok, n_seqs, n_head = (
            llm.graph,
            llm.hparams,
            llm.n_seq_tokens,
            llm.n_seqs,
            llm.n_head,
        )
        before, head = hp.ssm_d_conv - 1, hp.n_embd_head_kda
        width = head * n_head
        # Q, K and V have a third of each sequence's state
        shape, third = (before, width, n_seqs), before * width * F32
        strides = (before * F32, 3 * third)
        old = g.view(gathered, shape, strides, part * third)
        conv = g.concat(old, g.transpose(g.reshape(x, width, n_tok, n_seqs)), 0)
        for slot in range(self.slots(llm)):
            # the last columns after the newest token, and after those that a draft may take back
            tail = g.view(conv, shape, conv.nb[1:3], max(0, n_tok - slot) * F32)
            at = (slot * n_cells(llm) * 3 + part) * third
            g.expand(g.cpy(tail, g.view(state(llm, il, 0), shape, strides, at)))
        kernel = g.reshape(llm.need_layer(il, f"ssm_conv1d_{'qkv'[part]}"), hp.ssm_d_conv, width)
        out = g.unary("SILU", g.reshape(g.ssm_conv(conv, kernel), width, llm.n_tokens))
        return g.reshape(out, head, n_head, n_tok, n_seqs)

    def slots(self, llm: Llm) -> int:
        """Return how many states of the convolution are stored per sequence."""
        return min(llm.n_seq_tokens, snapshots(llm))

    def decay(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        """Return the logarithm of the decay: one element per channel and token."""
        g = llm.graph
        # a scaled sigmoid instead of kimi-linear's softplus
        gate = g.add(llm.linear(il, "ssm_f_a", cur), llm.need_layer(il, "ssm_dt", "bias"))
        gate = g.reshape(gate, llm.hparams.n_embd_head_kda, llm.n_head, llm.n_tokens)
        gate = g.mul(gate, self.decay_rates(llm, il))
        return g.scale(g.unary("SIGMOID", gate))

    def decay_rates(self, llm: Llm, il: int) -> Tensor:
        return llm.graph.reshape(llm.need_layer(il, "ssm_a"), 1, llm.n_head, 1)

    def output_gate(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        """Return the factor of the result, before the sigmoid."""
        return llm.linear(il, "ssm_g_a", cur)

    # latent attention

    def mla(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        q, k, v = absorbed(llm, self.queries(llm, cur, il), *latent(llm, cur, il), il)
        out = llm.build_attn(q, k, v, il, wo=None, mla=True, v_mla=llm.layer_weight(il, "attn_v_b"))
        return llm.linear(il, "attn_output", self.gated(llm, out, cur, il))

    def queries(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        g = llm.graph
        first = llm.layer_weight(il, "attn_q_a")
        if first is None:
            return llm.linear(il, "attn_q", cur)
        cur = llm.rms_norm(il, "attn_q_a_norm", g.mul_mat(first, cur))
        return llm.linear(il, "attn_q_b", cur)

    def gated(self, llm: Llm, out: Tensor, cur: Tensor, il: int) -> Tensor:
        """Return the result times one gate per head."""
        g, n, n_head, head = llm.graph, llm.n_tokens, llm.n_head, llm.hparams.n_embd_head_v_mla
        gate = llm.linear(il, "attn_gate", cur)
        gate = g.unary("SIGMOID", g.reshape(gate, 1, n_head, n))
        return g.cont(g.mul(g.reshape(out, head, n_head, n), gate), head * n_head, n)

    # the rest

    def feed_forward(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        if il < llm.hparams.n_layer_dense_lead:
            return llm.build_ffn(cur, il, scales=False, biases=False)
        return super().feed_forward(llm, cur, il)

    def head(self, llm: Llm, cur: Tensor) -> Tensor:
        llm.t_embd = llm.output(cur)
        return llm.graph.mul_mat(llm.need("output.weight"), cur)
