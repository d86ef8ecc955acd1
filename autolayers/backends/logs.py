"""The backends as logs name them: a table of each kind of their words.

WORDS            # ("ggml_vulkan", "Vulkan"), ...: a word of a line, and the name of the backend in
that log old_name("Metal_Mapped")      # "Metal", the name of the only device of builds before 2026
"""

from __future__ import annotations

import re

from . import BACKENDS, backend

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .backend import Backend

_ALL = tuple(map(backend, BACKENDS))
WORDS = tuple(
    (word, b.name if word == b.name else b.old_name or b.name) for b in _ALL for word in b.log_words
)
# Those built from another backend's source, which their logs name too, and what tells them apart
BUILT_FROM = tuple((b, re.compile(b.log_pattern, re.ASCII)) for b in _ALL if b.log_pattern)
DEVICE_LINES: tuple[tuple[str, str, type[Backend]], ...] = tuple(
    (word, pattern, b) for b in _ALL for word, pattern in b.device_lines
)
OLLAMA = {b.ollama: b for b in _ALL if b.ollama}
# Of a GPU's backend in system_info
SYSTEM_INFO = re.compile(
    rf"(?:{'|'.join(sorted({name for _, name in WORDS} | {b.name for b, _ in BUILT_FROM}))}) :"
)


def old_name(device: str) -> str:
    """Return what builds before 2026 call the device of that name, or of that buffer; "" where it
    is the same."""
    return next((b.old_name for b in _ALL if b.old_name and device.startswith(b.old_name)), "")
