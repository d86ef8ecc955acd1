"""DFlash, its second generation and DSpark: a draft of a block of tokens at once
(src/models/dflash.cpp). The unknown tokens attend to each other and to the target's states.
Embeddings and head are the target's if the file has none. Only the decoder for tokens is
measured."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ..llm import Llm
from .eagle3 import borrowed, scattered

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..llm import Activation


class DFlash:
    def __call__(self, llm: Llm) -> Tensor:
        g, hp = llm.graph, llm.hparams
        if hp.dsv4_hc_mult:
            return self.of_deepseek4(llm)
        llm.build_inp_pos()
        llm.inp = llm.build_attn_inp()
        tokens = g.input("inp_tokens", "i32", llm.n_tokens)
        cur = g.get_rows(borrowed(llm, "token_embd.weight"), tokens)
        if hp.f_embedding_scale:
            cur = g.scale(cur)
        for il in range(llm.n_layer):
            cur = self.layer(llm, cur, il)
        hidden = llm.finish(llm.output_norm(cur), head=None)
        logits = self.logits(llm, hidden)
        # DFlash2: its selector reads logits as the target would scale and cap them
        selects = llm.weight("selector_hidden.weight") is not None
        if selects:
            logits = self.scaled(llm, logits)
        # a draft may have a smaller vocabulary than its target
        logits = scattered(llm, logits)
        if not (selects and llm.rules.selects_first):
            g.expand(logits)
        if llm.weight("markov_w1.weight") is not None:
            logits = self.markov(llm, logits, hidden, tokens)
        if selects:
            # packed into the nextn output, which the program walks on the CPU
            g.expand(llm.output(self.selector(llm, logits, hidden, tokens)))
        return logits

    def scaled(self, llm: Llm, logits: Tensor) -> Tensor:
        """Return the logits that a selector reads."""
        g, hp = llm.graph, llm.hparams
        if hp.f_logit_scale:
            logits = g.scale(logits)
        if hp.f_final_logit_softcapping > 0.0:
            logits = g.scale(g.unary("TANH", g.scale(logits)))
        return logits

    def of_deepseek4(self, llm: Llm) -> Tensor:
        """Build DSpark for DeepSeek-V4, whose stages are blocks of that model."""
        from ..hyper_connections import build_hc_head, expand_streams
        from .deepseek4 import WINDOWED

        g = llm.graph
        llm.build_inp_pos()
        llm.inp = llm.build_attn_inp_k_iswa()
        tokens = g.input("inp_tokens", "i32", llm.n_tokens)
        x = expand_streams(llm, g.get_rows(borrowed(llm, "token_embd.weight"), tokens))
        for il in range(llm.n_layer):
            x = WINDOWED.block(llm, x, il)
        # the confidence head reads the state before the norm
        hidden = llm.finish(build_hc_head(llm, x), head=None)
        logits = self.logits(llm, llm.output_norm(hidden))
        g.expand(logits)
        return (
            logits
            if llm.weight("markov_w1.weight") is None
            else self.markov(llm, logits, hidden, tokens)
        )

    def logits(self, llm: Llm, cur: Tensor) -> Tensor:
        scale = llm.weight(
            "output.scale" if llm.weight("output.weight") is not None else "target.output.scale"
        )
        return llm.build_lora_mm(borrowed(llm, "output.weight"), cur, scale)

    def layer(self, llm: Llm, inp_l: Tensor, il: int) -> Tensor:
        g, hp = llm.graph, llm.hparams

        def normed(x: Tensor, name: str) -> Tensor:
            weight = llm.layer_weight(il, name)
            return x if weight is None else llm.build_norm(x, weight, None, "rms", il)

        def conv(x: Tensor, mix: Tensor | None, name: str, side: int) -> Tensor:
            return (
                x
                if mix is None
                else self.conv(llm, x, mix, llm.need_layer(il, f"{name}_conv_base"), side)
            )

        def mixed(x: Tensor, name: str) -> Tensor | None:
            weight = llm.layer_weight(il, f"{name}_conv_proj")
            return None if weight is None else llm.build_lora_mm(weight, x)

        cur = normed(inp_l, "attn_norm")
        mix = mixed(cur, "attn")
        cur = self.attention(llm, conv(cur, mix, "attn", 0), il)
        cur = llm.project(cur, il, biased=False)
        if hp.f_attn_value_scale:
            cur = g.scale(cur)
        ffn_inp = g.add(normed(conv(cur, mix, "attn", 1), "post_attention_norm"), inp_l)
        cur = normed(ffn_inp, "ffn_norm")
        mix = mixed(cur, "ffn")
        act: Activation = "gelu" if hp.hidden_act.startswith("gelu") else "silu"
        cur = llm.build_ffn(conv(cur, mix, "ffn", 0), il, act, biases=False)
        cur = g.add(normed(conv(cur, mix, "ffn", 1), "post_ffw_norm"), ffn_inp)
        scale = llm.layer_weight(il, "layer_output_scale")
        return cur if scale is None else g.mul(cur, scale)

    def attention(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        g, head = llm.graph, llm.head_v
        made: list[Tensor] = []
        for x in "qkv":
            absent = llm.layer_weight(il, f"attn_{x}") is None  # V may be K
            made.append(made[1] if absent else llm.linear(il, f"attn_{x}", cur, scale=True))
        q, k, v = (g.reshape(t, head, t.ne[0] // head, llm.n_tokens) for t in made)
        q = llm.rms_norm(il, "attn_q_norm", q)
        k = llm.rms_norm(il, "attn_k_norm", k)
        if made[2] is made[1]:
            v = g.rms_norm(v)
        factors = None if llm.hparams.rope_type == "mrope" else llm.weight("rope_freqs.weight@0")
        q, k = llm.rope(q, factors), llm.rope(k, factors)
        return llm.build_attn(q, k, v, il, wo=None, sinks=llm.layer_weight(il, "attn_sinks"))

    def markov(self, llm: Llm, base: Tensor, hidden: Tensor, tokens: Tensor) -> Tensor:
        """Add DSpark's bias by the previous token to each position's logits; another head gives its
        confidence."""
        g, hp = llm.graph, llm.hparams
        n_vocab, n, blocks = base.ne[0], base.ne[1], llm.n_seqs
        per = n // blocks
        # a prompt, not a draft: no bias
        if per > hp.dflash_block_size:
            return base
        first = 0 if hp.sample_from_anchor else 1
        project = llm.weight("conf_proj.weight")

        def column(x: Tensor, width: int, i: int) -> Tensor:
            return g.view(x, (width, blocks), (per * x.nb[1],), i * x.nb[1])

        # the first token of each block, which is accepted already
        previous = g.cont(g.view(tokens, (1, blocks), (per * tokens.nb[0],)), blocks)
        columns: list[Tensor] = []
        confidences: list[Tensor] = []
        # a slot of the accepted token has no bias, and its confidence is never read
        if first:
            columns.append(g.cont(column(base, n_vocab, 0)))
            if project is not None:
                confidences.append(g.unary("SIGMOID", g.cont(column(base, 1, 0))))
        for i in range(first, per):
            state = g.get_rows(llm.need("markov_w1.weight"), previous)
            weight, scale = llm.need("markov_w2.weight"), llm.weight("markov_w2.scale")
            bias = scattered(llm, llm.build_lora_mm(weight, state, scale))
            made = g.add(column(base, n_vocab, i), bias)
            columns.append(made)
            if project is not None:
                x = g.mul_mat(project, g.concat(g.cont(column(hidden, hidden.ne[0], i)), state, 0))
                b = llm.weight("conf_proj.bias")
                confidences.append(g.unary("SIGMOID", x if b is None else g.add(x, b)))
            if i + 1 < per:
                # greedy: the sampler's settings only affect the choice at the end
                previous = g.argmax(made)

        def by_block(parts: list[Tensor], width: int) -> Tensor:
            x = llm.concat_all(parts, 1)
            x = g.permute(g.reshape(x, width, blocks, per), 0, 2, 1, 3)
            return g.reshape(g.cont(x), width, n)

        out = by_block(columns, n_vocab)
        if project is not None:
            # as wide as a state, so that llama_get_embeddings_nextn can return them
            g.expand(llm.output(g.repeat(by_block(confidences, 1), *hidden.ne)))
        g.expand(out)
        return out

    def conv(self, llm: Llm, x: Tensor, mix: Tensor, base: Tensor, side: int) -> Tensor:
        """Apply DFlash2's short convolution over the block, with weights partly computed from the
        input."""
        g, hp = llm.graph, llm.hparams
        width, n, blocks = x.ne[0], x.ne[1], llm.n_seqs
        taps, size, per = hp.dflash_conv_kernel_size, hp.dflash_conv_group_size, n // blocks
        groups = width // size
        stacked = g.reshape(x, width, per, blocks)
        # two sets of coefficients: side 0 before the block, side 1 after it
        coefs = g.reshape(mix, groups, taps, 2, n)
        coefs = g.view(coefs, (groups, taps, n), (coefs.nb[1], coefs.nb[3]), side * coefs.nb[2])
        coefs = g.repeat(g.reshape(g.cont(coefs), 1, groups, taps, n), size, groups, taps, n)
        fixed = g.reshape(
            g.view(base, (width * taps,), (), side * base.nb[2]), size, groups, taps, 1
        )
        weights = g.add(coefs, fixed)
        terms = []
        # taps beyond the block would read nothing but padding
        for tap in range(min(taps, per)):
            values = stacked
            if tap:
                # the block shifted by `tap` positions, zeros before it (ggml_pad_ext)
                values = g.pad(g.view(stacked, (width, per - tap, blocks), stacked.nb[1:3]), 0, tap)
            values = g.reshape(values, width, n)
            weight = g.view(weights, (size, groups, 1, n), weights.nb[1:], tap * weights.nb[2])
            terms.append(g.mul(g.reshape(g.cont(weight), width, n), values))
        return llm.add_up(terms)

    def selector(self, llm: Llm, logits: Tensor, hidden: Tensor, tokens: Tensor) -> Tensor:
        """Return DFlash2's best candidates of each position, and scores of each after the previous
        position's."""
        g, hp, n, blocks = llm.graph, llm.hparams, llm.n_tokens, llm.n_seqs
        top, rank, per = hp.dflash_selector_top_k, hp.dflash_selector_rank, n // blocks
        size = min(per, hp.dflash_block_size)
        best = g.top_k(logits, top)
        rows = g.reshape(logits, 1, logits.ne[0], n)
        scores = g.reshape(g.get_rows(rows, best), top, n)
        gate = llm.build_lora_mm(llm.need("selector_hidden.weight"), hidden)
        best, scores = g.reshape(best, top, per, blocks), g.reshape(scores, top, per, blocks)
        gate = g.reshape(gate, rank, per, blocks)

        # a score needs the candidates of two positions: a run of them is one matmul
        def run(start: int, count: int, before: Tensor) -> Tensor:
            def part(x: Tensor, width: int) -> Tensor:
                return g.cont(g.view(x, (width, count, blocks), x.nb[1:3], start * x.nb[1]))

            chosen, unary, gates = part(best, top), part(scores, top), part(gate, rank)
            n_before = before.ne[0] // (count * blocks)
            ids = g.reshape(chosen, top * count * blocks)
            after = g.get_rows(llm.need("selector_successor.weight"), ids)
            after = g.reshape(after, rank, top, count, blocks)
            ahead = g.get_rows(llm.need("selector_predecessor.weight"), before)
            ahead = g.reshape(ahead, rank, n_before, count, blocks)
            gates = g.repeat(g.reshape(gates, rank, 1, count, blocks), *ahead.ne)
            gated = g.mul(ahead, gates)
            score = g.mul_mat(after, gated)
            if n_before == 1:
                score = g.repeat(score, top, top, count, blocks)
            score = g.add(score, g.repeat(g.reshape(unary, top, 1, count, blocks), *score.ne))
            row = g.concat(g.cast(chosen, "f32"), g.reshape(score, top * top, count, blocks), 0)
            return g.pad(row, llm.n_embd - top - top * top)

        packed = g.fill(g.new("f32", llm.n_embd, 1, blocks))
        # position 0 is the anchor, position 1 has the anchor before it, the others their
        # predecessors' candidates
        if size > 1:
            anchors = g.cont(g.view(tokens, (1, blocks), (per * tokens.nb[0],)), blocks)
            packed = g.concat(packed, run(1, 1, anchors), 1)
        if size > 2:
            before = g.cont(g.view(best, (top, size - 2, blocks), best.nb[1:3], best.nb[1]))
            packed = g.concat(
                packed, run(2, size - 2, g.reshape(before, top * (size - 2) * blocks)), 1
            )
        return g.reshape(packed, llm.n_embd, size * blocks)


BUILDERS = {"dflash": DFlash()}
