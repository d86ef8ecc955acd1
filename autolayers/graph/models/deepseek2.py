"""DeepSeek-V2 and V3, Mistral 4 (src/models/deepseek2.cpp, mistral4.cpp)."""

from __future__ import annotations

from ...records import replace
from ..decoder import Decoder
from ..experts import Routing
from ..latent_attention import LatentAttention
from ..llm import Llm


class DeepSeek2(LatentAttention):
    def for_file(self, llm: Llm) -> Decoder:
        """Return the decoder with the gating of GLM-4.7-Flash, which came without its name
        (llama_model_deepseek2::load_arch_hparams)."""
        hp = llm.hparams
        unnamed = not hp.expert_gating_func and hp.n_layer in (47, 48) and hp.n_vocab == 154880
        return replace(self, moe=Routing("sigmoid")) if unnamed else self

    def rope_first(self, llm: Llm) -> bool:
        return llm.rules.ropes_first


class Mistral4(LatentAttention):
    def for_file(self, llm: Llm) -> Decoder:
        return self if llm.rules.mistral4_f32_down else replace(self, moe=Routing())


BUILDERS = {
    "deepseek2": DeepSeek2(
        temperature=None, wo_bias=False, ffn_bias=False, moe=Routing(), shexp="add"
    ),
    "mistral4": Mistral4(
        temperature=None,
        wo_bias=False,
        ffn_bias=False,
        shexp="add",
        # activations leave the range of f16
        moe=Routing(down_param="src1_f32"),
    ),
}
