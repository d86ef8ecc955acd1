"""The model that a misspelled file name may have meant."""

from __future__ import annotations

import difflib
import os

_PART = "-00001-of-00001.gguf"


def nearest_file(name: str) -> str:
    """Return the model in the same directory with the most similar name; "" if none is similar."""
    directory, wanted = os.path.split(name.lower())
    directory = name[: len(directory)]
    try:
        files = {
            entry.lower(): entry
            for entry in os.listdir(directory or ".")
            if entry.lower().endswith(".gguf")
        }
    except (OSError, ValueError):  # ValueError: a path with a zero byte
        return ""
    # the ending was left out
    if f"{wanted}.gguf" in files:
        return os.path.join(directory, files[f"{wanted}.gguf"])
    # a missing part of a split model is not one that was misspelled
    others = [
        file
        for file in files
        if "-of-" not in wanted or file[: -len(_PART)] != wanted[: -len(_PART)]
    ]
    # "qwen3-30b.gguf" is the beginning of "qwen3-30b-a3b-q4_k_m.gguf"
    start = wanted.removesuffix(".gguf")
    longer = [file for file in others if len(start) > 3 and file.startswith(start)]
    if longer:
        return os.path.join(directory, files[min(longer, key=len)])
    near = difflib.get_close_matches(wanted, others, 1, 0.8)
    return os.path.join(directory, files[near[0]]) if near else ""
