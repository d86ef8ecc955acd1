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
CREATED = {
    "llama": "token_embd! output_norm! output attn_norm! attn_output! attn_output.bias ffn_norm! "
    "rope_factors_long:? rope_factors_short:? rope_freqs ffn_gate.bias ffn_down.bias "
    "ffn_up.bias ffn_gate_inp qkv exps(n_ff) ffn shexp",
    "llama4": "token_embd! output_norm! output attn_norm! attn_output!:q0,n_embd ffn_norm! "
    "rope_freqs ffn_gate_inp qkv(q0,k0,v0) exps shexp(n_ff_exp) ffn",
    "llama-embed": "token_embd! output_norm! output attn_norm! attn_output! attn_output.bias "
    "ffn_norm! rope_factors_long:? rope_factors_short:? rope_freqs ffn_gate.bias ffn_down.bias "
    "ffn_up.bias ffn_gate_inp qkv exps(n_ff) ffn shexp",
    "deci": "token_embd! output_norm! output attn_norm attn_output attn_output.bias ffn_norm "
    "rope_factors_long:? rope_factors_short:? rope_freqs ffn_gate.bias ffn_down.bias "
    "ffn_up.bias qkv ffn",
    "falcon": "token_embd! output_norm output_norm.bias output attn_norm! attn_norm.bias "
    "attn_norm_2 attn_norm_2.bias attn_qkv! attn_output!:n_embd,n_embd ffn_down! ffn_up!",
    "grok": "token_embd! output_norm! output attn_norm! attn_output!:n_embd,n_embd "
    "attn_output_norm! ffn_norm! ffn_gate_inp! layer_output_norm post_ffw_norm:? qkv(n_embd,v,v) "
    "exps(n_ff_exp?n_ff) ffn",
    "gpt2": "token_embd! position_embd! output_norm! output_norm.bias output attn_norm! "
    "attn_norm.bias attn_qkv! attn_qkv.bias attn_output!:n_embd,n_embd attn_output.bias "
    "ffn_norm! ffn_norm.bias ffn_down! ffn_down.bias ffn_up! ffn_up.bias",
    "gptneox": "token_embd! output_norm! output_norm.bias output! attn_norm! attn_norm.bias "
    "attn_qkv! attn_qkv.bias attn_output!:n_embd,n_embd attn_output.bias ffn_norm! ffn_norm.bias "
    "ffn_down! ffn_down.bias ffn_up! ffn_up.bias",
    "mpt": "token_embd! position_embd output_norm! output_norm.bias output attn_norm! "
    "attn_norm.bias attn_qkv! attn_qkv.bias attn_output!:n_embd,n_embd attn_output.bias ffn_norm! "
    "ffn_norm.bias ffn_down! ffn_down.bias ffn_up! ffn_up.bias attn_q_norm:n_embd "
    "attn_q_norm.bias:n_embd attn_k_norm:n_embd attn_k_norm.bias:n_embd ffn.act.scales.",
    "baichuan": "token_embd! output_norm output attn_norm! attn_output!:n_embd,n_embd ffn_norm! "
    "qkv(n_embd,v,v) ffn",
    "starcoder": "token_embd! position_embd! output_norm output_norm.bias output attn_norm! "
    "attn_norm.bias attn_qkv! attn_qkv.bias attn_output!:n_embd,n_embd attn_output.bias ffn_norm! "
    "ffn_norm.bias ffn_down! ffn_down.bias ffn_up! ffn_up.bias",
    "refact": "token_embd! output_norm! output attn_norm! attn_output! attn_output.bias ffn_norm! "
    "rope_factors_long:? rope_factors_short:? rope_freqs ffn_gate.bias ffn_down.bias "
    "ffn_up.bias ffn_gate_inp qkv exps(n_ff) ffn shexp",
    "bert": "token_embd! token_types position_embd! cls cls.bias cls.output cls.output.bias "
    "token_embd_norm! token_embd_norm.bias attn_output!:n_embd,n_embd attn_output.bias "
    "attn_output_norm! attn_output_norm.bias ffn_up! ffn_up.bias ffn_down! ffn_down.bias "
    "layer_output_norm! layer_output_norm.bias qkv(n_embd,k,v)",
    "modern-bert": "token_embd! token_embd_norm! output_norm! attn_norm attn_qkv!:n_embd,3*n_embd "
    "attn_output!:n_embd,n_embd ffn_up!:n_embd,2*n_ff ffn_down! ffn_norm! cls.output "
    "cls.output.bias cls cls.norm attn_norm.bias:? attn_qkv.bias:? attn_output.bias:? "
    "ffn_norm.bias:? ffn_up.bias:? ffn_down.bias:? token_types:? cls.bias:? cls.norm.bias:?",
    "nomic-bert": "token_embd! token_types token_embd_norm! token_embd_norm.bias attn_qkv "
    "attn_qkv.bias attn_q:? attn_k:? attn_v:? attn_q.bias:n_embd attn_k.bias attn_v.bias "
    "attn_output!:n_embd,n_embd attn_output.bias attn_output_norm! attn_output_norm.bias "
    "ffn_up.bias ffn_down.bias layer_output_norm! layer_output_norm.bias ffn",
    "nomic-bert-moe": "token_embd! token_types token_embd_norm! token_embd_norm.bias attn_qkv "
    "attn_qkv.bias attn_q:? attn_k:? attn_v:? attn_q.bias:? attn_k.bias:? attn_v.bias:? "
    "attn_output!:n_embd,n_embd attn_output.bias attn_output_norm! attn_output_norm.bias "
    "ffn_up_exps:n_embd,n_ff,n_expert ffn_down_exps:n_ff,n_embd,n_expert ffn_gate_inp ffn_up "
    "ffn_up.bias ffn_down ffn_down.bias layer_output_norm! layer_output_norm.bias",
    "neo-bert": "token_embd! cls cls.bias cls.output cls.output.bias enc.output_norm! attn_norm! "
    "attn_qkv! attn_output!:n_embd,n_embd ffn_norm! ffn_up!:n_embd,2*n_ff ffn_down!",
    "jina-bert-v2": "token_embd! token_types! token_embd_norm! token_embd_norm.bias cls:n_embd "
    "cls.bias:1 attn_q_norm:n_embd attn_q_norm.bias:n_embd attn_k_norm:n_embd "
    "attn_k_norm.bias:n_embd attn_output!:n_embd,n_embd attn_output.bias attn_output_norm! "
    "attn_output_norm.bias attn_norm_2 attn_norm_2.bias ffn_up.bias ffn_down.bias "
    "layer_output_norm! layer_output_norm.bias qkv(n_embd,k,v) ffn",
    "jina-bert-v3": "token_embd! token_types token_embd_norm! token_embd_norm.bias attn_qkv "
    "attn_qkv.bias attn_q:? attn_k:? attn_v:? attn_q.bias:? attn_k.bias:? attn_v.bias:? "
    "attn_output!:n_embd,n_embd attn_output.bias attn_output_norm! attn_output_norm.bias ffn_up! "
    "ffn_up.bias ffn_down! ffn_down.bias layer_output_norm! layer_output_norm.bias",
    "eurobert": "token_embd! output_norm! attn_norm! attn_output!:n_embd,n_embd ffn_norm! "
    "qkv(n_embd,k,v) ffn",
    "bloom": "token_embd! token_embd_norm! token_embd_norm.bias output_norm! output_norm.bias "
    "output attn_norm! attn_norm.bias attn_qkv! attn_qkv.bias attn_output!:n_embd,n_embd "
    "attn_output.bias ffn_norm! ffn_norm.bias ffn_down! ffn_down.bias ffn_up! ffn_up.bias",
    "stablelm": "token_embd! output_norm.bias output_norm! output! attn_norm! attn_norm.bias "
    "attn_output!:n_embd,n_embd attn_q_norm:head_k,n_head attn_k_norm:head_k,n_head_kv "
    "ffn_norm ffn_norm.bias qkv(n_embd,v,v) ffn",
    "qwen": "token_embd! output_norm! output! attn_norm! attn_qkv!:n_embd,3*n_embd "
    "attn_qkv.bias:3*n_embd attn_output!:n_embd,n_embd ffn_norm! ffn(n_ff/2)",
    "qwen2": "token_embd! output_norm! output output.bias attn_norm! attn_output!:n_embd,n_embd "
    "ffn_norm! qkv(n_embd,v,v) ffn",
    "qwen2moe": "token_embd! output_norm! output! attn_norm! attn_output!:n_embd,n_embd ffn_norm! "
    "ffn_gate_inp! ffn_gate_inp_shexp! qkv(n_embd,v,v) exps(n_ff_exp?n_ff/n_expert_used) "
    "shexp(n_ff_shexp?n_ff)",
    "qwen2vl": "token_embd! output_norm! output output.bias attn_norm! attn_output!:n_embd,n_embd "
    "ffn_norm! qkv(n_embd,v,v) ffn",
    "qwen3": "token_embd! output_norm! output cls.output attn_norm! attn_output! attn_k_norm! "
    "attn_q_norm! ffn_norm! qkv(q,v,v) ffn",
    "qwen3moe": "token_embd! output_norm! output attn_norm! attn_output! attn_k_norm! attn_q_norm! "
    "ffn_norm! ffn_gate_inp! qkv(q,v,v) exps(n_ff_exp?n_ff/n_expert_used)",
    "qwen3next": "token_embd! output_norm! output attn_norm post_attention_norm "
    "attn_qkv:n_embd,2*q+k+v|2*key_dim+value_dim attn_qkv.bias:? attn_q:n_embd,2*q attn_k "
    "attn_v attn_q.bias:2*q attn_k.bias attn_v.bias attn_output attn_q_norm attn_k_norm "
    "ssm_in:n_embd,2*key_dim+2*value_dim attn_gate:n_embd,value_dim "
    "ssm_conv1d:d_conv,2*key_dim+value_dim ssm_dt.bias ssm_a.:dt_rank ssm_ba ssm_norm "
    "ssm_out:value_dim,n_embd ffn_gate_inp ffn_gate_inp_shexp nextn.eh_proj nextn.enorm "
    "nextn.hnorm nextn.embed_tokens nextn.shared_head_head nextn.shared_head_norm "
    "ffn_gate_up_exps:n_embd,2*n_ff_exp?2*n_ff/n_expert_used,n_expert "
    "exps(n_ff_exp?n_ff/n_expert_used) shexp(n_ff_shexp?n_ff)",
    "qwen3vl": "token_embd! output_norm! output cls.output attn_norm! attn_output! attn_k_norm! "
    "attn_q_norm! ffn_norm! qkv(q,v,v) ffn",
    "qwen3vlmoe": "token_embd! output_norm! output attn_norm! attn_output! attn_k_norm! "
    "attn_q_norm! ffn_norm! ffn_gate_inp! qkv(q,v,v) exps(n_ff_exp?n_ff/n_expert_used)",
    "qwen3tts": "token_embd! output_norm! output cls.output attn_norm! attn_output! attn_k_norm! "
    "attn_q_norm! ffn_norm! qkv(q,v,v) ffn",
    "qwen35": "token_embd! output_norm! output cls.output:n_embd,n_embd cls.output.bias:n_embd "
    "attn_norm post_attention_norm attn_qkv:n_embd,2*q+k+v|2*key_dim+value_dim "
    "attn_qkv.bias:? attn_q:n_embd,2*q attn_k attn_v attn_q.bias:2*q attn_k.bias attn_v.bias "
    "attn_output attn_q_norm attn_k_norm attn_gate:n_embd,value_dim "
    "ssm_conv1d:d_conv,2*key_dim+value_dim ssm_dt.bias ssm_a.:dt_rank ssm_beta:n_embd,dt_rank "
    "ssm_alpha ssm_norm ssm_out:value_dim,n_embd nextn.eh_proj nextn.enorm nextn.hnorm "
    "nextn.embed_tokens nextn.shared_head_head nextn.shared_head_norm ffn",
    "qwen35moe": "token_embd! output_norm! output attn_norm post_attention_norm "
    "attn_qkv:n_embd,2*q+k+v|2*key_dim+value_dim attn_qkv.bias:? attn_q:n_embd,2*q attn_k "
    "attn_v attn_q.bias:2*q attn_k.bias attn_v.bias attn_output attn_q_norm attn_k_norm "
    "attn_gate:n_embd,value_dim ssm_conv1d:d_conv,2*key_dim+value_dim ssm_dt.bias "
    "ssm_a.:dt_rank ssm_beta:n_embd,dt_rank ssm_alpha ssm_norm ssm_out:value_dim,n_embd "
    "ffn_gate_inp ffn_gate_inp_shexp nextn.eh_proj nextn.enorm nextn.hnorm nextn.embed_tokens "
    "nextn.shared_head_head nextn.shared_head_norm "
    "ffn_gate_up_exps:n_embd,2*n_ff_exp?2*n_ff/n_expert_used,n_expert "
    "exps(n_ff_exp?n_ff/n_expert_used) shexp(n_ff_shexp?n_ff)",
    "qwen4exp": "token_embd! output_hc_norm:n_embd,n_hc~ output_hc_down output_hc_up output "
    "per_layer_token_embd:? hc_attn_norm:n_embd,n_hc~ hc_attn_down hc_attn_up hc_attn_inject "
    "hc_ffn_norm:n_embd,n_hc~ hc_ffn_down hc_ffn_up hc_ffn_inject "
    "attn_qkv:n_embd,2*q+k+v|2*key_dim+value_dim attn_qkv.bias:? attn_q:n_embd,2*q attn_k "
    "attn_v attn_q.bias:2*q attn_k.bias attn_v.bias attn_output attn_q_norm attn_k_norm "
    "indexer.q_proj indexer.k_proj indexer.q_norm indexer.k_norm attn_gate:n_embd,value_dim "
    "ssm_conv1d:d_conv,2*key_dim+value_dim ssm_dt.bias ssm_a.:dt_rank ssm_beta:n_embd,dt_rank "
    "ssm_alpha ssm_norm ssm_out:value_dim,n_embd ple_key ple_value ple_norm_key:n_embd,n_hc~ "
    "ple_norm_query:n_embd,n_hc~ ple_norm_conv:n_embd,n_hc~ ple_conv1d ffn_gate_inp "
    "ffn_gate_inp_shexp nextn.eh_proj:? nextn.enorm:? nextn.hnorm:? nextn.hc_head_norm:? "
    "nextn.hc_head_down:? nextn.hc_head_up:? "
    "ffn_gate_up_exps:n_embd,2*n_ff_exp?2*n_ff/n_expert_used,n_expert "
    "exps(n_ff_exp?n_ff/n_expert_used) shexp(n_ff_shexp?n_ff)",
    "phi2": "token_embd! output_norm! output_norm.bias output! output.bias attn_norm! "
    "attn_norm.bias attn_output!:n_embd,n_embd attn_output.bias ffn_down! ffn_down.bias ffn_up! "
    "ffn_up.bias qkv(n_embd,v,v)",
    "phi3": "token_embd! output_norm! output attn_norm! attn_output!:n_embd,n_embd ffn_norm! "
    "ffn_down! ffn_up!:n_embd,2*n_ff rope_factors_long rope_factors_short qkv(n_embd,v,v)",
    "phimoe": "token_embd! output_norm! output_norm.bias output! output.bias attn_norm! "
    "attn_norm.bias attn_output!:n_embd,n_embd attn_output.bias ffn_norm! ffn_norm.bias "
    "ffn_gate_inp! rope_factors_long:n_embd/n_head/2 rope_factors_short:n_embd/n_head/2 "
    "qkv(n_embd,v,v) exps(n_ff)",
    "plamo": "token_embd! output_norm! output! attn_norm! attn_output!:n_embd,n_embd "
    "qkv(n_embd,v,v) ffn",
    "plamo2": "token_embd! output_norm! output attn_norm! ssm_in:n_embd,2*d_inner ssm_conv1d "
    "ssm_x:d_inner,dt_dim+2*d_state ssm_dt:dt_dim,dt_rank ssm_dt.bias ssm_a.:dt_rank "
    "ssm_d.:dt_rank ssm_out ssm_dt_norm. ssm_b_norm. ssm_c_norm. attn_qkv:n_embd,q+k+v "
    "attn_q_norm:head_k,n_head attn_k_norm:head_k,n_head_kv attn_output:o,n_embd "
    "post_attention_norm. ffn_norm! ffn_down! ffn_up!:n_embd,2*n_ff post_ffw_norm.",
    "plamo3": "token_embd! output_norm! output attn_norm! attn_qkv:n_embd,q0+k0+v0 "
    "attn_q_norm!:head_k_0 attn_k_norm!:head_k_0 attn_output!:o0,n_embd post_attention_norm. "
    "ffn_norm! post_ffw_norm. ffn_up!:n_embd,2*n_ff ffn_down!",
    "codeshell": "token_embd output! output_norm! output_norm.bias attn_norm! attn_norm.bias "
    "attn_output!:n_embd,n_embd attn_output.bias ffn_norm! ffn_norm.bias ffn_down! "
    "ffn_down.bias ffn_up! ffn_up.bias qkv(n_embd,v,v)",
    "orion": "token_embd! output_norm! output_norm.bias output! attn_norm! attn_norm.bias "
    "attn_output!:n_embd,n_embd ffn_norm! ffn_norm.bias qkv(n_embd,v,v) ffn",
    "internlm2": "token_embd! output_norm! output! attn_norm! attn_output!:n_embd,n_embd ffn_norm! "
    "qkv(n_embd,v,v) ffn",
    "minicpm": "token_embd! output_norm! output attn_norm! attn_output! attn_output.bias ffn_norm! "
    "rope_factors_long:? rope_factors_short:? rope_freqs ffn_gate.bias ffn_down.bias "
    "ffn_up.bias ffn_gate_inp qkv exps(n_ff) ffn shexp",
    "minicpm3": "token_embd! output_norm! output attn_norm! attn_q_a_norm! attn_kv_a_norm! "
    "attn_q_a! attn_q_b! attn_kv_a_mqa! attn_kv_b! attn_output!:o,n_embd ffn_norm! "
    "rope_factors_long rope_factors_short ffn",
    "gemma": "token_embd! output_norm! attn_norm! attn_output! ffn_norm! qkv ffn",
    "gemma2": "token_embd! output_norm! attn_norm! attn_output!:q0,n_embd post_attention_norm! "
    "ffn_norm! post_ffw_norm! qkv(q0,k0,v0) ffn",
    "gemma3": "token_embd! output_norm! output dense_2:? dense_3:? attn_norm! "
    "attn_output!:q0,n_embd post_attention_norm! attn_k_norm!:head_k_0 attn_q_norm!:head_k_0 "
    "ffn_norm! post_ffw_norm! qkv(q0,k0,v0) ffn",
    "gemma3n": "output token_embd! altup_proj! altup_unembd_proj! per_layer_token_embd! "
    "per_layer_model_proj! per_layer_proj_norm! output_norm! attn_norm! attn_output! "
    "attn_q_norm! attn_k_norm! post_attention_norm! ffn_norm! post_ffw_norm! inp_gate! proj! "
    "post_norm! altup_correct_coef! altup_correct_scale! altup_predict_coef! altup_router! "
    "altup_router_norm! laurel_l! laurel_r! laurel_post_norm! qkv ffn",
    "gemma4": "output token_embd! per_layer_token_embd per_layer_model_proj per_layer_proj_norm "
    "output_norm! attn_norm! attn_qkv:n_embd,q+k+v attn_q attn_k attn_v*:n_embd,v attn_output! "
    "attn_q_norm! attn_k_norm post_attention_norm! layer_output_scale rope_freqs:head_k_full/2 "
    "ffn_norm! post_ffw_norm! ffn_gate_inp ffn_gate_inp.scale pre_ffw_norm_2 post_ffw_norm_1 "
    "post_ffw_norm_2 inp_gate proj post_norm ffn_gate_up_exps:n_embd,2*n_ff_exp,n_expert exps ffn",
    "gemma4-assistant": "token_embd! output_norm! masked_embd_centroids:? masked_embd_ordering.:? "
    "nextn.post_projection! nextn.pre_projection attn_norm! attn_q! attn_output! attn_q_norm! "
    "post_attention_norm! layer_output_scale! rope_freqs:head_k_full/2 ffn_norm! "
    "post_ffw_norm! ffn",
    "gemma-embedding": "token_embd! output_norm! output dense_2:? dense_3:? attn_norm! "
    "attn_output! post_attention_norm! attn_k_norm! attn_q_norm! ffn_norm! post_ffw_norm! qkv ffn",
    "gemma-embedding2": "token_embd! per_layer_model_proj! per_layer_proj_norm! output_norm! "
    "output!:n_embd,n_embd_out attn_norm! attn_q! attn_k! attn_v! attn_output! attn_q_norm! "
    "attn_k_norm! post_attention_norm! ffn_norm! post_ffw_norm! inp_gate! proj! post_norm! "
    "layer_output_scale! ffn",
    "starcoder2": "token_embd! output_norm! output_norm.bias output attn_norm! attn_norm.bias "
    "attn_output!:n_embd,n_embd attn_output.bias ffn_norm! ffn_norm.bias ffn_down! ffn_up! "
    "ffn_down.bias ffn_up.bias qkv(n_embd,v,v)",
    "mamba": "token_embd! output_norm! output attn_norm! ssm_in!:n_embd,2*d_inner ssm_conv1d! "
    "ssm_conv1d.bias ssm_x! ssm_dt! ssm_dt.bias:d_inner ssm_a.:d_state,d_inner ssm_d.:d_inner "
    "ssm_out!",
    "mamba2": "token_embd! output_norm output attn_norm! ssm_in! ssm_conv1d! ssm_conv1d.bias "
    "ssm_dt.bias ssm_a. ssm_d. ssm_norm!:d_inner/n_group,n_group ssm_out!",
    "maple": "token_embd! output_norm! output! attn_norm! attn_output!:q0,n_embd "
    "attn_q_norm!:head_k_0 attn_k_norm!:head_k_0 ffn_norm! ffn_gate_inp! qkv(q0,k0,k0) exps",
    "jamba": "token_embd! output_norm output attn_norm! ssm_in:n_embd,2*d_inner ssm_conv1d "
    "ssm_conv1d.bias ssm_x ssm_dt_norm ssm_dt ssm_dt.bias:d_inner ssm_b_norm ssm_c_norm "
    "ssm_a.:d_state,d_inner ssm_d.:d_inner ssm_out attn_output:n_embd,n_embd ffn_norm! "
    "ffn_gate_inp qkv(n_embd,v,v) exps(n_ff) ffn",
    "falcon-h1": "token_embd! output output_norm! ssm_in! ssm_conv1d! ssm_conv1d.bias ssm_dt.bias "
    "ssm_a. ssm_d. ssm_norm:d_inner/n_group,n_group ssm_out! attn_output! attn_output.bias "
    "attn_norm! ffn_norm. rope_freqs ffn_gate.bias ffn_down.bias ffn_up.bias qkv ffn",
    "xverse": "token_embd! output_norm! output! attn_norm! attn_output!:n_embd,n_embd ffn_norm! "
    "qkv(n_embd,v,v) ffn",
    "command-r": "token_embd! output_norm! attn_norm! attn_q_norm:? attn_k_norm:? "
    "attn_output!:n_embd,n_embd qkv(n_embd,v,v) ffn",
    "cohere2": "token_embd! output_norm! attn_norm! attn_output!:n_embd,n_embd qkv(n_embd,v0,v0) "
    "ffn",
    "cohere2moe": "token_embd! output_norm! output attn_norm attn_output:q0,n_embd ffn_gate_inp "
    "nextn.eh_proj nextn.enorm nextn.hnorm nextn.embed_tokens nextn.shared_head_head "
    "nextn.shared_head_norm qkv(q0,v0,v0) ffn_gate_up_exps:n_embd,2*n_ff_exp?2*n_ff,n_expert "
    "exps(n_ff_exp?n_ff) shexp(n_ff_shexp?n_ff_exp*n_expert_shared) ffn",
    "dbrx": "token_embd! output_norm! output! attn_norm! attn_qkv! attn_output!:n_embd,n_embd "
    "attn_output_norm! ffn_gate_inp! exps(n_ff)",
    "olmo": "token_embd! output attn_output!:n_embd,n_embd qkv(n_embd,v,v) ffn",
    "olmo2": "token_embd! output_norm! output! attn_output!:n_embd,n_embd attn_q_norm!:n_embd "
    "attn_k_norm!:n_head_kv*n_embd/n_head post_attention_norm! post_ffw_norm! "
    "qkv(n_embd,v0,v0) ffn",
    "olmoe": "token_embd! output_norm! output! attn_norm! attn_output!:n_embd,n_embd "
    "attn_q_norm!:n_embd attn_k_norm!:n_embd ffn_norm! ffn_gate_inp! qkv(n_embd,v,v) exps(n_ff)",
    "muse-glimmer": "token_embd! output_norm! output! attn_norm! post_attention_norm! "
    "attn_output!:q0,n_embd attn_q_norm!:head_k_0 attn_k_norm!:head_k_0 attn_gate!:n_embd,q0 "
    "ffn_norm! post_ffw_norm! qkv(q0,k0,v0) ffn",
    "openelm": "token_embd! output_norm! attn_norm! attn_qkv!:n_embd,q+2*k attn_q_norm! "
    "attn_k_norm! attn_output! ffn_norm! ffn",
    "arctic": "token_embd! output_norm! output attn_norm! attn_output!:n_embd,n_embd ffn_norm! "
    "ffn_gate_inp! ffn_norm_exps! qkv(n_embd,v,v) exps(n_ff) ffn(n_embd)",
    "deepseek": "token_embd! output_norm! output attn_norm! attn_output!:n_embd,n_embd ffn_norm! "
    "ffn_gate_inp qkv(n_embd,v,v) exps shexp(n_ff_exp*n_expert_shared) ffn",
    "deepseek2": "token_embd! output_norm! output attn_norm attn_q_a_norm attn_kv_a_norm attn_q_a "
    "attn_q_b attn_q:n_embd,n_head*head_k_mla attn_kv_a_mqa attn_k_b attn_v_b attn_kv_b "
    "attn_output:n_head*head_v_mla,n_embd ffn_norm ffn_gate_inp exp_probs_b.bias nextn.eh_proj "
    "nextn.enorm nextn.hnorm nextn.embed_tokens nextn.shared_head_head nextn.shared_head_norm "
    "ffn_gate_up_exps:n_embd,2*n_ff_exp,n_expert exps shexp(n_ff_exp*n_expert_shared) ffn",
    "deepseek2-ocr": "token_embd! output_norm! output attn_norm! ffn_norm! "
    "attn_output!:n_embd,n_embd "
    "ffn_gate_inp exp_probs_b.bias ffn_gate_up_exps:n_embd,2*n_ff_exp,n_expert "
    "qkv(n_embd,n_embd,n_embd) ffn exps shexp(n_ff_exp*n_expert_shared)",
    "deepseek32": "token_embd! output_norm! output attn_norm attn_q_a_norm attn_kv_a_norm attn_q_a "
    "attn_q_b attn_kv_a_mqa attn_k_b attn_v_b attn_output:n_head*head_v_mla,n_embd ffn_norm "
    "indexer.k_norm indexer.k_norm.bias indexer.proj indexer.attn_k indexer.attn_q_b ffn_gate_inp "
    "exp_probs_b.bias nextn.eh_proj nextn.enorm nextn.hnorm nextn.embed_tokens "
    "nextn.shared_head_head nextn.shared_head_norm exps shexp(n_ff_exp*n_expert_shared) ffn",
    "deepseek4": "token_embd! output_norm! output! output_hc_fn! output_hc_base! output_hc_scale! "
    "attn_norm attn_sinks attn_q_a attn_q_a_norm attn_q_b:q_lora,q attn_kv attn_kv_a_norm:head_k "
    "attn_output_a:q/o_groups,o_lora,o_groups~ attn_output_b hc_attn_fn hc_attn_base hc_attn_scale "
    "hc_ffn_fn hc_ffn_base hc_ffn_scale attn_compressor_kv attn_compressor_gate "
    "attn_compressor_ape attn_compressor_norm indexer.proj indexer.attn_q_b indexer_compressor_kv "
    "indexer_compressor_gate:n_embd,2*indexer_head indexer_compressor_ape:2*indexer_head,4 "
    "indexer_compressor_norm ffn_gate_inp ffn_gate_tid2eid:? exp_probs_b.bias exp_probs_b_vl.bias "
    "ffn_norm nextn.eh_proj nextn.enorm nextn.hnorm nextn.embed_tokens nextn.shared_head_head "
    "nextn.shared_head_norm exps shexp(n_ff_exp*n_expert_shared)",
    "chatglm": "token_embd! output_norm! output attn_norm! attn_output!:n_embd,n_embd ffn_norm! "
    "ffn_up!:n_embd,2*n_ff ffn_down! qkv",
    "glm4": "token_embd! output_norm! output attn_norm attn_output post_attention_norm ffn_norm "
    "ffn_down ffn_up:n_embd,2*n_ff post_ffw_norm nextn.eh_proj nextn.enorm nextn.hnorm "
    "nextn.embed_tokens nextn.shared_head_head nextn.shared_head_norm qkv",
    "glm4moe": "token_embd! output_norm! output attn_norm attn_output attn_q_norm attn_k_norm "
    "post_attention_norm ffn_gate_inp exp_probs_b.bias nextn.eh_proj nextn.enorm nextn.hnorm "
    "nextn.embed_tokens nextn.shared_head_head nextn.shared_head_norm qkv "
    "exps(n_ff_exp?n_ff/n_expert_used) shexp(n_ff_exp*n_expert_shared) ffn",
    "glm-dsa": "token_embd! output_norm! output attn_norm attn_q_a_norm attn_kv_a_norm attn_q_a "
    "attn_q_b attn_kv_a_mqa attn_k_b attn_v_b attn_output:n_head*head_v_mla,n_embd ffn_norm "
    "indexer.k_norm indexer.k_norm.bias indexer.proj indexer.attn_k indexer.attn_q_b ffn_gate_inp "
    "exp_probs_b.bias nextn.eh_proj nextn.enorm nextn.hnorm nextn.embed_tokens "
    "nextn.shared_head_head nextn.shared_head_norm exps shexp(n_ff_exp*n_expert_shared) ffn",
    "bitnet": "token_embd! output_norm! attn_norm! attn_sub_norm! attn_q!:n_embd,n_embd "
    "attn_q.scale attn_k! attn_k.scale attn_v! attn_v.scale attn_output!:n_embd,n_embd "
    "attn_output.scale ffn_norm! ffn_sub_norm! ffn_gate.scale ffn_down.scale ffn_up.scale ffn",
    "t5": "token_embd! enc.output_norm! dec.output_norm! output enc.attn_norm! enc.attn_rel_b "
    "enc.attn_q! enc.attn_k! enc.attn_v! enc.attn_o! enc.ffn_norm! enc.ffn_gate enc.ffn_down! "
    "enc.ffn_up! dec.attn_norm! dec.attn_rel_b dec.attn_q! dec.attn_k! dec.attn_v! dec.attn_o! "
    "dec.cross_attn_norm! dec.cross_attn_rel_b dec.cross_attn_q! dec.cross_attn_k! "
    "dec.cross_attn_v! dec.cross_attn_o! dec.ffn_norm! dec.ffn_gate dec.ffn_down! dec.ffn_up!",
    "t5encoder": "token_embd! enc.output_norm! output enc.attn_norm! enc.attn_rel_b enc.attn_q! "
    "enc.attn_k! enc.attn_v! enc.attn_o! enc.ffn_norm! enc.ffn_gate enc.ffn_down! enc.ffn_up!",
    "jais": "token_embd! output_norm! output_norm.bias output! attn_norm! attn_norm.bias attn_qkv! "
    "attn_qkv.bias attn_output!:n_embd,n_embd attn_output.bias ffn_norm! ffn_norm.bias "
    "ffn_down.bias ffn_gate.bias ffn_up.bias ffn",
    "jais2": "token_embd! output_norm! output_norm.bias output attn_norm! attn_norm.bias "
    "attn_output! "
    "attn_output.bias ffn_norm! ffn_norm.bias ffn_up! ffn_up.bias ffn_down! ffn_down.bias qkv",
    "nemotron": "token_embd! output_norm! output_norm.bias output! attn_norm! attn_norm.bias "
    "attn_output!:n_embd,n_embd attn_output.bias ffn_norm! ffn_norm.bias ffn_down! ffn_up! "
    "ffn_down.bias ffn_up.bias qkv(n_embd,v,v)",
    "nemotron_h": "token_embd! output_norm output attn_norm ssm_in ssm_conv1d ssm_conv1d.bias "
    "ssm_dt.bias ssm_a. ssm_d. ssm_norm:d_inner/n_group,n_group ssm_out attn_output "
    "attn_output.bias ffn_gate_inp:? exp_probs_b.bias:? ffn_latent_down:? ffn_latent_up:? "
    "ffn_down_exps:? ffn_up_exps:? ffn_down_shexp:? ffn_up_shexp:? ffn_down ffn_up ffn_down.bias "
    "ffn_up.bias nextn.enorm:? nextn.hnorm:? nextn.eh_proj:? nextn.shared_head_norm:? "
    "post_attention_norm:? qkv",
    "nemotron_h_moe": "token_embd! output_norm output attn_norm ssm_in ssm_conv1d ssm_conv1d.bias "
    "ssm_dt.bias ssm_a. ssm_d. ssm_norm:d_inner/n_group,n_group ssm_out attn_output "
    "attn_output.bias ffn_gate_inp exp_probs_b.bias ffn_latent_down:n_embd,moe_latent?n_embd "
    "ffn_latent_up:moe_latent?n_embd,n_embd "
    "ffn_down_exps:n_ff_exp?n_ff/n_expert_used,moe_latent?n_embd,n_expert "
    "ffn_up_exps:moe_latent?n_embd,n_ff_exp?n_ff/n_expert_used,n_expert ffn_down_shexp "
    "ffn_up_shexp ffn_down ffn_up ffn_down.bias ffn_up.bias nextn.enorm nextn.hnorm nextn.eh_proj "
    "nextn.shared_head_norm post_attention_norm qkv",
    "exaone": "token_embd! output_norm! output attn_norm! attn_output! ffn_norm! rope_freqs qkv "
    "ffn",
    "exaone4": "token_embd! output_norm! output attn_output:n_embd,n_embd rope_freqs "
    "post_attention_norm attn_q_norm attn_k_norm post_ffw_norm nextn.eh_proj nextn.enorm "
    "nextn.hnorm nextn.shared_head_norm qkv ffn",
    "exaone-moe": "token_embd! output_norm! output! attn_output:q0,n_embd rope_freqs attn_norm "
    "attn_q_norm:head_k_0 attn_k_norm:head_k_0 ffn_norm ffn_gate_inp exp_probs_b.bias "
    "nextn.eh_proj nextn.enorm nextn.hnorm nextn.shared_head_norm nextn.embed_tokens "
    "nextn.shared_head_head qkv(q0,k0,k0) exps shexp(n_ff_shexp?n_ff_exp) ffn",
    "rwkv6": "token_embd! token_embd_norm! token_embd_norm.bias output_norm! output_norm.bias "
    "output! attn_norm! attn_norm.bias attn_norm_2! attn_norm_2.bias "
    "time_mix_w1!:n_embd,5*time_mix time_mix_w2! time_mix_lerp_x! time_mix_lerp_w time_mix_lerp_k "
    "time_mix_lerp_v time_mix_lerp_r time_mix_lerp_g time_mix_lerp_fused time_mix_first! "
    "time_mix_decay! time_mix_decay_w1! time_mix_decay_w2! time_mix_key! time_mix_value! "
    "time_mix_receptance! time_mix_gate! time_mix_ln! time_mix_ln.bias time_mix_output! "
    "channel_mix_lerp_k! channel_mix_lerp_r! channel_mix_key! channel_mix_value! "
    "channel_mix_receptance!",
    "rwkv6qwen2": "token_embd! output_norm! output_norm.bias output! attn_norm! "
    "time_mix_w1!:n_embd,5*time_mix time_mix_w2! time_mix_lerp_x! time_mix_lerp_fused! "
    "time_mix_first time_mix_decay! time_mix_decay_w1! time_mix_decay_w2! "
    "time_mix_key!:n_embd,n_head_kv*wkv_head time_mix_value!:n_embd,n_head_kv*wkv_head "
    "time_mix_receptance! time_mix_gate! time_mix_key.bias time_mix_value.bias "
    "time_mix_receptance.bias time_mix_output! ffn_norm! ffn",
    "rwkv7": "token_embd! token_embd_norm! token_embd_norm.bias output_norm! output_norm.bias "
    "output! attn_norm! attn_norm.bias attn_norm_2! attn_norm_2.bias time_mix_w0! time_mix_w1! "
    "time_mix_w2!:decay_lora,n_embd time_mix_a0! time_mix_a1! time_mix_a2! time_mix_v0 time_mix_v1 "
    "time_mix_v2 time_mix_g1! time_mix_g2! time_mix_lerp_fused!:n_embd,1,1,6 time_mix_k_k! "
    "time_mix_k_a! time_mix_r_k! time_mix_key! time_mix_value! time_mix_receptance! time_mix_ln! "
    "time_mix_ln.bias time_mix_output! channel_mix_lerp_k! channel_mix_key! channel_mix_value!",
    "arwkv7": "token_embd! output_norm! output! attn_norm! time_mix_w0! time_mix_w1! "
    "time_mix_w2!:decay_lora,n_embd time_mix_a0! time_mix_a1! time_mix_a2! time_mix_v0 "
    "time_mix_v1 time_mix_v2 time_mix_g1 time_mix_g2 time_mix_lerp_fused:n_embd,1,1,6 "
    "time_mix_k_k! time_mix_k_a! time_mix_r_k! time_mix_key! time_mix_value! "
    "time_mix_receptance! time_mix_ln time_mix_ln.bias time_mix_output! ffn_norm! ffn",
    "granite": "token_embd! output_norm! output attn_norm! attn_output! attn_output.bias ffn_norm! "
    "rope_factors_long:? rope_factors_short:? rope_freqs ffn_gate.bias ffn_down.bias "
    "ffn_up.bias ffn_gate_inp qkv exps(n_ff) shexp ffn",
    "granitemoe": "token_embd! output_norm! output attn_norm! attn_output! attn_output.bias "
    "ffn_norm! rope_factors_long:? rope_factors_short:? rope_freqs ffn_gate.bias ffn_down.bias "
    "ffn_up.bias ffn_gate_inp qkv exps(n_ff) shexp ffn",
    "granitehybrid": "token_embd! output_norm output attn_norm! ssm_in ssm_conv1d ssm_conv1d.bias "
    "ssm_dt.bias ssm_a. ssm_d. ssm_norm:d_inner/n_group,n_group ssm_out attn_output "
    "attn_output.bias ffn_norm rope_freqs ffn_gate_inp ffn_gate.bias ffn_down.bias ffn_up.bias qkv "
    "ffn exps(n_ff) shexp",
    "graniteswitch": "token_embd! output_norm! output attn_norm! attn_qkv!:n_embd,q+k+v "
    "attn_output! ffn_norm! attn_q.lora_a attn_q.lora_b attn_k.lora_a attn_k.lora_b attn_v.lora_a "
    "attn_v.lora_b attn_output.lora_a attn_output.lora_b ffn_gate.lora_a ffn_gate.lora_b "
    "ffn_up.lora_a ffn_up.lora_b ffn_down.lora_a ffn_down.lora_b ffn",
    "granite_swa": "token_embd! output_norm! output attn_norm! attn_output!:q0,n_embd "
    "attn_output.bias attn_sinks! ffn_norm! rope_factors_long:? rope_factors_short:? rope_freqs "
    "ffn_gate.bias ffn_down.bias ffn_up.bias ffn_gate_inp:? ffn_down_exps:? ffn_gate_up_exps:? "
    "ffn_gate_exps:? ffn_up_exps:? ffn_up_shexp:? ffn_down_shexp:? qkv(q0,k0,v0) ffn",
    "chameleon": "token_embd! output_norm! output attn_norm! attn_q_norm!:head_k,n_head "
    "attn_k_norm!:head_k,n_head_kv attn_q_norm.bias attn_k_norm.bias "
    "attn_output!:n_embd,n_embd ffn_norm! qkv(n_embd,k,v) ffn",
    "wavtokenizer-dec": "token_embd! conv1d! conv1d.bias posnet.norm1 posnet.norm1.bias "
    "posnet.conv1 posnet.conv1.bias posnet.norm2 posnet.norm2.bias posnet.conv2 posnet.conv2.bias "
    "posnet.attn_norm posnet.attn_norm.bias posnet.attn_q posnet.attn_q.bias posnet.attn_k "
    "posnet.attn_k.bias posnet.attn_v posnet.attn_v.bias posnet.attn_output "
    "posnet.attn_output.bias token_embd_norm!:n_posnet token_embd_norm.bias:n_posnet convnext.dw "
    "convnext.dw.bias convnext.norm convnext.norm.bias convnext.pw1 convnext.pw1.bias convnext.pw2 "
    "convnext.pw2.bias convnext.gamma output_norm:n_posnet output_norm.bias:n_posnet "
    "output!:n_posnet,n_embd_out output.bias:n_embd_out",
    "plm": "token_embd! output_norm! attn_norm! attn_q! attn_kv_a_mqa! attn_kv_a_norm! attn_kv_b! "
    "attn_output!:n_head*head_v_mla,n_embd ffn_norm! ffn_down! ffn_up!",
    "bailingmoe": "token_embd! output_norm! output! attn_norm! attn_output!:qr,n_embd ffn_norm! "
    "ffn_gate_inp! qkv(qr,kr,kr) exps shexp(n_ff_exp*n_expert_shared)",
    "bailingmoe2": "token_embd! output_norm! output! attn_norm attn_qkv attn_output attn_q_norm "
    "attn_k_norm ffn_norm ffn_gate_inp exp_probs_b.bias nextn.eh_proj nextn.embed_tokens "
    "nextn.enorm nextn.hnorm nextn.shared_head_head nextn.shared_head_norm layer_output_norm:? "
    "exps shexp(n_ff_shexp*n_expert_shared?n_ff_exp*n_expert_shared) ffn",
    "bailingmoe3": "token_embd! output_norm! output attn_norm ssm_conv1d_q ssm_conv1d_k "
    "ssm_conv1d_v attn_qkv:n_embd,3*kda attn_qkv.bias:? attn_q:n_embd,kda|n_head*head_k_mla "
    "attn_k:n_embd,kda attn_v:n_embd,kda attn_q.bias:kda attn_k.bias:kda attn_v.bias:kda "
    "ssm_f_a:n_embd,kda ssm_beta ssm_a.:1,n_head_0 ssm_dt.bias:kda ssm_g_a:n_embd,kda "
    "ssm_norm:kda_head attn_output:n_head_0*head_v_mla|kda,n_embd attn_q_a attn_q_a_norm "
    "attn_q_b:q_lora,n_head_0*head_k_mla attn_kv_a_mqa attn_kv_a_norm "
    "attn_k_b:head_k_mla-n_rot,kv_lora,n_head_0 attn_v_b:kv_lora,head_v_mla,n_head_0 "
    "attn_gate:n_embd,n_head_0 ffn_norm ffn_gate_inp exp_probs_b.bias nextn.eh_proj nextn.enorm "
    "nextn.hnorm layer_output_norm exps shexp(n_ff_shexp?n_ff_exp*n_expert_shared) ffn",
    "dots1": "token_embd! output_norm! output! attn_norm! attn_output! attn_k_norm! attn_q_norm! "
    "ffn_norm! ffn_gate_inp exp_probs_b.bias qkv(q,q,q) exps shexp(n_ff_exp*n_expert_shared) ffn",
    "dots3note": "token_embd! output_norm! output attn_norm attn_q_a_norm "
    "attn_kv_a_norm:kv_lora_il attn_k_norm:n_rot_full attn_q_a "
    "attn_q_b:q_lora,n_head*head_k_mla_il attn_kv_a_mqa:n_embd,kv_lora_il+n_rot_full "
    "attn_k_b:head_k_mla_il-n_rot_full,kv_lora_il,n_head attn_v_b:kv_lora_il,head_v_mla_il,n_head "
    "attn_output:n_head*head_v_mla_il,n_embd attn_gate ffn_norm indexer.k_norm indexer.k_norm.bias "
    "indexer.proj indexer.attn_k indexer.attn_q_b ffn_gate_inp exp_probs_b.bias nextn.eh_proj "
    "nextn.enorm nextn.hnorm nextn.embed_tokens nextn.shared_head_norm exps "
    "shexp(n_ff_exp*n_expert_shared) ffn",
    "arcee": "token_embd! output_norm! output attn_norm! attn_output! ffn_norm! rope_freqs "
    "ffn_down! ffn_up! qkv",
    "afmoe": "token_embd! output_norm! output attn_norm! post_attention_norm! "
    "attn_output!:q0,n_embd attn_q_norm!:head_k_0 attn_k_norm!:head_k_0 attn_gate!:n_embd,q0 "
    "ffn_norm! post_ffw_norm! ffn_gate_inp exp_probs_b.bias qkv(q0,k0,v0) exps "
    "shexp(n_ff_exp*n_expert_shared) ffn",
    "laguna": "token_embd! output_norm! output attn_norm! attn_output!:q0,n_embd "
    "attn_q_norm!:head_k_0 attn_k_norm!:head_k_0 attn_gate! ffn_norm! ffn_gate_inp "
    "exp_probs_b.bias qkv(q0,k0,v0) exps shexp(n_ff_shexp?n_ff_exp*n_expert_shared) ffn",
    "ernie4_5": "token_embd! output_norm! output attn_norm! attn_output! attn_output.bias "
    "ffn_norm! ffn_gate_inp:? exp_probs_b.bias:? ffn_gate_exps:? ffn_down_exps:? ffn_up_exps:? "
    "ffn_gate_shexp:? ffn_down_shexp:? ffn_up_shexp:? qkv(q,v,v) ffn",
    "ernie4_5-moe": "token_embd! output_norm! output attn_norm! attn_output! attn_output.bias "
    "ffn_norm! ffn_gate_inp exp_probs_b.bias qkv(q,v,v) exps shexp ffn",
    "paddleocr": "token_embd! output_norm! output attn_norm! attn_output! attn_output.bias "
    "ffn_norm! ffn_gate_inp:? exp_probs_b.bias:? ffn_gate_exps:? ffn_down_exps:? ffn_up_exps:? "
    "ffn_gate_shexp:? ffn_down_shexp:? ffn_up_shexp:? qkv(q,v,v) ffn",
    "hunyuan-moe": "token_embd! output_norm! output attn_norm! attn_output! attn_k_norm! "
    "attn_q_norm! ffn_norm! ffn_gate_inp! qkv exps(n_ff) shexp(n_ff_shexp?n_ff)",
    "hunyuan-dense": "token_embd! output_norm! output attn_norm! attn_output! attn_k_norm! "
    "attn_q_norm! ffn_norm! qkv ffn",
    "hunyuan_vl": "token_embd! output_norm! output attn_norm! attn_output! attn_k_norm! "
    "attn_q_norm! ffn_norm! qkv ffn",
    "hy_v3": "token_embd! output_norm! output attn_norm attn_output attn_q_norm attn_k_norm "
    "ffn_norm ffn_gate_inp exp_probs_b. nextn.eh_proj nextn.enorm nextn.hnorm nextn.embed_tokens "
    "nextn.shared_head_head nextn.shared_head_norm qkv "
    "ffn_gate_up_exps:n_embd,2*n_ff_exp?2*n_ff/n_expert_used,n_expert "
    "exps(n_ff_exp?n_ff/n_expert_used) shexp(n_ff_shexp?n_ff_exp) ffn",
    "hy_v4": "token_embd! output_norm! output! output_hc_fn! output_hc_base! output_hc_scale! "
    "attn_norm! attn_sinks! attn_q_a! attn_q_a_norm! attn_q_b! attn_kv_a_mqa! attn_kv_a_norm! "
    "attn_k_b! attn_v_b! attn_output!:n_head*head_v_mla,n_embd "
    "attn_gate!:n_embd,n_head*head_v_mla indexer.attn_q_b indexer.attn_k indexer.k_norm "
    "indexer.k_norm.bias indexer.proj hc_attn_fn!:n_hc*n_embd,2*n_hc hc_attn_base!:2*n_hc "
    "hc_attn_scale!:2 hc_ffn_fn!:n_hc*n_embd,2*n_hc hc_ffn_base!:2*n_hc hc_ffn_scale!:2 "
    "ffn_norm! ffn_gate_inp exp_probs_b.bias exps shexp(n_ff_exp*n_expert_shared) ffn",
    "smollm3": "token_embd! output_norm! output attn_norm! attn_output! ffn_norm! qkv ffn",
    "gpt-oss": "token_embd! output_norm! output! attn_norm! post_attention_norm! "
    "attn_output!:qr0,n_embd attn_sinks! ffn_gate_inp! attn_output.bias ffn_gate_inp.bias "
    "ffn_gate_exps.bias ffn_down_exps.bias ffn_up_exps.bias qkv(qr0,kr0,kr0) exps",
    "lfm2": "token_embd! token_embd_norm! attn_norm! attn_norm.bias:? attn_output:n_embd,n_embd "
    "attn_output.bias:? ffn_norm! ffn_norm.bias:? ffn_up.bias:? ffn_down.bias:? token_types:? "
    "cls.norm:? cls.norm.bias:? cls:? cls.bias:? cls.output:? cls.output.bias:? output "
    "ffn_gate_inp:? ffn_gate_exps:? ffn_down_exps:? ffn_up_exps:? exp_probs_b.bias:? "
    "attn_q_norm attn_k_norm shortconv.conv shortconv.in_proj shortconv.out_proj dense_2 "
    "dense_2.bias qkv(n_embd,k,v) ffn",
    "lfm2moe": "token_embd! token_embd_norm! output ffn_norm! ffn_gate_inp exp_probs_b.bias "
    "attn_norm! attn_q_norm attn_k_norm attn_output:n_embd,n_embd shortconv.conv shortconv.in_proj "
    "shortconv.out_proj dense_2 dense_2.bias qkv(n_embd,k,v) exps ffn",
    "dream": "token_embd! output_norm! output output.bias attn_norm! attn_output!:n_embd,n_embd "
    "ffn_norm! qkv(n_embd,v,v) ffn",
    "smallthinker": "token_embd! output_norm! output attn_norm! attn_output!:q0,n_embd ffn_norm! "
    "ffn_gate_inp! qkv(q0,v0,v0) exps",
    "llada": "token_embd! output_norm! output attn_norm! attn_output attn_output.bias ffn_norm! "
    "rope_freqs ffn_gate.bias ffn_down.bias ffn_up.bias qkv ffn",
    "llada-moe": "token_embd! output_norm! output! attn_norm! attn_output!:n_embd,n_embd "
    "attn_q_norm! "
    "attn_k_norm! ffn_norm! ffn_gate_inp! qkv(n_embd,v,v) exps(n_ff_exp?n_ff/n_expert_used)",
    "rnd1": "token_embd! output_norm! output attn_norm! attn_output! attn_k_norm! attn_q_norm! "
    "ffn_norm! ffn_gate_inp! qkv(q,v,v) exps(n_ff_exp?n_ff/n_expert_used)",
    "seed_oss": "token_embd! output_norm! output attn_output! attn_norm! post_attention_norm! "
    "qkv(q,k,k) ffn",
    "grovemoe": "token_embd! output_norm! output attn_norm! attn_output! attn_k_norm! attn_q_norm! "
    "ffn_norm! ffn_gate_inp! ffn_gate_chexps!:n_embd,?,? ffn_down_chexps!:?,n_embd,? "
    "ffn_up_chexps!:n_embd,?,? qkv(q,v,v) exps(n_ff_exp?n_ff/n_expert_used)",
    "apertus": "token_embd! output_norm! output! attn_norm! rope_factors_long rope_factors_short "
    "rope_freqs attn_output! attn_output.bias ffn_norm! ffn_down! ffn_up! attn_q_norm! "
    "attn_q_norm.bias:head_k attn_k_norm! attn_k_norm.bias:head_k qkv(q,v,v)",
    "minimax-01": "token_embd! output_norm! output attn_norm! attn_qkv:n_embd,q+k+v|3*q "
    "attn_qkv.bias:? attn_q attn_k attn_v attn_q.bias attn_k.bias attn_v.bias attn_norm_2:q "
    "attn_gate:n_embd,q attn_output! ffn_norm! ffn_gate_inp! exps(n_ff)",
    "minimax-m2": "token_embd! output_norm! output! attn_output! attn_norm! attn_q_norm!:q "
    "attn_k_norm!:k ffn_norm! ffn_gate_inp! exp_probs_b.bias qkv(q,v,v) exps(n_ff)",
    "minimax-m3": "token_embd! output_norm! output! attn_output! attn_norm! attn_q_norm! "
    "attn_k_norm! ffn_norm! ffn_gate_inp exp_probs_b.bias indexer.q_proj indexer.k_proj "
    "indexer.q_norm indexer.k_norm qkv(q,v,v) exps shexp(n_ff_exp*n_expert_shared) ffn",
    "hrm_text": "token_embd! output hrm.z_l_init. attn_gate:n_embd,q attn_output qkv ffn",
    "cogvlm": "token_embd! output_norm! output attn_norm! attn_qkv!:n_embd,3*q attn_output! "
    "vis_attn_qkv! vis_attn_output! rope_freqs ffn_norm! vis_gate! vis_down! vis_up! ffn",
    "pangu-embedded": "token_embd! output_norm! output attn_norm! attn_output! attn_output.bias "
    "ffn_norm! rope_factors_long:? rope_factors_short:? rope_freqs qkv ffn",
    "mistral3": "token_embd! output_norm! output attn_norm! attn_output! attn_output.bias "
    "ffn_norm! rope_factors_long:? rope_factors_short:? rope_freqs ffn_gate.bias ffn_down.bias "
    "ffn_up.bias ffn_gate_inp ffn_gate_shexp:? ffn_up_shexp:? ffn_down_shexp:? qkv exps(n_ff) ffn",
    "mistral4": "token_embd! output_norm! output attn_norm attn_q_a_norm attn_kv_a_norm attn_q_a "
    "attn_q_b attn_q:? attn_kv_a_mqa attn_k_b attn_v_b attn_kv_b "
    "attn_output:n_head*head_v_mla,n_embd ffn_norm ffn_gate_inp exp_probs_b.bias nextn.eh_proj "
    "nextn.enorm nextn.hnorm nextn.embed_tokens nextn.shared_head_head nextn.shared_head_norm "
    "ffn_gate_up_exps:n_embd,2*n_ff_exp,n_expert exps shexp(n_ff_exp*n_expert_shared) ffn",
    "eagle3": "d2t. fc! enc.output_norm:n_target*n_embd_target output_norm! output:n_embd,n_draft "
    "token_embd:n_embd,? attn_norm! attn_norm_2! attn_q!:2*n_embd,q attn_k!:2*n_embd,k "
    "attn_v!:2*n_embd,v attn_output! ffn_norm! rope_freqs ffn",
    "dflash": "token_embd d2t. markov_w1 markov_w2 markov_w2.scale conf_proj conf_proj.bias "
    "selector_predecessor selector_successor selector_hidden fc! fc.scale enc.output_norm! "
    "output_norm! output:n_embd,n_draft output_hc_fn output_hc_base output_hc_scale attn_norm! "
    "attn_sinks attn_q_a attn_q_a_norm attn_q_b attn_kv attn_kv_a_norm:head_k "
    "attn_output_a:q/o_groups,o_lora,o_groups~ attn_output_b hc_attn_fn hc_attn_base hc_attn_scale "
    "hc_ffn_fn hc_ffn_base hc_ffn_scale ffn_gate_inp exp_probs_b.bias ffn_norm! attn_q attn_k "
    "attn_v attn_output attn_q_norm attn_k_norm post_attention_norm post_ffw_norm "
    "layer_output_scale rope_freqs:head_k/2 attn_conv_base. "
    "attn_conv_proj:n_embd,2*conv_kernel*n_embd/conv_group ffn_conv_base. "
    "ffn_conv_proj:n_embd,2*conv_kernel*n_embd/conv_group exps shexp(n_ff_exp*n_expert_shared) ffn",
    "mimo2": "token_embd! output_norm! output! attn_qkv:n_embd,n_head*head_k_0+k+v "
    "attn_qkv.bias:n_head*head_k_0+k+v attn_q:n_embd,q0 attn_k attn_v attn_q.bias:q0 "
    "attn_k.bias attn_v.bias attn_output:o0,n_embd attn_norm attn_sinks ffn_norm ffn_gate_inp "
    "exp_probs_b.bias nextn.eh_proj nextn.enorm nextn.hnorm nextn.embed_tokens "
    "nextn.shared_head_head nextn.shared_head_norm layer_output_norm exps ffn",
    "step35": "token_embd! output_norm! output attn_norm attn_q_norm:head_k_0 attn_k_norm:head_k_0 "
    "rope_factors_long:? rope_factors_short:? rope_freqs:? attn_qkv:n_embd,n_head*head_k_0+k+v "
    "attn_qkv.bias:n_head*head_k_0+k+v attn_q:n_embd,n_head*head_k_0 attn_k attn_v "
    "attn_q.bias:n_head*head_k_0 attn_k.bias attn_v.bias attn_output:n_head*head_v_0,n_embd "
    "attn_gate ffn_norm ffn_gate_inp exp_probs_b.bias nextn.eh_proj nextn.enorm nextn.hnorm "
    "nextn.embed_tokens nextn.shared_head_head nextn.shared_head_norm exps shexp ffn",
    "k2-horizon": "token_embd! output_norm! output attn_norm! attn_q! attn_k! "
    "attn_q_norm:head_k,n_head~ attn_k_norm:head_k,n_head~ attn_v_gate attn_v_gate.bias "
    "attn_v_exps attn_v attn_output!:v,n_embd attn_gate:n_embd,v ffn_norm! ffn_gate_inp "
    "exp_probs_b.bias exps shexp(n_ff_shexp?n_ff_exp*n_expert_shared) ffn",
    "spark2_5": "token_embd! output_norm! output attn_norm! attn_gate! attn_output! ffn_norm! qkv "
    "ffn",
    "maincoder": "token_embd! output_norm! output attn_norm! attn_output! attn_k_norm! "
    "attn_q_norm! ffn_norm! qkv(q,v,v) ffn",
    "kimi-linear": "token_embd! output_norm! output! attn_norm! ssm_conv1d_q ssm_conv1d_k "
    "ssm_conv1d_v attn_qkv:n_embd,3*kda attn_qkv.bias:? attn_q:n_embd,n_head*head_k_mla|kda "
    "attn_k:n_embd,kda attn_v:n_embd,kda attn_q.bias:kda attn_k.bias:kda attn_v.bias:kda ssm_f_a "
    "ssm_f_b ssm_beta ssm_a.:1,n_head_0 ssm_dt.bias:kda ssm_g_a ssm_g_b ssm_norm:kda_head "
    "attn_output:kda|n_head*head_v_mla,n_embd attn_q_a_norm:? attn_kv_a_norm attn_q_a:? attn_q_b:? "
    "attn_kv_a_mqa attn_kv_b attn_k_b attn_v_b ffn_norm! ffn_gate_inp exp_probs_b.bias exps "
    "shexp(n_ff_exp*n_expert_shared) ffn",
    "kimi-k3": "token_embd! output_norm! output! output_res_score attn_norm! ffn_norm! "
    "attn_res_score ffn_res_score ssm_f_a ssm_f_b ssm_beta ssm_a.:n_head_0 ssm_dt.bias:kda ssm_g "
    "ssm_norm:kda_head attn_output:kda|head_v_mla,n_embd attn_q_a_norm attn_kv_a_norm attn_q_a "
    "attn_q_b attn_kv_a_mqa attn_kv_b attn_k_b attn_v_b attn_gate:n_embd,n_head*head_v_mla "
    "ffn_gate_inp exp_probs_b.bias ffn_gate_exps:n_latent?n_embd,n_ff_exp,n_expert "
    "ffn_down_exps:n_ff_exp,n_latent?n_embd,n_expert ffn_up_exps:n_latent?n_embd,n_ff_exp,n_expert "
    "ffn_routed_down ffn_routed_up ffn_routed_norm ssm_conv1d_q ssm_conv1d_k ssm_conv1d_v "
    "qkv(kda,kda,kda) shexp(n_ff_exp*n_expert_shared) ffn",
    "glm5-next": "token_embd! output_norm! output! attn_norm ffn_norm hc_attn_fn hc_attn_base "
    "hc_attn_scale hc_ffn_fn hc_ffn_base hc_ffn_scale ssm_f_a ssm_f_b ssm_beta ssm_a.:n_head "
    "ssm_dt.bias:n_head*kda_head ssm_g_a ssm_g_b ssm_norm:kda_head "
    "attn_output:n_head*head_v_mla|n_head*kda_head,n_embd attn_q_a_norm attn_kv_a_norm attn_q_a "
    "attn_q_b attn_kv_a_mqa attn_k_b attn_v_b indexer.k_norm indexer.k_norm.bias indexer.proj "
    "indexer.attn_k indexer.attn_q_b indexer_compressor_gate indexer_compressor_ape ffn_gate_inp "
    "exp_probs_b.bias nextn.eh_proj nextn.enorm nextn.hnorm nextn.embed_tokens "
    "nextn.shared_head_head nextn.shared_head_norm ssm_conv1d_q ssm_conv1d_k ssm_conv1d_v "
    "qkv(kda,kda,kda) exps shexp(n_ff_exp*n_expert_shared) ffn",
    "talkie": "token_embd! output! attn_output! attn_q_norm!:1,n_head layer_output_scale! "
    "qkv(q,v,v) ffn",
    "mellum": "token_embd! output_norm! output! attn_norm! attn_output!:q0,n_embd "
    "attn_k_norm!:head_k_0 attn_q_norm!:head_k_0 ffn_norm! ffn_gate_inp! qkv(q0,v0,v0) "
    "exps(n_ff_exp?n_ff/n_expert_used)",
    "maion-coder": "token_embd! output_norm! output! attn_norm! attn_output!:q0,n_embd "
    "attn_q_norm!:head_k_0 attn_k_norm!:head_k_0 post_attention_norm! ffn_norm! post_ffw_norm! "
    "ffn_gate_inp ffn_latent_down:? ffn_latent_up:? ffn_gate_exps:? ffn_up_exps:? ffn_down_exps:? "
    "qkv(q0,k0,v0) ffn",
    "kolibri1": "token_embd! output_norm! output! attn_norm! post_attention_norm! "
    "attn_output!:q0,n_embd attn_q_norm!:head_k_0 attn_k_norm!:head_k_0 ffn_norm! post_ffw_norm! "
    "ffn_gate_inp! exp_probs_b.bias! qkv(q0,k0,v0) exps shexp",
    "muse-spark": "token_embd! output_norm! output! attn_norm! attn_output!:q0,n_embd "
    "attn_q_norm!:head_k_0 attn_k_norm!:head_k_0 attn_gate!:n_embd,q0 attn_resid_alpha!:? "
    "attn_resid_beta!:? ffn_norm! post_ffw_norm! ffn_resid_alpha!:? ffn_resid_beta!:? ffn_gate_inp "
    "exp_probs_b.bias ffn_latent_down:? ffn_latent_up:? ffn_pre_exp_norm:? ffn_post_exp_norm:? "
    "ffn_gate_exps:? ffn_up_exps:? ffn_down_exps:? qkv(q0,k0,v0) ffn",
    "beam": "token_embd! output_norm! output attn_norm! post_attention_norm! "
    "attn_output!:q0,n_embd attn_q_norm!:head_k_0 attn_k_norm!:head_k_0 attn_gate!:n_embd,q0 "
    "attn_gate.bias!:? ffn_norm! post_ffw_norm! ffn_gate_inp exp_probs_b.bias qkv(q0,k0,v0) exps "
    "ffn",
    "nanbeige": "token_embd! output_norm! output attn_norm! attn_output! rope_freqs ffn_norm! qkv "
    "ffn",
    "pockettts": "token_embd! output_norm! output_norm.bias attn_norm! attn_norm.bias "
    "attn_output!:n_embd,n_embd ffn_norm! ffn_norm.bias ffn_down! ffn_up! qkv(n_embd,v,v)",
}
