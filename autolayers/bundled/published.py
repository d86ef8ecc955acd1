"""Where the bundled models are published, and what people call them.

    product("qwen3-30b-a3b-q4_k_m")      # "Qwen3 30B-A3B Q4_K_M"
    download("qwen3-30b-a3b-q4_k_m")     # ("-hf", "unsloth/Qwen3-30B-A3B-GGUF:Q4_K_M")
    download("rwkv6-7b-q4_k_m")          # (): no repository is known for it

A repository may hold another conversion of the same model than the bundled header, a little larger
or smaller.
"""

from __future__ import annotations

import re

from ..records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# at the end of a bundled name, e.g. "-q4_k_m", "-ud-q4_k_xl", "-mxfp4"
_QUANTISATION = re.compile(r"[-.](qat-ud-\w+|(?:ud-)?(?:i?q\d\w*|mxfp4|f16))$")


@dataclass(frozen=True)
class Published:
    """A model: its product name, the repository of the Hub ("": not known), whether that has a
    projector beside the model, whether people take it today, and whether it is made for code."""

    name: str
    repository: str = ""
    vision: bool = False
    current: bool = False
    coding: bool = False


def _now(name: str, repository: str = "", vision: bool = False) -> Published:
    return Published(name, repository, vision, True)


# Stem of the bundled names -> the model
MODELS = {
    "bitnet-2b-4t": Published("BitNet b1.58 2B-4T"),
    "deepseek-v2-lite": Published("DeepSeek V2 Lite"),
    "deepseek-v3.1": _now("DeepSeek V3.1 671B-A37B", "unsloth/DeepSeek-V3.1-GGUF"),
    "devstral-2-123b": Published(
        "Devstral 2 123B",
        "unsloth/Devstral-2-123B-Instruct-2512-GGUF",
        current=True,
        coding=True,
    ),
    "falcon-h1-7b": Published("Falcon-H1 7B"),
    "flan-t5-xl": Published("Flan-T5 XL"),
    "gemma-2-9b": Published("Gemma 2 9B", "bartowski/gemma-2-9b-it-GGUF"),
    "gemma-3-1b": Published("Gemma 3 1B", "unsloth/gemma-3-1b-it-GGUF"),
    "gemma-3-4b": _now("Gemma 3 4B", "unsloth/gemma-3-4b-it-GGUF", True),
    "gemma-3-12b": _now("Gemma 3 12B", "unsloth/gemma-3-12b-it-GGUF", True),
    "gemma-3-27b": _now("Gemma 3 27B", "unsloth/gemma-3-27b-it-GGUF", True),
    "gemma-3n-e2b": Published("Gemma 3n E2B"),
    "gemma-4-26b-a4b": _now("Gemma 4 26B-A4B", "unsloth/gemma-4-26B-A4B-it-GGUF", True),
    "gemma-4-e4b": _now("Gemma 4 E4B", "unsloth/gemma-4-E4B-it-GGUF", True),
    "glm-4.5-air": _now("GLM 4.5 Air", "unsloth/GLM-4.5-Air-GGUF"),
    "glm-4.6": _now("GLM 4.6 355B-A32B", "unsloth/GLM-4.6-GGUF"),
    "gpt-oss-120b": _now("gpt-oss 120B", "ggml-org/gpt-oss-120b-GGUF"),
    "gpt-oss-20b": _now("gpt-oss 20B", "ggml-org/gpt-oss-20b-GGUF"),
    "granite-4.0-h-small": _now("Granite 4.0 H Small", "ibm-granite/granite-4.0-h-small-GGUF"),
    "jamba-1.5-mini": Published("Jamba 1.5 Mini"),
    "kimi-k2": _now("Kimi K2 1T-A32B", "unsloth/Kimi-K2-Instruct-0905-GGUF"),
    "kimi-linear-48b-a3b": _now(
        "Kimi Linear 48B-A3B", "bartowski/moonshotai_Kimi-Linear-48B-A3B-Instruct-GGUF"
    ),
    "lfm2-8b-a1b": _now("LFM2 8B-A1B", "LiquidAI/LFM2-8B-A1B-GGUF"),
    "llama-2-7b": Published("Llama 2 7B"),
    "llama-3-70b": Published("Llama 3 70B"),
    "llama-3.1-8b": _now("Llama 3.1 8B", "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF"),
    "llama-3.2-1b": Published("Llama 3.2 1B", "bartowski/Llama-3.2-1B-Instruct-GGUF"),
    "llama-3.2-3b": Published("Llama 3.2 3B", "bartowski/Llama-3.2-3B-Instruct-GGUF"),
    "llama-3.3-70b": _now("Llama 3.3 70B", "bartowski/Llama-3.3-70B-Instruct-GGUF"),
    "llama-4-scout": _now("Llama 4 Scout", "unsloth/Llama-4-Scout-17B-16E-Instruct-GGUF", True),
    "mamba2-2.7b": Published("Mamba2 2.7B"),
    "minimax-m2-230b-a10b": _now("MiniMax M2 230B-A10B", "unsloth/MiniMax-M2-GGUF"),
    "mistral-7b": Published("Mistral 7B"),
    "mistral-small-24b": _now(
        "Mistral Small 24B", "bartowski/Mistral-Small-24B-Instruct-2501-GGUF"
    ),
    "nemotron-3-nano-30b-a3b": _now(
        "Nemotron 3 Nano 30B-A3B", "unsloth/Nemotron-3-Nano-30B-A3B-GGUF"
    ),
    "phi-3-mini": Published("Phi-3 Mini"),
    "phi-4": _now("Phi-4 14B", "unsloth/phi-4-GGUF"),
    "qwen2.5-7b": Published("Qwen2.5 7B", "bartowski/Qwen2.5-7B-Instruct-GGUF"),
    "qwen2.5-14b": Published("Qwen2.5 14B", "bartowski/Qwen2.5-14B-Instruct-GGUF"),
    "qwen2.5-32b": Published("Qwen2.5 32B", "bartowski/Qwen2.5-32B-Instruct-GGUF"),
    "qwen2.5-coder-7b": Published(
        "Qwen2.5 Coder 7B", "bartowski/Qwen2.5-Coder-7B-Instruct-GGUF", current=True, coding=True
    ),
    "qwen3-0.6b": Published("Qwen3 0.6B", "unsloth/Qwen3-0.6B-GGUF"),
    "qwen3-1.7b": Published("Qwen3 1.7B", "unsloth/Qwen3-1.7B-GGUF"),
    "qwen3-4b": _now("Qwen3 4B", "unsloth/Qwen3-4B-GGUF"),
    "qwen3-8b": _now("Qwen3 8B", "unsloth/Qwen3-8B-GGUF"),
    "qwen3-14b": _now("Qwen3 14B", "unsloth/Qwen3-14B-GGUF"),
    "qwen3-30b-a3b": _now("Qwen3 30B-A3B", "unsloth/Qwen3-30B-A3B-GGUF"),
    "qwen3-32b": _now("Qwen3 32B", "unsloth/Qwen3-32B-GGUF"),
    "qwen3-235b-a22b": _now("Qwen3 235B-A22B", "unsloth/Qwen3-235B-A22B-Instruct-2507-GGUF"),
    "qwen3-coder-30b-a3b": Published(
        "Qwen3 Coder 30B-A3B",
        "unsloth/Qwen3-Coder-30B-A3B-Instruct-GGUF",
        current=True,
        coding=True,
    ),
    "qwen3-coder-480b-a35b": Published(
        "Qwen3 Coder 480B-A35B",
        "unsloth/Qwen3-Coder-480B-A35B-Instruct-GGUF",
        current=True,
        coding=True,
    ),
    "qwen3-next-80b-a3b": _now("Qwen3 Next 80B-A3B", "unsloth/Qwen3-Next-80B-A3B-Instruct-GGUF"),
    "qwen3.5-27b": _now("Qwen3.5 27B", "unsloth/Qwen3.5-27B-GGUF", True),
    "qwen3.5-35b-a3b": _now("Qwen3.5 35B-A3B", "unsloth/Qwen3.5-35B-A3B-GGUF", True),
    "qwen3.5-4b": _now("Qwen3.5 4B", "unsloth/Qwen3.5-4B-GGUF", True),
    "qwen3.5-4b-mtp": Published("Qwen3.5 4B with MTP"),
    "qwen3.6-27b": _now("Qwen3.6 27B", "unsloth/Qwen3.6-27B-GGUF", True),
    "qwen3.6-35b-a3b": _now("Qwen3.6 35B-A3B", "unsloth/Qwen3.6-35B-A3B-GGUF", True),
    "qwen3.8-27b": _now("Qwen3.8 27B", "unsloth/Qwen3.8-27B-GGUF", True),
    "rwkv6-7b": Published("RWKV-6 7B"),
    "rwkv7-2.9b": Published("RWKV-7 2.9B"),
    "bge-m3": Published("BGE-M3"),
    "bge-small-en": Published("BGE Small English"),
    "embeddinggemma-300m": Published("EmbeddingGemma 300M", "ggml-org/embeddinggemma-300M-GGUF"),
    "embeddinggemma2-300m": Published("EmbeddingGemma 2 300M"),
    "jina-embeddings-v2-base": Published("Jina Embeddings v2 Base"),
    "jina-embeddings-v3": Published("Jina Embeddings v3"),
    "modernbert-base": Published("ModernBERT Base"),
    "nomic-embed-text-v1.5": Published(
        "Nomic Embed Text v1.5", "nomic-ai/nomic-embed-text-v1.5-GGUF"
    ),
    "nomic-embed-text-v2-moe": Published(
        "Nomic Embed Text v2 MoE", "nomic-ai/nomic-embed-text-v2-moe-GGUF"
    ),
}
# Quantisations that the model's repository is not known to have
_ELSEWHERE = frozenset(
    (
        "llama-3.1-8b-f16",
        "llama-3.1-8b-q4_0",
        "gemma-4-26b-a4b-q4_k_m",
        "gemma-4-26b-a4b-q6_k",
        "gemma-4-26b-a4b-qat-ud-q4_k_xl",
        "qwen3.6-35b-a3b-q4_0",
        "qwen3.6-35b-a3b-q4_k_m",
        "qwen3-next-80b-a3b-q5_k_s",
    )
)
_ONE_FILE = frozenset(("gpt-oss-120b", "gpt-oss-20b"))  # repositories of one quantisation
# Q8_K_XL of a bundled name without ud-: Unsloth's, which alone makes it
_LARGE = re.compile(r"^q\d_k_xl$")


def product(name: str) -> str:
    """Return the bundled model as people call it, with its quantisation."""
    row = MODELS.get(stem(name))
    return f"{row.name} {quantisation(name)}" if row else name


def of(name: str) -> Published | None:
    """Return what is known of the bundled model; None for another."""
    return MODELS.get(stem(name))


def download(name: str) -> Sequence[str]:
    """Return llama-server's flags that download the bundled model, without the projector that is
    not in its plan; () if no repository is known."""
    row = MODELS.get(stem(name))
    if row is None or not row.repository or name in _ELSEWHERE:
        return ()
    # -hf needs no tag where there is a single file
    quant = "" if stem(name) in _ONE_FILE else f":{quantisation(name)}"
    return ("-hf", row.repository + quant, *(("--no-mmproj",) if row.vision else ()))


def stem(name: str) -> str:
    """Return the bundled name without its quantisation."""
    return _QUANTISATION.sub("", name)


def quantisation(name: str) -> str:
    """Return Q4_K_M or UD-Q4_K_XL of a bundled name."""
    match = _QUANTISATION.search(name)
    kind = match[1].upper() if match else ""
    # e.g. "q4_k_xl" -> "UD-Q4_K_XL"
    return f"UD-{kind}" if _LARGE.match(kind.lower()) else kind
