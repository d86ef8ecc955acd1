"""Convolutions over the tokens, and attention in one block of six
(src/models/wavtokenizer-dec.cpp)."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ..llm import Llm


class WavTokenizerDec:
    def __call__(self, llm: Llm) -> Tensor:
        g, hp = llm.graph, llm.hparams

        def flipped(x: Tensor) -> Tensor:
            return g.cont(g.transpose(x))

        def norm(name: str) -> tuple[Tensor | None, Tensor | None]:
            return llm.weight(f"{name}.weight"), llm.weight(f"{name}.bias")

        # convolutions want tokens first, norms and matrices channels first: hence the flips
        cur = g.conv_1d(llm.need("conv1d.weight"), flipped(llm.build_inp_embd()))
        cur = g.add(cur, llm.need("conv1d.bias"))
        for i in range(hp.posnet_n_block):
            cur = self.posnet(llm, cur, i)
        cur = flipped(cur)
        cur = llm.build_norm(cur, *norm("token_embd_norm"), "layer", 0)
        cur = flipped(cur)
        for i in range(hp.convnext_n_block):
            name = f"convnext.{i}."
            residual = cur
            cur = g.conv_1d_depthwise(llm.need(name + "dw.weight"), cur)
            cur = g.add(cur, llm.need(name + "dw.bias"))
            cur = llm.build_norm(flipped(cur), *norm(name + "norm"), "layer")
            cur = g.mul_mat(llm.need(name + "pw1.weight"), cur)
            cur = g.add(cur, llm.need(name + "pw1.bias"))
            cur = g.mul_mat(llm.need(name + "pw2.weight"), g.unary("GELU", cur))
            cur = g.add(cur, llm.need(name + "pw2.bias"))
            cur = g.add(flipped(g.mul(cur, llm.need(name + "gamma.weight"))), residual)
        cur = llm.build_norm(flipped(cur), *norm("output_norm"), "layer")
        cur = llm.build_lora_mm(llm.need("output.weight"), cur, llm.weight("output.scale"))
        return llm.finish(g.add(cur, llm.need("output.bias")), head=None)

    def posnet(self, llm: Llm, inp: Tensor, i: int) -> Tensor:
        """Build block i of six: two resnets, attention, two resnets, a norm."""
        g = llm.graph

        def part(kind: str, suffix: str) -> Tensor:
            return llm.need(f"posnet.{i}.{kind}.{suffix}")

        def normed(x: Tensor, kind: str) -> Tensor:
            return llm.build_norm(x, part(kind, "weight"), part(kind, "bias"), "group", 0)

        def conv(x: Tensor, kind: str) -> Tensor:
            return g.add(g.conv_1d(part(kind, "weight"), x), part(kind, "bias"))

        if i == 5:
            return normed(inp, "attn_norm")
        cur = inp
        if i != 2:
            for step in "12":
                cur = normed(cur, "norm" + step)
                cur = conv(g.mul(g.unary("SIGMOID", cur), cur), "conv" + step)
            return g.add(cur, inp)
        cur = normed(cur, "attn_norm")
        q, k, v = (conv(cur, f"attn_{x}") for x in "qkv")
        # channels first for the scores; V stays as the convolution left it
        q, k = g.cont(g.transpose(q)), g.cont(g.transpose(k))
        cur = g.mul_mat(g.soft_max(g.mul_mat(k, q)), v)
        return g.add(conv(cur, "attn_output"), inp)


BUILDERS = {"wavtokenizer-dec": WavTokenizerDec()}
