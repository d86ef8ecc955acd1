"""From a model, a machine and the flags that are given to the launch that uses the machine best.

    plan = autolayers.plan(model, ["-c", "8192"], devices=[gpu])
    plan.n_gpu_layers, plan.fits, plan.flags

What is given stays, what is not given is solved (solve.py); the answer says what it takes and why (result.py).
"""

from __future__ import annotations

from ..errors import LaunchRefused, UsageError
from .probe import RAM_MARGIN, Machine, Probe, beside_by_device, resident
from .result import DeviceRow, HostRow, Plan, Rival, describe, merged
from .solve import Solver

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from dataclasses import replace

    from ..arguments import Arguments
    from ..devices.device import Device
    from ..devices.host import Host
    from ..model import Model
    from ..params import Params
    from ..wishes import Policy
    from .probe import Trial
    from .reasons import Lever
else:
    from ..records import replace

__all__ = ["DeviceRow", "HostRow", "Machine", "Plan", "Rival", "machine_for", "plan", "plan_on"]


def plan(model: Model, words: Sequence[str] | Params | Arguments = (), devices: Sequence[Device] | None = None,
         host: Host | None = None, environ: Mapping[str, str] | None = None, *, explain: bool = False) -> Plan:
    """The best launch of a model.

    `words` are llama-server's flags and autolayers' own, as on the command line (or a Params, or parsed Arguments);
    `environ` adds LLAMA_ARG_* variables and llama.cpp's config files, None leaves them out. `devices` None asks
    the machine, or takes --gpu from the words; devices given without a host plan without a limit on RAM. `explain` adds
    the next layer's price, the levers and --fit's own answer, each of which costs some more arithmetic.

    Raises UsageError for flags that make no sense, LaunchRefused where llama.cpp would not start, DeviceError where
    the machine's memory cannot be known. A launch that does not fit is an answer (`fits` is False), not an error.
    """
    from ..wishes import read

    params, policy = read(words, environ)
    machine, notes = machine_for(params, policy, devices, host, environ)
    return plan_on(model, params, policy, machine, notes, explain)


def plan_on(model: Model, params: Params, policy: Policy, machine: Machine, notes: tuple[str, ...] = (),
            explain: bool = False, speed: bool = False) -> Plan:
    """The plan for a machine that is known already; `notes` become warnings of the plan, `speed` adds the prediction
    that `explain` has too. Raises LaunchRefused."""
    probe = Probe(model, machine, policy.build, policy.margin)
    solver = Solver(probe, params, policy)
    trial = solver.solve()
    if trial is None:
        raise probe.refusal or LaunchRefused("llama.cpp would refuse this launch")
    return _answer(solver, trial, notes, explain, speed or explain)


def machine_for(params: Params, policy: Policy, devices: Sequence[Device] | None, host: Host | None,
                environ: Mapping[str, str] | None) -> tuple[Machine, tuple[str, ...]]:
    """The machine to plan for, and what there is to say about it."""
    notes: tuple[str, ...] = ()
    figures: Mapping[str, float] = {}
    if devices is None:
        from .. import devices as sources

        if policy.gpu is not None:
            from ..devices.rpc import unknown as servers

            remote, _ = servers(params.rpc)
            devices = [*remote, *sources.hypothetical(policy.gpu)]
        else:
            inventory = sources.discover(environ, rpc=params.rpc)
            devices, notes = inventory.devices, inventory.notes
            if host is None and policy.ram is None:
                host = inventory.host
            figures = sources.measured() or {}
    ram = policy.ram if policy.ram is not None else host.available if host else None
    total = policy.ram if policy.ram is not None else host.total if host else None
    budget = dict(policy.budget)
    for name in budget:
        if name not in {device.name for device in devices}:
            names = ", ".join(device.name for device in devices) or "none"
            raise UsageError(f"--budget: there is no device {name} (devices: {names})")
    # A server's memory cannot be asked for without llama.cpp: there the budget is all that is known.
    devices = [replace(device, total=budget[device.name], free=budget[device.name])
               if device.name in budget and not device.total else device for device in devices]
    limits = {device.name: min(device.free, budget.get(device.name, device.free)) for device in devices}
    return Machine(tuple(devices), limits, ram, total, figures.get("ram"), figures.get("bus")), notes


def _answer(solver: Solver, trial: Trial, notes: tuple[str, ...], explain: bool, speed: bool) -> Plan:
    probe, given = solver.probe, solver.given
    model, machine = probe.model, probe.machine
    everything = model.hparams.n_layer_all + 1
    use = trial.breakdown
    params = solver.spread.settled(trial)
    if params.n_ctx == 0:      # "the trained one", but llama-server's --fit would make more of it where slots have caches of their own
        params = replace(params, n_ctx=use.n_ctx)
    beside = beside_by_device(use)
    rows = []
    for device in machine.devices:
        usage = use.devices.get(device.name)
        parts = trial.margins.get(device.name, ())
        rows.append(DeviceRow(
            device.name, device.description, device.total, machine.limits[device.name], sum(size for _, size in parts), parts,
            usage.model if usage else 0, usage.context if usage else 0, usage.compute if usage else 0,
            beside.get(device.name, 0)))
    host = HostRow(use.host.model, use.host.context, use.host.compute, beside.get("Host", 0), resident(use, beside),
                   0 if machine.ram is None else RAM_MARGIN, machine.ram, machine.ram_total)
    why: tuple[str, ...] = ()
    found: tuple[Lever, ...] = ()
    rival = None
    if explain and machine.devices:
        from .reasons import levers, missing, next_step

        step = next_step(trial.params, given, everything)
        if step:
            why += missing(probe, trial, step)
        found = levers(probe, trial, given, step)
        rival = _rival(solver, everything)
    why += tuple(f"{lever.name} ({' '.join(lever.words)}) would free {lever.saves / 2**20:.2f} MiB of device memory"
                 + (", enough for it" if lever.enough else "") for lever in found)
    return Plan(
        model, params, use, tuple(rows), host, trial.fits, tuple(_flags(params, solver.given)), describe(params, everything), why,
        notes + _warnings(solver, trial, host), solver.judge.speed(trial) if speed else None, rival, found)


def _rival(solver: Solver, everything: int) -> Rival | None:
    from .fit import fit

    trial = fit(solver.probe, solver.given, whole=True)
    if trial is None:
        return None
    return Rival(trial.params, trial.breakdown, trial.fits, solver.judge.speed(trial), describe(trial.params, everything))


def _flags(params: Params, given: Params) -> list[str]:
    """All memory-relevant words, layers and context first; the model is the caller's."""
    from ..arguments import to_words

    if not given.overrides:
        params = replace(params, overrides=merged(params.overrides))
    rest = to_words(replace(params, model=None, n_ctx=None, n_gpu_layers=None))
    words = []
    if params.n_gpu_layers is not None:
        words += ["-ngl", {-1: "auto", -2: "all"}.get(params.n_gpu_layers, str(params.n_gpu_layers))]
    if params.n_ctx is not None:
        words += ["-c", str(params.n_ctx)]
    return words + rest


def _warnings(solver: Solver, trial: Trial, host: HostRow) -> tuple[str, ...]:
    model, use = solver.model, trial.breakdown
    found = [*model.header.warnings, *use.warnings]
    if host.free is not None:
        if trial.ram_spare is not None and trial.ram_spare < 0:
            found.append(f"the launch needs {host.resident / 2**20:.2f} MiB of system memory, {-trial.ram_spare / 2**20:.2f} MiB "
                         "more than is available: it would swap, or read the file again for every token")
        else:
            growing = sum(extra.size for extra in use.extras if extra.upper_limit and extra.device == "Host")
            if growing > (trial.ram_spare or 0):
                found.append(f"what grows while serving (prompt cache, checkpoints) may take {growing / 2**20:.2f} MiB of system "
                             f"memory, {(trial.ram_spare or 0) / 2**20:.2f} MiB are left: --cache-ram limits it")
    trained = model.n_ctx_train
    if trained and use.n_ctx_seq > trained and solver.given.n_ctx:
        found.append(f"a slot's context of {use.n_ctx_seq} is more than the {trained} the model was trained for")
    return tuple(dict.fromkeys(found))
