"""RWKV-7, also with the FFN and norms of Qwen2 (src/models/rwkv7-base.cpp, rwkv7.cpp,
arwkv7.cpp)."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ..llm import Llm
from ..recurrent import F32, build_rs, state
from .rwkv_base import Rwkv, split_output


class Rwkv7(Rwkv):
    def time_mix(self, llm: Llm, cur: Tensor, prev: Tensor, il: int, first: list[Tensor]) -> Tensor:
        """Mirror build_rwkv7_time_mix."""
        g, n, n_embd = llm.graph, llm.n_tokens, llm.n_embd
        size = llm.hparams.wkv_head_size
        n_head = n_embd // size

        def w(name: str) -> Tensor:
            return llm.need_layer(il, f"time_mix_{name}")

        def low_rank(name: str, x: Tensor, act: str | None = None) -> Tensor:
            x = g.mul_mat(w(f"{name}1"), x)
            return g.mul_mat(w(f"{name}2"), x if act is None else g.unary(act, x))

        # ARWKV files may lack the output's gate, and with it one of six shifted inputs
        gated = (
            llm.layer_weight(il, "time_mix_g1") is not None
            and llm.layer_weight(il, "time_mix_g2") is not None
        )
        # the difference to the token before, once per mix, all mixes by one lerp
        sx = g.repeat(g.sub(prev, cur), n_embd, llm.n_seq_tokens, llm.n_seqs, 6 if gated else 5)
        x = g.add(g.mul(sx, w("lerp_fused")), cur)
        xr, xw, xk, xv, xa, xg = (
            g.view(x, (n_embd, n), (x.nb[1],), part * n_embd * n * F32) for part in range(6)
        )
        r = llm.build_lora_mm(w("receptance"), xr)
        decay = g.add(low_rank("w", xw, "TANH"), w("w0"))
        # exp(-0.606531 sigmoid(w)); the constant is exp(-1/2)
        decay = g.unary("EXP", g.scale(g.unary("SIGMOID", decay)))
        k, v = llm.build_lora_mm(w("key"), xk), llm.build_lora_mm(w("value"), xv)
        # later layers mix their V with that of the first
        if first:
            share = g.unary("SIGMOID", g.add(low_rank("v", xv), w("v0")))
            v = g.add(v, g.mul(g.sub(first[0], v), share))
        else:
            first.append(v)
        a = g.unary("SIGMOID", g.add(low_rank("a", xa), w("a0")))
        kk = g.l2_norm(g.reshape(g.mul(k, w("k_k")), size, n_head, n))
        ka = g.mul(k, w("k_a"))
        k = g.add(k, g.sub(g.mul(a, ka), ka))
        r, decay, k, v, a = (g.reshape(t, size, n_head, n) for t in (r, decay, k, v, a))
        # ggml_rwkv_wkv7's a and b are -kk and kk * a
        states = build_rs(llm, state(llm, il, 1))
        result = g.wkv("RWKV_WKV7", k, states, r, decay, k, v, g.unary("NEG", kk), g.mul(kk, a))
        cur = split_output(llm, result, il)
        # a bonus for the current token, per head
        bonus = g.reshape(w("r_k"), size, n_head)
        rk = g.sum_rows(g.mul(g.mul(k, r), bonus))
        cur = g.add(cur, g.reshape(g.mul(v, rk), n_embd, n))
        if gated:
            cur = g.mul(cur, low_rank("g", xg, "SIGMOID"))
        return g.reshape(llm.build_lora_mm(w("output"), cur), n_embd, llm.n_seq_tokens, llm.n_seqs)

    def channel_mix(self, llm: Llm, cur: Tensor, prev: Tensor, il: int) -> Tensor:
        g = llm.graph
        x = g.add(g.mul(g.sub(prev, cur), llm.need_layer(il, "channel_mix_lerp_k")), cur)
        k = g.sqr(g.unary("RELU", llm.linear(il, "channel_mix_key", x)))
        return llm.linear(il, "channel_mix_value", k)


BUILDERS = {"rwkv7": Rwkv7(), "arwkv7": Rwkv7(qwen=True)}
