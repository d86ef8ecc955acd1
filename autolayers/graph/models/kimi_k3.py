"""Residual streams of earlier layers are kept and mixed by attention over them; experts in a latent
space (src/models/kimi-k3.cpp).
"""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ..experts import Routing, build_latent_moe, situ
from ..kimi_delta_attention import KimiDeltaAttention
from ..llm import Llm
from ..recurrent import snapshots
from .kimi_linear import KimiLinear


class KimiK3(KimiLinear):
    flat_states = False

    def __call__(self, llm: Llm) -> Tensor:
        g, every = llm.graph, llm.hparams.attn_res_block_size
        stream = llm.build_inp_embd()
        # no positions: its MLA has no rope
        llm.inp = llm.build_attn_inp()
        llm.build_inp_out_ids()
        bank: Tensor | None = None
        for il in llm.layers:
            cur = self.attend_residuals(llm, stream, bank, f"blk.{il}.attn_res_score.weight")
            # at the first layer of each block the stream goes to the bank, and a new one begins
            banked = every > 0 and il % every == 0
            if banked:
                checkpoint = g.reshape(stream, llm.n_embd, 1, llm.n_tokens)
                bank = checkpoint if bank is None else g.concat(bank, checkpoint, 1)
            cur = self.attention(llm, self.normed(llm, cur, il, "attn_norm"), il)
            stream = cur if banked else g.add(stream, cur)
            cur = self.attend_residuals(llm, stream, bank, f"blk.{il}.ffn_res_score.weight")
            cur = self.feed_forward(llm, self.normed(llm, cur, il, "ffn_norm"), il)
            stream = g.add(stream, cur)
        cur = self.attend_residuals(llm, stream, bank, "output_res_score.weight")
        cur = g.get_rows(cur, llm.out_ids)
        return self.head(llm, llm.output_norm(cur))

    def attend_residuals(self, llm: Llm, cur: Tensor, bank: Tensor | None, score: str) -> Tensor:
        """Return the stream mixed with those in `bank`, [n_embd, kept, n_tokens], by attention over
        them."""
        if bank is None:
            return cur
        g, n, n_residuals = llm.graph, llm.n_tokens, bank.ne[1]
        weight = llm.need(score)
        # scores are of the normed streams, the sum below is of the raw ones
        old = g.reshape(g.sum_rows(g.mul(g.rms_norm(bank), weight)), n_residuals, n)
        # apart from the bank's, so that the bank is only ever appended to
        new = g.sum_rows(g.mul(g.rms_norm(cur), weight))
        probs = g.soft_max(g.concat(old, new, 0))
        of_old = g.cont(g.view(probs, (n_residuals, n), (probs.nb[1],)))
        of_new = g.cont(g.view(probs, (1, n), (probs.nb[1],), n_residuals * probs.nb[0]))
        # DeepSeek-V4's op sums the bank, [n_embd, streams, n_tokens], by its shares
        return g.add(g.hc_pre(bank, of_old), g.mul(cur, of_new))

    def slots(self, llm: Llm) -> int:
        return snapshots(llm)

    def decay(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        g, hp = llm.graph, llm.hparams
        # no clamp: where it is set, another activation takes softplus's place
        if hp.kda_gate_lower_bound == float("-inf"):
            return super().decay(llm, cur, il)
        gate = g.reshape(
            self.low_rank_gate(llm, cur, il), hp.n_embd_head_kda, llm.n_head, llm.n_tokens
        )
        # bound * sigmoid(exp(A) x); the file has -exp(A), hence the inner scale by -1
        return g.scale(g.unary("SIGMOID", g.scale(g.mul(gate, self.decay_rates(llm, il)))))

    def output_gate(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        # one matrix of full rank, where Kimi Linear has two
        return llm.linear(il, "ssm_g", self.regrouped(llm, cur))

    def mla(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        return KimiDeltaAttention.mla(self, llm, cur, il)

    def gated(self, llm: Llm, out: Tensor, cur: Tensor, il: int) -> Tensor:
        g, weight = llm.graph, llm.layer_weight(il, "attn_gate")
        return out if weight is None else g.mul(out, g.unary("SIGMOID", g.mul_mat(weight, cur)))

    def feed_forward(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        if il < llm.hparams.n_layer_dense_lead:
            return self.situ_ffn(llm, cur, il, "")
        out = build_latent_moe(
            llm, cur, il, _ROUTING, "ffn_routed", after="ffn_routed_norm", optional=True
        )
        if llm.layer_weight(il, "ffn_gate_shexp") is None:
            return out
        return llm.graph.add(out, self.situ_ffn(llm, cur, il, "_shexp"))

    def situ_ffn(self, llm: Llm, cur: Tensor, il: int, which: str) -> Tensor:
        gate, up = (llm.linear(il, f"ffn_{name}{which}", cur) for name in ("gate", "up"))
        return llm.linear(il, f"ffn_down{which}", situ(llm, gate, up))


_ROUTING = Routing(act="situ", gate_up=None, biases=False)

BUILDERS = {"kimi-k3": KimiK3()}
