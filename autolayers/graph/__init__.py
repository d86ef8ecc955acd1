"""Computation graphs by shape, as llama.cpp builds them: one builder per architecture. A plain
architecture is a row in rows.py. One whose graph needs code has a file in models/, and its name
below."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..ggml.tensor import Tensor
    from .llm import Llm

    Builder = Callable[[Llm], Tensor | None]

# models/<file>.py -> its architectures, so that a plan imports only what its model needs
_FILES = {
    "arctic": "arctic",
    "bailingmoe3": "bailingmoe3",
    "bert": "bert nomic-bert nomic-bert-moe jina-bert-v2 jina-bert-v3",
    "bitnet": "bitnet",
    "chameleon": "chameleon",
    "cohere2moe": "cohere2moe",
    "deci": "deci",
    "deepseek2": "deepseek2 mistral4",
    "deepseek32": "deepseek32 glm-dsa dots3note",
    "deepseek4": "deepseek4",
    "dflash": "dflash",
    "eagle3": "eagle3",
    "falcon": "falcon",
    "falcon_h1": "falcon-h1",
    "gemma3n": "gemma3n",
    "gemma4": "gemma4",
    "gemma_embedding2": "gemma-embedding2",
    "gemma4_assistant": "gemma4-assistant",
    "glm5_next": "glm5-next",
    "gptneox": "gptneox",
    "granite_hybrid": "granitehybrid",
    "granite_switch": "graniteswitch",
    "grok": "grok",
    "grovemoe": "grovemoe",
    "hrm_text": "hrm_text",
    "hy_v4": "hy_v4",
    "jamba": "jamba",
    "k2_horizon": "k2-horizon",
    "kimi_k3": "kimi-k3",
    "kimi_linear": "kimi-linear",
    "lfm2": "lfm2 lfm2moe",
    "llama4": "llama4",
    "mamba": "mamba mamba2",
    "mimo2": "mimo2",
    "minicpm3": "minicpm3",
    "minimax_01": "minimax-01",
    "minimax_m3": "minimax-m3",
    "modern_bert": "modern-bert",
    "mpt": "mpt",
    "nanbeige": "nanbeige",
    "nemotron_h": "nemotron_h nemotron_h_moe",
    "openelm": "openelm",
    "plamo2": "plamo2",
    "plm": "plm",
    "qwen35": "qwen35 qwen35moe",
    "qwen3next": "qwen3next",
    "qwen4exp": "qwen4exp",
    "rwkv6": "rwkv6 rwkv6qwen2",
    "rwkv7": "rwkv7 arwkv7",
    "smallthinker": "smallthinker",
    "stablelm": "stablelm",
    "step35": "step35",
    "t5": "t5 t5encoder",
    "talkie": "talkie",
    "beam": "beam",
    "muse_spark": "muse-spark",
    "wavtokenizer_dec": "wavtokenizer-dec",
}
_FILE_OF = {name: f"models.{file}" for file, names in _FILES.items() for name in names.split()}


def builder(architecture: str, mtp: bool = False) -> Builder | None:
    """Return the builder of an architecture's graph, or of its MTP block's; None if that is not
    modelled."""
    # a plain architecture is in rows.py, whose BUILDERS lacks what is not modelled
    module = import_module(f"{__name__}.{_FILE_OF.get(architecture, 'rows')}")
    build: Builder | None = module.BUILDERS.get(architecture)
    return getattr(build, "mtp", None) if mtp else build
