"""The front door of the command line and the library: words, files and machines in, plans and
breakdowns out.

    model = read_model("model.gguf")
    plan(model, ["-c", "8192"], devices=[gpu])
    plan("hf:USER/REPO:Q4_K_M", gpu="rtx-3060", ram="32GiB", ctx=8192)
    estimate("model.gguf", ["-ngl", "33"], ["24GiB"])

Flags are words, as on the command line, or keyword arguments by their names, with _ for -
(flags/keywords.py).
"""

from __future__ import annotations

from os import PathLike, fspath

from .errors import UsageError, WrongType
from .flags.keywords import words_of
from .machine import Device, Host
from .memory.breakdown import Breakdown
from .memory.estimate import Estimator
from .model import Model
from .model import read_model as read_file
from .planner import FitChoice, Plan, answer, plan_request
from .records import replace
from .request import Request, companions_of, for_model

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from .builds import Build
    from .flags.params import Params
    from .flags.parse import Arguments
    from .memory.meter import Meter
    from .planner.compare.choose import Choice
    from .planner.compare.sweep import Point
    from .planner.several.groups import AnyOf, Groups
    from .planner.several.multi import Together

    Words = Sequence[str] | Params | Arguments
    Flag = str | float | bool | Sequence[str | float] | None

# own flags of the command that say what it prints: a function returns all of it
_PRINTED = (
    *("format", "gpumem", "swap", "stay", "why", "table", "picture", "help", "version"),
    *("confirm", "llama-server"),  # the command asks the installed program
)
# and those that decide between launches
_GOALS = (
    *("workload", "users", "ctx-per-user", "min-rate", "ttft", "acceptance", "strategy", "ctx-min"),
    *("agents", "kv-types", "budget", "margin", "ram-limit"),
)

__all__ = [
    "choose",
    "companions_of",
    "estimate",
    "fit_choice",
    "plan",
    "plan_any",
    "plan_groups",
    "plan_together",
    "read_model",
    "sweep",
]


def read_model(source: str | PathLike[str]) -> Model:
    """Return the model of a .gguf file (any shard of a split one), of https://...,
    hf:USER/REPO[:QUANT] or ollama:NAME. Only the header is read. Raises ModelError."""
    name = fspath(source)
    if not isinstance(name, str):
        raise WrongType(f"a model's name is a str, not {name!r:.60}")
    # A path on this disk needs no source, and its import is saved.
    if "://" not in name and not name.startswith(("hf:", "ollama:")):
        return read_file(name)
    from .sources import open_source

    return read_file(open_source(name))


def plan(
    model: Model | str | PathLike[str],
    words: Sequence[str] | Params | Arguments = (),
    devices: Sequence[Device | str] | None = None,
    host: Host | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    explain: bool = False,
    advise: bool = False,
    processes: int = 1,
    **flags: Flag,
) -> Plan:
    """Return the best launch of a model.

    `model` may be a name, as for read_model. `words` are llama-server's flags and autolayers' own,
    as on the command line (or a Params, or parsed Arguments), and `flags` the same by name
    (gpu="24GiB", ctx=8192, cache_type_k="q8_0"); `environ` adds LLAMA_ARG_* variables and
    llama.cpp's config files, None leaves them out. `devices` None asks the machine, or takes --gpu
    from the words. Devices (or sizes and names of GPUs, such as "24GiB") given without a host mean
    no limit on RAM. `explain` adds the next layer's price, the alternatives and --fit's own answer.
    Each costs more arithmetic, which `processes` processes share where the system can fork safely.
    `advise` adds `remedies` to a plan that does not fit.

    Raises UsageError for flags that make no sense, LaunchRefused where llama.cpp would not start,
    ModelError for an unreadable file of --mmproj, -md or --lora, DeviceError where the machine's
    memory is unknown. A launch that does not fit is an answer (`fits` is False), not an error.
    Raises WrongType for a name that is no flag, and for a value of another type.
    """
    # Read before the request: what its words mean may depend on the model (for_model).
    model = _read(model)
    request = for_model(model, _asked("plan", _all(words, flags), environ, devices, host))
    return plan_request(model, request, explain=explain, advise=advise, processes=processes)


def plan_within(
    meter: Meter,
    model: Model,
    words: Sequence[str],
    environ: Mapping[str, str] | None = None,
    *,
    explain: bool = False,
) -> Plan:
    """Return what `plan` returns, with what would make a launch fit, as long as the meter lasts."""
    request = for_model(model, Request.of(_all(words, {}), environ))
    return plan_request(model, request, explain=explain, advise=True, meter=meter)


def plan_together(
    models: Sequence[Model | str | PathLike[str]],
    words: Sequence[str] | Params | Arguments = (),
    devices: Sequence[Device | str] | None = None,
    host: Host | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    weights: Sequence[float] = (),
    **flags: Flag,
) -> Together:
    """Plan models that are loaded together, with the same given flags for each. `weights` are the
    models' shares of the requests, equal by default. Raises what `plan` raises."""
    # Imported on demand: most callers plan one model.
    from .planner.several import multi

    request = _asked("plan_together", _all(words, flags), environ, devices, host)
    models = _read_all(models)
    return multi.plan_together(models, request, _weighed(weights, len(models)))


def plan_groups(
    models: Sequence[Model | str | PathLike[str]],
    words: Sequence[str] | Params | Arguments = (),
    devices: Sequence[Device | str] | None = None,
    host: Host | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    weights: Sequence[float] = (),
    **flags: Flag,
) -> Groups:
    """Plan models that take turns, in groups that fit together. `weights` are the models' shares of
    the requests, equal by default. Raises what `plan` raises."""
    from .planner.several import kept

    request = _asked("plan_groups", _all(words, flags), environ, devices, host)
    models = _read_all(models)
    return kept.plan_turns(models, request, _weighed(weights, len(models)))


def plan_any(
    models: Sequence[Model | str | PathLike[str]],
    words: Sequence[str] | Params | Arguments = (),
    devices: Sequence[Device | str] | None = None,
    host: Host | None = None,
    environ: Mapping[str, str] | None = None,
    **flags: Flag,
) -> AnyOf:
    """Plan models so that any `most` of them fit together, with the largest such `most`; see
    planner.several.groups. Raises what `plan` raises."""
    from .planner.several import groups

    request = _asked("plan_any", _all(words, flags), environ, devices, host)
    return groups.plan_any(_read_all(models), request)


def choose(
    models: Sequence[Model | str | PathLike[str]],
    words: Sequence[str] | Params | Arguments = (),
    devices: Sequence[Device | str] | None = None,
    host: Host | None = None,
    environ: Mapping[str, str] | None = None,
    **flags: Flag,
) -> list[Choice]:
    """Return how each of these files runs on the machine, in their order. Raises what `plan`
    raises."""
    from .planner.compare.choose import assess

    request = _asked("choose", _all(words, flags, "choose"), environ, devices, host)
    return [assess(model, request) for model in _read_all(models)]


def sweep(
    model: Model | str | PathLike[str],
    words: Sequence[str] | Params | Arguments = (),
    devices: Sequence[Device | str] | None = None,
    host: Host | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    contexts: Sequence[int] = (),
    types: Sequence[str] = (),
    **flags: Flag,
) -> list[Point]:
    """Return the plans of a model at these contexts (default: powers of two) and cache types.
    Raises what `plan` raises."""
    from .planner.compare import sweep as compare

    unused = ("ctx", "ctx-min")
    request = _asked("sweep", _all(words, flags, "sweep"), environ, devices, host, unused)
    return list(compare.sweep(compare.cases([_read(model)], [("", request)], contexts, types)))


def fit_choice(
    model: Model,
    words: Sequence[str] | Params | Arguments,
    devices: Sequence[Device] | None = None,
    host: Host | None = None,
    environ: Mapping[str, str] | None = None,
) -> FitChoice | None:
    """Return what `llama-server --fit on`, its default, would choose for these flags; None if it
    refuses them."""
    request = _asked("fit_choice", words, environ, devices, host)
    return answer.fit_choice(model, request)


def estimate(
    model: Model | str | PathLike[str],
    params: Words = (),
    devices: Sequence[Device | str] | None = None,
    build: int | None = None,
    compute: bool = True,
    runtime: bool = False,
    measuring: bool = False,
    **flags: Flag,
) -> Breakdown:
    """Return the bytes that llama-server allocates with `params` on `devices` (all of the
    machine's, in llama.cpp's order).

    Model, devices and flags may be names and words, as for `plan`; nothing is solved. What is not
    given has llama-server's default; n_gpu_layers None, -1 or -2 offloads everything.
    `compute=False` omits the graph buffers and the extras. `runtime` also finds the size that the
    graph buffers may grow to in use; `measuring` is what llama.cpp's own measuring (--fit,
    llama-fit-params) says instead. `build` is llama.cpp's build number, None for the newest known.
    Raises LaunchRefused where llama.cpp would refuse, otherwise what `plan` raises.
    """
    from .flags.params import Params

    model = _read(model)
    words = _all(params, flags)
    build_used: Build | int | None = build
    # Records and Params need nothing of the machine: no device is asked.
    # the devices if all of them are records, otherwise None
    if not isinstance(devices, (list, tuple)):
        given = None
    else:
        records = [device for device in devices if isinstance(device, Device)]
        given = records if len(records) == len(devices) else None
    if isinstance(words, Params) and given is not None:
        params = words
        companions = companions_of(words)
    else:
        # Words or names: resolved as a plan would.
        request = for_model(model, Request.of(words, devices=devices))
        _refuse_unused(request, "estimate", (*_PRINTED, *_GOALS), "solves nothing")
        if isinstance(request.policy.n_ctx, str):
            raise UsageError(
                f"estimate solves nothing: ctx is a number, not {request.policy.n_ctx}"
            )
        params = request.params
        given = [*request.machine.devices]
        companions = request.companions
        # --ctx is autolayers' own
        params = replace(params, n_ctx=request.policy.n_ctx or params.n_ctx)
        if request.arguments.own.keys() & {"llama-build", "engine"}:
            its_build = request.build
            build_used = replace(its_build, number=build) if build else its_build
    # --override-kv changes the model's own facts, e.g. the experts that are used.
    estimator = Estimator(model.overridden(params.override_kv), build_used, companions)
    if compute:
        return estimator.breakdown(params, given, runtime, measuring)
    # Without graph buffers and extras: the fields that Static has.
    return Breakdown(**vars(estimator.static(params, given)))


def _refuse_unused(request: Request, function: str, unused: Sequence[str], why: str) -> None:
    """Raise UsageError for an own flag that a function would ignore."""
    own = request.arguments.own
    for key in unused:
        # q is the number of layers alone, which is another plan
        if own.get(key) not in (None, False, "number"):
            raise UsageError(f"{function} {why}: it has no --{key}")


def _asked(
    function: str,
    words: Words,
    environ: Mapping[str, str] | None,
    devices: Sequence[Device | str] | None,
    host: Host | None,
    unused: Sequence[str] = (),
) -> Request:
    """Return the request of a function that plans. Raises what `plan` raises."""
    request = Request.of(words, environ, devices=devices, host=host)
    # Parsed ones may be for more than this call
    if isinstance(words, (list, tuple)):
        _refuse_unused(request, function, _PRINTED, "prints nothing")
        _refuse_unused(request, function, unused, "plans each context")
    return request


def _weighed(weights: Sequence[float], count: int) -> Sequence[float]:
    """Return `count` weights, checked. Raises UsageError."""
    # No weights are equal ones.
    if weights and (len(weights) != count or not all(weight > 0 for weight in weights)):
        raise UsageError(
            f"weights are a number above 0 for each of the {count} models, not "
            f"{list(weights)!r:.60}"
        )
    return weights


def _all(
    words: Sequence[str] | Params | Arguments, flags: Mapping[str, Flag], command: str = "plan"
) -> Words:
    """Return the words and keyword arguments. Raises WrongType."""
    # The same flags as on the command line, so that their checks are the same.
    more = words_of(flags, command)
    if more and not isinstance(words, (list, tuple)):
        raise WrongType(
            f"flags by name ({', '.join(flags)}) and {type(words).__name__}: give them "
            f"as words or by name"
        )
    return [*words, *more] if more and isinstance(words, (list, tuple)) else words


def _read(model: Model | str | PathLike[str]) -> Model:
    if not isinstance(model, (Model, str, PathLike)):
        raise WrongType(f"a model is a Model or the name of its file, not {model!r:.60}")
    return model if isinstance(model, Model) else read_model(model)


def _read_all(models: Any) -> Sequence[Model]:
    """Return models, given as a list of Models or file names; other sequences read their own.
    Raises WrongType."""
    if isinstance(models, str) or not hasattr(models, "__len__"):
        raise WrongType(f"models are a list of Models or names of files, not {models!r:.60}")
    # Models of many files are read one at a time by the sequence itself (model.models).
    return [_read(model) for model in models] if isinstance(models, (list, tuple)) else models
