"""Latent attention in a dense model with scaled embeddings, residuals and head
(src/models/minicpm3.cpp)."""

from __future__ import annotations

from ..latent_attention import LatentAttention

BUILDERS = {
    "minicpm3": LatentAttention(
        wo_bias=False,
        ffn_bias=False,
        embed_scale="all",
        rope_factors=True,
        residual_scale=True,
        head_scale=True,
    ),
}
