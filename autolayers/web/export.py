"""A plan as a file for other launchers: those of --format, and Ollama's Modelfile.

    export("compose", model, request, "/models/qwen3-8b.gguf")      # (text, notes)
"""

from __future__ import annotations

from ..errors import UsageError
from ..launch.formats import plan_for, write
from ..ollama.advice import advise
from ..ollama.modelfile import minimal
from ..ollama.settings import Settings
from ..ollama.target import Target
from ..planner import plan_request
from ..records import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..flags.parse import Arguments
    from ..model import Model
    from ..planner import Plan
    from ..request import Request

OLLAMA = "ollama"
# Format -> its usual file name
NAMES = {OLLAMA: "Modelfile", "systemd": "llama-server.service", "docker": "run.sh", "compose": "compose.yaml",
         "llama-swap": "config.yaml", "preset": "preset.ini", "llama-cpp-python": "run.py",
         "koboldcpp": "koboldcpp.sh", "llama-swap-matrix": "config.yaml"}


def export(kind: str, model: Model, request: Request, path: str) -> tuple[str, list[str]]:
    """(the file's text, notes for its user); `path`: the model's file or hf: name. Raises UsageError for a launch that
    the format cannot express."""
    if kind not in NAMES:
        raise UsageError(f"expected one of {', '.join(NAMES)}")
    if kind == OLLAMA:
        return _modelfile(model, request, path)
    notes: list[str] = []

    def make(arguments: Arguments) -> Plan:
        return plan_request(model, request.asking(arguments))

    given = replace(request.arguments, params=replace(request.params, model=path))
    plan, arguments = plan_for(kind, given, make)
    written = write(kind, plan, arguments, environ={}, warn=notes.append)
    notes = [note for note in notes if "is not in PATH here" not in note]
    return written, notes + _about(path)


def _about(path: str) -> list[str]:
    return ["replace /path/to/ by the folder of the model"] if path.startswith("/path/to/") else []


def _modelfile(model: Model, request: Request, path: str) -> tuple[str, list[str]]:
    """Ollama's own settings decide what a Modelfile can hold."""
    source = "hf.co/" + path.removeprefix("hf:") if path.startswith("hf:") else path
    target = Target(source, model, model.size)
    context = plan_request(model, request).breakdown.n_ctx_seq
    advice = advise(target, Settings.from_environment({}), request.machine.devices, request.host, num_ctx=context,
                    explain=False)
    written = minimal(source, advice.parameters, [*advice.summary, *advice.notes])
    return written.decode(), [*advice.server, *_about(path)]
