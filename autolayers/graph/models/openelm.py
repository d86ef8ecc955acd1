"""Head counts differ by layer within one fused QKV (src/models/openelm.cpp)."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ..decoder import Decoder
from ..llm import Llm, Qkv


class OpenElm(Decoder):
    def heads(self, llm: Llm, cur: Tensor, il: int) -> Qkv:
        g, hp, n = llm.graph, llm.hparams, llm.n_tokens
        n_head, n_kv, head = hp.n_head(il), hp.n_head_kv(il), hp.head_v(0)
        cur = g.reshape(llm.linear(il, "attn_qkv", cur), hp.head_k(0), n_head + 2 * n_kv, n)
        # heads of Q, K and V follow each other: [head, n_head + 2 n_kv, n_tokens]
        strides = cur.nb[1:3]
        q = g.view(cur, (head, n_head, n), strides)
        k = g.view(cur, (head, n_kv, n), strides, cur.nb[1] * n_head)
        v = g.view(cur, (head, n_kv, n), strides, cur.nb[1] * (n_head + n_kv))
        if not llm.rules.views_openelm_v:
            v = g.cont(v)
        return *self.qk_normed(llm, q, k, il, "rms"), v


BUILDERS = {"openelm": OpenElm(residual_first=True)}
