"""The end of a graph: what is read after it has run, embeddings and samples among it
(build_pooling, build_sampling of src/llama-graph.cpp, as modelled)."""

from __future__ import annotations

from ..errors import LaunchRefused
from ..ggml.tensor import Graph, Tensor
from .llm import Llm

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


def done(llm: Llm, logits: Tensor | None) -> Graph:
    """Expand the rest, pool if asked for, mark outputs."""
    # set_outputs: logits are read by the server, so they are never freed
    if logits is not None:
        llm.graph.expand(llm.output(logits))
    if llm.cparams.embeddings:
        build_pooling(llm)
    if llm.cparams.n_sampled and logits is not None:
        build_sampling(llm, logits)
    elif llm.cparams.backend_sampling and logits is not None:
        build_samplers(llm, logits)
    # in older builds another node could overwrite a result
    if llm.rules.keeps_outputs:
        for t in llm.outputs:
            t.is_output = True
    return llm.graph


def build_sampling(llm: Llm, logits: Tensor) -> None:
    """Build the sampler of drafts, a top 10 of each sequence; one more row is what idle sequences
    sample from."""
    g, per = llm.graph, min(llm.n_seq_tokens, llm.cparams.n_sampled)
    for one in _sampled_rows(llm, logits, min(per * llm.n_seqs, llm.n_outputs)):
        # common/speculative.cpp: a chain with top_k of 10
        best = g.top_k(one, 10)
        g.expand(llm.output(g.get_rows(g.reshape(one, 1, one.ne[0]), best)))
        g.expand(llm.output(best))


def build_samplers(llm: Llm, logits: Tensor) -> None:
    """Build the chain of -bs for each output that a sequence may have: with the default samplers
    one of the 40 best tokens, by a number drawn for it."""
    g = llm.graph
    for i, one in enumerate(_sampled_rows(llm, logits, llm.cparams.n_outputs_max)):
        # --top-k's default
        best = g.top_k(one, min(40, one.ne[0]))
        # logits as a column, from which get_rows picks single elements
        candidates = g.get_rows(g.reshape(one, 1, one.ne[0]), best)
        shares = llm.output(g.soft_max(g.reshape(candidates, candidates.ne[1])))
        chosen = g.argmax(g.sub(shares, g.input(f"uniform{i}", "f32", 1)))
        g.expand(llm.output(g.get_rows(g.reshape(best, 1, best.ne[0]), chosen)))


def _sampled_rows(llm: Llm, logits: Tensor, rows: int) -> Iterator[Tensor]:
    """Return the logits of each output, in a second copy of all of them with one row more, for
    outputs that the graph has not."""
    g = llm.graph
    # the extra row serves outputs that this batch lacks, so that the graph is the same for each
    padded = g.pad(logits, 0, 1)
    for row in range(rows):
        offset = min(row, logits.ne[1]) * padded.nb[1]
        yield g.reshape(g.view(padded, (padded.ne[0],), (), offset), padded.ne[0])


def build_pooling(llm: Llm) -> None:
    """Mirror build_pooling: mean, cls, last, rank or none, over t_embd; then sentence-transformers'
    dense layers."""
    g, kind = llm.graph, llm.cparams.pooling
    inp = llm.t_embd
    if inp is None:
        raise LaunchRefused(f"{llm.hparams.architecture.name} has no embeddings: llama.cpp aborts")
    # 1 is LLAMA_POOLING_TYPE_MEAN, of classifier.pooling_type
    rank_mean = kind == "rank" and llm.hparams.pooling_type_cls == 1
    # older builds made room for a sequence per token
    rows = llm.n_seqs if llm.rules.pools_sequences else llm.n_tokens
    if kind == "none":
        cur = inp
    elif kind == "mean" or rank_mean:
        mean = g.input("mean", "f32", llm.n_tokens, rows)
        # a matrix of 1 / length sums the rows of each sequence
        cur = g.mul_mat(g.cont(g.transpose(inp)), mean)
    else:
        cur = g.get_rows(inp, g.input("cls", "i32", rows))
    if kind == "rank":
        cur = _classified(llm, cur)
    # before the dense layers, as build_pooling comes first
    g.expand(cur)
    cur = dense(llm, dense(llm, cur, "dense_2"), "dense_3", bias=False)  # build_dense_out
    g.expand(llm.output(cur))


def _classified(llm: Llm, cur: Tensor) -> Tensor:
    """Return the score of a reranker: its classification head, where the file has one."""
    g = llm.graph
    # RoBERTa's classification head: a dense layer before the last
    if llm.weight("cls.weight") is not None:
        cur = g.unary(llm.row.cls_act, dense(llm, cur, "cls"))
        norm = llm.weight("cls.norm.weight")
        if norm is not None:
            cur = llm.build_norm(cur, norm, None, "layer")
    cur = dense(llm, cur, "cls.output")
    return g.soft_max(cur) if llm.row.cls_softmax else cur


def dense(llm: Llm, cur: Tensor, name: str, bias: bool = True) -> Tensor:
    """Build a matmul and its bias, where the file has them."""
    weight, b = llm.weight(f"{name}.weight"), llm.weight(f"{name}.bias") if bias else None
    if weight is None:
        return cur
    cur = llm.graph.mul_mat(weight, cur)
    return cur if b is None else llm.graph.add(cur, b)
