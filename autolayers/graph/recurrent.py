"""What recurrent and hybrid models share: states in the cache, and layers that have one instead of
keys and values.

Source: build_rs of src/llama-graph.cpp (as modelled).
"""

from __future__ import annotations

from ..ggml.tensor import Tensor
from ..records import dataclass
from .decoder import Decoder
from .llm import Llm

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

F32 = 4  # bytes of an element of a state


@dataclass(frozen=True)
class Hybrid(Decoder):
    """Layers with a state instead of keys and values run `recurrent` in place of attention."""

    mixer: Callable[[Llm, Tensor, int], Tensor] | None = None

    def recurrent(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        assert self.mixer is not None
        return self.mixer(llm, cur, il)

    def attention(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        if llm.hparams.is_recr(il):
            return self.recurrent(llm, cur, il)
        return super().attention(llm, cur, il)


class OneBlock(Hybrid):
    """A layer is one mixer: a state, attention or an FFN, never two of them."""

    def layer(self, llm: Llm, inp_l: Tensor, il: int) -> Tensor:
        cur = self.normed(llm, inp_l, il, self.attn_norm)
        # nemotron-h: a layer without an FFN length is attention, if it has no state
        if llm.hparams.is_recr(il) or llm.hparams.n_ff(il) == 0:
            cur = self.attention(llm, cur, il)
        else:
            cur = self.feed_forward(llm, cur, il)
        if self.select == "attention":
            cur, inp_l = llm.select_outputs(il, cur, inp_l)
        return llm.graph.add(cur, inp_l)


def state(llm: Llm, il: int, which: int) -> Tensor:
    """Return a layer's states of all sequences. 0: r, the convolution's last inputs; 1: s, the
    recurrence's; 2: p, of PLE."""
    tensor = llm.states["recurrent"].layers[il][which]
    assert tensor is not None
    return tensor


def n_cells(llm: Llm) -> int:
    """Return the rows of a state without those kept for rollback: one per sequence."""
    return llm.states["recurrent"].n_rows // snapshots(llm)


def snapshots(llm: Llm) -> int:
    """Return the states kept per sequence: the last, and those a rejected draft goes back to."""
    # a rejected draft cannot be undone in a state, so one is kept for every drafted token
    count: int = llm.cparams.n_rs_seq + 1
    return count


def build_rs(
    llm: Llm, states: Tensor, rows: Callable[[Tensor, Tensor], Tensor] | None = None
) -> Tensor:
    """Return the states of this batch's sequences, gathered or read by `rows`; those of the other
    sequences are copied."""
    g, cache, n_seqs = llm.graph, llm.states["recurrent"], llm.n_seqs
    # states of sequences that this batch leaves alone
    extra, once = n_cells(llm) - n_seqs, llm.rules.one_state_gather
    if cache.ids is None:
        # first the rows of this batch's sequences, then those that only move
        ids = g.input("rs_s_copy", "i32", n_cells(llm))
        tail = (
            g.view(ids, (n_cells(llm) - 1,), (), ids.nb[0])
            if once
            else g.view(ids, (extra,), (), n_seqs * ids.nb[0])
        )
        cache.ids = ids, g.view(ids, (n_seqs,)), tail
    ids, main, tail = cache.ids
    # older builds made these views in each layer
    if not llm.rules.shares_state_ids:
        main, tail = g.view(ids, (n_seqs,)), g.view(ids, (extra,), (), n_seqs * ids.nb[0])
    width = states.ne[0]
    flat = g.reshape(states, width, states.ne[1])
    # times 0: one cleared state, from which all new sequences are copied (rs_zero)
    g.expand(g.scale_inplace(g.view(flat, (width,))))
    # one result for both kinds of rows, read through views
    if once:  # the states of this batch, unless `rows` reads them, and those of the others
        gathered = g.get_rows(flat, ids if rows is None else tail)
        out = (
            g.view(gathered, (width, n_seqs), (gathered.nb[1],))
            if rows is None
            else rows(flat, main)
        )
        g.expand(out)
        begin = n_seqs if rows is None else n_seqs - 1
        others = g.view(gathered, (width, extra), (gathered.nb[1],), begin * gathered.nb[1])
    else:
        out = g.get_rows(flat, main) if rows is None else rows(flat, main)
        g.expand(out)
        others = g.get_rows(flat, tail)
    # sequences that are not in the batch keep their states behind those that are
    g.expand(g.cpy(others, g.view(states, (width, extra), (states.nb[1],), n_seqs * states.nb[1])))
    return out


def keep_tails(
    llm: Llm, conv: Tensor, states: Tensor, columns: int, slots: list[tuple[int, int]]
) -> None:
    """Store `columns` columns of a convolution's input from each first column, in a rollback slot
    each."""
    g = llm.graph
    width = columns * conv.ne[1]
    for first, slot in slots:
        # a slot is as large as all sequences' states: slot 0 is the newest
        tail = g.view(conv, (columns, conv.ne[1], llm.n_seqs), conv.nb[1:3], first * conv.nb[0])
        # slots are planes: all sequences of one, then all of the next
        at = slot * n_cells(llm) * width * F32
        g.expand(g.cpy(tail, g.view(states, (width, llm.n_seqs), (states.nb[1],), at)))


def tails(llm: Llm, width: int, columns: int) -> list[tuple[int, int]]:
    """Return (first column, slot) of the last columns after each of the newest tokens, newest
    first."""
    return [(width - columns - slot, slot) for slot in range(min(llm.n_seq_tokens, snapshots(llm)))]
