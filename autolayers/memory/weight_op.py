"""The operation that llama.cpp tests a weight with before it chooses a buffer type:
weight_buft_supported of src/llama-model-loader.cpp, as modelled. Backends answer for it as for any
operation of a graph."""

from __future__ import annotations

from ..ggml.tensor import Buffer, Graph, Tensor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..backends import Backend
    from ..gguf import TensorInfo
    from ..model import Hparams

# a backend may run a matrix product for many columns only, so llama.cpp asks with 512
_N_TOKENS, _N_SEQS = 512, 3  # of the activations


def weight_supported(
    backend: Backend, buffer: Buffer, op: str, info: TensorInfo, hp: Hparams
) -> bool:
    """Return whether `backend` runs `op` on a weight in `buffer`. `info`: of a type that ggml
    knows."""
    # supports_op sees the buffer too: on a repacked weight the CPU runs matrix products alone
    weight = Tensor("NONE", info.type, info.ne)
    weight.buffer = buffer
    weight.weight = True
    node = weight_op(op, weight, hp)
    return node is None or backend.supports_op(node)


def weight_op(op: str, w: Tensor, hp: Hparams) -> Tensor | None:
    """Return `op` on `w` and matching activations; None for NONE, which no backend is asked
    about."""
    g = Graph()
    ne = w.ne
    # embedded adapters (granite_switch): a token uses one, whatever the file says of experts
    used = max(1, hp.n_expert_used_max) if hp.router_layer < 0 else 1
    if op == "GET_ROWS":
        return g.get_rows(w, g.new("i32", _N_TOKENS))
    if op == "MUL_MAT":
        return g.mul_mat(w, g.new("f32", ne[0], _N_TOKENS, ne[2], ne[3]))
    if op == "MUL_MAT_ID":
        return g.mul_mat_id(w, g.new("f32", ne[0], used, _N_TOKENS), g.new("i32", used, _N_TOKENS))
    if op == "ADD":
        return g.add(g.new("f32", *ne), w)
    if op == "ADD_ID":
        return g.add_id(g.new("f32", ne[0], used, _N_TOKENS), w, g.new("i32", used, _N_TOKENS))
    if op == "MUL":
        return g.mul(g.new("f32", *ne), w)
    if op == "DIV":
        return g.div(g.new("f32", ne[0]), w)
    if op == "ROPE":
        return g.rope(
            g.new("f32", hp.head_v(0), hp.n_head(0), _N_TOKENS), g.new("i32", _N_TOKENS), w
        )
    if op == "SSM_CONV":
        return g.ssm_conv(g.new("f32", ne[0] - 1 + _N_TOKENS, ne[1], _N_SEQS), w)
    if op == "SSM_SCAN":
        # build the scan of a matrix of decays: Mamba-1 has a row of decays per head, Mamba-2 one
        d_state = hp.ssm_d_state if w.ne[0] == 1 else w.ne[0]
        n_head, n_group = w.ne[1], max(1, hp.ssm_n_group)
        x = g.new("f32", hp.ssm_d_inner // n_head, n_head, _N_TOKENS, _N_SEQS)
        group = g.new("f32", d_state, n_group, _N_TOKENS, _N_SEQS)
        return g.ssm_scan(
            g.new("f32", d_state, x.ne[0], n_head, _N_SEQS),
            x,
            g.new("f32", n_head, _N_TOKENS, _N_SEQS),
            w,
            group,
            group,
            g.new("i32", _N_SEQS),
        )
    # 123 is llama.cpp's own placeholder ("FIXME" there): no backend looks at these sizes
    if op == "RWKV_WKV6":
        k = g.new("f32", 123, 123, 123)
        return g.wkv("RWKV_WKV6", k, g.new("f32", 123, 123, 123, 123), k, k, k, w, k)
    # a convolution's kernel, e.g. WavTokenizer's
    if op == "IM2COL":
        return g.im2col(w, g.new("f32", hp.n_embd_inp, ne[1]), 0)
    if op == "SCALE":
        return g.scale(w)
    return None
