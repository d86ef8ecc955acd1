"""A model's header from /api/show, for an unreadable store or a remote server.

The verbose answer has the GGUF's metadata (without general.name and the chat template) and every
tensor's name, type and shape: enough for a plan. The file's layout and a projector's tensors are
missing.
"""

from __future__ import annotations

from math import prod

from ...errors import ModelError
from ...gguf import BY_NAME, ArrayInfo, FileInfo, Header, TensorInfo, n_bytes
from ...quoting import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_LONGEST_KEPT_ARRAY = 1 << 12  # as in the file reader: per layer yes, per token no
_TYPES = {name.lower(): name for name in BY_NAME}
# more elements are no tensor but damage
_MAX_ELEMENTS = 1 << 62


def _alignment(metadata: Mapping[str, object]) -> int:
    """Return the bytes that tensors are aligned to; the default where the answer's is none."""
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20:
        return 32
    return alignment


def header(name: str, answer: Mapping[str, Any]) -> Header:
    """Return the Header that the answer describes. Raises ModelError if it describes none
    (safetensors, cloud models).

    Offsets assume consecutive tensors in the given order; nothing reads tensor data through them.
    """
    # Raise ModelError for a model that runs elsewhere.
    far = answer.get("remote_host")
    if far and isinstance(far, str):
        raise ModelError(f"{name} runs at {printable(far[:200])}: there is no file to plan for")
    info, tensors = answer.get("model_info"), answer.get("tensors")
    if not isinstance(info, dict) or not isinstance(tensors, list) or not tensors:
        raise ModelError(
            f"Ollama's description of {name} is not enough for a plan (no tensor list: a cloud "
            "model, or too old a server)"
        )
    details = answer.get("details")
    # "safetensors": x/mlxrunner runs it
    if isinstance(details, dict) and details.get("format") not in (None, "", "gguf"):
        raise ModelError(
            f"{name} is in the format {details.get('format')!r}: Ollama runs it in MLX, where "
            "num_gpu means nothing"
        )
    metadata = {
        printable(str(key)): _value(value) for key, value in info.items() if value is not None
    }
    # /api/show leaves it out, and a plan names its model
    metadata.setdefault("general.name", name)
    alignment = _alignment(metadata)
    infos: dict[str, TensorInfo] = {}
    unknown: list[str] = []
    at = 0
    for entry in tensors:
        tensor = _tensor(name, entry, at)
        infos[tensor.name] = tensor
        if not tensor.exact:
            unknown.append(tensor.type)
        # Each tensor starts at a multiple of general.alignment
        at += -(-tensor.n_bytes // alignment) * alignment
    notes = tuple(
        f"{name}: tensors of the type {type_}, which autolayers does not know, are counted as f32"
        for type_ in unknown[:1]
    )
    return Header(3, alignment, metadata, infos, (FileInfo(f"ollama:{name}", None, at),), notes)


def _value(value: Any) -> object:
    if not isinstance(value, list):
        return value
    if all(isinstance(item, (int, float)) for item in value) and len(value) <= _LONGEST_KEPT_ARRAY:
        return tuple(value)
    # Of a vocabulary only its length matters
    return ArrayInfo("str" if isinstance(value[0], str) else "i32", len(value))


def _shape(value: object) -> list[Any] | None:
    """Return the value if it is a list of extents that a tensor can have, otherwise None."""
    if not isinstance(value, list) or len(value) > 4:
        return None
    if not all(isinstance(extent, int) and 0 <= extent < _MAX_ELEMENTS for extent in value):
        return None
    return value if prod(value) < _MAX_ELEMENTS else None


def _tensor(model: str, entry: object, offset: int) -> TensorInfo:
    if isinstance(entry, dict):
        name, type_, shape = entry.get("name"), entry.get("type"), _shape(entry.get("shape"))
        if isinstance(name, str) and isinstance(type_, str) and shape is not None:
            # ggml's four extents, the fastest first, as the server writes them
            ne = (*shape, 1, 1, 1, 1)[:4]
            # Ollama writes Q4_K, ggml q4_K
            ggml_type = _TYPES.get(type_.lower())
            size = n_bytes(ggml_type or "f32", ne)
            return TensorInfo(
                printable(name),
                ggml_type or printable(type_),
                ne,
                len(shape),
                offset,
                size,
                0,
                ggml_type is not None,
            )
    raise ModelError(
        f"{model}: the Ollama server describes a tensor as {str(entry)[:100]!r}, which cannot be "
        "read"
    )
