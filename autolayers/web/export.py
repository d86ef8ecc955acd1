"""A plan as a file for other launchers: those of --format, Ollama's Modelfile, and LM Studio's
command.

    export("compose", model, request, "/models/qwen3-8b.gguf")      # (text, notes)
"""

from __future__ import annotations

from ..errors import UsageError
from ..launch.formats import plan_for, write
from ..ollama.advice import advise
from ..ollama.modelfile import minimal
from ..ollama.settings import Settings
from ..ollama.target import Target
from ..planner import Plan, plan_request
from ..quoting import posix
from ..records import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..flags.parse import Arguments
    from ..model import Model
    from ..request import Request

OLLAMA, LM_STUDIO = "ollama", "lm-studio"
# Format -> its usual file name
NAMES = {
    OLLAMA: "Modelfile",
    LM_STUDIO: "lm-studio.sh",
    "systemd": "llama-server.service",
    "docker": "run.sh",
    "compose": "compose.yaml",
    "llama-swap": "config.yaml",
    "preset": "preset.ini",
    "llama-cpp-python": "run.py",
    "koboldcpp": "koboldcpp.sh",
    "llama-swap-matrix": "config.yaml",
    "nixos": "llama-cpp.nix",
    "kubernetes": "kubernetes.yaml",
    "gpustack": "gpustack.yaml",
    "llmkube": "llmkube.yaml",
}


def export(kind: str, model: Model, request: Request, path: str) -> tuple[str, list[str]]:
    """(the file's text, notes for its user); `path`: the model's file or hf: name. Raises
    UsageError for a launch that the format cannot express."""
    if kind not in NAMES:
        raise UsageError(f"expected one of {', '.join(NAMES)}")
    if kind == OLLAMA:
        return _modelfile(model, request, path)
    if kind == LM_STUDIO:
        return _lms(model, request, path)
    notes: list[str] = []

    def make(arguments: Arguments) -> Plan:
        return plan_request(model, request.asking(arguments))

    # The form's model has the page's name; the file needs the path of the user's machine
    given = replace(request.arguments, params=replace(request.params, model=path))
    plan, arguments = plan_for(kind, given, make)
    # environ {}: variables of the page's server say nothing about that machine
    written = write(kind, plan, arguments, environ={}, warn=notes.append)
    notes = [note for note in notes if "is not in PATH here" not in note]
    return written, notes + _about(path)


def _about(path: str) -> list[str]:
    return ["replace /path/to/ by the folder of the model"] if path.startswith("/path/to/") else []


def _modelfile(model: Model, request: Request, path: str) -> tuple[str, list[str]]:
    """Return a Modelfile and notes; Ollama's own settings decide what it can hold."""
    # As Ollama names a model of the Hub
    source = "hf.co/" + path.removeprefix("hf:") if path.startswith("hf:") else path
    target = Target(source, model, model.size)
    # Of one sequence: Ollama multiplies num_ctx by its number of slots
    context = plan_request(model, request).breakdown.n_ctx_seq
    advice = advise(
        target,
        Settings.from_environment({}),
        request.machine.devices,
        request.host,
        num_ctx=context,
        explain=False,
    )
    written = minimal(source, advice.parameters, [*advice.summary, *advice.notes])
    settings = [f"{setting}: set it for `ollama serve`" for setting in advice.server]
    return written.decode(), [*settings, *_about(path)]


def _lms(model: Model, request: Request, path: str) -> tuple[str, list[str]]:
    """Return LM Studio's `lms load` and notes; it places whole layers, by their share."""
    unified = request.params.kv_unified
    arguments = replace(
        request.arguments,
        # It has no words for single tensors
        own={"strategy": "layers", "engine": LM_STUDIO, **request.arguments.own},
        # Its predictions share one cache, however many they are
        params=replace(request.params, kv_unified=True if unified is None else unified),
    )
    plan = plan_request(model, request.asking(arguments))
    layers, whole = plan.n_gpu_layers, plan.n_layer + 1
    # Rounded down: a layer more than planned may not fit
    part = f"{layers * 100 // whole / 100:g}"
    share = "off" if not layers or not plan.devices else "max" if layers >= whole else part
    # The file's or the repository's name, e.g. "qwen3-8b"
    key = path.replace("\\", "/").rpartition("/")[2].partition(":")[0].lower()
    key = key.removesuffix(".gguf").removesuffix("-gguf")
    words = ["lms", "load", key, "--gpu", share, "--context-length", str(plan.breakdown.n_ctx)]
    slots = plan.breakdown.n_seq_max
    command = posix([*words, "--parallel", str(slots)])
    notes = ["`lms ls` lists the names that models have in LM Studio"]
    if slots > 1:
        shared = "on" if plan.breakdown.kv_unified else "off"
        notes.append(f"{slots} predictions at once, with Unified KV Cache {shared}")
    return f"# {plan.placement}\n{command}\n", notes
