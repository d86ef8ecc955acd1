"""What Metal does with each type of a KV cache (ggml/src/ggml-metal, as modelled): one row per
type. SET_ROWS stores it, CPY_TO converts f32 to it and CPY_FROM it to f16 and f32, CONCAT joins
rows of it, FLASH_ATTN_EXT reads keys and values, LIGHTNING_INDEXER keys. SPARSE: flash attention
may skip what its mask leaves out."""

from __future__ import annotations

KV_TYPES = {
    "f32": "SET_ROWS CPY_TO CONCAT FLASH_ATTN_EXT LIGHTNING_INDEXER SPARSE",
    "f16": "SET_ROWS CPY_TO CONCAT FLASH_ATTN_EXT LIGHTNING_INDEXER SPARSE",
    "bf16": "SET_ROWS CPY_TO CONCAT FLASH_ATTN_EXT LIGHTNING_INDEXER SPARSE",
    "q8_0": "SET_ROWS CPY_TO CPY_FROM CONCAT FLASH_ATTN_EXT LIGHTNING_INDEXER SPARSE",
    "q4_0": "SET_ROWS CPY_TO CPY_FROM CONCAT FLASH_ATTN_EXT LIGHTNING_INDEXER SPARSE",
    "q4_1": "SET_ROWS CPY_TO CPY_FROM CONCAT FLASH_ATTN_EXT LIGHTNING_INDEXER SPARSE",
    "iq4_nl": "SET_ROWS CPY_TO",
    "q5_0": "SET_ROWS CPY_TO CPY_FROM CONCAT FLASH_ATTN_EXT LIGHTNING_INDEXER SPARSE",
    "q5_1": "SET_ROWS CPY_TO CPY_FROM CONCAT FLASH_ATTN_EXT LIGHTNING_INDEXER SPARSE",
    "f8_e4m3": "SET_ROWS",  # its kernels were not seen
}
