"""autolayers: the best llama.cpp launch for a model file on a machine's memory.

    import autolayers
    model = autolayers.read_model("model.gguf")
    gpu = autolayers.Device.hypothetical("24GiB")
    plan = autolayers.plan(model, ["-c", "8192"], devices=[gpu])
    plan.n_gpu_layers, plan.flags, plan.to_dict()

Names are resolved on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

__version__ = "0.1.0"

_HOME = {
    "AutolayersError": "errors", "UsageError": "errors", "LaunchRefused": "errors", "ModelError": "errors",
    "DeviceError": "errors", "DoesNotFit": "errors", "NoLog": "errors",
    "Device": "devices", "Params": "flags.params", "Breakdown": "memory.breakdown",
    "read_header": "gguf", "Header": "gguf", "read_model": "model", "Model": "model",
    "estimate": "api", "plan": "api", "Plan": "planner",
    "plan_together": "api", "Together": "planner.several.multi",
    "explain": "diagnosis.diagnosis", "Diagnosis": "diagnosis.diagnosis",
    "plan_groups": "api", "Groups": "planner.several.groups",
}
__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> object:
    if name in _HOME:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
