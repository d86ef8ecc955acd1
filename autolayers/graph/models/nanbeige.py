"""The physical blocks run several times, each loop with a cache of its own
(src/models/nanbeige.cpp)."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ..decoder import Decoder
from ..llm import Llm


class Nanbeige(Decoder):
    def build(self, llm: Llm) -> Tensor | None:
        # layer il of every loop reads the weights of il % n_phys; its cache is its own
        n_phys = llm.hparams.n_layer_phys
        llm.share_blocks(lambda il: il % n_phys)
        return super().build(llm)

    def layer(self, llm: Llm, inp_l: Tensor, il: int) -> Tensor:
        hp = llm.hparams
        cur = super().layer(llm, inp_l, il)
        # between loops, but not after the last, which the final norm follows anyway
        if (
            hp.n_loops > 1
            and (il + 1) % hp.n_layer_phys == 0
            and il + 1 < hp.n_layer
            and not hp.skip_loop_final_norm
        ):
            cur = llm.output_norm(cur, il)
        return cur


BUILDERS = {"nanbeige": Nanbeige(rope_factors=True, ffn_scales=True)}
