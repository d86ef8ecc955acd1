"""How wide the embeddings are that a projector puts out (clip_n_mmproj_embd of tools/mtmd/clip.cpp,
b11549).

    width(header)       # 2560; 0 for a kind whose width is not known here
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..gguf import Header

# kind of projector -> the tensor, and the dimension of it, that is as wide
_WIDTHS = {
    **dict.fromkeys(
        (
            "pixtral",
            "lightonocr",
            "dots_ocr",
            "phi4",
            "lfm2",
            "kimivl",
            "paddleocr",
            "kimik25",
            "cohere2v",
            "muse-glimmer",
        ),
        ("mm.2.weight", 1),
    ),
    **dict.fromkeys(
        ("qwen2vl_merger", "qwen2.5vl_merger", "qwen3vl_merger", "exaone4_5", "ling3vl"),
        ("mm.2.bias", 0),
    ),
    **dict.fromkeys(("idefics3", "llama4"), ("mm.model.fc.weight", 1)),
    **dict.fromkeys(("internvl", "nemotron_v2_vl"), ("mm.model.mlp.3.weight", 1)),
    **dict.fromkeys(("glm4v", "cogvlm"), ("mm.down.weight", 1)),
    "gemma3": ("mm.input_projection.weight", 0),
    "gemma4v": ("mm.input_projection.weight", 1),
    "resampler": ("resampler.proj.weight", 0),
}


def kind_of(header: Header) -> str:
    """Return the kind of projector; "" if the file does not say."""
    keys = header.metadata
    return str(keys.get("clip.projector_type") or keys.get("clip.vision.projector_type") or "")


def width(header: Header) -> int:
    """Return the elements of one embedding, those that go to later layers included."""
    kind = kind_of(header)
    name, dimension = _WIDTHS.get(kind, ("", 0))
    tensor = header.tensors.get(name)
    if tensor is None:
        return 0
    deep = [
        name
        for name in header.tensors
        if name.startswith("v.deepstack.") and name.endswith(".fc1.weight")
    ]
    # Qwen3-VL appends image features for the first layers to each row
    parts = 1 + len(deep) if kind == "qwen3vl_merger" else 1
    return tensor.ne[dimension] * parts
