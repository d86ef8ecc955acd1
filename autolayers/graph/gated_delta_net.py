"""Gated delta nets, and the gated attention of models with delta nets. Sources:
src/models/delta-net-base.cpp, qwen35.cpp (as modelled)."""

from __future__ import annotations

from ..ggml.tensor import Tensor
from ..model.hparams import Hparams
from ..records import dataclass
from .delta_net_unfused import build_delta_net_autoregressive, build_delta_net_chunking
from .experts import Routing
from .llm import Llm
from .recurrent import F32, Hybrid, build_rs, keep_tails, n_cells, snapshots, state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal


# experts of the Qwen models with delta nets
ROUTING = Routing("softmax", norm_w=True, probs_b=None, biases=False, scales=True)


def build_conv_state(llm: Llm, states: Tensor, mixed: Tensor, kernel: int, channels: int) -> Tensor:
    """Return the last inputs of the convolution, then this batch's; the newest are stored."""
    g, n_states = llm.graph, snapshots(llm)
    before = g.reshape(build_rs(llm, states), kernel - 1, channels, llm.n_seqs)
    conv = g.concat(before, g.transpose(mixed), 0)
    # the window before each of the newest tokens, for a draft that may be rejected
    first = conv.ne[0] - before.ne[0]
    keep_tails(
        llm,
        conv,
        states,
        kernel - 1,
        [(max(0, first - slot), slot) for slot in reversed(range(n_states))],
    )
    return conv


def build_gdn_l2_norm(llm: Llm, x: Tensor) -> Tensor:
    """Build the L2 norm as llama.cpp does for gated delta nets: from an RMS norm, or as one op."""
    g = llm.graph
    return g.scale(g.rms_norm(x)) if llm.rules.l2_norm_of_rms else g.l2_norm(x)


def build_recurrent_attn(
    llm: Llm,
    states: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor,
    beta: Tensor,
    start: Tensor,
    il: int,
    flat: bool = False,
) -> Tensor:
    """Build the delta rule, as one fused op unless its probe refused that; the new states are
    stored.

    Returns the output, shaped as `v`. `flat`: the states are stored as one row (kimi-linear).
    """
    g, n_states = llm.graph, snapshots(llm)
    size, heads, n_tok, n_seqs = v.ne
    kind = "gdn_ch" if n_tok > 1 else "gdn_ar"
    # states for rollback exist in the fused op alone
    if not llm.fused_ops[kind] and n_states == 1:
        build = build_delta_net_chunking if n_tok > 1 else build_delta_net_autoregressive
        output, fresh = build(g, q, k, v, gate, beta, start)
        shape = (states.ne[0] * n_seqs,) if flat else (states.ne[0], n_seqs)
        g.expand(g.cpy(fresh, g.view(states, shape, () if flat else (states.nb[1],))))
        return output
    out = g.gated_delta_net(q, k, v, gate, beta, start, n_states)
    llm.fused_nodes.append((kind, out, il))
    # the op's result is one buffer: the output of all tokens, then the new states
    row, width = size * heads * F32, size * size * heads
    # views of one result: the output lives as long as the states are read
    output = g.view(out, (size, heads, n_tok, n_seqs), (size * F32, row, row * n_tok))
    offset = row * n_tok * n_seqs
    if n_states == 1:
        fresh = g.view(
            out, (size, size, heads, n_seqs), (size * F32, size * size * F32, width * F32), offset
        )
        shape = (states.ne[0] * n_seqs,) if flat else (states.ne[0], n_seqs)
        g.expand(g.cpy(fresh, g.view(states, shape, () if flat else (states.nb[1],))))
        return output
    # a state after each of the last tokens, one for each slot of the cache
    written = min(n_tok, n_states)
    fresh = g.view(out, (width, n_seqs, written), (width * F32, width * n_seqs * F32), offset)
    slot = n_cells(llm) * states.ne[0] * F32
    place = g.view(states, (width, n_seqs, written), (states.nb[1], slot))
    g.expand(g.cpy(fresh, place))
    return output


@dataclass(frozen=True)
class GatedDeltaNet(Hybrid):
    """Delta nets between layers of gated attention: qwen35's graph; subclasses override the steps
    that differ."""

    gate_act: Literal["SILU", "SIGMOID"] = "SILU"  # of the delta net's output

    def attention(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        g, hp, n = llm.graph, llm.hparams, llm.n_tokens
        if llm.rules.expands_norms:
            g.expand(cur)
        if hp.is_recr(il):
            return self.recurrent(llm, cur, il)
        head, n_head, n_head_kv = hp.head_v(0), llm.n_head, llm.n_head_kv
        # Q's matrix has each head's gate after the head
        both, k, v = llm.build_qkv(
            cur, il, n_head, n_head_kv, head, head, head_q=2 * head, reshape=False
        )
        q, gate = self.query_and_gate(llm, both, head, n_head)
        k, v = g.reshape(k, head, n_head_kv, n), g.reshape(v, head, n_head_kv, n)
        q, k = self.qk_normed(llm, q, k, il, "rms")
        q, k = llm.rope(q), llm.rope(k)
        out = llm.build_attn(q, k, v, il, wo=None)
        out = g.mul(out, self.opened(llm, gate))
        return llm.linear(il, "attn_output", out, scale=True)

    def opened(self, llm: Llm, gate: Tensor) -> Tensor:
        return llm.graph.unary("SIGMOID", gate)

    def query_and_gate(
        self, llm: Llm, both: Tensor, head: int, n_head: int
    ) -> tuple[Tensor, Tensor]:
        g, n = llm.graph, llm.n_tokens
        # a head and its gate take turns
        strides = (2 * head * F32, 2 * head * n_head * F32)
        q, gate = (g.view(both, (head, n_head, n), strides, at) for at in (0, head * F32))
        return q, g.cont(gate, head * n_head, n)

    def recurrent(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        g, hp, n_tok, n_seqs = llm.graph, llm.hparams, llm.n_seq_tokens, llm.n_seqs
        head_k, n_k, n_v = hp.ssm_d_state, hp.ssm_n_group, hp.ssm_dt_rank
        head_v = self.value_size(hp)
        mixed, z = self.qkvz(llm, cur, il)
        beta, gate = self.beta_and_gate(llm, cur, il)
        gate = g.unary("SOFTPLUS", g.add(gate, llm.need_layer(il, "ssm_dt", "bias")))
        # ssm_a is -exp(A_log) in the file
        gate = g.mul(gate, llm.need_layer(il, "ssm_a"))
        gate = g.reshape(gate, 1, n_v, n_tok, n_seqs)
        kernel = llm.need_layer(il, "ssm_conv1d")
        channels = 2 * head_k * n_k + head_v * n_v
        conv = self.conv_state(llm, state(llm, il, 0), mixed, kernel.ne[0] - 1, channels)
        # gathered before the convolution runs, as in llama.cpp
        start = g.reshape(build_rs(llm, state(llm, il, 1)), head_v, head_v, n_v, n_seqs)
        conv = g.unary("SILU", g.ssm_conv(conv, kernel))
        row = channels * F32
        # (size, heads, first channel) of Q, K and V in the convolution's result
        parts = ((head_k, n_k, 0), (head_k, n_k, head_k * n_k), (head_v, n_v, 2 * head_k * n_k))
        q, k, v = (
            g.view(conv, (size, heads, n_tok, n_seqs), (size * F32, row, row * n_tok), at * F32)
            for size, heads, at in parts
        )
        q, k = (self.repeat_heads(llm, build_gdn_l2_norm(llm, t), n_v) for t in (q, k))
        out = build_recurrent_attn(llm, state(llm, il, 1), q, k, v, gate, beta, start, il)
        # build_norm_gated: normed by head, then gated
        out = llm.build_norm(out, llm.need_layer(il, "ssm_norm"), None, "rms", il)
        out = g.mul(out, g.unary(self.gate_act, g.reshape(z, head_v, n_v, n_tok, n_seqs)))
        out = g.reshape(out, head_v * n_v, n_tok, n_seqs)
        return g.reshape(self.linear(llm, out, il, "ssm_out"), llm.n_embd, n_tok * n_seqs)

    def value_size(self, hp: Hparams) -> int:
        """Return the elements of one value head."""
        size: int = hp.ssm_d_inner // hp.ssm_dt_rank
        return size

    def conv_state(
        self, llm: Llm, states: Tensor, mixed: Tensor, columns: int, channels: int
    ) -> Tensor:
        return build_conv_state(llm, states, mixed, columns + 1, channels)

    def linear(self, llm: Llm, cur: Tensor, il: int, name: str) -> Tensor:
        return llm.linear(il, name, cur, scale=True)

    def qkvz(self, llm: Llm, cur: Tensor, il: int) -> tuple[Tensor, Tensor]:
        """Return (the convolution's input, the output's gate), as build_qkvz does."""
        mixed = self.linear(llm, cur, il, "attn_qkv")
        mixed = llm.graph.reshape(mixed, mixed.ne[0], llm.n_seq_tokens, llm.n_seqs)
        return mixed, self.linear(llm, cur, il, "attn_gate")

    def beta_and_gate(self, llm: Llm, cur: Tensor, il: int) -> tuple[Tensor, Tensor]:
        g, n_v, n_tok, n_seqs = llm.graph, llm.hparams.ssm_dt_rank, llm.n_seq_tokens, llm.n_seqs
        beta = g.unary(
            "SIGMOID", g.reshape(self.linear(llm, cur, il, "ssm_beta"), 1, n_v, n_tok, n_seqs)
        )
        return beta, g.reshape(self.linear(llm, cur, il, "ssm_alpha"), n_v, n_tok, n_seqs)

    def repeat_heads(self, llm: Llm, t: Tensor, n_v: int) -> Tensor:
        """Return Q or K with one head per value head; the fused op does not need that."""
        # both kinds are asked about, whichever this graph uses
        if llm.fused_ops["gdn_ar"] and llm.fused_ops["gdn_ch"]:
            return t
        return llm.graph.repeat(t, t.ne[0], n_v, *t.ne[2:]) if t.ne[1] != n_v else t
