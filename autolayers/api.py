"""The front door: words, files and machines in, plans and breakdowns out. What the command line and the library call.

    model = read_model("model.gguf")
    plan(model, ["-c", "8192"], devices=[gpu])
    estimate(model, params, [gpu])
"""

from __future__ import annotations

from .errors import LaunchRefused, UsageError
from .machine import Host
from .memory.breakdown import Breakdown
from .memory.companions import NONE, Companions
from .memory.estimate import Estimator
from .planner import Machine, fit_choice_on, plan_on
from .records import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike
    from typing import Any

    from .flags.params import Params
    from .flags.parse import Arguments
    from .flags.policy import Policy
    from .machine import Device
    from .model import Model
    from .planner import FitChoice, Plan
    from .planner.compare.rivals import Rival
    from .planner.several.groups import AnyOf, Groups
    from .planner.several.multi import Together

__all__ = ["companions_of", "estimate", "fit_choice", "machine_for", "plan", "plan_any", "plan_groups",
           "plan_together"]


def plan(model: Model | str | PathLike[str], words: Sequence[str] | Params | Arguments = (),
         devices: Sequence[Device | str] | None = None, host: Host | None = None,
         environ: Mapping[str, str] | None = None, *, explain: bool = False, advise: bool = False,
         processes: int = 1) -> Plan:
    """The best launch of a model.

    `model` may be the name of its file. `words` are llama-server's flags and autolayers' own, as on the command line
    (or a Params, or parsed Arguments); `environ` adds LLAMA_ARG_* variables and llama.cpp's config files, None leaves
    them out. `devices` None asks the machine, or takes --gpu from the words; devices (or sizes and names of cards, such
    as "24GiB") given without a host plan without a limit on RAM. `explain` adds the next layer's price, the levers and
    --fit's own answer, each of which costs some more arithmetic, which is dealt out to as many `processes` (copies of
    this one, where the system can fork safely); `advise` adds what would make a launch fit that does not (`remedies`),
    and nothing to one that does.

    Raises UsageError for flags that make no sense, LaunchRefused where llama.cpp would not start, ModelError for a file
    of --mmproj, -md or --lora that cannot be read, DeviceError where the machine's memory cannot be known. A launch
    that does not fit is an answer (`fits` is False), not an error.
    """
    model = _read(model)
    params, policy = _asked(words, environ, devices)
    machine, notes = machine_for(params, policy, devices, host, environ)
    return plan_on(model, params, policy, machine, companions_of(params, words), notes, explain=explain, advise=advise,
                   processes=processes)


def plan_together(models: Sequence[Model | str | PathLike[str]], words: Sequence[str] | Params | Arguments = (),
                  devices: Sequence[Device | str] | None = None, host: Host | None = None,
                  environ: Mapping[str, str] | None = None, *, weights: Sequence[float] = ()) -> Together:
    """Plans models that are to be loaded at once, with the same given flags for each. `weights` say how much each
    one's seconds count, by default all the same. Raises what `plan` raises."""
    params, policy = _asked(words, environ, devices)
    machine, notes = machine_for(params, policy, devices, host, environ)
    from .planner.several.multi import plan_together_on

    models = _read_all(models)
    return plan_together_on(models, params, policy, machine, companions_of(params, words), notes,
                            _weighed(weights, len(models)))


def plan_groups(models: Sequence[Model | str | PathLike[str]], words: Sequence[str] | Params | Arguments = (),
                devices: Sequence[Device | str] | None = None, host: Host | None = None,
                environ: Mapping[str, str] | None = None, *, weights: Sequence[float] = ()) -> Groups:
    """Plans models that take turns: groups that fit at the same time. `weights` say how often each model
    is asked for, by default all the same. Raises what `plan` raises."""
    params, policy = _asked(words, environ, devices)
    machine, notes = machine_for(params, policy, devices, host, environ)
    from .planner.several.groups import plan_groups_on

    models = _read_all(models)
    return plan_groups_on(models, params, policy, machine, companions_of(params, words), notes,
                          _weighed(weights, len(models)))


def plan_any(models: Sequence[Model | str | PathLike[str]], words: Sequence[str] | Params | Arguments = (),
             devices: Sequence[Device | str] | None = None, host: Host | None = None,
             environ: Mapping[str, str] | None = None) -> AnyOf:
    """Plans models of which any `most` fit at once, as many as may be; see planner.several.groups. Raises what `plan`
    raises."""
    from .flags.policy import read

    params, policy = read(words, environ)
    machine, notes = machine_for(params, policy, devices, host, environ)
    from .planner.several.groups import plan_any_on

    return plan_any_on(_read_all(models), params, policy, machine, companions_of(params, words), notes)


def fit_choice(model: Model, words: Sequence[str] | Params | Arguments, devices: Sequence[Device] | None = None,
               host: Host | None = None, environ: Mapping[str, str] | None = None) -> FitChoice | None:
    """What `llama-server --fit on`, its default, would choose with these words; None where it would refuse them."""
    from .flags.policy import read

    params, policy = read(words, environ)
    machine, _ = machine_for(params, policy, devices, host, environ)
    return fit_choice_on(model, params, policy, machine, companions_of(params, words))


def rivals(model: Model, words: Sequence[str] | Params | Arguments, devices: Sequence[Device], host: Host | None,
           threads: tuple[int, ...] = ()) -> list[Rival]:
    """The plan's launch and those that its predictions cannot tell from it, five at most; see planner.rivals. Raises
    what `plan` raises, and DoesNotFit."""
    from .flags.policy import read
    from .planner.compare.rivals import rivals_on

    params, policy = read(words, None)
    machine, _ = machine_for(params, policy, devices, host)
    return rivals_on(model, params, policy, machine, companions_of(params, words), threads)


def estimate(model: Model, params: Params, devices: Sequence[Device], build: int | None = None, compute: bool = True,
             runtime: bool = False) -> Breakdown:
    """What llama-server started with `params` allocates on `devices` (all the machine has, in llama.cpp's order),
    bytes.

    What is None in params has llama-server's default, and n_gpu_layers None, -1 or -2 offloads everything.
    `compute=False` leaves the graph buffers and the extras out. `runtime` also finds what the graph buffers may grow to
    in use. `build` is llama.cpp's build number, None for the newest known. Raises LaunchRefused where llama.cpp would
    refuse.
    """
    estimator = Estimator(model.overridden(params.override_kv), build, companions_of(params))
    if compute:
        return estimator.breakdown(params, devices, runtime)
    return Breakdown(**vars(estimator.static(params, devices)))


def companions_of(params: Params, words: object = ()) -> Companions:
    """The headers of the files that `params` names in addition to the model's; -hft and --offline hold for them too
    where `words` are the Arguments that have them. Raises ModelError naming the file."""
    if not (params.mmproj or params.model_draft or params.lora or params.control_vector):
        return NONE
    import os

    from .flags.parse import Arguments
    from .gguf import read_header
    from .model import is_adapter, is_control_vector, is_projector, read_model
    from .sources import network_environ, open_source

    environ = network_environ(os.environ, words) if isinstance(words, Arguments) else os.environ
    opened: Any = open_source(params.mmproj, environ) if params.mmproj else None
    projector = read_header(opened) if params.mmproj else None
    if projector is not None and not is_projector(projector):
        raise LaunchRefused(f"--mmproj {params.mmproj}: no projector for images or sound")
    loras = tuple(map(read_header, params.lora))
    for path, lora in zip(params.lora, loras, strict=True):
        if not is_adapter(lora):
            raise LaunchRefused(f"--lora {path}: no adapter (general.type is not adapter)")
    for path in params.control_vector:
        if not is_control_vector(read_header(path)):
            raise LaunchRefused(f"--control-vector {path}: no control vector, whose tensors are directions")
    draft = read_model(open_source(params.model_draft, environ)) if params.model_draft else None
    return Companions(projector, draft, loras)


def machine_for(params: Params, policy: Policy, devices: Sequence[Device | str] | None = None, host: Host | None = None,
                environ: Mapping[str, str] | None = None) -> tuple[Machine, tuple[str, ...]]:
    """The machine to plan for, and what there is to say about it. Raises UsageError, DeviceError."""
    notes: tuple[str, ...] = ()
    if devices is not None:
        found = _named(devices)
    else:
        from . import devices as sources

        if policy.machine is not None:
            if policy.gpu is not None:
                raise UsageError("--machine and --gpu both say the devices: give one of them")
            found, described = sources.described(policy.machine)
            host = host or described
        elif policy.gpu is not None:
            remote, why = sources.remote(params.rpc)
            found, notes = [*remote, *sources.hypothetical(policy.gpu)], (*why, *_decimal(policy.gpu))
        else:
            inventory = sources.discover(environ, rpc=params.rpc)
            found, notes = inventory.devices, inventory.notes
            if host is None:
                host = inventory.host
    if policy.backend is not None:
        from .devices.driven import driven

        found = driven(found, policy.backend)
    policy.margins(len(found))
    budget = dict(policy.budget)
    # Of an RPC server that does not answer the budget is all that is known
    found = [replace(device, total=budget[device.name], free=budget[device.name])
               if device.name in budget and not device.total else device for device in found]
    return Machine.of(found, host, policy.ram, budget), notes


def _asked(words: Sequence[str] | Params | Arguments, environ: Mapping[str, str] | None,
           devices: object) -> tuple[Params, Policy]:
    """What the words say. Raises UsageError, also where they and `devices` both say the devices."""
    from .flags.policy import read

    params, policy = read(words, environ)
    if devices is not None and isinstance(words, (list, tuple)):
        for name, said in (("--gpu", policy.gpu), ("--machine", policy.machine)):
            if said is not None:
                raise UsageError(f"{name} and devices= both say the devices: give one of them")
    return params, policy


def _weighed(weights: Sequence[float], count: int) -> Sequence[float]:
    """Weights of so many models. Raises UsageError."""
    if weights and (len(weights) != count or not all(weight > 0 for weight in weights)):
        raise UsageError(f"weights are a number above 0 for each of the {count} models, not {list(weights)!r:.60}")
    return weights


def _read(model: Model | str | PathLike[str]) -> Model:
    from os import PathLike

    from .model import Model, read_model

    if not isinstance(model, (Model, str, PathLike)):
        raise UsageError(f"a model is a Model or the name of its file, not {model!r:.60}")
    return model if isinstance(model, Model) else read_model(model)


def _read_all(models: Any) -> Sequence[Model]:
    """Models of which a list may name the files; other sequences read their own. Raises UsageError."""
    if isinstance(models, str) or not hasattr(models, "__len__"):
        raise UsageError(f"models are a list of Models or names of files, not {models!r:.60}")
    return [_read(model) for model in models] if isinstance(models, (list, tuple)) else models


def _named(given: Sequence[Device | str]) -> Sequence[Device]:
    """Devices, or what --gpu has for each; hypothetical ones of one name are numbered. Raises UsageError."""
    from .devices import Device, hypothetical, numbered

    if isinstance(given, str):
        return hypothetical(given)
    if isinstance(given, Device):
        raise UsageError("devices are a list, such as [device]")
    for device in given:
        if not isinstance(device, (Device, str)):
            raise UsageError(f"a device is a Device, a size such as '24GiB' or a card's name, not {device!r:.60}")
    devices = [device if isinstance(device, Device) else Device.hypothetical(device) for device in given]
    return devices if len({device.name for device in devices}) == len(devices) else numbered(devices)


def _decimal(gpu: str) -> list[str]:
    """A word on sizes in GB: a card is sold by GiB."""
    parts = [part for part in gpu.split(",") if part.strip().lower().endswith(("gb", "mb"))]
    if not parts:
        return []
    import re  # of few answers

    found = (re.fullmatch(r"(?:\d+ *x)? *(\d+(?:\.\d+)? *[gm]b) *", part, re.IGNORECASE) for part in parts)
    sizes = [size[1] for size in found if size]
    return [f"--gpu {sizes[0]} counts in powers of ten; a card that is sold as {sizes[0]} has {sizes[0][:-1].upper()}iB"
            ] if sizes else []
