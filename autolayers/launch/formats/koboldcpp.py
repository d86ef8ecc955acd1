"""A KoboldCpp command: koboldcpp.py --help, 1.113; flags that 1.102 has too are written so that
both accept them.

Its defaults are not llama-server's: no memory mapping, no sliding windows in the cache (before
1.114), one micro-batch of 512, and 128 cells more than --contextsize (gpttype_adapter.cpp:
extra_context_handle_fragmentation).
"""

from __future__ import annotations

import os

from ...errors import UsageError
from ...flags.params import Params, Scaled
from ...flags.write import to_words
from ...planner.one.overrides import merged
from ...quoting import shell
from ...sources.huggingface import HUB
from ...tables import listed
from .launch_file import LaunchFile, one_sequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...flags.parse import Arguments

_TARGET = "koboldcpp"
# --quantkv: numbers of 1.102 where it has one; one value for K and V
_CACHE = {
    "f16": (),
    "q8_0": ("--quantkv", "1"),
    "q4_0": ("--quantkv", "2"),
    "bf16": ("--quantkv", "bf16"),
    "q5_1": ("--quantkv", "q5_1"),
}
# --batchsize, the micro-batch: the choices of its parser
_BATCHES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_CONTEXTS = (256, 262144)
# extra_context_handle_fragmentation
_MORE_CELLS = 128
_MAX_KV_OVERRIDES = 4
# of Params: what its command line has a flag for, or always does in the same way
FIELDS = frozenset(
    listed(
        "model n_gpu_layers n_ctx n_batch n_ubatch n_parallel kv_unified flash_attn cache_type_k "
        "cache_type_v kv_offload swa_full split_mode tensor_split main_gpu device overrides "
        "load_mode mmproj mmproj_offload image_max_tokens model_draft draft_n_max "
        "n_gpu_layers_draft spec_type lora override_kv n_threads n_threads_batch"
    )
)
# arguments that do not affect memory, and KoboldCpp's names
_FLAGS = {
    "-tb": "--blasthreads",
    "--host": "--host",
    "--port": "--port",
    "--jinja": "--jinja",
    "--chat-template-file": "--jinjatemplate",
    "--chat-template-kwargs": "--jinja_kwargs",
    "--image-min-tokens": "--visionmintokens",
    # written by `_rest` in its own way, or nothing to write
    "--ssl-cert-file": "",
    "--ssl-key-file": "",
    "--mmproj-auto": "",
}


def settle(arguments: Arguments) -> Params:
    """Return the parameters with KoboldCpp's fixed behaviour, for planning."""
    return one_sequence(arguments, _TARGET)


def write(launch: LaunchFile) -> str:
    """Return one line for this machine's shell. Raises UsageError for a launch that it cannot
    express."""
    launch.check_expressed(FIELDS, _FLAGS, _TARGET)
    p, use = launch.params, launch.plan.breakdown
    # --contextsize for a cache of `n_ctx` cells.
    n_ctx = use.n_ctx
    smallest, largest = _CONTEXTS
    if not smallest <= n_ctx - _MORE_CELLS <= largest:
        raise UsageError(
            f"koboldcpp's --contextsize is {smallest} to {largest} and {_MORE_CELLS} cells are "
            f"added to it: {n_ctx} is impossible, plan with -c {largest} or less"
        )
    words = [
        "koboldcpp",
        "--model",
        _model(launch),
        *_devices(launch),
        # llama.cpp's -ngl. -1 is never written: it starts
        # KoboldCpp's own --autofit, which chooses again
        "--gpulayers",
        str(999 if p.n_gpu_layers is None or p.n_gpu_layers < 0 else p.n_gpu_layers),
        "--contextsize",
        str(n_ctx - _MORE_CELLS),
    ]
    if p.tensor_split:
        # separate words there, not "3,1"
        words += ["--tensor_split", *(f"{ratio:g}" for ratio in p.tensor_split)]
    words += _attention(launch) + _overrides(p)
    if use.n_ubatch not in _BATCHES:
        raise UsageError(
            f"koboldcpp's --batchsize is one of {', '.join(map(str, _BATCHES))}, not "
            f"{use.n_ubatch}: plan with one of these as -ub"
        )
    if p.n_threads is not None and p.n_threads > 0:
        words += ["--threads", str(p.n_threads)]
    mode = p.load_mode or "auto"
    if mode == "dio":
        raise UsageError("koboldcpp has nothing like -lm dio: plan without it")
    # llama.cpp's auto maps the file where it can; KoboldCpp does not without the flag
    loading = (["--usemmap"] if mode in ("auto", "mmap", "mmap+mlock") else []) + (
        ["--usemlock"] if "mlock" in mode else []
    )
    words += ["--batchsize", str(use.n_ubatch), *loading, *_companions(launch), *_rest(launch)]
    line = shell(words)
    # --password is what clients send as the key
    # the shell stops if it is not set: no server without its key
    if "LLAMA_API_KEY" in launch.secrets:
        line += " --password " + ("%LLAMA_API_KEY%" if os.name == "nt" else '"${LLAMA_API_KEY:?}"')
    return line + "\n"


def _model(launch: LaunchFile) -> str:
    model = launch.model
    if model.startswith(("http://", "https://")):
        return model
    # It downloads from a link, and knows no hf:
    if model.startswith("hf:") and model.lower().endswith(".gguf"):
        parts = model[3:].split("/")
        return f"{HUB}/{'/'.join(parts[:2])}/resolve/main/{'/'.join(parts[2:])}"
    if ":" in model[2:] and model.startswith(("hf:", "docker:")):
        raise UsageError(
            f"koboldcpp loads files and links, not {model}: name one file, hf:USER/REPO/FILE.gguf"
        )
    return model


def _devices(launch: LaunchFile) -> list[str]:
    p, words = launch.params, list(launch.reach.backend.koboldcpp or ())
    if p.device == ():
        # -dev none
        return ["--usecpu"]
    # llama.cpp's names, e.g. CUDA0,CUDA1
    if p.device:
        words += ["--device", ",".join(p.device)]
    if p.split_mode == "none":
        # -sm none puts all on one device, -mg or the first
        names = [device.name for device in launch.plan.devices]
        words += ["--device", names[max(0, p.main_gpu or 0)]]
    elif p.split_mode not in (None, "layer"):
        raise UsageError(
            f"koboldcpp's layers cannot be split as -sm {p.split_mode} does: plan without it"
        )
    return words


def _attention(launch: LaunchFile) -> list[str]:
    p, use = launch.params, launch.plan.breakdown
    words = ["--flashattention"] if use.flash_attn else ["--noflashattention"]
    # Padding 0: a window's cache as small as llama.cpp's.
    # Its own default lets a chat be rewound that far
    if not p.swa_full and launch.plan.model.hparams.is_swa_any:
        words += ["--useswa", "--swapadding", "0"]
    elif p.swa_full:
        launch.warnings.append(
            "koboldcpp since 1.114 always makes a small cache for sliding windows: --swa-full "
            "works with older versions only"
        )
    k, v = p.cache_type_k or "f16", p.cache_type_v or "f16"
    if k != v or k not in _CACHE:
        raise UsageError(
            f"koboldcpp's cache is {', '.join(_CACHE)} for both K and V, not {k} and {v}"
        )
    words += _CACHE[k]
    # --lowvram: the cache in RAM, as -nkvo
    return [*words, "--lowvram"] if p.kv_offload is False else words


def _overrides(p: Params) -> list[str]:
    words = to_words(Params(overrides=p.overrides))
    # --moecpu N: experts of the first N layers in RAM; 999 is all of them
    if words[:1] == ["-ncmoe"] and len(words) == 2:
        return ["--moecpu", words[1]]
    if words == ["-cmoe"]:
        return ["--moecpu", "999"]
    # a pattern for many layers instead of one for each
    pairs = [f"{pattern}={buffer}" for pattern, buffer in merged(p.overrides, ())]
    return ["--overridetensors", ",".join(pairs)] if words else []


def _companions(launch: LaunchFile) -> list[str]:
    p, words = launch.params, []
    for flag, path in (("--mmproj", p.mmproj), ("--draftmodel", p.model_draft)):
        if path:
            words += [flag, path]
    # The projector computes on the CPU
    if p.mmproj_offload is False:
        words.append("--mmprojcpu")
    if p.image_max_tokens is not None:
        words += ["--visionmaxtokens", str(p.image_max_tokens)]
    if set(p.spec_type) - {"draft-simple"}:
        raise UsageError(
            f"koboldcpp has nothing like --spec-type {','.join(p.spec_type)}: plan without it"
        )
    if p.draft_n_max is not None:
        words += ["--draftamount", str(p.draft_n_max)]
    # Its own default is all of them; -devd none keeps the draft in RAM
    layers = 0 if p.device_draft == () else p.n_gpu_layers_draft
    if p.model_draft and layers is not None and layers >= 0:
        words += ["--draftgpulayers", str(layers)]
    # The words of --override-kv. Raises UsageError for what koboldcpp does not take.
    if len(p.override_kv) > _MAX_KV_OVERRIDES or any("," in text for _, text in p.override_kv):
        raise UsageError(
            f"koboldcpp takes at most {_MAX_KV_OVERRIDES} --override-kv, without commas"
        )
    if not p.override_kv:
        overridden = []
    else:
        overridden = ["--overridekv", ",".join(f"{key}={text}" for key, text in p.override_kv)]
    return words + overridden + _adapter(launch)


def _adapter(launch: LaunchFile) -> list[str]:
    if len(launch.params.lora) > 1:
        raise UsageError(f"koboldcpp takes one adapter, not {len(launch.params.lora)}")
    words = [word for path in launch.params.lora for word in ("--lora", str(path))]
    scales = [path.scale for path in launch.params.lora if isinstance(path, Scaled)]
    return [*words, *(word for scale in scales for word in ("--loramult", f"{scale:g}"))]


def _rest(launch: LaunchFile) -> list[str]:
    """Return the arguments that do not affect memory, the last of each. KoboldCpp's default is to
    listen on all addresses and another port."""
    values = dict(launch.arguments.given)
    # Nobody else in the network was meant to reach it
    values.setdefault("--host", "127.0.0.1")
    values.setdefault("--port", launch.port)
    words: list[str] = []
    for flag, name in _FLAGS.items():
        if flag in values and name:
            words += [name, values[flag]] if values[flag] else [name]
    certificate, key = values.get("--ssl-cert-file"), values.get("--ssl-key-file")
    if certificate or key:
        if not (certificate and key):
            raise UsageError(
                "koboldcpp's --ssl takes a certificate and a key: give --ssl-cert-file and "
                "--ssl-key-file"
            )
        words += ["--ssl", certificate, key]
    return words
