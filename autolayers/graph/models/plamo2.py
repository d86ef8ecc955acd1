"""Mamba with one decay per head, and B, C and dt normed (src/models/plamo2.cpp)."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ..llm import Llm
from ..recurrent import Hybrid, build_rs, n_cells, state


class Plamo2(Hybrid):
    def layer(self, llm: Llm, inp_l: Tensor, il: int) -> Tensor:
        # older builds leave rows out after the FFN, so it runs for all tokens
        if llm.rules.rows_before_ffn:
            return super().layer(llm, inp_l, il)
        g = llm.graph
        cur = self.attention(llm, self.normed(llm, inp_l, il, self.attn_norm), il)
        residual = g.add(self.normed(llm, cur, il, self.attn_post_norm), inp_l)
        cur = self.feed_forward(llm, self.normed(llm, residual, il, self.ffn_norm), il)
        cur = self.normed(llm, cur, il, self.ffn_post_norm, self.ffn_post_norm_pinned)
        cur, residual = llm.select_outputs(il, cur, residual)
        return g.add(cur, residual)

    def recurrent(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        """Mirror build_plamo2_mamba_layer."""
        g, hp, n_tok, n_seqs = llm.graph, llm.hparams, llm.n_seq_tokens, llm.n_seqs
        d_conv, d_inner, d_state = hp.ssm_d_conv, hp.ssm_d_inner, hp.ssm_d_state
        n_head = hp.ssm_dt_rank
        head = d_inner // n_head
        # n_group is 0 in this model: channels are d_inner (GGML_ASSERT)
        channels = d_inner + 2 * hp.ssm_n_group * d_state
        conv_all, ssm_all = state(llm, il, 0), state(llm, il, 1)
        conv = g.reshape(build_rs(llm, conv_all), d_conv - 1, channels, n_seqs)
        cur = g.reshape(cur, cur.ne[0], n_tok, n_seqs)
        # z and x take turns by head
        zx = g.permute(llm.linear(il, "ssm_in", cur), 0, 2, 1, 3)
        zx = g.cont(zx, 2 * head, n_head, n_tok, n_seqs)
        x, z = (
            g.view(zx, (head, n_head, n_tok, n_seqs), zx.nb[1:], at) for at in (head * zx.nb[0], 0)
        )
        x = g.cont(x, d_inner, n_tok, n_seqs)
        conv = g.concat(conv, g.transpose(x), 0)
        last = g.view(conv, (d_conv - 1, d_inner, n_seqs), conv.nb[1:3], n_tok * conv.nb[0])
        g.expand(g.cpy(last, g.view(conv_all, ((d_conv - 1) * channels * n_seqs,))))
        x = g.unary("SILU", g.ssm_conv(conv, llm.need_layer(il, "ssm_conv1d")))

        bcdt = llm.linear(il, "ssm_x", x)
        # B, C and dt; the rank of dt is not in the file (plamo2's own rule)
        widths = (d_state, d_state, max(64, hp.n_embd // 16))
        parts = [
            g.view(bcdt, (width, n_tok, n_seqs), bcdt.nb[1:3], i * d_state * bcdt.nb[0])
            for i, width in enumerate(widths)
        ]
        names = ("ssm_b_norm", "ssm_c_norm", "ssm_dt_norm")
        b, c, dt = (llm.rms_norm(il, name, part) for name, part in zip(names, parts, strict=True))
        dt = g.add(llm.linear(il, "ssm_dt", dt), llm.need_layer(il, "ssm_dt", "bias"))
        a = g.reshape(llm.need_layer(il, "ssm_a"), 1, n_head)
        shape = (head, n_head, n_tok, n_seqs)
        strides = (head * x.nb[0], d_inner * x.nb[0], d_inner * n_tok * x.nb[0])
        x = g.view(x, shape, strides)
        b, c = (
            g.view(t, (d_state, 1, n_tok, n_seqs), (d_state * t.nb[0], *t.nb[1:3])) for t in (b, c)
        )

        def scan(states: Tensor, ids: Tensor) -> Tensor:
            # the op gathers the sequences' states by `ids` itself, without a copy
            return g.ssm_scan(
                g.reshape(states, d_state, head, n_head, n_cells(llm)), x, dt, a, b, c, ids
            )

        y_ssm = build_rs(llm, ssm_all, scan)
        width = d_inner * d_state * n_seqs
        # behind the outputs of all tokens the op's result has the new states
        fresh = g.view(y_ssm, (width,), (), d_inner * n_tok * n_seqs * y_ssm.nb[0])
        g.expand(g.cpy(fresh, g.view(ssm_all, (width,))))
        y = g.view(y_ssm, shape, strides)
        y = g.add(y, g.mul(x, g.reshape(llm.need_layer(il, "ssm_d"), 1, n_head)))
        y = g.glu("SWIGLU", g.cont(z), y)
        y = g.view(y, (d_inner, n_tok, n_seqs), y.nb[2:])
        cur = llm.linear(il, "ssm_out", y)
        return g.reshape(cur, cur.ne[0], n_tok * n_seqs)


BUILDERS = {
    "plamo2": Plamo2(
        qkv_scales=False,
        qk_norm="head",
        wo_bias=False,
        attn_post_norm="post_attention_norm",
        act="swiglu",
        gate="seq",
        ffn_bias=False,
        ffn_post_norm="post_ffw_norm",
        ffn_post_norm_pinned=True,
    ),
}
