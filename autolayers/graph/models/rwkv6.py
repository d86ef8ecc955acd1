"""RWKV-6, also with the FFN and norms of Qwen2 (src/models/rwkv6-base.cpp, rwkv6.cpp,
rwkv6qwen2.cpp)."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ...model.hparams import Hparams
from ..llm import Llm
from ..recurrent import F32, build_rs, state
from .rwkv_base import Rwkv, split_output


class Rwkv6(Rwkv):
    def rescales(self, hp: Hparams, il: int) -> bool:
        """Whether a layer halves its values, to stay in the range of f16."""
        every: int = 0 if self.qwen else hp.rescale_every_n_layers
        return every > 0 and (il + 1) % every == 0

    def with_channel_mix(
        self,
        llm: Llm,
        inp: Tensor,
        normed: Tensor,
        shift: Tensor,
        il: int,
        first: list[Tensor],
    ) -> Tensor:
        cur = super().with_channel_mix(llm, inp, normed, shift, il, first)
        return llm.graph.scale(cur) if self.rescales(llm.hparams, il) else cur

    def time_mix(self, llm: Llm, cur: Tensor, prev: Tensor, il: int, first: list[Tensor]) -> Tensor:
        """Mirror build_rwkv6_time_mix."""
        g, n, n_embd = llm.graph, llm.n_tokens, llm.n_embd
        size = llm.hparams.wkv_head_size
        n_head, n_head_kv = n_embd // size, llm.hparams.n_head_kv(il)

        def w(name: str) -> Tensor:
            return llm.need_layer(il, f"time_mix_{name}")

        # gated linear attention in place of RWKV's own
        gated = llm.layer_weight(il, "time_mix_first") is None
        xw, xk, xv, xr, xg = self.mixed_inputs(llm, cur, prev, il)
        made = []
        for name, t in (("receptance", xr), ("key", xk), ("value", xv)):
            bias = llm.layer_weight(il, f"time_mix_{name}", "bias")
            t = llm.build_lora_mm(w(name), t)
            made.append(t if bias is None else g.add(t, bias))
        r, k, v = made
        gate = g.unary("SIGMOID" if gated else "SILU", llm.build_lora_mm(w("gate"), xg))
        # of Qwen2's grouped keys: the recurrence wants one head per query
        if n_head_kv not in (0, n_head):
            k, v = (
                g.repeat(
                    g.reshape(t, size, 1, n_head_kv, n), size, n_head // n_head_kv, n_head_kv, n
                )
                for t in (k, v)
            )
        k, v, r = (g.reshape(t, size, n_head, n) for t in (k, v, r))
        decay = g.add(
            g.mul_mat(w("decay_w2"), g.unary("TANH", g.mul_mat(w("decay_w1"), xw))), w("decay")
        )
        # exp(-exp(w)): between 0 and 1, one per channel and token
        decay = g.unary("EXP", g.unary("NEG", g.unary("EXP", decay)))
        decay = g.reshape(decay, size, n_head, n)
        if gated:
            # k (1 - w)
            k = g.sub(k, g.mul(k, decay))
        states = build_rs(llm, state(llm, il, 1))
        if gated:
            result = g.wkv("GATED_LINEAR_ATTN", k, states, k, v, r, decay)
        else:
            result = g.wkv("RWKV_WKV6", k, states, k, v, r, w("first"), decay)
        cur = split_output(llm, result, il, normed=not gated)
        return g.reshape(
            llm.build_lora_mm(w("output"), g.mul(cur, gate)), n_embd, llm.n_seq_tokens, llm.n_seqs
        )

    def mixed_inputs(self, llm: Llm, cur: Tensor, prev: Tensor, il: int) -> tuple[Tensor, ...]:
        """Return each token mixed with the one before it, for decay, keys, values, receptance and
        gate."""
        g, n, n_embd = llm.graph, llm.n_tokens, llm.n_embd

        def w(name: str) -> Tensor:
            return llm.need_layer(il, f"time_mix_{name}")

        sx = g.reshape(g.sub(prev, cur), n_embd, n)
        cur = g.reshape(cur, n_embd, n)
        x = g.add(g.mul(sx, w("lerp_x")), cur)
        w1, w2 = w("w1"), w("w2")
        # the low-rank corrections of all five mixes at once, [n_embd, 1, n_tokens, 5]
        x = g.reshape(g.unary("TANH", g.mul_mat(w1, x)), w1.ne[1] // 5, 1, 5, n)
        x = g.mul_mat(g.reshape(w2, w2.ne[0], w2.ne[1], 1, 5), g.cont(g.permute(x, 0, 1, 3, 2)))
        # older files of RWKV-6 have five factors instead (rwkv6.cpp: TENSOR_NOT_REQUIRED)
        fused = llm.layer_weight(il, "time_mix_lerp_fused")
        if fused is not None:
            sx, cur = g.reshape(sx, n_embd, 1, n), g.reshape(cur, n_embd, 1, n)
            x = g.add(g.mul(g.add(x, fused), sx), cur)
        parts = tuple(
            [g.view(x, (n_embd, n), (x.nb[1],), part * n_embd * n * F32) for part in range(5)]
        )
        if fused is not None:
            return parts
        return tuple(
            [
                g.add(g.mul(g.add(t, w(f"lerp_{name}")), sx), cur)
                for name, t in zip("wkvrg", parts, strict=True)
            ]
        )

    def channel_mix(self, llm: Llm, cur: Tensor, prev: Tensor, il: int) -> Tensor:
        g = llm.graph
        sx = g.sub(prev, cur)
        xk, xr = (g.add(g.mul(sx, llm.need_layer(il, f"channel_mix_lerp_{x}")), cur) for x in "kr")
        r = g.unary("SIGMOID", llm.linear(il, "channel_mix_receptance", xr))
        k = g.sqr(g.unary("RELU", llm.linear(il, "channel_mix_key", xk)))
        return g.mul(r, llm.linear(il, "channel_mix_value", k))


BUILDERS = {"rwkv6": Rwkv6(), "rwkv6qwen2": Rwkv6(qwen=True)}
