"""The causes that a log may show: their stable names, what each means, and what helps.

docs/troubleshooting.md is made from these rows (docs/make.py troubleshooting).
"""

from __future__ import annotations

from ..records import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ..builds import Build


@dataclass(frozen=True)
class CauseRemedy:
    """`flags` as today's build reads them; none: something that no flag does. `phase`: of this one
    alone; `fits`: the launch with them was planned with and fits, None where nothing was planned.
    `whole`: the log's own command with them, () where it has none."""

    flags: tuple[str, ...]
    why: str
    phase: str = ""
    fits: bool | None = None
    whole: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """`flags`: all that is typed after llama-server, where the launch is known; `change`: what
        is new of them."""
        return {
            "flags": list(self.whole or self.flags),
            "change": list(self.flags),
            "why": self.why,
            "fits": self.fits,
        }


@dataclass(frozen=True)
class Cause:
    """`line`: what is said of it, on at most 100 characters, with {device}, {what}, {asked}, {left}
    and {detail}. `lines`: what is said instead of a part of it, as the verdict's detail names
    it."""

    name: str
    title: str
    means: str
    line: str
    remedies: tuple[CauseRemedy, ...] = ()
    lines: Mapping[str, str] = field(default_factory=dict)


def _remedy(flags: str, why: str, phase: str = "") -> CauseRemedy:
    return CauseRemedy(tuple(flags.split()), why, phase)


# llama.cpp's libraries log at level 4 since about b9014, and the default shows 3
_LOG = (
    "run it again with -lv 4: at the default level newer builds show no buffers, no offloaded "
    "layers and no splits"
)

CAUSES = {
    cause.name: cause
    for cause in (
        Cause(
            "oom_device",
            "The GPU is full",
            "An allocation in the GPU's memory was refused. Which one decides what helps: weights, "
            "KV cache, graph buffers, or the pool that grows while requests are computed.",
            "{device} ran out of memory while {what}{asked}{left}",
            (
                _remedy("-ngl auto", "fewer layers on the GPU, as many as fit", "load"),
                _remedy("-cmoe", "for a mixture of experts: keep the experts in RAM", "load"),
                _remedy("-ctk q8_0 -ctv q8_0", "half the KV cache", "cache"),
                _remedy("-np 1", "fewer slots, where each has its own cache", "cache"),
                _remedy("-c 8192", "a smaller context", "cache"),
                _remedy("-ngl auto", "fewer layers on the GPU, as many as fit", "start"),
                _remedy("-c 8192", "a smaller context", "start"),
                _remedy("-ub 128", "smaller graph buffers, prompts are slower", "compute"),
                _remedy("-fa on", "attention without a matrix of all scores", "compute"),
                _remedy("-fitt 2048", "leave more of the GPU free for what grows in use", "run"),
                _remedy("-ub 256", "a smaller pool while prompts are computed", "run"),
                _remedy(
                    "",
                    "see what else is on the GPU: other runners, a desktop, a browser "
                    "(autolayers ps)",
                ),
            ),
            {
                "pipeline": "it runs: {device} had no room for pipelining{asked}, so the GPUs work "
                "one after another",
                "retried": "it runs: {device} refused{asked} at first, and llama.cpp went on with "
                "less",
                "projector": "{device} ran out of memory for the projector of images or "
                "sound{asked}{left}",
                "projector runs": "{device} has no room for the projector's graph{asked}: the "
                "first image may end it",
                "probe": "{device} was full before anything of this launch lay there",
            },
        ),
        Cause(
            "oom_host",
            "RAM is full",
            "System memory was refused, the kernel killed the process, or Ollama refused in "
            "advance. Weights that do not lie on a GPU, a context as long as the model was trained "
            "for, and saved prompts (--cache-ram, 8 GiB by default) are what fills it. On Windows "
            "a refused few hundred MiB mean the page file is full.",
            "RAM ran out while {what}{asked}{left}",
            (
                _remedy(
                    "-c 8192",
                    "a smaller context: without -c builds of 2024 take the trained one",
                    "cache",
                ),
                _remedy("-ctk q8_0 -ctv q8_0", "half the KV cache", "cache"),
                _remedy(
                    "--cache-ram 0",
                    "keep no prompts of earlier requests (LLAMA_ARG_CACHE_RAM=0 for Ollama)",
                    "run",
                ),
                _remedy("", "a smaller quantisation, or more of the model on the GPU", "load"),
                _remedy("--cache-ram 0", "keep no prompts of earlier requests", "compute"),
                _remedy("-c 8192", "a smaller context", "compute"),
                _remedy(
                    "",
                    "see what else holds memory: an earlier server may still run (autolayers ps)",
                ),
            ),
            {
                "killed": "killed from outside, as the kernel does when RAM is full, while {what}",
                **dict.fromkeys(
                    ("insufficient system resources", "Not enough resources to load the model"),
                    "LM Studio refused to load it: by its estimate memory is short",
                ),
                "137": "killed from outside (exit code 137), as the kernel does when RAM is full, "
                "while {what}",
            },
        ),
        Cause(
            "buffer_limit",
            "One allocation is over the driver's limit",
            "Memory is free, but the driver allows no single buffer of this size: about 4 GiB with "
            "many Vulkan and SYCL drivers.",
            "one buffer{asked} exceeds the limit of {device}'s driver; memory is not short",
            (
                _remedy("-fa on", "attention without a matrix of all scores", "compute"),
                _remedy("-ub 128", "smaller graph buffers", "compute"),
                _remedy("--no-warmup", "the warm-up copies a whole matrix", "compute"),
                _remedy(
                    "--no-op-offload", "weights in RAM stay there for large batches", "compute"
                ),
                _remedy("", "SYCL: UR_L0_ENABLE_RELAXED_ALLOCATION_LIMITS=1 in the environment"),
                _remedy("", "another backend of llama.cpp, or a newer driver"),
            ),
        ),
        Cause(
            "no_gpu",
            "No GPU is used",
            "Everything runs on the CPU: the program was built without a GPU backend, the driver "
            "is too old or not running, or the device cannot be seen (container, group, "
            "CUDA_VISIBLE_DEVICES).",
            "no GPU is used{detail}",
            (
                _remedy(
                    "--list-devices",
                    "what the program sees: nothing here means build, driver or visibility",
                ),
                _remedy(
                    "",
                    "nvidia-smi, vulkaninfo or rocminfo in the same container: does the "
                    "driver answer there?",
                ),
                _remedy(
                    "",
                    "Docker: --gpus all (CUDA), --device /dev/dri (Vulkan), and /dev/kfd too "
                    "(ROCm)",
                ),
            ),
            {
                "backends": "no GPU is used: the program has no GPU backend (it loaded {backends} "
                "alone)"
            },
        ),
        Cause(
            "gpu_build",
            "The program has no code for this GPU",
            "The GPU is there and the binary was built for others, or with a CUDA toolkit that is "
            "newer than the driver.",
            "the program has no code for {device} or its driver",
            (
                _remedy(
                    "",
                    "a newer driver, or a build for this GPU's generation "
                    "(CMAKE_CUDA_ARCHITECTURES, AMDGPU_TARGETS)",
                ),
                _remedy("", "the Vulkan build runs on any GPU"),
            ),
        ),
        Cause(
            "device_lost",
            "The GPU was reset",
            "The driver ended the work: a time limit, a fault or a reset. Memory is not the "
            "reason.",
            "{device} was lost: a reset or a time limit of its driver, not memory",
            (
                _remedy("-ub 128", "shorter work for each submission"),
                _remedy(
                    "",
                    "a newer driver; on AMD amdgpu.lockup_timeout=30000 on the kernel's "
                    "command line",
                ),
            ),
        ),
        Cause(
            "old_build",
            "The program is older than the file",
            "The file has an architecture, a type or tensors that this build does not know and "
            "newer ones do.",
            "this build is too old for the file{detail}",
            (_remedy("", "a newer llama.cpp or Ollama; downloading the file again does not help"),),
            {"projector": "this build is too old for the projector's file{detail}"},
        ),
        Cause(
            "bad_model",
            "No llama.cpp reads this file",
            "The file is whole, but of another engine, of a fork, too old, or not a language "
            "model.",
            "llama.cpp cannot load this file{detail}: an update will not help",
            (
                _remedy(
                    "", "a newer conversion of the model, or the program that the file was made for"
                ),
            ),
            {"projector": "llama.cpp cannot load the projector's file{detail}"},
        ),
        Cause(
            "bad_file",
            "The file is missing, cut or no GGUF",
            "The file cannot be opened, ends before its tensors do, is a pointer of Git LFS or a "
            "web page, or a part of a split model is missing.",
            "the model file cannot be read{detail}",
            (
                _remedy(
                    "",
                    "compare its size with the one on the download page; parts stay apart, "
                    "all in one folder",
                ),
                _remedy("", "in a container: does the path exist there?"),
            ),
            {"projector": "the projector's file cannot be read{detail}"},
        ),
        Cause(
            "bad_flag",
            "A flag is not known or its value is wrong",
            "This build does not have the flag, no longer has it, or reads it otherwise.",
            "a flag is refused{detail}",
            (
                _remedy(
                    "",
                    "the flags of this build: llama-server --help; a flag that surely exists means "
                    "another or an old program of that name in PATH",
                ),
            ),
            {"load config": "the configuration is refused{detail}"},
        ),
        Cause(
            "bad_combo",
            "Flags that do not go together",
            "Each flag is valid; together, or with this model, they are not.",
            "flags do not go together, or not with this model{detail}",
            (
                _remedy("-fa on", "a quantised V cache needs flash attention"),
                _remedy("-ctv f16", "where flash attention cannot be had"),
                _remedy("-sm layer", "the split that every model and backend has"),
            ),
            {
                "v cache": "a quantised V cache needs flash attention, which is off",
                "blocks": "the cache's type does not divide this model's heads",
                "split": "the split mode does not go with this model or these devices",
                "-kvu": "conversations that share a prompt need one cache for all slots (-kvu)",
                "tensor": "-sm tensor cannot split this model over these devices",
                "tensor flash": "-sm tensor needs flash attention, which is off",
                "tensor cache": "-sm tensor does not go with a quantised cache in this build",
            },
        ),
        Cause(
            "context_limit",
            "The context is too short, or longer than trained",
            "A request is longer than its slot, or the context is longer than what the model was "
            "trained for, which costs memory and answers.",
            "the context is the limit{detail}",
            (
                _remedy(
                    "-c 32768",
                    "a longer context: a slot has -c divided by -np, unless the cache is unified",
                    "run",
                ),
                _remedy("-c 0", "the trained context", "start"),
                _remedy(
                    "-np 1", "one slot has all of -c, where slots have their own caches", "run"
                ),
                _remedy(
                    "-ctk q8_0 -ctv q8_0",
                    "half the cache, where the longer context does not fit",
                    "run",
                ),
            ),
            {
                "slot context shift": "the context is full: the oldest half of the conversation is "
                "thrown away{detail}",
                "truncated": "the answer was cut: the slot's context is full{detail}",
                "input truncated": "the prompt is longer than the slot's context: its middle was "
                "thrown away",
                "context shift is disabled": "the slot's context is full, and no older tokens may "
                "be thrown away",
            },
        ),
        Cause(
            "batch_limit",
            "A request is larger than the micro-batch",
            "Embeddings, reranking and other work without a causal order take all of an input in "
            "one micro-batch (-ub, 512 by default), however long the context is.",
            "a request is larger than the micro-batch{detail}",
            (
                _remedy(
                    "-ub 8192 -b 8192",
                    "a micro-batch for the longest input: as many tokens as that, or as -c",
                ),
                _remedy("", "or shorter pieces of text: fewer tokens than -ub"),
            ),
        ),
        Cause(
            "prompt_cache",
            "The prompt cache takes no conversation",
            "A conversation's state is larger than --cache-ram, so it is never kept: whoever comes "
            "back is read from the beginning.",
            "the prompt cache is too small for a conversation{detail}",
            (
                _remedy("--cache-ram 24576", "room for a conversation of this length, in MiB"),
                _remedy("-ctxcp 4", "fewer checkpoints of each conversation, which are most of it"),
            ),
            {
                "forcing full prompt re-processing": "a prompt is read from its beginning again: "
                "nothing kept of it fits"
            },
        ),
        Cause(
            "wrong_port",
            "Nothing listens where the client asks",
            "The server is not running, or listens on another port or address than the client "
            "asks. The default port is 8080 to b11520 and 9931 from then on; Ollama's is 11434.",
            "nothing answers on the port that the client asks{detail}",
            (
                _remedy(
                    "",
                    "the server's own line says where it listens; in a container the port must be "
                    "published (-p), and --host 0.0.0.0 given",
                ),
            ),
        ),
        Cause(
            "bad_request",
            "A request is refused",
            "The server is well. What a client sent, or what the model answered, does not fit: a "
            "tool's schema, an image without a projector, a field.",
            "a request is refused, the server is well{detail}",
            (
                _remedy("", "the request: what the message names, in the client or its tools"),
                _remedy("", "a newer llama.cpp, where the message is of a tool or a template"),
            ),
        ),
        Cause(
            "program_fault",
            "A check of llama.cpp itself failed",
            "An assertion that depends on the model and the launch, and that other builds do not "
            "have: no memory is short and no flag is wrong.",
            "a check of llama.cpp itself failed: a fault of this build with such a launch",
            (_remedy("", "a newer build"),),
            {
                "GGML_SCHED_MAX_SPLIT_INPUTS": "too many inputs in one piece of the graph: a fault "
                "of this build with such a split",
                "seq_id cannot be larger than n_tokens": "an input of fewer tokens than slots: a "
                "fault of this build with embeddings",
            },
        ),
        Cause(
            "partial_offload",
            "Layers or experts lie in RAM",
            "Not everything fits on the GPU; what lies in RAM is read at RAM's speed for every "
            "token.",
            "not all layers are on the GPU{detail}: slower than it could be",
            (
                _remedy("-ub 256", "smaller graph buffers may make room for the last layers"),
                _remedy("-ctk q8_0 -ctv q8_0", "half the KV cache"),
                _remedy("-fitt 512", "a smaller margin, where nothing else uses the GPU"),
            ),
            {
                "experts": "weights lie in RAM, as -ot, -ncmoe or --fit placed them: slower than "
                "on the GPU",
                "cache": "the KV cache lies in RAM (-nkvo): slower than on the GPU",
                "short": "the GPU is short{asked}: not all layers fit",
                "none": "the GPU is there, and no layer fits on it{detail}",
            },
        ),
        Cause(
            "op_unsupported",
            "An operation is not available on the GPU",
            "Flash attention or another operation has no kernel there: it runs on the CPU, or in "
            "another, larger form.",
            "an operation has no kernel on {device}{detail}",
            (
                _remedy("-ctk f16 -ctv f16", "cache types that every backend has"),
                _remedy("", "a newer build"),
            ),
            {"fused": "a fused operation is switched off: prompts are read many times slower"},
        ),
        Cause(
            "pair_mismatch",
            "Two files that are not of one model",
            "The projector, draft model or adapter belongs to another model.",
            "mmproj, draft or adapter is of another model{detail}",
            (_remedy("", "take both files from the same repository"),),
            {
                "no reason": "the projector's file is not loaded: cut, too new or of another kind",
                **dict.fromkeys(
                    (
                        "session file",
                        "sequence state",
                        "slot save file",
                        "failed to restore kv cache",
                        "incompatible V transposition",
                        "incompatible s transposition",
                        "incompatible key rotation",
                        "Unable to restore slot",
                        "Restored prompt does not fit",
                    ),
                    "a saved state is of another model, cache type or context: it is read again",
                ),
            },
        ),
        Cause(
            "port_busy",
            "The port is taken",
            "Another program listens there, often an earlier server.",
            "the port is taken{detail}",
            (
                _remedy("--port 8081", "another port"),
                _remedy(
                    "",
                    "end the server that holds it (autolayers ps); on Windows it may be "
                    "reserved by Hyper-V",
                ),
            ),
        ),
        Cause(
            "rpc_lost",
            "The other machine is gone",
            "An rpc-server ended or never answered; its own log says why, mostly its RAM.",
            "the RPC server is gone or does not answer",
            (
                _remedy(
                    "",
                    "read the log of rpc-server there: usual reasons are its memory and "
                    "another build",
                ),
            ),
        ),
        Cause(
            "host_lock",
            "Memory could not be locked",
            "Pinned memory or mlock was refused. A warning: copies are slower, nothing fails.",
            "memory could not be pinned or locked: harmless",
            (
                _remedy(
                    "",
                    "ulimit -l unlimited (LimitMEMLOCK=infinity in a service), or leave --mlock "
                    "out",
                ),
            ),
        ),
        Cause(
            "start_timeout",
            "The start took too long",
            "Whoever started the server gave up waiting, or it hangs in a driver.",
            "the server did not come up in time",
            (_remedy("", "Ollama: OLLAMA_LOAD_TIMEOUT=15m; a slow disk is read for every load"),),
        ),
        Cause(
            "vram_spill",
            "More than the card's memory",
            "The buffers are more than was free: the driver pages to system memory, which is ten "
            "times slower and says nothing in the log.",
            "{device} holds {held} and {free} were free: the driver uses system memory",
            (
                _remedy("-ngl auto", "fewer layers on the GPU, as many as fit"),
                _remedy(
                    "", "Windows, NVIDIA: CUDA - Sysmem Fallback Policy: Prefer No Sysmem Fallback"
                ),
            ),
        ),
        Cause(
            "fit_gave_up",
            "--fit could not choose",
            "What --fit would have changed was given, or even the smallest choice does not fit. "
            "Loading goes on.",
            "--fit changed nothing{detail}",
            (
                _remedy(
                    "-ngl auto", "leave the number of layers to --fit; -ngl all counts as given"
                ),
            ),
            {"shortened": "--fit made the context smaller{detail}"},
        ),
        Cause(
            "slow",
            "Slower than it could be",
            "The server answers, and its rate is below what is predicted for this launch on this "
            "machine, or another launch is much faster.",
            "nothing failed, but the server is slower than is predicted for this launch",
            (),
            {
                "launch": "nothing failed, but another launch is much faster on this machine",
                "prompts": "nothing failed, but prompts are read slower than is predicted",
            },
        ),
        Cause(
            "template",
            "The chat template failed",
            "The messages of a request do not fit the model's chat template, the template cannot "
            "be read by this build, or tools were asked for without --jinja.",
            "the chat template failed{detail}",
            (
                _remedy(
                    "--jinja", "for tools, with builds up to November 2025: newer ones have it on"
                ),
                _remedy(
                    "",
                    "a newer file of the model, whose template may be mended, or "
                    "--chat-template-file FILE",
                ),
                _remedy("", "a newer llama.cpp: its template engine reads more"),
            ),
        ),
        Cause(
            "busy",
            "Every slot is taken",
            "More requests came at once than there are slots. They wait, or are refused with 503 "
            "where the request says so.",
            "every slot is taken: further requests wait or are refused",
            (
                _remedy("-np 8 -kvu", "more slots, which share the context"),
                _remedy(
                    "",
                    "requests whose client is gone go on until their answer ends: give max_tokens",
                ),
            ),
            dict.fromkeys(
                ("Try using a bigger --parallel value", "failed to find available cell"),
                "more conversations than slots: this model keeps one state for each slot",
            ),
        ),
        Cause(
            "missing_library",
            "A library is missing",
            "The system did not start the program, because a library that it needs is not found.",
            "the program does not start: a library is missing{detail}",
            (
                _remedy(
                    "",
                    "keep all files of the release in one folder, and start the program from there",
                ),
            ),
            {"backend": "a backend is not loaded, as a library is missing{detail}"},
        ),
        Cause(
            "cpu_build",
            "The program is built for another CPU",
            "It uses instructions (AVX2, AVX512, ...) that this CPU does not have.",
            "the program uses instructions that this CPU does not have",
            (
                _remedy(
                    "",
                    "a release of llama.cpp, which takes the code for the CPU that it finds "
                    "(ggml-cpu-*)",
                ),
                _remedy(
                    "",
                    "built by yourself: on this very machine, or with -DGGML_NATIVE=OFF and "
                    "without -DGGML_AVX2=ON, -DGGML_AVX512=ON",
                ),
            ),
        ),
        Cause(
            "healthy",
            "Nothing is wrong",
            "The server came up and no line says that anything failed.",
            "nothing failed: the server came up",
        ),
        Cause(
            "not_in_log",
            "The failure is not in these lines",
            "Nothing in them failed.",
            "nothing failed in these lines",
            (
                _remedy("-lv 4", _LOG),
                _remedy("", "paste the lines from the start to the end of the program"),
            ),
        ),
        Cause(
            "unknown",
            "Not known",
            "Something failed and no line says why.",
            "something failed, and these lines do not say why",
            (_remedy("-lv 4", _LOG), _remedy("", "paste the lines before the first error too")),
            {
                "upstream": "the model's program ended, and its reason is in its own log, not in "
                "these lines"
            },
        ),
    )
}


def remedies_of(name: str, phase: str | None, build: Build | None = None) -> Iterator[CauseRemedy]:
    """Yield what helps, in the order to try, as a build reads it."""
    for remedy in CAUSES[name].remedies:
        # A remedy without a phase helps in all of them
        if remedy.phase in ("", phase):
            flags = remedy.flags
            # -fa took no value before b6325
            if build is not None and build.bare_flash and flags == ("-fa", "on"):
                flags = ("-fa",)
            # A build without the flag would refuse to start
            if (
                build is not None
                and flags
                and flags[0].startswith("-")
                and not build.knows(flags[0])
            ):
                continue
            # Older builds take a number alone: the advice stays, without a flag
            if flags == ("-ngl", "auto") and build is not None and not build.rules.layers_auto:
                flags = ()
            yield CauseRemedy(flags, remedy.why, remedy.phase)
