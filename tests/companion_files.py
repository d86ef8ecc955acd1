"""Tiny f32 headers of files that are loaded with a model, for `autolayers check` (bundle.py) and
tests."""

from __future__ import annotations

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from autolayers.model import Model

    Key = tuple[str, int, bytes]  # name, type, value as in the file
    Shape = tuple[int, ...]

_RANK = 4
# of the projector: one layer over 16 x 16 patches
_WIDTH, _FFN, _IMAGE, _PATCH = 64, 128, 224, 14


def adapter(model: Model) -> bytes:
    """Return a LoRA for the queries of every layer."""
    keys = [
        _text("general.type", "adapter"),
        _text("general.architecture", model.architecture),
        _text("adapter.type", "lora"),
        _float("adapter.lora.alpha", 1.0),
    ]
    queries = [info for name, info in model.tensors.items() if name.endswith(".attn_q.weight")]
    return _file(
        keys,
        [
            pair
            for info in queries
            for pair in (
                (info.name + ".lora_a", (info.ne[0], _RANK)),
                (info.name + ".lora_b", (_RANK, info.ne[1])),
            )
        ],
    )


def projector(model: Model) -> bytes:
    """Return a projector for images, of Gemma 3's kind, which has no tokens in the model's
    vocabulary."""
    vision = {
        "image_size": _IMAGE,
        "patch_size": _PATCH,
        "embedding_length": _WIDTH,
        "feed_forward_length": _FFN,
        "block_count": 1,
        "attention.head_count": 1,
        "projection_dim": model.hparams.n_embd,
    }
    keys = [
        _text("general.type", "mmproj"),
        _text("general.architecture", "clip"),
        # Types of GGUF's values: 4 uint32, 6 float32, 7 bool, 8 string, 9 array
        ("clip.has_vision_encoder", 7, b"\1"),
        ("clip.use_gelu", 7, b"\1"),
        _text("clip.projector_type", "gemma3"),
        _float("clip.vision.attention.layer_norm_epsilon", 1e-6),
        *(
            # An array of 3 float32
            (f"clip.vision.image_{name}", 9, struct.pack("<IQ3f", 6, 3, 0.5, 0.5, 0.5))
            for name in ("mean", "std")
        ),
        *((f"clip.vision.{name}", 4, struct.pack("<I", value)) for name, value in vision.items()),
    ]
    block: dict[str, Shape] = {
        **dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_out"), (_WIDTH, _WIDTH)),
        "ffn_up": (_WIDTH, _FFN),
        "ffn_down": (_FFN, _WIDTH),
        "ln1": (_WIDTH,),
        "ln2": (_WIDTH,),
    }
    tensors: list[tuple[str, Shape]] = [
        ("v.patch_embd.weight", (_PATCH, _PATCH, 3, _WIDTH)),
        ("v.patch_embd.bias", (_WIDTH,)),
        ("v.position_embd.weight", (_WIDTH, (_IMAGE // _PATCH) ** 2)),
        ("v.post_ln.weight", (_WIDTH,)),
        ("v.post_ln.bias", (_WIDTH,)),
        ("mm.input_projection.weight", (model.hparams.n_embd, _WIDTH)),
        ("mm.soft_emb_norm.weight", (_WIDTH,)),
    ]
    for name, ne in block.items():
        tensors += [(f"v.blk.0.{name}.weight", ne), (f"v.blk.0.{name}.bias", ne[-1:])]
    return _file(keys, tensors)


def _file(keys: list[Key], tensors: Iterable[tuple[str, Shape]]) -> bytes:
    """Return a GGUF header with f32 tensors."""
    tensors = list(tensors)
    # Version 3, little-endian
    data = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    data += b"".join(_string(key) + struct.pack("<I", kind) + value for key, kind, value in keys)
    offset = 0
    for name, ne in tensors:
        # Rank, lengths, type (0 is f32), offset in the data
        data += _string(name) + struct.pack(f"<I{len(ne)}QIQ", len(ne), *ne, 0, offset)
        size = 4
        for length in ne:
            size *= length
        # general.alignment is 32 where a file does not say it
        offset += -(-size // 32) * 32
    return data + bytes(-len(data) % 32)


def _string(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def _text(name: str, value: str) -> Key:
    return name, 8, _string(value)


def _float(name: str, value: float) -> Key:
    return name, 6, struct.pack("<f", value)
