"""The mixers of Mamba-1 and Mamba-2 (src/models/mamba-base.cpp), and the models that differ in
nothing else (mamba.cpp, mamba2.cpp, jamba.cpp, granite-hybrid.cpp)."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ..experts import Routing
from ..llm import Llm
from ..recurrent import (
    F32,
    Hybrid,
    OneBlock,
    build_rs,
    keep_tails,
    n_cells,
    snapshots,
    state,
    tails,
)


def build_mamba_layer(llm: Llm, cur: Tensor, il: int) -> Tensor:
    """Mirror build_mamba_layer: selective scan with a decay per channel and state."""
    g, hp, n_tok, n_seqs = llm.graph, llm.hparams, llm.n_seq_tokens, llm.n_seqs
    d_conv, d_inner, d_state, rank = hp.ssm_d_conv, hp.ssm_d_inner, hp.ssm_d_state, hp.ssm_dt_rank
    conv_all, ssm_all = state(llm, il, 0), state(llm, il, 1)
    # the last d_conv - 1 inputs of each channel
    conv = g.reshape(build_rs(llm, conv_all), d_conv - 1, d_inner, n_seqs)
    # since Rules.scan_ids the scan reads the states in the cache by their row numbers
    gathered = None if llm.rules.scan_ids else build_rs(llm, ssm_all)
    cur = g.reshape(cur, cur.ne[0], n_tok, n_seqs)
    xz = llm.linear(il, "ssm_in", cur, scale=True)
    # one projection: x to the convolution, z to the gate
    x = g.view(xz, (d_inner, n_tok, n_seqs), xz.nb[1:3])
    z = g.view(xz, (d_inner, n_tok, n_seqs), xz.nb[1:3], d_inner * F32)
    conv = g.concat(conv, g.transpose(x), 0)
    width = (d_conv - 1) * d_inner * n_seqs
    # what the next batch starts from
    last = g.view(conv, (d_conv - 1, d_inner, n_seqs), conv.nb[1:3], n_tok * conv.nb[0])
    g.expand(g.cpy(last, g.view(conv_all, (width,))))
    kernel, bias = llm.need_layer(il, "ssm_conv1d"), llm.need_layer(il, "ssm_conv1d", "bias")
    x = g.add(g.ssm_conv(conv, kernel), bias)
    x = g.unary("SILU", x)

    # dt (of low rank), B and C one after the other
    x_db = llm.linear(il, "ssm_x", x)
    dt = g.view(x_db, (rank, n_tok, n_seqs), x_db.nb[1:3])
    shape, strides = (d_state, 1, n_tok, n_seqs), (d_state * x_db.nb[0], x_db.nb[1], x_db.nb[2])
    b, c = (g.view(x_db, shape, strides, F32 * at) for at in (rank, rank + d_state))
    norms = [llm.layer_weight(il, f"ssm_{name}_norm") for name in ("dt", "b", "c")]
    # FalconMamba norms them without weights, Jamba with
    if hp.ssm_dt_b_c_rms or None not in norms:
        dt, b, c = (
            llm.build_norm(t, norm, None, "rms", il)
            for t, norm in zip((dt, b, c), norms, strict=True)
        )
    elif llm.rules.mamba_dt_cont:
        dt = g.cont(dt)
    dt = g.add(llm.linear(il, "ssm_dt", dt), llm.need_layer(il, "ssm_dt", "bias"))
    cur = x
    x = g.reshape(x, 1, d_inner, n_tok, n_seqs)

    def scan(states: Tensor, ids: Tensor | None) -> Tensor:
        ssm = g.reshape(states, d_state, 1, d_inner, states.ne[1])
        return g.ssm_scan(ssm, x, dt, llm.need_layer(il, "ssm_a"), b, c, ids)

    y_ssm = build_rs(llm, ssm_all, scan) if gathered is None else scan(gathered, None)
    width = d_state * d_inner * n_seqs
    # the scan's result: outputs of all tokens, then the states after the last
    g.expand(g.cpy(g.view(y_ssm, (width,), (), x.nb[3] * x.ne[3]), g.view(ssm_all, (width,))))
    y = g.view(y_ssm, (d_inner, n_tok, n_seqs), (x.nb[2], x.nb[3]))
    # D: a skip connection around the scan
    y = g.add(y, g.mul(cur, llm.need_layer(il, "ssm_d")))
    z = g.cont(z)
    y = g.glu("SWIGLU", z, y) if gathered is None else g.mul(y, g.unary("SILU", z))
    cur = llm.linear(il, "ssm_out", y, scale=True)
    return g.reshape(cur, cur.ne[0], n_tok * n_seqs)


def build_mamba2_layer(llm: Llm, cur: Tensor, il: int) -> Tensor:
    """Mirror build_mamba2_layer: one decay per head."""
    g, hp, n_tok, n_seqs = llm.graph, llm.hparams, llm.n_seq_tokens, llm.n_seqs
    d_conv, d_inner, d_state = hp.ssm_d_conv, hp.ssm_d_inner, hp.ssm_d_state
    # ssm.time_step_rank is the number of heads here
    n_head, n_group, n_states = hp.ssm_dt_rank, hp.ssm_n_group, snapshots(llm)
    head_dim, channels = d_inner // n_head, d_inner + 2 * n_group * d_state
    conv_all, ssm_all = state(llm, il, 0), state(llm, il, 1)
    conv = g.reshape(build_rs(llm, conv_all), d_conv - 1, channels, n_seqs)
    # since Rules.mamba2_flat the projections see all tokens as one matrix
    flat = llm.rules.mamba2_flat
    if not flat:
        cur = g.reshape(cur, cur.ne[0], n_tok, n_seqs)
    projected = llm.linear(il, "ssm_in", cur, scale=True)
    if flat:
        projected = g.reshape(projected, projected.ne[0], n_tok, n_seqs)
    nb = projected.nb
    z = g.view(projected, (head_dim, n_head, n_tok, n_seqs), (head_dim * F32, nb[1], nb[2]))
    xbc = g.view(projected, (channels, n_tok, n_seqs), nb[1:3], d_inner * F32)
    dt = g.view(projected, (n_head, n_tok, n_seqs), nb[1:3], (d_inner + channels) * F32)
    conv = g.concat(conv, g.transpose(xbc), 0)
    keep_tails(llm, conv, conv_all, d_conv - 1, tails(llm, conv.ne[0], d_conv - 1))
    xbc = g.add(
        g.ssm_conv(conv, llm.need_layer(il, "ssm_conv1d")),
        llm.need_layer(il, "ssm_conv1d", "bias"),
    )
    xbc = g.unary("SILU", xbc)

    x = g.view(xbc, (head_dim, n_head, n_tok, n_seqs), (head_dim * F32, *xbc.nb[1:3]))
    b, c = (
        g.view(xbc, (d_state, n_group, n_tok, n_seqs), (d_state * F32, *xbc.nb[1:3]), at * F32)
        for at in (d_inner, d_inner + n_group * d_state)
    )
    dt = g.add(g.cont(dt), llm.need_layer(il, "ssm_dt", "bias"))

    def scan(states: Tensor, ids: Tensor) -> Tensor:
        ssm = g.reshape(states, d_state, head_dim, n_head, ssm_all.ne[1])
        return g.ssm_scan(ssm, x, dt, llm.need_layer(il, "ssm_a"), b, c, ids, n_states)

    # outputs, then a state for each kept token
    y_ssm = build_rs(llm, ssm_all, scan)
    width, written = d_state * d_inner, min(n_tok, n_states)
    row = width * F32
    shape = width, n_seqs, written
    fresh = g.view(y_ssm, shape, (row, row * n_seqs), x.nelements * F32)
    place = g.view(ssm_all, shape, (ssm_all.nb[1], n_cells(llm) * row))
    g.expand(g.cpy(fresh, place))
    nb1 = x.nb[1]
    y = g.view(y_ssm, (head_dim, n_head, n_tok, n_seqs), (nb1, n_head * nb1, n_tok * n_head * nb1))
    y = g.add(y, g.mul(x, llm.need_layer(il, "ssm_d")))
    y = g.glu("SWIGLU", g.cont(z), y)
    norm = llm.layer_weight(il, "ssm_norm")
    # a grouped norm: each group of heads by itself
    if norm is not None:
        y = g.reshape(y, d_inner // n_group, n_group, n_tok, n_seqs)
        y = llm.build_norm(y, norm, None, "rms", il)
    if flat:
        return llm.linear(il, "ssm_out", g.reshape(y, d_inner, n_tok * n_seqs), scale=True)
    cur = llm.linear(il, "ssm_out", g.reshape(y, d_inner, n_tok, n_seqs), scale=True)
    return g.reshape(cur, cur.ne[0], n_tok * n_seqs)


BUILDERS = {
    "mamba": OneBlock(inp_pos=False, mixer=build_mamba_layer),
    "mamba2": OneBlock(inp_pos=False, mixer=build_mamba2_layer),
    "jamba": Hybrid(
        mixer=build_mamba_layer,
        inp_pos=False,
        residual_first=True,
        wo_bias=False,
        ffn_bias=False,
        ffn_residual_first=True,
        moe=Routing("softmax", norm_w=False, probs_b=None, gate_up=None, biases=False),
    ),
    "granitehybrid": Hybrid(
        mixer=build_mamba2_layer,
        rope="key",
        rope_factors=True,
        residual_scale=None,
        shexp="add",
        logit_scale=None,
        moe=Routing("softmax", norm_w=True, probs_b=None, gate_up=None, biases=False),
    ),
}
