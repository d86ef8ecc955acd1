"""Short gated convolutions between layers of attention (src/models/lfm2.cpp, lfm2moe.cpp)."""

from __future__ import annotations

from ...builds import Rules
from ...ggml.tensor import Tensor
from ...records import replace
from ..experts import Routing
from ..llm import Llm
from ..recurrent import Hybrid, build_rs, keep_tails, state, tails


class Lfm2(Hybrid):
    """Embedding models also look ahead, and have no head."""

    def recurrent(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        g, hp, n_tok, n_seqs = llm.graph, llm.hparams, llm.n_seq_tokens, llm.n_seqs
        before = hp.n_shortconv_l_cache - 1
        cur = g.reshape(cur, cur.ne[0], n_tok, n_seqs)
        bcx = llm.linear(il, "shortconv.in_proj", cur)
        size = bcx.ne[0] // 3
        # b gates before the convolution, c after it
        b, c, x = (
            g.view(bcx, (size, *bcx.ne[1:3]), bcx.nb[1:3], part * size * bcx.nb[0])
            for part in range(3)
        )
        bx = g.transpose(g.mul(b, x))
        states = state(llm, il, 0)
        conv = g.reshape(build_rs(llm, states), before, llm.n_embd, n_seqs)
        if llm.cparams.causal:
            bx = g.concat(conv, bx, 0)
            slots = tails(llm, bx.ne[0], before)
        else:
            # a centred window: half of the past, zeros for the future
            pad = before // 2
            left = g.cont(
                g.view(conv, (pad, llm.n_embd, n_seqs), conv.nb[1:3], (before - pad) * conv.nb[0])
            )
            bx = g.pad(g.concat(left, bx, 0), pad)
            slots = [(bx.ne[0] - before, 0)]
        keep_tails(llm, bx, states, before, slots)
        y = g.mul(c, g.ssm_conv(bx, llm.need_layer(il, "shortconv.conv")))
        y = llm.linear(il, "shortconv.out_proj", y)
        return g.reshape(y, y.ne[0], n_tok * n_seqs)

    def head(self, llm: Llm, cur: Tensor) -> Tensor | None:
        if not llm.cparams.embeddings:
            return super().head(llm, cur)
        llm.t_embd = llm.output(cur)
        return None


_ROW = Lfm2(
    qk_norm="head",
    wo_bias=False,
    ffn_bias=False,
    ffn_scales=Rules.more_ffn_scales,
    residual_first=True,
    ffn_residual_first=True,
    final_norm="token_embd_norm",
)

BUILDERS = {
    "lfm2": _ROW,
    "lfm2moe": replace(_ROW, moe=Routing(norm_w=True, gate_up=None, biases=False)),
}
