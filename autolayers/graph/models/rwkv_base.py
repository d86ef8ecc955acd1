"""What RWKV-6 and RWKV-7 share: token shifts, and the recurrence in place of attention."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ..llm import Llm
from ..recurrent import F32, build_rs, state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..llm import Norm


class Rwkv:
    def __init__(self, qwen: bool = False) -> None:
        """`qwen`: with the FFN and the norms of Qwen2, where the recurrence needs one token shift
        instead of two."""
        self.qwen = qwen
        self.norm: Norm = "rms" if qwen else "layer"

    def __call__(self, llm: Llm) -> Tensor:
        g, n_tok, n_seqs, n_embd = llm.graph, llm.n_seq_tokens, llm.n_seqs, llm.n_embd
        cur = llm.build_inp_embd()
        if not self.qwen:
            weight, bias = llm.weight("token_embd_norm.weight"), llm.weight("token_embd_norm.bias")
            cur = llm.build_norm(cur, weight, bias, "layer", 0)
        llm.build_inp_out_ids()
        first: list[Tensor] = []
        for il in llm.layers:
            inp = g.reshape(cur, n_embd, n_tok, n_seqs)
            # [n_embd, 1 or 2, n_seqs]: the last token of the batch before, as each mix saw it
            shift = g.reshape(
                build_rs(llm, state(llm, il, 0)), n_embd, llm.hparams.token_shift_count, n_seqs
            )
            normed = self.normed(llm, inp, il, "attn_norm")
            rest = self.with_ffn if self.qwen else self.with_channel_mix
            cur = rest(llm, inp, normed, shift, il, first)
        cur = llm.build_norm(
            cur, llm.weight("output_norm.weight"), llm.weight("output_norm.bias"), self.norm
        )
        return llm.finish(cur)

    def normed(self, llm: Llm, cur: Tensor, il: int, name: str) -> Tensor:
        return llm.norm(il, name, cur, self.norm)

    def with_channel_mix(
        self,
        llm: Llm,
        inp: Tensor,
        normed: Tensor,
        shift: Tensor,
        il: int,
        first: list[Tensor],
    ) -> Tensor:
        g = llm.graph
        # the last token as attention saw it, and as the FFN did
        of_att, of_ffn = (
            g.view(shift, (llm.n_embd, 1, llm.n_seqs), shift.nb[1:3], at * llm.n_embd * F32)
            for at in (0, 1)
        )
        mixed = self.time_mix(llm, normed, previous(llm, of_att, normed), il, first)
        ffn_inp = g.add(mixed, inp)
        ffn_norm = self.normed(llm, ffn_inp, il, "attn_norm_2")
        prev = previous(llm, of_ffn, ffn_norm)
        # before rows are left out: the next batch needs the last token, requested or not
        store_shift(llm, g.concat(last(llm, normed), last(llm, ffn_norm), 1), il)
        ffn_inp, ffn_norm, prev = llm.select_outputs(
            il,
            *(g.reshape(t, llm.n_embd, llm.n_tokens) for t in (ffn_inp, ffn_norm, prev)),
        )
        return g.add(self.channel_mix(llm, ffn_norm, prev, il), ffn_inp)

    def with_ffn(
        self,
        llm: Llm,
        inp: Tensor,
        normed: Tensor,
        shift: Tensor,
        il: int,
        first: list[Tensor],
    ) -> Tensor:
        g = llm.graph
        mixed = self.time_mix(llm, normed, previous(llm, shift, normed), il, first)
        store_shift(llm, last(llm, normed), il)
        (ffn_inp,) = llm.select_outputs(il, g.reshape(g.add(mixed, inp), llm.n_embd, llm.n_tokens))
        cur = llm.rms_norm(il, "ffn_norm", ffn_inp)
        return g.add(llm.build_ffn(cur, il, scales=False, biases=False), ffn_inp)

    def time_mix(self, llm: Llm, cur: Tensor, prev: Tensor, il: int, first: list[Tensor]) -> Tensor:
        """Return the recurrence, [n_embd, n_seq_tokens, n_seqs]; `prev`: each token's predecessor,
        `first`: the first V."""
        raise NotImplementedError

    def channel_mix(self, llm: Llm, cur: Tensor, prev: Tensor, il: int) -> Tensor:
        raise NotImplementedError


def previous(llm: Llm, shift: Tensor, cur: Tensor) -> Tensor:
    """Return each token's predecessor."""
    g = llm.graph
    # the first token's predecessor is the stored one; [n_embd, n_seq_tokens, n_seqs]
    return g.concat(
        shift, g.view(cur, (llm.n_embd, llm.n_seq_tokens - 1, llm.n_seqs), cur.nb[1:3]), 1
    )


def last(llm: Llm, cur: Tensor) -> Tensor:
    """Return the last token of each sequence."""
    return llm.graph.view(
        cur, (llm.n_embd, 1, llm.n_seqs), cur.nb[1:3], (llm.n_seq_tokens - 1) * llm.n_embd * F32
    )


def store_shift(llm: Llm, shift: Tensor, il: int) -> None:
    """Mirror build_rwkv_token_shift_store."""
    # from cell 0, as get_head() is 0 while graphs are reserved
    g, width = llm.graph, llm.n_embd * llm.n_seqs * llm.hparams.token_shift_count
    g.expand(g.cpy(g.view(shift, (width,)), g.view(state(llm, il, 0), (width,))))


def split_output(llm: Llm, result: Tensor, il: int, normed: bool = True) -> Tensor:
    """Store the states that the recurrence gives; return its output, normed by head if the file has
    that norm."""
    g, n, n_embd = llm.graph, llm.n_tokens, llm.n_embd
    head = llm.hparams.wkv_head_size
    states = state(llm, il, 1)
    # the op's result: outputs of all tokens, then the states
    cur = g.view(result, (n_embd * n,))
    fresh = g.view(result, (n_embd * head * llm.n_seqs,), (), n_embd * n * F32)
    g.expand(g.cpy(fresh, g.view(states, (states.ne[0] * llm.n_seqs,))))
    weight, bias = llm.layer_weight(il, "time_mix_ln"), llm.layer_weight(il, "time_mix_ln", "bias")
    if weight is None or bias is None or not normed:
        return g.reshape(cur, n_embd, n)
    cur = g.reshape(g.norm(g.reshape(cur, head, n_embd // head, n)), n_embd, n)
    return g.add(g.mul(cur, weight), bias)
