"""What CUDA does with each type of a KV cache (ggml/src/ggml-cuda, as modelled, default build): one
row per type. SET_ROWS stores it, CPY_TO converts f32 to it and CPY_FROM it to f32, GET_ROWS gathers
rows of it, FLASH_ATTN_EXT reads keys and values, LIGHTNING_INDEXER keys. VEC: flash attention's
vector kernel is compiled for K and V of it."""

from __future__ import annotations

KV_TYPES = {
    "f32": "SET_ROWS GET_ROWS FLASH_ATTN_EXT LIGHTNING_INDEXER",
    "f16": "SET_ROWS GET_ROWS FLASH_ATTN_EXT LIGHTNING_INDEXER VEC",
    "bf16": "SET_ROWS GET_ROWS FLASH_ATTN_EXT LIGHTNING_INDEXER VEC",
    "q8_0": "SET_ROWS CPY_TO CPY_FROM GET_ROWS FLASH_ATTN_EXT LIGHTNING_INDEXER VEC",
    "q4_0": "SET_ROWS CPY_TO CPY_FROM GET_ROWS FLASH_ATTN_EXT LIGHTNING_INDEXER VEC",
    "q4_1": "SET_ROWS CPY_TO CPY_FROM GET_ROWS FLASH_ATTN_EXT LIGHTNING_INDEXER",
    "iq4_nl": "SET_ROWS CPY_TO",
    "q5_0": "SET_ROWS CPY_TO CPY_FROM GET_ROWS FLASH_ATTN_EXT LIGHTNING_INDEXER",
    "q5_1": "SET_ROWS CPY_TO CPY_FROM GET_ROWS FLASH_ATTN_EXT LIGHTNING_INDEXER",
    # its kernels were not seen: flash attention is taken to copy it to f16, which needs the most
    "f8_e4m3": "SET_ROWS GET_ROWS FLASH_ATTN_EXT",
}
