"""The projectors that repositories have next to the bundled vision models.

    size("qwen3.6-27b-q4_k_m")      # 931150000 bytes; 0 if none is known
    header("qwen3.6-27b-q4_k_m")    # a Header for Companions.mmproj; None if none is known

`llama-server -hf` downloads one of 16 bits. Of F16 and BF16 the larger is counted: BF16 files have
the patch embedding as f32.
"""

from __future__ import annotations

from ..gguf import FileInfo, Header, TensorInfo
from ..records import dataclass
from .published import stem

_BITS = 2  # bytes of an element in F16
_BOTH = 16 << 20  # at most, of what images and sound share: each has a copy (clip_init)


@dataclass(frozen=True)
class Projector:
    """A projector: its kind, the bytes of its F16 file as published, and what its graph depends on.

    `frames` are joined by one patch embedding.
    """

    kind: str
    size: int
    patch: int = 16
    side: int = 768  # pixels of an image
    width: int = 1152
    ff: int = 4304
    heads: int = 16
    frames: int = 1
    audio: bool = False

    @property
    def bf16(self) -> int:
        """The bytes of its BF16 file, those of the file's header included."""
        # The patch embedding, patch x patch x 3 colours x
        # width: four bytes an element in place of two
        return self.size + _BITS * self.frames * self.patch**2 * 3 * self.width


# named unlike gemma3, whose weights are exact tensor by tensor
_GEMMA_3 = Projector("gemma3 of a published size", 0, patch=14, side=896)
_QWEN = Projector("qwen3vl_merger", 0, frames=2)


def _gemma_3(size: int) -> Projector:
    return Projector(_GEMMA_3.kind, size, _GEMMA_3.patch, _GEMMA_3.side)


def _qwen(size: int, width: int = 1152, ff: int = 4304) -> Projector:
    return Projector(_QWEN.kind, size, width=width, ff=ff, frames=_QWEN.frames)


# Stem of the bundled names -> its projector. Gemma 3 12B and Qwen 35B-A3B: those of their families
# with as wide an output as the model has embeddings
PROJECTORS = {
    "gemma-3-4b": _gemma_3(851_251_104),
    "gemma-3-12b": _gemma_3(854_200_224),
    "gemma-3-27b": _gemma_3(857_739_168),
    "gemma-4-26b-a4b": Projector("gemma4v", 1_193_058_784),
    # as wide as that of 26B-A4B at most
    "gemma-4-e4b": Projector("gemma4v", 990_372_672, audio=True),
    "ornith-1.5-9b": _qwen(918_165_728),
    "ornith-1.5-35b-a3b": _qwen(899_283_296),
    "qwen3.5-4b": _qwen(672_423_616, 1024, 4096),
    "qwen3.5-9b": _qwen(918_166_080),
    "qwen3.5-27b": _qwen(927_611_056),
    "qwen3.5-35b-a3b": _qwen(899_283_952),
    "qwen3.6-27b": _qwen(927_611_056),
    "qwen3.6-35b-a3b": _qwen(899_283_952),
    "qwen3.8-27b": _qwen(927_611_056),
}


def size(name: str) -> int:
    """Return the bytes of the projector's file; 0 if none is known."""
    row = PROJECTORS.get(stem(name))
    return row.bf16 if row else 0


def header(name: str) -> Header | None:
    """Return the projector, its weights in one piece, and what its graph depends on."""
    row = PROJECTORS.get(stem(name))
    if row is None:
        return None
    metadata: dict[str, object] = {
        "general.architecture": "clip",
        "clip.projector_type": row.kind,
        "clip.has_vision_encoder": True,
        "clip.has_audio_encoder": row.audio,
        "clip.vision.patch_size": row.patch,
        "clip.vision.image_size": row.side,
        "clip.vision.embedding_length": row.width,
        "clip.vision.feed_forward_length": row.ff,
        "clip.vision.attention.head_count": row.heads,
    }
    # Counted twice, as clip_init loads it for images and for sound
    both = _BOTH if row.audio else 0
    weights = [_tensor("v.all", row.bf16 - both), _tensor("mm.all", both)]
    tensors = {weight.name: weight for weight in weights if weight.n_bytes}
    return Header(3, 32, metadata, tensors, (FileInfo("mmproj", None, 0),))


def _tensor(name: str, size: int) -> TensorInfo:
    return TensorInfo(name, "f16", (size // _BITS, 1, 1, 1), 1, 0, size)
