"""The keys without which llama.cpp loads no file of an architecture.

    missing(hparams)    # "llama.attention.layer_norm_rms_epsilon"; "" if none is

Mirrors llama_model_base::load_hparams and each load_arch_hparams of src/models: what is read with
get_key, get_key_or_arr or get_arr in any case, and not as optional. The same in the sources of
builds 10435, 11311, 11434 and 11549. A key that is read for some files alone is not here.
"""

from __future__ import annotations

from functools import cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .hparams import Hparams

# key: the architectures that demand it; their name comes before a key that begins with a dot
_DEMANDED = """
.attention.layer_norm_rms_epsilon: afmoe apertus arcee arctic baichuan bailingmoe bailingmoe2
  bailingmoe3 bitnet chameleon chatglm clef cogvlm deci deepseek deepseek2 deepseek2-ocr
  deepseek32 deepseek4 dflash dots1 dots3note dream eagle3 ernie4_5 ernie4_5-moe eurobert exaone
  exaone-moe exaone4 falcon-h1 gemma gemma-embedding gemma-embedding2 gemma2 gemma3 gemma3n gemma4
  gemma4-assistant glm-dsa glm4 glm4moe glm5-next gpt-oss granite granite_swa granitehybrid
  granitemoe graniteswitch grok grovemoe hrm_text hunyuan-dense hunyuan-moe hunyuan_vl hy_v3 hy_v4
  internlm2 jamba k2-horizon kimi-k3 kimi-linear laguna lfm2 lfm2moe llada llada-moe llama
  llama-embed llama4 maincoder mamba mamba2 maple mellum mimo2 minicpm minicpm3 minimax-01
  minimax-m2 minimax-m3 mistral3 mistral4 muse-glimmer nanbeige neo-bert olmo2 olmoe openelm
  paddleocr pangu-embedded phi3 phimoe plamo plamo2 plamo3 plm qwen qwen2 qwen2moe qwen3 qwen35
  qwen35moe qwen3moe qwen3next qwen3tts qwen3vl qwen3vlmoe qwen4exp refact rnd1 seed_oss
  smallthinker smollm3 spark2_5 step35 t5 t5encoder talkie xverse
.expert_feed_forward_length: afmoe bailingmoe bailingmoe2 bailingmoe3 cohere2moe deepseek
  deepseek2 deepseek2-ocr deepseek32 deepseek4 dots1 dots3note exaone-moe glm-dsa glm4moe
  glm5-next gpt-oss grovemoe hunyuan-moe hy_v3 hy_v4 kimi-k3 kimi-linear laguna lfm2moe llama4
  maple mellum mimo2 minimax-m2 minimax-m3 mistral4 step35
.attention.layer_norm_epsilon: bert bloom clef codeshell cohere2 command-r dbrx falcon gpt2
  gptneox jais jais2 jina-bert-v2 jina-bert-v3 modern-bert mpt nemotron nemotron_h nemotron_h_moe
  nomic-bert nomic-bert-moe olmo orion phi2 pockettts stablelm starcoder starcoder2
  wavtokenizer-dec
.expert_shared_count: afmoe bailingmoe bailingmoe2 bailingmoe3 deepseek deepseek2 deepseek2-ocr
  deepseek32 deepseek4 dots1 dots3note glm-dsa glm4moe glm5-next hy_v4 kimi-k3 kimi-linear
  minimax-m3 mistral4
.attention.sliding_window: cohere2 cohere2moe deepseek4 dots3note exaone-moe gemma-embedding
  gemma-embedding2 gemma3n gemma4 gemma4-assistant gpt-oss granite_swa maple mimo2 muse-glimmer
  spark2_5 step35
.ssm.conv_kernel: bailingmoe3 clef falcon-h1 glm5-next granitehybrid jamba kimi-k3 kimi-linear
  mamba mamba2 nemotron_h nemotron_h_moe plamo2 qwen35 qwen35moe qwen3next qwen4exp
.ssm.inner_size: clef falcon-h1 granitehybrid jamba mamba mamba2 nemotron_h nemotron_h_moe plamo2
  qwen35 qwen35moe qwen3next qwen4exp
.ssm.state_size: clef falcon-h1 granitehybrid jamba mamba mamba2 nemotron_h nemotron_h_moe plamo2
  qwen35 qwen35moe qwen3next qwen4exp
.ssm.time_step_rank: clef falcon-h1 granitehybrid jamba mamba mamba2 nemotron_h nemotron_h_moe
  plamo2 qwen35 qwen35moe qwen3next qwen4exp
.attention.kv_lora_rank: bailingmoe3 deepseek2 deepseek32 dots3note glm-dsa glm5-next hy_v4
  kimi-k3 kimi-linear minicpm3 mistral4 plm
.ssm.group_count: clef falcon-h1 granitehybrid mamba2 nemotron_h nemotron_h_moe plamo2 qwen35
  qwen35moe qwen3next qwen4exp
.expert_gating_func: bailingmoe2 bailingmoe3 deepseek32 deepseek4 dots3note exaone-moe kimi-k3
  kimi-linear lfm2moe minimax-m3
.attention.sliding_window_pattern: dots3note gemma4 gemma4-assistant granite_swa maple mimo2
  spark2_5 step35
.logit_scale: cohere2 cohere2moe granite granite_swa granitemoe graniteswitch muse-glimmer talkie
.rope.dimension_sections: clef qwen2vl qwen35 qwen35moe qwen3tts qwen3vl qwen3vlmoe qwen4exp
.attention.indexer.head_count: deepseek32 deepseek4 dots3note glm-dsa glm5-next minimax-m3
  qwen4exp
.attention.indexer.key_length: deepseek32 deepseek4 dots3note glm-dsa glm5-next minimax-m3
  qwen4exp
.attention.indexer.top_k: deepseek32 deepseek4 dots3note glm-dsa glm5-next minimax-m3 qwen4exp
.attention.q_lora_rank: deepseek32 deepseek4 dots3note glm-dsa glm5-next hy_v4 minicpm3
.attention.key_length_mla: bailingmoe3 dots3note glm5-next hy_v4 kimi-k3 kimi-linear
.attention.value_length_mla: bailingmoe3 dots3note glm5-next hy_v4 kimi-k3 kimi-linear
.hyper_connection.count: deepseek4 glm5-next hy_v4 qwen4exp
.kda.head_dim: bailingmoe3 glm5-next kimi-k3 kimi-linear
.leading_dense_block_count: bailingmoe3 cohere2moe dots3note laguna
.wkv.head_size: arwkv7 rwkv6 rwkv6qwen2 rwkv7
.hyper_connection.epsilon: deepseek4 glm5-next hy_v4
.attention.decay_lora_rank: arwkv7 rwkv7
.attention.iclr_lora_rank: arwkv7 rwkv7
.attention.key_length_swa: gemma4 gemma4-assistant
.attention.relative_buckets_count: t5 t5encoder
.attention.value_length_swa: gemma4 gemma4-assistant
.attention.value_residual_mix_lora_rank: arwkv7 rwkv7
.embedding_length_per_layer_input: gemma-embedding2 gemma4
.hyper_connection.sinkhorn_iterations: deepseek4 glm5-next
.shortconv.l_cache: lfm2 lfm2moe
.swiglu_clamp_exp: deepseek4 maple
.time_decay_extra_dim: rwkv6 rwkv6qwen2
.time_mix_extra_dim: rwkv6 rwkv6qwen2
.activation.situ_beta: kimi-k3
.activation.situ_linear_beta: kimi-k3
.adapters.count: graniteswitch
.adapters.lora_rank: graniteswitch
.adapters.token_ids_activate: graniteswitch
.adapters.token_ids_substitute: graniteswitch
.attention.clamp_kqv: dbrx
.attention.compress_ratios: deepseek4
.attention.compress_rope_freq_base: deepseek4
.attention.group_norm_epsilon: wavtokenizer-dec
.attention.group_norm_groups: wavtokenizer-dec
.attention.indexer.block_size: minimax-m3
.attention.indexer.kpool: glm5-next
.attention.indexer.local_blocks: minimax-m3
.attention.indexer.types: dots3note
.attention.key_length_mla_swa: dots3note
.attention.kv_lora_rank_swa: dots3note
.attention.output_group_count: deepseek4
.attention.output_lora_rank: deepseek4
.attention.value_length_mla_swa: dots3note
.attn_res.block_size: kimi-k3
.decision.block_count: clef
.decision.head_count: clef
.decision.routing_block_count: clef
.expert_group_scale: grovemoe
.expert_weights_norm: deepseek4
.expert_weights_scale: deepseek4
.experts_per_group: grovemoe
.hash_layer_count: deepseek4
.hrm.h_cycles: hrm_text
.hrm.l_cycles: hrm_text
.hrm.layers_per_stack: hrm_text
.hyper_connection.low_rank: qwen4exp
.hyper_connection.magnitude: hy_v4
.interleave_moe_layer_step: llama4
.kda.gate_lower_bound: bailingmoe3
.moe_every_n_layers: nomic-bert-moe
.residual_scale: minimax-01
.rope.freq_base_swa: dots3note
.target_hidden_size: eagle3
.use_parallel_residual: gptneox
xielu.alpha_n: apertus
xielu.alpha_p: apertus
xielu.beta: apertus
xielu.eps: apertus
"""


@cache
def _demanded() -> dict[str, tuple[str, ...]]:
    """Return the keys of each architecture."""
    found: dict[str, tuple[str, ...]] = {}
    # a line that begins with blanks goes on with the one before
    for line in _DEMANDED.strip().replace("\n  ", " ").splitlines():
        key, _, names = line.partition(": ")
        for name in names.split():
            found[name] = (*found.get(name, ()), name + key if key.startswith(".") else key)
    return found


def demanded(architecture: str) -> tuple[str, ...]:
    """Return the whole names of the keys that an architecture demands."""
    return _demanded().get(architecture, ())


def missing(hparams: Hparams) -> str:
    """Return a key that llama.cpp demands and the file has not, "" for none."""
    keys = demanded(hparams.architecture.name)
    return next((key for key in keys if not hparams.has(key)), "")
