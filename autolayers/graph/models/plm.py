"""Latent attention whose V only fits a transposed cache (src/models/plm.cpp)."""

from __future__ import annotations

from ...errors import LaunchRefused
from ...ggml.tensor import Tensor
from ..latent_attention import LatentAttention
from ..llm import Llm


class Plm(LatentAttention):
    def attention(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        if not llm.cparams.v_trans and llm.n_tokens > 1:
            raise LaunchRefused(
                "llama.cpp aborts on plm unless flash attention is off (ggml_set_rows); pass -fa "
                "off"
            )
        return super().attention(llm, cur, il)

    def cached_v(self, llm: Llm, v: Tensor) -> Tensor:
        """Return V with all tokens as one row."""
        return llm.graph.view(v, (v.ne[0] * v.ne[1], v.ne[2]), (v.nb[2],))


BUILDERS = {"plm": Plm(wo_bias=False, ffn_bias=False, act="relu_sqr", gate="seq")}
