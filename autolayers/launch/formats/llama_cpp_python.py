"""Python for llama-cpp-python 0.3.36, llama_cpp/llama.py: Llama.__init__."""

from __future__ import annotations

from ...errors import UsageError
from ...flags.kinds import POOLING, ROPE_SCALING, SPLIT_MODE, Kind
from ...flags.params import N_BATCH, Params
from ...flags.write import to_words
from ...ggml.types import BY_NAME
from .launch_file import LaunchFile


def write(launch: LaunchFile) -> str:
    p = launch.params
    if p.overrides or p.rpc or p.device is not None:
        said = next(word for word in to_words(Params(overrides=p.overrides, rpc=p.rpc, device=p.device)))
        raise UsageError(f"llama-cpp-python has nothing like {said}: plan with --strategy layers and without it")
    arguments: dict[str, object] = {
        "n_gpu_layers": None if p.n_gpu_layers is None else -1 if p.n_gpu_layers < 0 else p.n_gpu_layers,
        "split_mode": _number(SPLIT_MODE, p.split_mode),
        "main_gpu": p.main_gpu,
        "tensor_split": list(p.tensor_split) if p.tensor_split else None,
        "n_ctx": p.n_ctx, "n_batch": p.n_batch or N_BATCH, "n_ubatch": p.n_ubatch,
        "flash_attn": {"on": True, "off": False}.get(p.flash_attn or ""),
        "type_k": _type(p.cache_type_k), "type_v": _type(p.cache_type_v),
        "offload_kqv": p.kv_offload, "op_offload": p.op_offload, "swa_full": p.swa_full,
        "use_mmap": None if p.load_mode in (None, "auto") else "mmap" in str(p.load_mode),
        "use_mlock": True if "mlock" in (p.load_mode or "") else None,
        "embedding": p.embedding,
        "pooling_type": _number(POOLING, p.pooling),
        "rope_scaling_type": _number(ROPE_SCALING, p.rope_scaling),
        "rope_freq_scale": 1 / p.rope_scale if p.rope_scale else None,
        "yarn_orig_ctx": p.yarn_orig_ctx,
        "lora_path": p.lora[0] if p.lora else None,
    }
    function, lines = _source(launch.model)
    lines += [f"{name}={value!r}" for name, value in arguments.items() if value is not None]
    body = "".join(f"    {line},\n" for line in lines)
    return f"from llama_cpp import Llama\n\nllm = {function}(\n{body})\n"


def _number(kind: Kind, value: str | None) -> int | None:
    """Of llama_split_mode, llama_pooling_type or llama_rope_scaling_type: the flags' choices have their order."""
    return None if value is None else kind.choices.index(value)


def _type(name: str | None) -> int | None:
    return None if name is None else BY_NAME[name].id


def _source(model: str) -> tuple[str, list[str]]:
    if model.startswith("hf:"):
        repository, _, tag = model[3:].partition(":")
        parts = repository.split("/")
        file = "/".join(parts[2:]) or (f"*{tag}*.gguf" if tag else "*.gguf")
        return "Llama.from_pretrained", [f"repo_id={'/'.join(parts[:2])!r}", f"filename={file!r}"]
    return "Llama", [f"model_path={model!r}"]
