"""Norms after the residual is added; positions learned, roped or by ALiBi (src/models/bert.cpp)."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ..experts import Routing, build_moe_ffn
from ..llm import Llm

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal


class Bert:
    def __init__(
        self, position: Literal["learned", "rope", "alibi"], ffn: Literal["seq", "silu", "jina"]
    ) -> None:
        """`ffn`: up and down (seq), gated (silu), or gated with the gate maybe inside up (jina)."""
        self.position = position
        self.ffn = ffn

    def __call__(self, llm: Llm) -> Tensor:
        g = llm.graph
        if self.position != "alibi":
            llm.build_inp_pos()
        rows = None
        if self.position == "learned":
            rows = g.get_rows(llm.need("position_embd.weight"), llm.pos)  # type: ignore[arg-type]
        if rows is not None and llm.rules.positions_first:
            g.expand(rows)
        cur = llm.build_inp_embd()
        types = llm.weight("token_types.weight")
        if types is not None:
            # token type 0 for all: llama.cpp has no others
            cur = g.add(cur, g.view(types, (llm.n_embd,)))
        if rows is not None:
            cur = g.add(rows, cur)
        weight, bias = llm.weight("token_embd_norm.weight"), llm.weight("token_embd_norm.bias")
        cur = llm.build_norm(cur, weight, bias, "layer", 0)
        llm.inp = llm.build_attn_inp_no_cache()
        llm.build_inp_out_ids()
        for il in llm.layers:
            cur = self.layer(llm, cur, il)
        return llm.finish(cur, head=None)

    def layer(self, llm: Llm, inp_l: Tensor, il: int) -> Tensor:
        g = llm.graph
        q, k, v = llm.build_qkv(inp_l, il, roped=llm.row.rope != "none")
        q, k = self.normed(llm, q, il, "attn_q_norm"), self.normed(llm, k, il, "attn_k_norm")
        if self.position == "rope":
            q, k = llm.rope(q), llm.rope(k)
        attn = llm.build_attn(q, k, v, il)
        attn, inp_l = llm.select_outputs(il, attn, inp_l)
        cur = self.normed(llm, g.add(attn, inp_l), il, "attn_output_norm")
        # jina-bert-v2's second norm
        if llm.layer_weight(il, "attn_norm_2") is not None:
            cur = self.normed(llm, g.add(cur, inp_l), il, "attn_norm_2")
        return self.normed(
            llm, g.add(self.feed_forward(llm, cur, il), cur), il, "layer_output_norm"
        )

    def normed(self, llm: Llm, cur: Tensor, il: int, name: str) -> Tensor:
        weight = llm.layer_weight(il, name)
        if weight is None:
            return cur
        flat = cur
        # Q and K are normed over all their heads
        if cur.ne[2] > 1 or name.startswith(("attn_q", "attn_k")):
            flat = llm.graph.reshape(cur, cur.ne[0] * cur.ne[1], cur.ne[2])
        made = llm.build_norm(flat, weight, llm.layer_weight(il, name, "bias"), "layer", il)
        return made if flat is cur else llm.graph.reshape(made, *cur.ne)

    def feed_forward(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        hp = llm.hparams
        if hp.moe_every_n_layers > 0 and il % hp.moe_every_n_layers == 1:
            return build_moe_ffn(llm, cur, il, _ROUTING)
        if self.ffn == "seq":
            return llm.build_ffn(cur, il, "gelu", None, scales=False)
        if self.ffn == "silu":
            return llm.build_ffn(cur, il, scales=False, biases=False)
        # jina-bert-v2 files have gate and up as one matrix of twice the width
        inside = llm.layer_weight(il, "ffn_gate") is None and llm.need_layer(il, "ffn_up").ne[
            1
        ] != hp.n_ff(0)
        return llm.build_ffn(cur, il, "geglu" if inside else "gelu", scales=False)


_ROUTING = Routing(
    "softmax", norm_w=False, act="gelu", gate=None, gate_up=None, probs_b=None, biases=False
)

BUILDERS = {
    "bert": Bert("learned", "seq"),
    "nomic-bert": Bert("rope", "silu"),
    "nomic-bert-moe": Bert("rope", "seq"),
    "jina-bert-v2": Bert("alibi", "jina"),
    "jina-bert-v3": Bert("rope", "seq"),
}
