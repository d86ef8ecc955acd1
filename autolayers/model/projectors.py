"""How wide the embeddings are that a projector puts out (clip_n_mmproj_embd of tools/mtmd/clip.cpp,
b11549).

    width(header)       # 2560; 0 for a kind whose width is not known here
"""

from __future__ import annotations

from functools import cache

from ..tables import rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..gguf import Header


@cache
def kinds() -> dict[str, dict[str, str]]:
    """Return the rows of projectors.tsv, by their kind."""
    return {row["kind"]: row for row in rows("model/projectors.tsv")}


def kind_of(header: Header) -> str:
    """Return the kind of projector; "" if the file does not say."""
    keys = header.metadata
    return str(keys.get("clip.projector_type") or keys.get("clip.vision.projector_type") or "")


def width(header: Header) -> int:
    """Return the elements of one embedding, those that go to later layers included."""
    kind = kind_of(header)
    row = kinds().get(kind, {})
    tensor = header.tensors.get(row.get("width", ""))
    if tensor is None:
        return 0
    deep = [
        name
        for name in header.tensors
        if name.startswith("v.deepstack.") and name.endswith(".fc1.weight")
    ]
    # Qwen3-VL appends image features for the first layers to each row
    parts = 1 + len(deep) if kind == "qwen3vl_merger" else 1
    return tensor.ne[int(row["dimension"])] * parts
