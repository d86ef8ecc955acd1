"""Which tensors the loader of each architecture creates, and their shapes: what load_arch_tensors
of src/models/*.cpp does in b11549 (compared with the calls that llama.cpp's own loader makes for
every tiny model and for each of its keys tripled or left out; the parts that no header reaches are
read in the source). shapes.py reads this table.

A name without "blk.N."; it ends in .weight where it has no suffix, and has none at all where it
ends with a dot.

    name         may be there, with the shape in SHAPES
    name!        must be there, in each block
    name*        may be there in some blocks alone
    name:a,b     with the shape a x b, of sizes in shapes.py
    name:?       of any shape
    a?b          a, or b if that is 0
    a|b          one or the other, by the layer
    ...~         any shape of that many elements
    qkv(a,b)     a group, with the sizes that it names
"""

from __future__ import annotations

from ..tables import rows

# the names of a group, with its usual sizes
GROUPS = {
    "qkv": (
        "q,k,v",
        "attn_qkv:n_embd,{0}+{1}+{2} attn_qkv.bias:{0}+{1}+{2} attn_q:n_embd,{0} attn_k:n_embd,{1} "
        "attn_v:n_embd,{2} attn_q.bias:{0} attn_k.bias:{1} attn_v.bias:{2}",
    ),
    "ffn": ("n_ff", "ffn_gate:n_embd,{0} ffn_up:n_embd,{0} ffn_down:{0},n_embd"),
    "shexp": (
        "n_ff_shexp",
        "ffn_gate_shexp:n_embd,{0} ffn_up_shexp:n_embd,{0} ffn_down_shexp:{0},n_embd",
    ),
    "exps": (
        "n_ff_exp",
        "ffn_gate_exps:n_embd,{0},n_expert ffn_up_exps:n_embd,{0},n_expert "
        "ffn_down_exps:{0},n_embd,n_expert",
    ),
}

# the usual shape of each name
SHAPES = """
altup_correct_coef:4,4 altup_correct_scale:n_embd altup_predict_coef:4,16 altup_proj:n_embd,n_embd,3
altup_router:n_embd,4 altup_router_norm:n_embd altup_unembd_proj:n_embd,n_embd,3
attn_compressor_ape:head_k|2*head_k,ratio attn_compressor_gate:n_embd,head_k|2*head_k
attn_compressor_kv:n_embd,head_k|2*head_k attn_compressor_norm:head_k
attn_conv_base.:n_embd,conv_kernel,2 attn_gate:n_embd,n_head attn_k:n_embd,k attn_k.bias:k
attn_k.lora_a:n_embd,adapter_rank,n_adapters+1 attn_k.lora_b:adapter_rank,k,n_adapters+1
attn_k.scale:1 attn_k_b:head_k_mla-n_rot,kv_lora,n_head attn_k_norm:head_k
attn_k_norm.bias:head_k,n_head_kv attn_kv:n_embd,head_k attn_kv_a_mqa:n_embd,kv_lora+n_rot
attn_kv_a_norm:kv_lora attn_kv_b:kv_lora,n_head*head_k_mla-n_head*n_rot+n_head*head_v_mla
attn_norm:n_embd attn_norm.bias:n_embd attn_norm_2:n_embd attn_norm_2.bias:n_embd
attn_output:q,n_embd attn_output.bias:n_embd attn_output.lora_a:q,adapter_rank,n_adapters+1
attn_output.lora_b:adapter_rank,n_embd,n_adapters+1 attn_output.scale:1
attn_output_b:o_groups*o_lora,n_embd attn_output_norm:n_embd attn_output_norm.bias:n_embd
attn_q:n_embd,q attn_q.bias:q attn_q.lora_a:n_embd,adapter_rank,n_adapters+1
attn_q.lora_b:adapter_rank,q,n_adapters+1 attn_q.scale:1 attn_q_a:n_embd,q_lora attn_q_a_norm:q_lora
attn_q_b:q_lora,n_head*head_k_mla attn_q_norm:head_k attn_q_norm.bias:head_k,n_head
attn_qkv:n_embd,n_embd+2*v attn_qkv.bias:n_embd+2*v attn_res_score:n_embd attn_sinks:n_head
attn_sub_norm:n_embd attn_v:n_embd,v attn_v.bias:v attn_v.lora_a:n_embd,adapter_rank,n_adapters+1
attn_v.lora_b:adapter_rank,k,n_adapters+1 attn_v.scale:1 attn_v_b:kv_lora,head_v_mla,n_head
attn_v_exps:n_embd,v,n_value_expert attn_v_gate:n_embd,n_value_expert
attn_v_gate.bias:n_value_expert channel_mix_key:n_embd,n_ff channel_mix_lerp_k:n_embd
channel_mix_lerp_r:n_embd channel_mix_receptance:n_embd,n_embd channel_mix_value:n_ff,n_embd
cls:n_embd,n_embd cls.bias:n_embd cls.norm:n_embd cls.output:n_embd cls.output.bias:1
conf_proj:n_embd+rank conf_proj.bias:1 conv1d:7,n_embd,n_posnet conv1d.bias:1,n_posnet
convnext.dw:7,1,n_posnet convnext.dw.bias:1,n_posnet convnext.gamma:n_posnet convnext.norm:n_posnet
convnext.norm.bias:n_posnet convnext.pw1:n_posnet,n_ff convnext.pw1.bias:n_ff
convnext.pw2:n_ff,n_posnet convnext.pw2.bias:n_posnet d2t.:n_draft dec.attn_k:n_embd,k
dec.attn_norm:n_embd dec.attn_o:v,n_embd dec.attn_q:n_embd,k dec.attn_rel_b:n_head,n_rel
dec.attn_v:n_embd,v dec.cross_attn_k:n_embd,k dec.cross_attn_norm:n_embd dec.cross_attn_o:v,n_embd
dec.cross_attn_q:n_embd,k dec.cross_attn_rel_b:n_head,n_rel dec.cross_attn_v:n_embd,v
dec.ffn_down:n_ff,n_embd dec.ffn_gate:n_embd,n_ff dec.ffn_norm:n_embd dec.ffn_up:n_embd,n_ff
dec.output_norm:n_embd dense_2:n_embd,n_embd dense_2.bias:n_embd enc.attn_k:n_embd,k
enc.attn_norm:n_embd enc.attn_o:v,n_embd enc.attn_q:n_embd,k enc.attn_rel_b:n_head,n_rel
enc.attn_v:n_embd,v enc.ffn_down:n_ff,n_embd enc.ffn_gate:n_embd,n_ff enc.ffn_norm:n_embd
enc.ffn_up:n_embd,n_ff enc.output_norm:n_embd exp_probs_b.:n_expert exp_probs_b.bias:n_expert
exp_probs_b_vl.bias:n_expert fc:n_target*n_embd_target,n_embd fc.scale:1 ffn.act.scales.:n_ff
ffn_conv_base.:n_embd,conv_kernel,2 ffn_down:n_ff,n_embd ffn_down.bias:n_embd
ffn_down.lora_a:n_ff,adapter_rank,n_adapters+1 ffn_down.lora_b:adapter_rank,n_embd,n_adapters+1
ffn_down.scale:1 ffn_down_exps.bias:n_embd,n_expert ffn_down_shexp:n_ff_shexp,n_embd
ffn_gate.bias:n_ff ffn_gate.lora_a:n_embd,adapter_rank,n_adapters+1
ffn_gate.lora_b:adapter_rank,n_ff,n_adapters+1 ffn_gate.scale:1 ffn_gate_exps.bias:n_ff_exp,n_expert
ffn_gate_inp:n_embd,n_expert ffn_gate_inp.bias:n_expert ffn_gate_inp.scale:n_embd
ffn_gate_inp_shexp:n_embd ffn_norm:n_embd ffn_norm.:n_embd ffn_norm.bias:n_embd ffn_norm_exps:n_embd
ffn_res_score:n_embd ffn_routed_down:n_embd,n_latent ffn_routed_norm:n_latent
ffn_routed_up:n_latent,n_embd ffn_sub_norm:n_ff ffn_up:n_embd,n_ff ffn_up.bias:n_ff
ffn_up.lora_a:n_embd,adapter_rank,n_adapters+1 ffn_up.lora_b:adapter_rank,n_ff,n_adapters+1
ffn_up.scale:1 ffn_up_exps.bias:n_ff_exp,n_expert ffn_up_shexp:n_embd,n_ff_shexp
hc_attn_base:n_hc*n_hc+2*n_hc hc_attn_down:n_hc*n_embd,hc_rank
hc_attn_fn:n_hc*n_embd,n_hc*n_hc+2*n_hc hc_attn_inject:n_hc*n_embd,n_hc hc_attn_scale:3
hc_attn_up:hc_rank,n_hc*n_embd hc_ffn_base:n_hc*n_hc+2*n_hc hc_ffn_down:n_hc*n_embd,hc_rank
hc_ffn_fn:n_hc*n_embd,n_hc*n_hc+2*n_hc hc_ffn_inject:n_hc*n_embd,n_hc hc_ffn_scale:3
hc_ffn_up:hc_rank,n_hc*n_embd hrm.z_l_init.:n_embd indexer.attn_k:n_embd,indexer_head
indexer.attn_q_b:q_lora,indexer_heads*indexer_head indexer.k_norm:indexer_head
indexer.k_norm.bias:indexer_head indexer.k_proj:n_embd,indexer_head
indexer.proj:n_embd,indexer_heads indexer.q_norm:indexer_head
indexer.q_proj:n_embd,indexer_heads*indexer_head indexer_compressor_ape:indexer_head,4
indexer_compressor_gate:n_embd,indexer_head indexer_compressor_kv:n_embd,2*indexer_head
indexer_compressor_norm:indexer_head inp_gate:n_embd,n_embd_per_layer laurel_l:n_embd,64
laurel_post_norm:n_embd laurel_r:64,n_embd layer_output_norm:n_embd layer_output_norm.bias:n_embd
layer_output_scale:1 markov_w1:rank,n_vocab markov_w2:rank,n_draft markov_w2.scale:1
nextn.eh_proj:2*n_embd,n_embd nextn.embed_tokens:n_embd,n_vocab nextn.enorm:n_embd
nextn.hnorm:n_embd nextn.post_projection:n_embd,n_embd_out nextn.pre_projection:2*n_embd_out,n_embd
nextn.shared_head_head:n_embd,n_vocab nextn.shared_head_norm:n_embd output:n_embd,n_vocab
output.bias:n_vocab output_hc_base:n_hc output_hc_down:n_hc*n_embd,hc_rank
output_hc_fn:n_hc*n_embd,n_hc output_hc_scale:1 output_hc_up:hc_rank,n_hc*n_embd output_norm:n_embd
output_norm.bias:n_embd output_res_score:n_embd per_layer_model_proj:n_embd,n_layer*n_embd_per_layer
per_layer_proj_norm:n_embd_per_layer per_layer_token_embd:n_layer*n_embd_per_layer,n_vocab
ple_conv1d:ple_kernel,n_hc*n_embd ple_key:n_embd,n_hc*n_embd ple_value:n_embd,n_embd
position_embd:n_embd,n_ctx posnet.attn_k:1,n_posnet,n_posnet posnet.attn_k.bias:1,n_posnet
posnet.attn_norm:1,n_posnet posnet.attn_norm.bias:1,n_posnet posnet.attn_output:1,n_posnet,n_posnet
posnet.attn_output.bias:1,n_posnet posnet.attn_q:1,n_posnet,n_posnet posnet.attn_q.bias:1,n_posnet
posnet.attn_v:1,n_posnet,n_posnet posnet.attn_v.bias:1,n_posnet posnet.conv1:3,n_posnet,n_posnet
posnet.conv1.bias:1,n_posnet posnet.conv2:3,n_posnet,n_posnet posnet.conv2.bias:1,n_posnet
posnet.norm1:1,n_posnet posnet.norm1.bias:1,n_posnet posnet.norm2:1,n_posnet
posnet.norm2.bias:1,n_posnet post_attention_norm:n_embd post_attention_norm.:n_embd
post_ffw_norm:n_embd post_ffw_norm.:n_embd post_ffw_norm_1:n_embd post_ffw_norm_2:n_embd
post_norm:n_embd pre_ffw_norm_2:n_embd proj:n_embd_per_layer,n_embd rope_factors_long:n_rot/2
rope_factors_short:n_rot/2 rope_freqs:n_rot/2 selector_hidden:n_embd,n_selector
selector_predecessor:n_selector,n_vocab selector_successor:n_selector,n_vocab
shortconv.conv:l_cache,n_embd shortconv.in_proj:n_embd,3*n_embd shortconv.out_proj:n_embd,n_embd
ssm_a.:1,dt_rank ssm_alpha:n_embd,dt_rank ssm_b_norm:d_state ssm_b_norm.:d_state
ssm_ba:n_embd,2*dt_rank ssm_beta:n_embd,n_head_0 ssm_c_norm:d_state ssm_c_norm.:d_state
ssm_conv1d:d_conv,d_inner+2*n_group*d_state ssm_conv1d.bias:d_inner+2*n_group*d_state
ssm_conv1d_k:d_conv,1,kda ssm_conv1d_q:d_conv,1,kda ssm_conv1d_v:d_conv,1,kda ssm_d.:1,dt_rank
ssm_dt:dt_rank,d_inner ssm_dt.bias:dt_rank ssm_dt_norm:dt_rank ssm_dt_norm.:dt_dim
ssm_f_a:n_embd,kda_head ssm_f_b:kda_head,kda ssm_g:n_embd,kda ssm_g_a:n_embd,kda_head
ssm_g_b:kda_head,kda ssm_in:n_embd,2*d_inner+2*n_group*d_state+dt_rank ssm_norm:d_state
ssm_out:d_inner,n_embd ssm_x:d_inner,dt_rank+2*d_state time_mix_a0:n_embd
time_mix_a1:n_embd,iclr_lora time_mix_a2:iclr_lora,n_embd time_mix_decay:n_embd
time_mix_decay_w1:n_embd,time_decay time_mix_decay_w2:time_decay,n_embd
time_mix_first:wkv_head,n_embd/wkv_head time_mix_g1:n_embd,gate_lora time_mix_g2:gate_lora,n_embd
time_mix_gate:n_embd,n_embd time_mix_k_a:n_embd time_mix_k_k:n_embd time_mix_key:n_embd,n_embd
time_mix_key.bias:n_head_kv*wkv_head time_mix_lerp_fused:n_embd,1,1,5 time_mix_lerp_g:n_embd
time_mix_lerp_k:n_embd time_mix_lerp_r:n_embd time_mix_lerp_v:n_embd time_mix_lerp_w:n_embd
time_mix_lerp_x:n_embd time_mix_ln:n_embd time_mix_ln.bias:n_embd time_mix_output:n_embd,n_embd
time_mix_r_k:n_embd time_mix_receptance:n_embd,n_embd time_mix_receptance.bias:n_embd
time_mix_v0:n_embd time_mix_v1:n_embd,iclr_lora|value_lora time_mix_v2:iclr_lora|value_lora,n_embd
time_mix_value:n_embd,n_embd time_mix_value.bias:n_head_kv*wkv_head time_mix_w0:n_embd
time_mix_w1:n_embd,decay_lora time_mix_w2:time_mix,n_embd,5 token_embd:n_embd,n_vocab
token_embd_norm:n_embd token_embd_norm.bias:n_embd token_types:n_embd,n_token_types
vis_attn_output:q,n_embd vis_attn_qkv:n_embd,3*q vis_down:n_ff,n_embd vis_gate:n_embd,n_ff
vis_up:n_embd,n_ff
"""

# by architecture
CREATED = {row["name"]: row["tensors"] for row in rows("model/created.tsv")}
