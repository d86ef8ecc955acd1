"""A norm inside the FFN; the head is the embedding matrix on its own device
(src/models/bitnet.cpp)."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ..decoder import Decoder
from ..llm import Llm


class BitNet(Decoder):
    def feed_forward(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        cur = llm.build_ffn(cur, il, down=None, biases=False)
        cur = self.normed(llm, cur, il, "ffn_sub_norm")
        return llm.linear(il, "ffn_down", cur, scale=True)

    def head(self, llm: Llm, cur: Tensor) -> Tensor:
        # llama.cpp creates no output matrix here, so the product is where the embeddings are
        return llm.build_lora_mm(llm.need("token_embd.weight"), llm.finish(cur, head=None))


BUILDERS = {"bitnet": BitNet(out_norm="attn_sub_norm")}
