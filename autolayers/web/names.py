"""What people paste or type for a model, as the name by which it is opened.

understood("https://huggingface.co/Qwen/Qwen3-8B-GGUF")     # "hf:Qwen/Qwen3-8B-GGUF"
understood("ollama.com/library/qwen3:8b")                   # "ollama:qwen3:8b"
near("qwen3 8b")                                            # ["qwen3-8b-q4_k_m", "qwen3-8b-q8_0"]
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from .. import bundled
from ..bundled import published
from ..model.quantisation import quantisation as quantisation_of

BUNDLED = "bundled:"
# Names that are suggested for one that is unknown
_SHOWN = 8
_REPOSITORY = re.compile(r"(?:hf:)?([\w-][\w.-]*/[\w-][\w.-]*)(:[\w.-]+)?", re.ASCII)
# Groups: USER/REPO, QUANT, revision, path of a file
_HUB = re.compile(
    r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co|hf-mirror\.com)/"
    r"(?:models/)?([\w.-]+/[\w.-]+?)"
    r"(?::([\w.-]+)|/(?:tree|blob|resolve|raw)/([^/?#]+)(?:/([^?#]+))?)?/?(?:[?#].*)?",
    re.ASCII,
)
_OLLAMA = re.compile(
    r"(?:https?://)?(?:www\.|registry\.)?ollama\.(?:com|ai)/(?:library/)?([\w.-]+(?:/[\w.-]+)?"
    r"(?::[\w.-]+)?)/?(?:[?#].*)?",
    re.ASCII,
)
_LM_STUDIO = re.compile(
    r"https?://(?:www\.)?lmstudio\.ai/models/(?:[\w.-]+/)?([\w.-]+)/?", re.ASCII
)
_KIND = re.compile(r"[-.](?:ud-)?(?:i?q\d\w*|mxfp4|nvfp4|bf16|f16|f32)$", re.IGNORECASE)


def understood(name: str) -> str:
    """Return the name that opens it: hf:, ollama:, an address, a path or a bundled model's name."""
    # As it was copied, e.g. out of a mail
    name = name.strip().strip("\"'<>")
    # A model card shows whole commands to copy
    name = re.sub(r"^(?:ollama (?:run|pull)|-hf) +", "", name)
    bare = name.removeprefix(BUNDLED)
    if bare in bundled.models():
        return bare
    if match := _HUB.fullmatch(name):
        repository, quant, revision, path = match.groups()
        at = "" if revision in (None, "main") else f"@{revision}"
        # /tree/main/folder is no file: the repository is meant
        if path and path.lower().endswith(".gguf"):
            return f"hf:{repository}/{unquote(path)}{at}"
        return f"hf:{repository}{at}" + (f":{quant}" if quant else "")
    if match := _OLLAMA.fullmatch(name):
        return f"ollama:{match[1]}"
    if match := _LM_STUDIO.fullmatch(name):
        return match[1]
    # A path or an address before USER/REPO, which "folder/model.gguf" looks like
    if name.lower().endswith(".gguf") or "\\" in name or "://" in name:
        return name
    if match := _REPOSITORY.fullmatch(name):
        return f"hf:{match[1]}{match[2] or ''}"
    return name


def near(words: str) -> list[str]:
    """Return the bundled models that have all these words, or all their letters: first those that
    have them as whole words, then those of today, then the usual quantisations."""
    # "Qwen3 8B" and "qwen3-8b" have the same letters
    wanted = _letters(
        re.sub(r"^(ollama:|hf:)", "", words.lower()).rpartition("/")[2].removesuffix("gguf")
    )
    parts = [
        part
        for part in re.split(r"[^a-z0-9.]+", words.lower())
        if part not in ("", "gguf", "ollama", "hf")
    ]
    if len(wanted) < 2:
        return []
    names = [
        name
        for name in bundled.models()
        if wanted in _letters(name)
        or (
            # Short words such as "8b" alone are in every second name
            len(max(parts, default="", key=len)) > 2
            and all(_letters(part) in _letters(name) for part in parts)
        )
    ]

    def later(name: str) -> tuple[object, ...]:
        model = published.of(name)
        have = _tokens(published.stem(name))
        # "8b" is a word of "qwen3-8b", and no word of "kimi-linear-48b"
        whole = all(part in have for part in map(_letters, parts) if part)
        # With a kind of quantisation in the words, that decides
        kind = _letters(quantisation(name))
        named = any(part and kind.endswith(part) for part in map(_letters, parts))
        # The newest first; then the usual quantisation, then the shortest name
        year, month = (model.released if model and model.released else "0-0").split("-")
        age = -12 * int(year) - int(month)
        old = model is None or not model.current
        # gpt-oss was published in MXFP4 alone
        return (
            not whole and not named,
            old,
            age,
            *("q4_k_m" not in name and "mxfp4" not in name, "ud" in name, name)[:2],
            len(name),
            name,
        )

    best = sorted(names, key=later)
    # One of each model before its other quantisations
    first = {_stem(name): name for name in reversed(best)}.values()
    return sorted(best, key=lambda name: name not in first)[:_SHOWN]


def _tokens(stem: str) -> set[str]:
    """Return the words of a name, and neighbours joined: "gpt-oss-20b" has gpt, oss, 20b, gptoss,
    oss20b and gptoss20b."""
    words = [_letters(word) for word in stem.split("-")]
    ends = range(1, len(words) + 1)
    return {"".join(words[start:end]) for end in ends for start in range(end)}


def family(name: str) -> list[str]:
    """Return the bundled models that are quantisations of the same one, with the name."""
    stem = _stem(name)
    return [other for other in bundled.models() if _stem(other) == stem]


def quantisation(name: str) -> str:
    """Return "Q4_K_M" of a model's or a file's name; "" if it has none."""
    return quantisation_of(name, {})


def _stem(name: str) -> str:
    return _KIND.sub("", name.removeprefix(BUNDLED)).removesuffix("-ud").removesuffix("-qat")


def _letters(text: str) -> str:
    return "".join(c for c in text.lower() if c.isalnum())
