"""ALiBi or learned positions, Q and K normed over all heads (src/models/mpt.cpp)."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ...records import replace
from ..decoder import Decoder
from ..llm import Llm, Qkv


class Mpt(Decoder):
    def heads(self, llm: Llm, cur: Tensor, il: int) -> Qkv:
        g, hp, n = llm.graph, llm.hparams, llm.n_tokens
        q, k, v = llm.build_qkv(cur, il, roped=False)
        if llm.layer_weight(il, "attn_q_norm") is not None:
            head, n_head, n_kv = hp.head_k(il), hp.n_head(il), hp.n_head_kv(il)
            q, k = g.reshape(q, head * n_head, n), g.reshape(k, head * n_kv, n)
            q, k = self.qk_normed(llm, q, k, il, "layer")
            q, k = g.reshape(q, head, n_head, n), g.reshape(k, head, n_kv, n)
        return q, k, v

    def feed_forward(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        return llm.build_ffn(
            cur, il, "gelu", "seq", scales=False, act_scales=llm.weight(f"blk.{il}.ffn.act.scales")
        )

    def for_file(self, llm: Llm) -> Decoder:
        return replace(self, positions=llm.weight("position_embd.weight") is not None)


BUILDERS = {"mpt": Mpt(norm="layer", rope="none", act="gelu", gate="seq")}
