"""Multi-token prediction: the block after a model's last layer as a context of its own (--spec-type draft-mtp).

The next token's embedding and the model's last hidden state become one input, and the architecture's own layer works
on it. What differs is where the rows that are asked for are picked (Architecture.mtp): after the head's norm ("norm"),
before it ("layer") or after attention ("attention"). Sources: graph_mtp of src/models/*.cpp (as modelled).
"""

from __future__ import annotations

from ..ggml.tensor import Tensor
from ..records import replace
from .llm import Llm

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .decoder import Decoder


def build_mtp(row: Decoder, llm: Llm) -> Tensor:
    """The logits of the MTP block (not yet expanded); the hidden state is an output too."""
    picked = llm.row.mtp
    g, il = llm.graph, llm.n_layer
    row = replace(row.for_file(llm), select="attention" if picked == "attention" else "")
    llm.n_layer += 1                   # its layer is the last
    embd, state = mtp_inputs(llm, il)
    pos = llm.build_inp_pos() if row.inp_pos else None
    out_ids = llm.build_inp_out_ids()
    inp = llm.build_attn_inp()
    state = llm.build_norm(state, llm.layer_weight(il, "nextn.hnorm"), None, row.norm, il)
    embd = llm.build_norm(embd, llm.layer_weight(il, "nextn.enorm"), None, row.norm, il)
    cur = llm.linear(il, "nextn.eh_proj", g.concat(embd, state, 0), scale=True)
    cur = row.mtp_layer(llm, cur, il, inp, pos, out_ids)
    if picked == "layer":
        cur = llm.output(g.get_rows(cur, out_ids))
    norm = llm.layer_weight(il, "nextn.shared_head_norm")
    if norm is None:
        norm = llm.layer_weight(il, "layer_output_norm")
    if norm is None:
        norm = llm.weight("output_norm.weight")
    cur = llm.build_norm(cur, norm, None, row.mtp_norm())
    if picked != "layer":
        llm.output(cur)
    if picked == "norm":
        cur = g.get_rows(cur, out_ids)
    head = llm.layer_weight(il, "nextn.shared_head_head")
    scale = llm.weight("output.scale") if head is None else llm.layer_weight(il, "nextn.shared_head_head", "scale")
    cur = llm.build_lora_mm(llm.need("output.weight") if head is None else head, cur, scale)
    return g.scale(cur) if row.logit_scale is None and llm.hparams.f_logit_scale else cur


def mtp_inputs(llm: Llm, il: int, streams: int = 1) -> tuple[Tensor, Tensor]:
    """(the next token's embedding, the last hidden state of all residual streams), as they come in."""
    g, n = llm.graph, llm.n_tokens
    tokens = g.input("inp_tokens", "i32", n)
    state = g.input("mtp_h_input", "f32", llm.n_embd * streams, n)
    table = llm.layer_weight(il, "nextn.embed_tokens")
    return g.get_rows(llm.need("token_embd.weight") if table is None else table, tokens), state
