"""A KoboldCpp command: koboldcpp.py --help (1.100)."""

from __future__ import annotations

from ...errors import UsageError
from ...flags.params import Params
from ...flags.write import to_words
from ...quoting import shell
from .launch_file import LaunchFile

_CACHE = {"f16": 0, "q8_0": 1, "q4_0": 2}      # --quantkv


def write(launch: LaunchFile) -> str:
    p = launch.params
    if p.rpc or p.device is not None:
        raise UsageError("koboldcpp has neither --rpc nor --device: plan without them")
    words = ["koboldcpp", "--model", launch.model]
    words += launch.backend.koboldcpp
    if p.n_gpu_layers is not None:
        words += ["--gpulayers", str(999 if p.n_gpu_layers < 0 else p.n_gpu_layers)]
    if p.n_ctx:
        words += ["--contextsize", str(p.n_ctx)]
    if p.tensor_split:
        words += ["--tensor_split", *(f"{ratio:g}" for ratio in p.tensor_split)]
    if p.flash_attn != "off":
        words.append("--flashattention")
    words += _cache(p)
    words += _overrides(p)
    if p.n_ubatch:
        words += ["--batchsize", str(p.n_ubatch)]
    if p.kv_offload is False:
        words.append("--lowvram")
    if p.mmproj:
        words += ["--mmproj", p.mmproj]
    if p.model_draft:
        words += ["--draftmodel", p.model_draft]
    if launch.arguments.value("--port"):
        words += ["--port", launch.port]
    if launch.host:
        words += ["--host", launch.host]
    return shell(words) + "\n"


def _cache(p: Params) -> list[str]:
    k, v = p.cache_type_k or "f16", p.cache_type_v or "f16"
    if k != v or k not in _CACHE:
        raise UsageError(f"koboldcpp's cache is f16, q8_0 or q4_0 for both K and V, not {k} and {v}")
    return [] if k == "f16" else ["--quantkv", str(_CACHE[k])]


def _overrides(p: Params) -> list[str]:
    said = to_words(Params(overrides=p.overrides))
    if said[:1] == ["-ncmoe"] and len(said) == 2:
        return ["--moecpu", said[1]]
    if said == ["-cmoe"]:
        return ["--moecpu", "999"]
    return ["--overridetensors", ",".join(f"{pattern}={buffer}" for pattern, buffer in p.overrides)] if said else []
