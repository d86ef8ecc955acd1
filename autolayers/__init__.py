"""autolayers: the best llama.cpp launch for a model file on a machine's memory.

    import autolayers
    model = autolayers.read_model("model.gguf")
    gpu = autolayers.Device.hypothetical("24GiB")
    plan = autolayers.plan(model, ["-c", "8192"], devices=[gpu])
    plan.n_gpu_layers, plan.flags, plan.to_dict()

    autolayers.plan("model.gguf", gpu="rtx-3060", ram="32GiB", ctx=8192)      # flags by name

The names in __all__ are public; modules and other names may change at any time. Names are resolved
on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .api import choose as choose
    from .api import estimate as estimate
    from .api import plan as plan
    from .api import plan_groups as plan_groups
    from .api import plan_together as plan_together
    from .api import read_model as read_model
    from .api import sweep as sweep
    from .devices import Device as Device
    from .devices import Inventory as Inventory
    from .devices import discover as discover
    from .diagnosis.diagnosis import Diagnosis as Diagnosis
    from .diagnosis.diagnosis import explain as explain
    from .errors import AutolayersError as AutolayersError
    from .errors import DeviceError as DeviceError
    from .errors import DoesNotFit as DoesNotFit
    from .errors import LaunchRefused as LaunchRefused
    from .errors import ModelError as ModelError
    from .errors import NoLog as NoLog
    from .errors import UsageError as UsageError
    from .errors import WrongType as WrongType
    from .flags.params import Params as Params
    from .gguf import Header as Header
    from .gguf import read_header as read_header
    from .machine import Host as Host
    from .memory.breakdown import Breakdown as Breakdown
    from .model import Model as Model
    from .planner import Plan as Plan
    from .planner.compare.choose import Choice as Choice
    from .planner.compare.sweep import Point as Point
    from .planner.several.groups import Groups as Groups
    from .planner.several.multi import Together as Together

# The module of each public name; the imports above tell type checkers the same.
_HOME = {
    "AutolayersError": "errors",
    "UsageError": "errors",
    "LaunchRefused": "errors",
    "ModelError": "errors",
    "DeviceError": "errors",
    "DoesNotFit": "errors",
    "NoLog": "errors",
    "WrongType": "errors",
    "Device": "devices",
    "Host": "machine",
    "discover": "devices",
    "Inventory": "devices",
    "Params": "flags.params",
    "Breakdown": "memory.breakdown",
    "read_header": "gguf",
    "Header": "gguf",
    "read_model": "api",
    "Model": "model",
    "estimate": "api",
    "plan": "api",
    "Plan": "planner",
    "choose": "api",
    "Choice": "planner.compare.choose",
    "sweep": "api",
    "Point": "planner.compare.sweep",
    "plan_together": "api",
    "Together": "planner.several.multi",
    "explain": "diagnosis.diagnosis",
    "Diagnosis": "diagnosis.diagnosis",
    "plan_groups": "api",
    "Groups": "planner.several.groups",
}
__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> object:
    if name in _HOME:
        # Only now: `import autolayers` alone imports nothing.
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# Names that are not imported yet show up in completion.
def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
