"""Which layer a tensor belongs to and which operation reads it: the two facts that decide where
llama.cpp puts it.

The table restates LLM_TENSOR_NAMES and LLM_TENSOR_INFOS of src/llama-arch.cpp (as modelled). Names
are without "blk.N." and without the suffix (.weight, .bias, .scale, ...).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .architectures import Architecture

INPUT, OUTPUT, REPEATING = "input", "output", "repeating"

_WHOLE_MODEL = {
    (INPUT, "GET_ROWS"): "token_embd position_embd token_types per_layer_token_embd",
    (INPUT, "NONE"): "masked_embd_centroids masked_embd_ordering",
    (OUTPUT, "ADD"): "output_hc_base",
    (OUTPUT, "GET_ROWS"): "d2t markov_w1 selector_predecessor selector_successor",
    (
        OUTPUT,
        "MUL",
    ): "cls.norm output_norm dec.output_norm enc.output_norm output_hc_scale output_hc_norm "
    "output_res_score",
    (
        OUTPUT,
        "MUL_MAT",
    ): "output cls cls.output dense_2 dense_3 output_hc_fn output_hc_down output_hc_up altup_proj "
    "altup_unembd_proj nextn.post_projection fc markov_w2 conf_proj selector_hidden",
    # created with block 0, whose device they follow
    (REPEATING, "ADD"): "hrm.z_l_init",
    (REPEATING, "IM2COL"): "conv1d",
    (REPEATING, "MUL"): "token_embd_norm per_layer_proj_norm",
    (REPEATING, "MUL_MAT"): "per_layer_model_proj nextn.pre_projection",
    (REPEATING, "ROPE"): "rope_freqs rope_factors_long rope_factors_short",
}

_BLOCK = {
    "ADD": "hc_attn_base hc_ffn_base time_mix_lerp_w time_mix_lerp_k time_mix_lerp_v "
    "time_mix_lerp_r time_mix_lerp_g time_mix_lerp_fused time_mix_decay time_mix_w0 time_mix_a0 "
    "time_mix_v0 exp_probs_b exp_probs_b_vl",
    "DIV": "ffn.act",
    "GET_ROWS": "attn_compressor_ape attn_rel_b indexer_compressor_ape ffn_gate_tid2eid "
    "nextn.embed_tokens",
    "IM2COL": "conv1 conv2 dw",
    "MUL": "attn_kv_a_norm hc_attn_scale hc_ffn_scale hc_attn_norm hc_ffn_norm ple_norm_key "
    "ple_norm_query ple_norm_conv attn_compressor_norm ssm_dt_norm ssm_b_norm ssm_c_norm ssm_d "
    "ssm_norm ssm_conv1d_q ssm_conv1d_k ssm_conv1d_v attn_res_score ffn_res_score ffn_routed_norm "
    "time_mix_lerp_x time_mix_ln channel_mix_lerp_k channel_mix_lerp_r time_mix_k_k time_mix_k_a "
    "time_mix_r_k attn_norm attn_norm_2 attn_output_norm post_attention_norm ffn_norm "
    "pre_ffw_norm_2 post_ffw_norm_1 post_ffw_norm_2 post_ffw_norm ffn_norm_exps attn_q_norm "
    "attn_k_norm layer_output_norm layer_output_scale attn_q_a_norm attn_sub_norm ffn_sub_norm "
    "cross_attn_norm post_norm altup_correct_scale altup_router_norm laurel_post_norm norm norm1 "
    "norm2 gamma indexer.k_norm indexer.q_norm indexer_compressor_norm nextn.enorm nextn.hnorm "
    "nextn.shared_head_norm attn_conv_base ffn_conv_base attn_resid_alpha attn_resid_beta "
    "ffn_resid_alpha ffn_resid_beta ffn_pre_exp_norm ffn_post_exp_norm",
    "MUL_MAT_ID": "ffn_down_exps ffn_gate_exps ffn_up_exps ffn_gate_up_exps ffn_down_chexps "
    "ffn_gate_chexps ffn_up_chexps attn_v_exps",
    "NONE": "cross_attn_rel_b",
    "RWKV_WKV6": "time_mix_first",
    "SCALE": "attn_sinks",
    "SSM_CONV": "ple_conv1d ssm_conv1d shortconv.conv",
    "SSM_SCAN": "ssm_a",
    "MUL_MAT": "attn_q attn_k attn_v attn_qkv attn_output attn_o attn_gate ffn_gate ffn_down "
    "ffn_up ffn_down_shexp ffn_gate_shexp ffn_up_shexp attn_q_a attn_q_b attn_kv_a_mqa attn_kv_b "
    "attn_kv attn_output_a attn_output_b hc_attn_fn hc_ffn_fn hc_attn_down hc_attn_up "
    "hc_attn_inject hc_ffn_down hc_ffn_up hc_ffn_inject ple_key ple_value attn_compressor_kv "
    "attn_compressor_gate attn_k_b attn_v_b cross_attn_q cross_attn_k cross_attn_v cross_attn_o "
    "ffn_gate_inp_shexp ffn_gate_inp ssm_in ssm_x ssm_dt ssm_out ssm_alpha ssm_ba time_mix_w1 "
    "time_mix_w2 time_mix_a1 time_mix_a2 time_mix_v1 time_mix_v2 time_mix_g1 time_mix_g2 "
    "time_mix_decay_w1 time_mix_decay_w2 time_mix_key time_mix_value time_mix_receptance "
    "time_mix_gate time_mix_output channel_mix_key channel_mix_receptance channel_mix_value "
    "ssm_f_a ssm_f_b ssm_beta ssm_g_a ssm_g ffn_routed_down ffn_routed_up ssm_g_b inp_gate proj "
    "altup_correct_coef altup_predict_coef altup_router laurel_l laurel_r pw1 pw2 "
    "shortconv.in_proj shortconv.out_proj vis_attn_qkv vis_attn_output vis_gate vis_down vis_up "
    "indexer.proj indexer.attn_k indexer.attn_q_b indexer.q_proj indexer.k_proj "
    "indexer_compressor_kv indexer_compressor_gate nextn.eh_proj nextn.shared_head_head "
    "ffn_latent_down ffn_latent_up attn_conv_proj ffn_conv_proj attn_v_gate",
}

# by name, as `classify` is asked for every tensor of a file
_MODEL_CLASS = {name: fact for fact, names in _WHOLE_MODEL.items() for name in names.split()}
_BLOCK_OP = {name: op for op, names in _BLOCK.items() for name in names.split()}
STACKS = ("blk.", "dec.blk.", "enc.blk.", "convnext.", "posnet.")
_SUFFIXES = ("weight", "bias", "scale", "scales", "input_scale", "lora_a", "lora_b")


def split(name: str) -> tuple[str, int, str]:
    """Return (stack, block, rest) of a tensor's name: ("blk.", 3, "attn_q.weight"), ("", -1,
    "output.weight") outside of blocks."""
    for prefix in STACKS:
        if name.startswith(prefix):
            number, _, rest = name[len(prefix) :].partition(".")
            # "blk.²." and "blk.123456." are no blocks: isdigit() accepts the former
            if number.isascii() and number.isdigit() and rest and len(number) < 6:
                return prefix, int(number), rest
            break
    return "", -1, name


def of_whole_model(name: str) -> bool:
    """Return whether the tensor lies outside of blocks."""
    return name.removesuffix(".weight") in _MODEL_CLASS


def classify(row: Architecture, name: str) -> tuple[str, int, str, bool]:
    """Return (class, block, op, known) of the tensor `name` in a model of the architecture `row`.

    The class is INPUT, OUTPUT or REPEATING, the block -1 outside of blocks, the op ggml's name
    without GGML_OP_ ("NONE": llama.cpp skips the tensor). `known` is False for a name that
    llama.cpp does not have; it is then placed with its block, or with the output.
    """
    stem, suffix = name, ""
    # "blk.3.attn_q.weight" -> stem "blk.3.attn_q", suffix "weight"
    head, _, tail = name.rpartition(".")
    if tail in _SUFFIXES and head:
        stem, suffix = head, tail
    _, block, stem = split(stem)
    if block < 0:
        is_known = stem in _MODEL_CLASS
        place, op = _MODEL_CLASS.get(stem, (OUTPUT, "MUL_MAT"))
        place = row.places.get(stem, place)
        # load_tensors creates these with block 0, so they follow its device
        if place == REPEATING:
            block = 0
    else:
        place, op, is_known = REPEATING, _BLOCK_OP.get(stem, "MUL_MAT"), stem in _BLOCK_OP
        op = row.ops.get(stem, op)
    # a bias is added, whatever its matrix is: by expert if that is
    if suffix == "bias":
        op = "ADD_ID" if op == "MUL_MAT_ID" else "ADD" if op != "NONE" else op
    elif suffix in ("lora_a", "lora_b"):
        op = "MUL_MAT_ID"
    return place, block, op, is_known
