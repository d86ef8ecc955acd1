"""The graphs of all plain architectures: one row each, the difference to llama. A graph that needs
code is in models/.

A row mirrors build_arch_graph of the architecture's file in llama.cpp's src/models (as modelled).
"""

from __future__ import annotations

from ..builds import Rules
from ..model.hparams import Hparams
from ..records import replace
from .decoder import Decoder, Encoder, Gated
from .experts import Routing


def slides(hp: Hparams, il: int) -> bool:
    return hp.is_swa(il)


# EXAONE 4 ropes the sliding layers of its large model, and all of the small one, which has no
# window
def _slides_or_nothing_does(hp: Hparams, il: int) -> bool:
    return hp.is_swa(il) or hp.swa_type == "none"


# SmolLM3 and AFMoE have layers without positions (NoPE)
def _all_but_every_fourth(hp: Hparams, il: int) -> bool:
    return (il + 1) % 4 != 0


# Baichuan 7B has rope, 13B (40 layers) has ALiBi
def _has_32_layers(hp: Hparams, il: int) -> bool:
    return hp.n_layer == 32


# expert weights: the file's keys decide (Routing()), or softmax with the key's scale, or softmax
# without a scale
_SOFTMAX = Routing("softmax", norm_w=True, probs_b=None)
_UNNORMED = Routing("softmax", norm_w=False, probs_b=None)
_UNSCALED = Routing("softmax", norm_w=True, w_scale=0.0)
_LLAMA_MOE = replace(_UNSCALED, scales=True)

_GPT = Decoder(norm="layer", act="gelu", gate="seq")  # layer norms, biases, two-matrix FFN
_GEMMA3 = Decoder(
    embed_scale="tokens",
    qk_norm="head",
    q_scale=True,
    attn_post_norm="post_attention_norm",
    act="gelu",
    ffn_post_norm="post_ffw_norm",
    final_cap=None,
)
_GRANITE = Decoder(
    rope="key", rope_factors=True, residual_scale=None, logit_scale=True, moe=_UNSCALED, shexp="add"
)
_HUNYUAN = Decoder(rope_factors=True, qk_norm="after")
# norms come after attention and FFN only
_OLMO2 = Decoder(
    attn_norm=None,
    qk_norm="flat",
    attn_post_norm="post_attention_norm",
    ffn_norm=None,
    ffn_post_norm="post_ffw_norm",
)
_QWEN2 = Decoder(ffn_bias=False)
_BIASLESS = Decoder(wo_bias=False, ffn_bias=False)

BUILDERS = {
    "llama": Decoder(rope_factors=True, ffn_scales=True, moe=_LLAMA_MOE),
    # the same layers, read in both directions
    "llama-embed": Encoder(rope_factors=True, ffn_scales=True, moe=_LLAMA_MOE),
    "mistral3": Decoder(
        rope_factors=True, temperature=None, ffn_scales=True, moe=replace(_SOFTMAX, scales=True)
    ),
    # squared ReLU instead of a gate
    "arcee": Decoder(rope_factors=True, act="relu_sqr", gate="seq"),
    "exaone": Decoder(rope_factors=True),
    "pangu-embedded": Decoder(head_bias=True),
    "qwen": Decoder(),
    "internlm2": Decoder(),
    "seed_oss": Decoder(ffn_norm="post_attention_norm"),
    "baichuan": Decoder(rope=_has_32_layers),
    "smollm3": Decoder(rope=_all_but_every_fourth),
    "maincoder": Decoder(qk_norm="after"),
    "hunyuan-dense": _HUNYUAN,
    "hunyuan_vl": _HUNYUAN,
    # xIELU: an activation with learned parameters, no gate
    "apertus": Decoder(rope_factors=True, qk_norm="head", act="xielu", gate=None, ffn_bias=False),
    "spark2_5": Gated(gate_heads=True, qk_norm="head", wo_bias=False, act="gelu"),
    "qwen2": Decoder(head_bias=True, ffn_scales=Rules.more_ffn_scales),
    "dream": _QWEN2,
    "xverse": _QWEN2,
    "paddleocr": _QWEN2,
    "qwen2vl": _QWEN2,
    "qwen3": Decoder(qk_norm="head", rope_factors=True, ffn_scales=True),
    "qwen3vl": Decoder(qk_norm="head", ffn_bias=False, deepstack=True),
    "qwen3tts": Decoder(qk_norm="head", ffn_bias=False, deepstack=True),
    "llada": _BIASLESS,
    "ernie4_5": _BIASLESS,
    # ALiBi: positions are in the mask, not in an input
    "refact": replace(_BIASLESS, inp_pos=False),
    "eurobert": Encoder(wo_bias=False, ffn_bias=False),
    # one matrix for gate and up, which SWIGLU reads in halves
    "neo-bert": Encoder(
        wo_bias=False, ffn_bias=False, act="swiglu", gate=None, final_norm="enc.output_norm"
    ),
    # all rows go through the last layer
    "cogvlm": Decoder(qkv_scales=False, wo_bias=False, select=""),
    # FFN and attention read the same norm (parallel)
    "phi2": replace(_GPT, head_bias=True, q_scale=True, parallel="afr"),
    "phi3": Decoder(
        head_bias=True,
        rope_factors=True,
        q_scale=True,
        act="swiglu",
        gate="seq",
        ffn_residual_first=True,
        moe=_UNSCALED,
    ),
    # gate and up are one matrix here too
    "chatglm": Decoder(act="swiglu", gate="seq"),
    "glm4": Decoder(
        attn_post_norm="post_attention_norm",
        act="swiglu",
        gate="seq",
        ffn_post_norm="post_ffw_norm",
        ffn_post_norm_pinned=True,
    ),
    # Falcon-40B's attention has a norm of its own; the 7B's reads the FFN's
    "falcon": replace(_GPT, attn_norm_2=True, parallel="far"),
    # parallel, in another order of additions: the allocator sees that
    "plamo": Decoder(parallel="far"),
    "plamo3": Decoder(
        qkv_scales=False,
        qk_norm="head",
        attn_post_norm="post_attention_norm",
        act="swiglu",
        gate="seq",
        ffn_post_norm="post_ffw_norm",
        ffn_post_norm_pinned=True,
    ),
    # learned positions, added to the embeddings
    "gpt2": replace(_GPT, positions=True, rope="none"),
    "starcoder": replace(_GPT, positions=True, rope="none"),
    "starcoder2": _GPT,
    "codeshell": _GPT,
    "pockettts": _GPT,
    "nemotron": replace(_GPT, act="relu_sqr"),
    # ALiBi
    "jais": Decoder(norm="layer", inp_pos=False),
    "jais2": replace(_GPT, act="relu_sqr"),
    # ALiBi, and a norm right after the embeddings
    "bloom": replace(_GPT, inp_pos=False, embed_norm=True),
    "olmo": Decoder(norm="layer"),
    "olmo2": _OLMO2,
    "orion": Decoder(norm="layer"),
    "exaone4": replace(_OLMO2, qk_norm="head", rope_factors=True, rope=_slides_or_nothing_does),
    # embeddings times sqrt(n_embd)
    "gemma": Decoder(embed_scale="all", q_scale=True, act="gelu"),
    # norms before and after each block; attention's logits and the last ones are capped
    "gemma2": Decoder(
        embed_scale="all",
        q_scale=True,
        attn_post_norm="post_attention_norm",
        act="gelu",
        ffn_post_norm="post_ffw_norm",
        soft_cap=True,
        final_cap=True,
    ),
    "gemma3": _GEMMA3,
    "gemma-embedding": Encoder(
        embed_scale="tokens",
        qk_norm="head",
        q_scale=True,
        attn_post_norm="post_attention_norm",
        act="gelu",
        ffn_post_norm="post_ffw_norm",
    ),
    # parallel, with logits scaled by the file's key
    "command-r": Decoder(norm="layer", qk_norm="head", parallel="fra", logit_scale=None),
    "cohere2": Decoder(
        norm="layer",
        rope=slides,
        rope_factors=True,
        parallel="fra",
        ffn_scales=True,
        logit_scale=None,
    ),
    "muse-glimmer": Gated(
        wo_bias=False,
        embed_norm=True,
        select="norm",
        qk_norm="head",
        rope=slides,
        attn_post_norm="post_attention_norm",
        ffn_post_norm="post_ffw_norm",
        logit_scale=True,
        final_cap=None,
    ),
    "granite": _GRANITE,
    "granitemoe": _GRANITE,
    "minicpm": _GRANITE,
    "granite_swa": replace(_GRANITE, sinks=True, moe=_SOFTMAX),
    "afmoe": Gated(
        embed_scale="all",
        qk_norm="head",
        rope=_all_but_every_fourth,
        attn_post_norm="post_attention_norm",
        select="norm",
        moe=Routing(),
        shexp="add",
        ffn_post_norm="post_ffw_norm",
        ffn_post_norm_pinned=True,
        wo_bias=False,
    ),
    "maion-coder": Decoder(
        qk_norm="head",
        rope=slides,
        attn_post_norm="post_attention_norm",
        moe=replace(_UNSCALED, probs_b=None),
        latent=True,
        ffn_post_norm="post_ffw_norm",
        ffn_post_norm_pinned=True,
    ),
    "kolibri1": Decoder(
        qk_norm="head",
        rope=slides,
        attn_post_norm="post_attention_norm",
        select="norm",
        moe=Routing(select="biased"),
        shexp="add",
        ffn_post_norm="post_ffw_norm",
        ffn_post_norm_pinned=True,
    ),
    "bailingmoe": Decoder(rope_factors=True, moe=Routing("softmax", probs_b=None), shexp="add"),
    "bailingmoe2": Decoder(qk_norm="head", moe=Routing(), shexp="add"),
    "dbrx": Decoder(norm="layer", ffn_norm="attn_output_norm", moe=_SOFTMAX, wo_bias=False),
    "deepseek": Decoder(rope_factors=True, moe=_UNNORMED, shexp="add"),
    "deepseek2-ocr": Decoder(
        temperature=None, wo_bias=False, ffn_bias=False, moe=Routing(), shexp="add"
    ),
    "dots1": Decoder(qk_norm="head", moe=Routing(), shexp="add"),
    "ernie4_5-moe": Decoder(moe=Routing("softmax", norm_w=True), shexp="add", wo_bias=False),
    "exaone-moe": Decoder(
        qk_norm="head", rope=slides, rope_factors=True, moe=Routing(), shexp="add", wo_bias=False
    ),
    "glm4moe": Decoder(
        qk_norm="head", ffn_norm="post_attention_norm", moe=Routing(), shexp="add", wo_bias=False
    ),
    # each head has a learned sink in its softmax
    "gpt-oss": Decoder(
        ffn_norm="post_attention_norm",
        sinks=True,
        select="late",
        select_before=((Rules.gpt_oss_late_rows, "attention"),),
        moe=Routing("softmax_weight", norm_w=False, w_scale=0.0, act="swiglu_oai", probs_b=None),
    ),
    "hunyuan-moe": replace(_HUNYUAN, moe=_SOFTMAX, shexp="add", shexp_first=True),
    "hy_v3": Decoder(
        rope_factors=True,
        qk_norm="head",
        select="last",
        ffn_scales=True,
        moe=Routing(scales=True),
        shexp="add",
    ),
    "laguna": Gated(
        gate_act="SOFTPLUS",
        gate_heads=True,
        qk_norm="head",
        wo_bias=False,
        moe=Routing(),
        shexp="add",
    ),
    "llada-moe": Decoder(qk_norm="head", moe=_UNNORMED, wo_bias=False),
    "maple": Decoder(
        qk_norm="head", rope=slides, moe=replace(_UNSCALED, probs_b=None), wo_bias=False
    ),
    "mellum": Decoder(qk_norm="head", moe=_LLAMA_MOE),
    "minimax-m2": Decoder(qk_norm="flat", moe=Routing(norm_w=True), wo_bias=False),
    "olmoe": Decoder(qk_norm="flat", moe=_UNNORMED, wo_bias=False),
    "phimoe": Decoder(
        rope_factors=True, q_scale=True, ffn_residual_first=True, head_bias=True, moe=_SOFTMAX
    ),
    # the shared expert's gate as silu(x) / x, which is a sigmoid
    "qwen2moe": Decoder(moe=_UNNORMED, shexp="div", ffn_bias=False),
    "qwen3moe": Decoder(qk_norm="head", moe=_LLAMA_MOE),
    "qwen3vlmoe": Decoder(qk_norm="head", deepstack=True, moe=_SOFTMAX),
    "rnd1": Decoder(qk_norm="head", moe=_SOFTMAX),
}
