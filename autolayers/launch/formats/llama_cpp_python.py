"""Python for llama-cpp-python 0.3.36, llama_cpp/llama.py: Llama.__init__.

Everything is written for which its defaults differ from llama-server's: flash attention is off, a
sliding-window cache is as large as the context, a micro-batch is as large as the batch.
"""

from __future__ import annotations

import ast

from ...errors import UsageError
from ...flags.kinds import POOLING, ROPE_SCALING, SPLIT_MODE, Kind
from ...flags.params import N_BATCH, N_UBATCH, Params
from ...ggml.types import BY_NAME
from ...records import replace
from ...tables import listed
from .launch_file import LaunchFile, one_sequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ...flags.parse import Arguments

_TARGET = "llama-cpp-python"
# of Params: what Llama.__init__ has an argument for
FIELDS = frozenset(
    listed(
        "model n_gpu_layers n_ctx n_batch n_ubatch n_parallel kv_unified flash_attn cache_type_k "
        "cache_type_v kv_offload op_offload swa_full split_mode tensor_split main_gpu device "
        "load_mode embedding reranking pooling lora override_kv rope_scaling rope_scale "
        "yarn_orig_ctx numa n_threads n_threads_batch"
    )
)
# arguments that do not affect memory: (Llama's name, how its value is read)
_FLAGS: dict[str, tuple[str, Any]] = {
    "-tb": ("n_threads_batch", int),
    "-s": ("seed", int),
    "--rope-freq-base": ("rope_freq_base", float),
    "--yarn-ext-factor": ("yarn_ext_factor", float),
    "--yarn-attn-factor": ("yarn_attn_factor", float),
    "--yarn-beta-fast": ("yarn_beta_fast", float),
    "--yarn-beta-slow": ("yarn_beta_slow", float),
    # llama_attention_type: causal is 0, non-causal 1
    "--attention": ("attention_type", ("causal", "non-causal").index),
}
# llama_max_parallel_sequences: Llama(embedding=True) makes as many, at most one a token
_MAX_SEQUENCES = 256
# ggml_numa_strategy of ggml-cpu.h
_NUMA = {"distribute": 1, "isolate": 2, "numactl": 3}
_KV_TYPES: dict[str, Any] = {
    "int": int,
    "float": float,
    "bool": lambda text: text == "true",
    "str": str,
}


def settle(arguments: Arguments) -> Params:
    """Return the parameters with Llama()'s fixed behaviour, for planning."""
    params = arguments.params
    if _embeds(params):
        if params.n_parallel is not None:
            raise UsageError(
                f"{_TARGET} chooses the sequences of an embedding model itself: plan without -np"
            )
        # the plan follows llama-server, which makes an embedding model's batch its micro-batch
        count = min(
            params.n_batch or N_BATCH,
            params.n_ubatch or N_UBATCH,
            params.n_ctx or N_BATCH,
            _MAX_SEQUENCES,
        )
        params = replace(params, n_parallel=count, kv_unified=True)
    else:
        params = one_sequence(arguments, _TARGET)
    # Llama() does not map a model with an adapter: with a lora_path it sets use_mmap to False
    return replace(params, load_mode="none") if params.lora and params.load_mode is None else params


def write(launch: LaunchFile) -> str:
    """Return the source text that creates `llm`. Raises UsageError for a launch that it cannot
    express."""
    launch.check_expressed(FIELDS, _FLAGS, _TARGET)
    p, use = launch.params, launch.plan.breakdown
    # (use_mmap, use_mlock)
    mode = p.load_mode or "auto"
    if mode == "dio":
        raise UsageError(f"{_TARGET} has nothing like -lm dio: plan without it")
    mapped = mode in ("auto", "mmap", "mmap+mlock")
    if mapped and p.lora:
        raise UsageError(f"{_TARGET} does not map a model with an adapter: plan with -lm none")
    mapped, locked = (mapped, "mlock" in mode)
    split_mode, main_gpu = _devices(launch)
    if len(launch.params.lora) > 1:
        raise UsageError(f"{_TARGET} takes one adapter, not {len(launch.params.lora)}")
    arguments: dict[str, object] = {
        # -1 is all layers there; its default, 0, is none
        "n_gpu_layers": -1 if p.n_gpu_layers is None or p.n_gpu_layers < 0 else p.n_gpu_layers,
        "split_mode": split_mode,
        "main_gpu": main_gpu,
        # None leaves an argument out, as its default is llama.cpp's
        "tensor_split": list(p.tensor_split) if p.tensor_split else None,
        "n_ctx": use.n_ctx,
        # As planned, not as given: Llama() makes a batch at most the context
        "n_batch": use.n_batch,
        "n_ubatch": use.n_ubatch,
        "flash_attn": use.flash_attn,
        "swa_full": bool(p.swa_full),
        # ggml_type numbers, e.g. 8 for q8_0
        "type_k": BY_NAME[p.cache_type_k or "f16"].id,
        "type_v": BY_NAME[p.cache_type_v or "f16"].id,
        # the caches on the GPU; off is -nkvo
        "offload_kqv": p.kv_offload is not False,
        "op_offload": p.op_offload is not False,
        "use_mmap": mapped,
        "use_mlock": locked,
        "embedding": True if _embeds(p) else None,
        "pooling_type": _number(POOLING, "rank" if p.reranking else p.pooling),
        # llama_rope_scaling_type: unspecified is -1
        "rope_scaling_type": _number(ROPE_SCALING, p.rope_scaling),
        # --rope-scale 4 makes positions four times denser: a factor of 0.25 there
        "rope_freq_scale": 1 / p.rope_scale if p.rope_scale else None,
        "yarn_orig_ctx": p.yarn_orig_ctx,
        # TYPE:VALUE, e.g. "int:4096" of --override-kv llama.context_length=int:4096
        "kv_overrides": {
            key: _KV_TYPES[kind](value)
            for key, text in p.override_kv
            for kind, _, value in (text.partition(":"),)
        }
        or None,
        "numa": _NUMA[p.numa] if p.numa else None,
        "n_threads": p.n_threads,
        **{
            key: value
            for path in launch.params.lora
            for key, value in (
                ("lora_path", str(path)),
                ("lora_scale", getattr(path, "scale", 1.0)),
            )
        },
    }
    # The arguments of flags that a plan does not depend on
    values: dict[str, object] = {}
    for flag, value in launch.arguments.given:
        if flag in _FLAGS:
            name, read = _FLAGS[flag]
            try:
                values[name] = read(value)
            except ValueError:
                raise UsageError(f"{flag} {value!r}: {_TARGET}'s {name} cannot be that") from None
    arguments |= values
    launch.warnings += [
        f"Llama() serves nothing, so {name} is not used: its own server "
        "(python -m llama_cpp.server) has --api_key"
        for name in launch.secrets
        if name == "LLAMA_API_KEY"
    ]
    if launch.model.startswith("hf:"):
        repository, _, tag = launch.model[3:].partition(":")
        parts = repository.split("/")
        # hf:USER/REPO/FILE.gguf names a file; hf:USER/REPO:Q4_K_M is a pattern for from_pretrained
        file = "/".join(parts[2:]) or (f"*{tag}*.gguf" if tag else "*.gguf")
        function, lines = (
            "Llama.from_pretrained",
            [f"repo_id={'/'.join(parts[:2])!r}", f"filename={file!r}"],
        )
    else:
        if "://" in launch.model or launch.model.startswith("docker:"):
            raise UsageError(
                f"{_TARGET} loads files and hf: models, not {launch.model}: download it first"
            )
        function, lines = "Llama", [f"model_path={launch.model!r}"]
    lines += [
        f"{name}={_literal(name, value)}" for name, value in arguments.items() if value is not None
    ]
    body = "".join(f"    {line},\n" for line in lines)
    head = "".join(f"{note}\n" for note in launch.notes)
    return f"{head}from llama_cpp import Llama\n\nllm = {function}(\n{body})\n"


def _literal(name: str, value: object) -> str:
    """Return the value as Python reads it. Raises UsageError for numbers that have no literal: inf
    and nan."""
    text = repr(value)
    try:
        ast.literal_eval(text)
    except ValueError:
        raise UsageError(f"{_TARGET}'s {name} cannot be {text}: plan without it") from None
    return text


def _embeds(params: Params) -> bool:
    return bool(params.embedding or params.reranking)


def _devices(launch: LaunchFile) -> tuple[int | None, int | None]:
    """Return (split_mode, main_gpu), which can select one device or none of several."""
    p = launch.params
    if p.device is None:
        return _number(SPLIT_MODE, p.split_mode), p.main_gpu
    names = [device.name for device in launch.plan.devices]
    if not p.device:
        # main_gpu -1 with split mode none: llama.cpp keeps no device (llama_prepare_model_devices)
        return SPLIT_MODE.choices.index("none"), -1
    # main_gpu is an index into the devices of the machine
    if len(p.device) == 1 and p.device[0] in names and p.main_gpu is None:
        return SPLIT_MODE.choices.index("none"), names.index(p.device[0])
    # All of them in their order is what it does by itself
    if list(p.device) == names:
        return _number(SPLIT_MODE, p.split_mode), p.main_gpu
    raise UsageError(f"{_TARGET} has nothing like -dev {','.join(p.device)}: plan without it")


def _number(kind: Kind, value: str | None) -> int | None:
    """Return the value of llama_split_mode, llama_pooling_type or llama_rope_scaling_type, whose
    order the flags' choices have."""
    return None if value is None else kind.choices.index(value)
