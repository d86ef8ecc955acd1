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
    from collections.abc import Sequence

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


def _refuse(launch: LaunchFile) -> None:
    """Raise UsageError for a launch that its command line cannot express."""
    p, use = launch.params, launch.plan.breakdown
    k, v, mode = p.cache_type_k or "f16", p.cache_type_v or "f16", p.load_mode or "auto"
    values = dict(launch.arguments.given)
    certificate, key = values.get("--ssl-cert-file"), values.get("--ssl-key-file")
    split = p.split_mode not in (None, "none", "layer") and p.device != ()
    kept = len(p.override_kv) > _MAX_KV_OVERRIDES or any("," in text for _, text in p.override_kv)
    for wrong, why in (
        (split, f"'s layers cannot be split as -sm {p.split_mode} does: plan without it"),
        (
            k != v or k not in _CACHE,
            f"'s cache is {', '.join(_CACHE)} for both K and V, not {k} and {v}",
        ),
        (
            use.n_ubatch not in _BATCHES,
            f"'s --batchsize is one of {', '.join(map(str, _BATCHES))}, not {use.n_ubatch}: plan "
            "with one of these as -ub",
        ),
        (mode == "dio", " has nothing like -lm dio: plan without it"),
        (
            set(p.spec_type) - {"draft-simple"},
            f" has nothing like --spec-type {','.join(p.spec_type)}: plan without it",
        ),
        (kept, f" takes at most {_MAX_KV_OVERRIDES} --override-kv, without commas"),
        (len(p.lora) > 1, f" takes one adapter, not {len(p.lora)}"),
        (
            bool(certificate) != bool(key),
            "'s --ssl takes a certificate and a key: give --ssl-cert-file and --ssl-key-file",
        ),
    ):
        if wrong:
            raise UsageError(f"koboldcpp{why}")


def write(launch: LaunchFile) -> str:
    """Return one line for this machine's shell. Raises UsageError for a launch that it cannot
    express."""
    launch.check_expressed(FIELDS, _FLAGS, _TARGET)
    p, use = launch.params, launch.plan.breakdown
    smallest, largest = _CONTEXTS
    if not smallest <= use.n_ctx - _MORE_CELLS <= largest:
        raise UsageError(
            f"koboldcpp's --contextsize is {smallest} to {largest} and {_MORE_CELLS} cells are "
            f"added to it: {use.n_ctx} is impossible, plan with -c {largest} or less"
        )
    # It downloads from a link, and knows no hf:
    model = launch.model
    if model.startswith("hf:") and model.lower().endswith(".gguf"):
        parts = model[3:].split("/")
        model = f"{HUB}/{'/'.join(parts[:2])}/resolve/main/{'/'.join(parts[2:])}"
    elif ":" in model[2:] and model.startswith(("hf:", "docker:")):
        raise UsageError(
            f"koboldcpp loads files and links, not {model}: name one file, hf:USER/REPO/FILE.gguf"
        )
    _refuse(launch)
    mode, values = p.load_mode or "auto", dict(launch.arguments.given)
    certificate, key = values.get("--ssl-cert-file"), values.get("--ssl-key-file")
    if p.swa_full:
        launch.warnings.append(
            "koboldcpp since 1.114 always makes a small cache for sliding windows: --swa-full "
            "works with older versions only"
        )
    names = [device.name for device in launch.plan.devices]
    # Its own default is all of them; -devd none keeps the draft in RAM
    layers = 0 if p.device_draft == () else p.n_gpu_layers_draft
    drafted = p.model_draft and layers is not None and layers >= 0
    windows = not p.swa_full and launch.plan.model.hparams.is_swa_any
    threads = p.n_threads is not None and p.n_threads > 0
    scales = [f"{path.scale:g}" for path in p.lora if isinstance(path, Scaled)]
    # Its default is to listen on all addresses and another port: nobody else in the network was
    # meant to reach it
    values = {"--host": "127.0.0.1", "--port": launch.port, **values}
    rest = [(_FLAGS[flag], values[flag]) for flag in _FLAGS if flag in values and _FLAGS[flag]]
    # What is written, and where: words that are there if the first is
    rows: list[tuple[object, Sequence[object]]] = [
        (True, ["koboldcpp", "--model", model]),
        # -dev none
        (p.device == (), ["--usecpu"]),
        (p.device != (), launch.reach.backend.koboldcpp or ()),
        # llama.cpp's names, e.g. CUDA0,CUDA1
        (p.device, ["--device", ",".join(p.device or ())]),
        # -sm none puts all on one device, -mg or the first
        (
            p.split_mode == "none" and p.device != (),
            ["--device", *names[max(0, p.main_gpu or 0) :][:1]],
        ),
        # llama.cpp's -ngl. -1 is never written: it starts KoboldCpp's own --autofit, which chooses
        # again
        (
            True,
            [
                "--gpulayers",
                999 if p.n_gpu_layers is None or p.n_gpu_layers < 0 else p.n_gpu_layers,
            ],
        ),
        (True, ["--contextsize", use.n_ctx - _MORE_CELLS]),
        # separate words there, not "3,1"
        (p.tensor_split, ["--tensor_split", *(f"{ratio:g}" for ratio in p.tensor_split or ())]),
        (True, ["--flashattention" if use.flash_attn else "--noflashattention"]),
        # Padding 0: a window's cache as small as llama.cpp's. Its own default lets a chat be
        # rewound that far
        (windows, ["--useswa", "--swapadding", 0]),
        (True, _CACHE[p.cache_type_k or "f16"]),
        # the cache in RAM, as -nkvo
        (p.kv_offload is False, ["--lowvram"]),
        (True, _overrides(p)),
        (threads, ["--threads", p.n_threads]),
        (True, ["--batchsize", use.n_ubatch]),
        # llama.cpp's auto maps the file where it can; KoboldCpp does not without the flag
        (mode in ("auto", "mmap", "mmap+mlock"), ["--usemmap"]),
        ("mlock" in mode, ["--usemlock"]),
        (p.mmproj, ["--mmproj", p.mmproj]),
        (p.model_draft, ["--draftmodel", p.model_draft]),
        # The projector computes on the CPU
        (p.mmproj_offload is False, ["--mmprojcpu"]),
        (p.image_max_tokens is not None, ["--visionmaxtokens", p.image_max_tokens]),
        (p.draft_n_max is not None, ["--draftamount", p.draft_n_max]),
        (drafted, ["--draftgpulayers", layers]),
        (p.override_kv, ["--overridekv", ",".join(map("=".join, p.override_kv))]),
        (p.lora, ["--lora", *p.lora]),
        (scales, ["--loramult", *scales]),
        *((True, [name, value] if value else [name]) for name, value in rest),
        (key, ["--ssl", certificate, key]),
    ]
    line = shell([str(word) for given, words in rows if given for word in words])
    # --password is what clients send as the key
    # the shell stops if it is not set: no server without its key
    if "LLAMA_API_KEY" in launch.secrets:
        line += " --password " + ("%LLAMA_API_KEY%" if os.name == "nt" else '"${LLAMA_API_KEY:?}"')
    return line + "\n"


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
