"""One head of attention picks each token's adapter, whose LoRA is part of every matrix
(src/models/granite-switch.cpp).
"""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ..llm import Llm


class GraniteSwitch:
    def __call__(self, llm: Llm) -> Tensor:
        g, hp, n = llm.graph, llm.hparams, llm.n_tokens
        # ids after an adapter's tokens are substituted: build_inp_embd would embed the raw ones
        tokens = g.input("sub_tokens", "i32", n)
        k, v, q = (g.input(name, "f32", n) for name in ("router_ksig", "router_vval", "router_q"))
        cur = g.get_rows(llm.need("token_embd.weight"), tokens)
        if hp.f_embedding_scale:
            cur = g.scale(cur)
        if hp.has_rope(0):
            llm.build_inp_pos()
        llm.inp = llm.build_attn_inp_kv()

        def lane(signal: Tensor) -> Tensor:
            # dimension 0 alone has a signal, the rest of the head is zeros
            return g.pad(g.reshape(signal, 1, 1, n), llm.head_k - 1)

        # one head attends over signals, numbers of the batch, instead of hidden states
        routed = llm.build_attn(lane(q), lane(k), lane(v), hp.router_layer, wo=None)
        # row 0 is the slot that was attended to, as a float
        slots = g.reshape(g.cont(g.view(routed, (1, n), (routed.nb[1],))), n)
        ids = g.cast(g.unary("ROUND", g.clamp(slots)), "i32")
        llm.build_inp_out_ids()
        for il in llm.layers:
            residual = cur
            cur = self.attention(llm, llm.rms_norm(il, "attn_norm", cur), ids, il)
            # the adapters of the requested rows alone, too
            if il == llm.n_layer - 1:
                cur, residual = llm.select_outputs(il, cur, residual)
                ids = g.reshape(g.get_rows(g.reshape(ids, 1, n), llm.out_ids), llm.out_ids.ne[0])
            ffn_inp = g.add(self.scaled(llm, cur), residual)
            cur = llm.rms_norm(il, "ffn_norm", ffn_inp)
            gate, up = (
                self.switched_lora_mm(llm, f"ffn_{x}", cur, ids, il) for x in ("gate", "up")
            )
            cur = self.switched_lora_mm(llm, "ffn_down", g.mul(g.unary("SILU", gate), up), ids, il)
            cur = g.add(self.scaled(llm, cur), ffn_inp)
        cur = llm.finish(llm.output_norm(cur))
        return g.scale(cur)

    def scaled(self, llm: Llm, cur: Tensor) -> Tensor:
        """Return a branch as it is added to the residual."""
        return llm.graph.scale(cur) if llm.hparams.f_residual_scale else cur

    def switched_lora_delta(self, llm: Llm, name: str, cur: Tensor, ids: Tensor, il: int) -> Tensor:
        """Return the LoRA of each token's adapter (build_switched_lora_delta)."""
        g, n = llm.graph, cur.ne[1]
        x, chosen = g.reshape(cur, cur.ne[0], 1, n), g.reshape(ids, 1, n)
        for part in ("lora_a", "lora_b"):
            x = g.mul_mat_id(llm.need_layer(il, name, part), x, chosen)
        return g.reshape(x, x.ne[0], n)

    def switched_lora_mm(self, llm: Llm, name: str, cur: Tensor, ids: Tensor, il: int) -> Tensor:
        """Mirror build_switched_lora_mm."""
        g = llm.graph
        return g.add(
            llm.linear(il, name, cur),
            self.switched_lora_delta(llm, name, cur, ids, il),
        )

    def attention(self, llm: Llm, cur: Tensor, ids: Tensor, il: int) -> Tensor:
        g, hp, n, head = llm.graph, llm.hparams, llm.n_tokens, llm.head_k
        both = llm.linear(il, "attn_qkv", cur)
        made, start = [], 0
        for x, n_head in (("q", hp.n_head(il)), ("k", hp.n_head_kv(il)), ("v", hp.n_head_kv(il))):
            # whole rows, so that each part's LoRA can be added
            t = g.cont(g.view(both, (head * n_head, n), (both.nb[1],), start * both.nb[0]))
            start += head * n_head
            t = g.reshape(
                g.add(t, self.switched_lora_delta(llm, f"attn_{x}", cur, ids, il)), head, n_head, n
            )
            if llm.pos is not None and x != "v" and hp.has_rope(il):
                t = llm.rope(t, llm.rope_factors(il))
            made.append(t)
        q, k, v = made
        attn = llm.build_attn(q, k, v, il, wo=None)
        return self.switched_lora_mm(llm, "attn_output", attn, ids, il)


BUILDERS = {"graniteswitch": GraniteSwitch()}
