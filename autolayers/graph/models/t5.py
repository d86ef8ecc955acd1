"""T5: relative positions as a bias on the scores, so self-attention never uses flash attention
(src/models/t5.cpp).

What is measured is the decoder, with as many encoder outputs as the model was trained on.
"""

from __future__ import annotations

from ...errors import LaunchRefused
from ...ggml.tensor import Tensor
from ...records import dataclass
from ..inputs import AttnInput
from ..llm import Llm


@dataclass(frozen=True)
class _Inputs:
    """`embd`: the encoder's outputs, which the decoder attends to by `cross`; the encoder has
    neither."""

    bucket: Tensor
    attn: AttnInput
    n_layer: int
    embd: Tensor | None = None
    cross: AttnInput = AttnInput(None, None)


class T5:
    def __init__(self, encoder: bool = False) -> None:
        self.encoder = encoder

    def __call__(self, llm: Llm) -> Tensor:
        half = "enc." if self.encoder else "dec."
        llm.rename_weights(lambda name: half + name if name.startswith("blk.") else name)
        cur = llm.build_inp_embd()
        inputs = self.inputs(llm)
        llm.build_inp_out_ids()
        for il in range(min(inputs.n_layer, llm.n_layer)):
            cur = self.layer(llm, cur, il, inputs)
        norm = llm.build_norm(cur, llm.weight(f"{half}output_norm.weight"))
        return llm.finish(norm, head=None if self.encoder else "output")

    def inputs(self, llm: Llm) -> _Inputs:
        g, hp, n = llm.graph, llm.hparams, llm.n_tokens
        if self.encoder:
            bucket = g.input("pos_bucket_enc", "i32", n, n)
            return _Inputs(bucket, llm.build_attn_inp_no_cache(), llm.n_layer)
        embd = g.input("cross_embd", "f32", hp.n_embd_inp, hp.n_ctx_train)
        # the bias is computed for one stream of cells
        if llm.caches["attn"].n_stream > 1:
            raise LaunchRefused(
                "t5: llama.cpp aborts with slots that do not share a cache; "
                "use --kv-unified or -np 1"
            )
        bucket = g.input("pos_bucket_dec", "i32", llm.caches["attn"].n_kv, n)
        attn = llm.build_attn_inp_kv()
        cross = AttnInput(None, None)
        cross.mask = llm.mask_input("cross_kq_mask", "", hp.n_ctx_train, n)
        return _Inputs(bucket, attn, hp.dec_n_layer or llm.n_layer, embd, cross)

    def layer(self, llm: Llm, cur: Tensor, il: int, inputs: _Inputs) -> Tensor:
        g, residual = llm.graph, cur
        q, k, v = llm.build_qkv(llm.rms_norm(il, "attn_norm", cur), il)
        bias = self.bias(llm, inputs.bucket, il)
        cur = llm.build_attn(q, k, v, il, inp=inputs.attn, kq_b=bias, wo="attn_o", wo_bias=False)
        if inputs.embd is not None:
            residual = g.add(cur, residual)
            normed = llm.rms_norm(il, "cross_attn_norm", residual)
            cur = self.cross_attention(llm, normed, inputs.embd, il, inputs.cross)
        # the decoder has its own count of layers, so not select_outputs
        if il == inputs.n_layer - 1:
            cur, residual = g.get_rows(cur, llm.out_ids), g.get_rows(residual, llm.out_ids)
        ffn_inp = g.add(cur, residual)
        # T5 uses relu, flan-T5 a gated gelu
        gated = llm.layer_weight(il, "ffn_gate") is not None
        cur = llm.build_ffn(
            llm.rms_norm(il, "ffn_norm", ffn_inp),
            il,
            "gelu" if gated else "relu",
            "par" if gated else None,
            scales=False,
            biases=False,
        )
        return g.add(cur, ffn_inp)

    def bias(self, llm: Llm, bucket: Tensor, il: int) -> Tensor:
        """Return the bias of positions (build_pos_bias): the first layer's table where a layer has
        none."""
        g = llm.graph
        # T5 has it in the first layer alone
        table = llm.layer_weight(il, "attn_rel_b")
        if table is None:
            table = llm.need("blk.0.attn_rel_b.weight")
        made = g.get_rows(table, g.reshape(bucket, bucket.ne[0] * bucket.ne[1]))
        return g.cont(g.permute(g.reshape(made, made.ne[0], *bucket.ne[:2]), 2, 0, 1, 3))

    def cross_attention(
        self, llm: Llm, cur: Tensor, embd: Tensor, il: int, inp: AttnInput
    ) -> Tensor:
        g, hp = llm.graph, llm.hparams
        made = []
        # K and V come from the encoder's outputs in every batch: they have no cache
        n_kv = hp.n_head_kv(il)
        for x, source, n_head in (("q", cur, hp.n_head(il)), ("k", embd, n_kv), ("v", embd, n_kv)):
            t = llm.linear(il, f"cross_attn_{x}", source)
            made.append(g.reshape(t, hp.head_k(il), n_head, source.ne[1]))
        q, k, v = made
        return llm.build_attn(q, k, v, il, inp=inp, wo="cross_attn_o", wo_bias=False)


BUILDERS = {"t5": T5(), "t5encoder": T5(encoder=True)}
