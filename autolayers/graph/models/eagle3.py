"""EAGLE-3: a draft of one layer that reads the token's embedding and the target's fused state
(src/models/eagle3.cpp). Embeddings and head are the target's if the file has none. Only the decoder
for tokens is measured; the same context also runs an encoder over the target's features, which
needs less."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ..llm import Llm


def borrowed(llm: Llm, name: str) -> Tensor:
    """Return the draft's own weight, otherwise the target's."""
    own = llm.weight(name)
    return llm.need("target." + name) if own is None else own


def scattered(llm: Llm, x: Tensor) -> Tensor:
    """Return the logits of a smaller vocabulary as rows of the target's, if the file has the map
    (d2t)."""
    g, places = llm.graph, llm.weight("d2t")
    if places is None:
        return x
    n_vocab, n_draft, rows = llm.hparams.n_vocab, x.ne[0], x.ne[1]
    # -inf for tokens that the draft does not know
    full = g.fill(g.new("f32", 1, n_vocab, rows))
    full = g.set_rows(full, g.reshape(x, 1, n_draft, rows), g.reshape(places, n_draft, 1, 1))
    return g.reshape(full, n_vocab, rows)


def eagle3(llm: Llm) -> Tensor:
    g, hp, n = llm.graph, llm.hparams, llm.n_tokens
    tokens = g.input("inp_tokens", "i32", n)
    state = g.input("inp_embd", "f32", llm.n_embd, n)
    embd = g.get_rows(borrowed(llm, "token_embd.weight"), tokens)
    llm.build_inp_pos()
    llm.inp = llm.build_attn_inp_kv()
    embd = llm.rms_norm(0, "attn_norm", embd)
    normed = llm.build_norm(state, llm.layer_weight(0, "attn_norm_2"))
    # Q, K and V read twice the width: the token and the target's state
    cur = g.concat(embd, normed, 0)
    q, k, v = (
        g.reshape(llm.linear(0, f"attn_{x}", cur), llm.head_v, n_head, n)
        for x, n_head in (("q", llm.n_head), ("k", llm.n_head_kv), ("v", llm.n_head_kv))
    )
    factors = llm.rope_factors(0)
    q, k = llm.rope(q, factors), llm.rope(k, factors)
    attn = llm.linear(0, "attn_output", llm.build_attn(q, k, v, 0, wo=None))
    ffn_inp = g.add(attn, normed if hp.norm_before_residual else state)
    cur = llm.build_ffn(llm.rms_norm(0, "ffn_norm", ffn_inp), 0, scales=False, biases=False)
    cur = llm.output(g.add(cur, ffn_inp))
    cur = llm.output_norm(cur)
    return scattered(llm, llm.build_lora_mm(borrowed(llm, "output.weight"), cur))


BUILDERS = {"eagle3": eagle3}
