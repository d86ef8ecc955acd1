"""Measured rates as ratios to their predictions: of launches that `autolayers tune` measured, and
of a file that `llama-bench -o json` or `-o jsonl` wrote.

    keep(ratios(runs_of(outcome.measured, outcome.test, devices)), devices, environ)
    runs, notes = read_bench("bench.json", "model.gguf", machine)
"""

from __future__ import annotations

import datetime
import os
import re
from math import exp, log

from .. import store
from ..backends import BACKENDS, HOST, canonical
from ..backends.rpc import Rpc
from ..devices.calibrated import speed_of
from ..devices.driven import driven
from ..errors import AutolayersError, LaunchRefused, UsageError
from ..files import opened
from ..flags.parse import parse
from ..machine import Device, Host, Machine, Ratio
from ..model import read_model
from ..planner.compare.rivals import Trial
from ..planner.evaluate import Evaluator
from ..quoting import printable
from ..records import dataclass, replace
from .bench import ROWS, as_server, rows_of_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from ..flags.params import Params
    from ..planner import Plan
    from ..work.clock import Clock
    from .session import Session
    from .tune import TunedLaunch

# bytes of a file; more is cut off
_MAX_SIZE = 16 << 20
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_NO_VALUE = ("", "none", "auto")
# by its age a build writes a bool, a number or a word
_ATTENTION = {"true": "on", "1": "on", "on": "on", "false": "off", "0": "off", "off": "off"}
PROBE = Trial(1, 32)
MOST = 20  # times faster or slower than predicted that counts
_LEAST = 8  # tokens of a test that counts: shorter ones are mostly start-up


@dataclass(frozen=True)
class Run:
    """One measured rate: measured / predicted."""

    kind: str
    placement: str
    backend: str
    build: int | None
    ratio: float
    date: str = ""  # today, if it is not known

    @property
    def plausible(self) -> bool:
        """No machine is so far from its figures: something else was measured."""
        return 1 / MOST < self.ratio < MOST


def _run_of(
    kind: str,
    rate: float,
    clock: Clock,
    placement: str,
    test: Trial,
    build: int,
    devices: Sequence[Device],
) -> Run:
    """Return a measured rate (tokens per second) of a test, next to its uncorrected prediction."""
    # `paces` are the corrections by earlier measurements: divided out, or they would count twice
    if kind == "pp":
        predicted = test.prompt / clock.prompt(test.prompt, test.depth) / clock.paces[0]
    else:
        predicted = 1 / clock.token(test.depth + test.generate / 2) / clock.paces[1]
    # The first device that computes; HOST where none does
    backend = next(
        (device.engine or device.backend for device in devices if device.name in clock.devices),
        HOST,
    )
    return Run(kind, placement, backend, build or None, rate / predicted)


def _predicted(
    evaluator: Evaluator,
    params: Params,
    kind: str,
    rate: float,
    test: Trial,
    build: int,
    devices: Sequence[Device],
) -> Run | None:
    """Return the same of a launch by its flags; None of one that llama.cpp refuses."""
    use = evaluator.static(params)
    if use is None:
        return None
    cost = evaluator.cost()
    clock = cost.clock(params, use)
    return _run_of(kind, rate, clock, cost.kind(clock), test, build, devices)


def runs_of(measured: Iterable[TunedLaunch], test: Trial, devices: Sequence[Device]) -> list[Run]:
    """Return two of each measured launch; none of one whose repetitions differ, or that is not
    plausible."""
    runs = [
        _run_of(
            kind,
            rate,
            launch.rival.clock,
            launch.rival.speed.kind,
            test,
            launch.rates.build,
            devices,
        )
        for launch in measured
        if not launch.rates.doubt
        for kind, rate, tokens in (
            ("pp", launch.rates.prompt, test.prompt),
            ("tg", launch.rates.token, test.generate),
        )
        # Each kind for itself: a test may have a long prompt and a short answer
        if tokens >= _LEAST
    ]
    return [run for run in runs if run.plausible]


def keep_probe(session: Session, plan: Plan, rate: float) -> bool:
    """Keep the tokens per second of PROBE's tokens that a server of this plan generated; False if
    they are not plausible, or another machine or build was planned for. Raises AutolayersError."""
    request = session.request
    policy = request.policy
    # Rates are kept for this machine: a plan for another one was not measured
    if (
        session.another_build
        or policy.gpu is not None
        or policy.machine is not None
        or policy.ram is not None
    ):
        return False
    evaluator = Evaluator.of(
        session.model.overridden(request.params.override_kv), request.machine, policy.build
    )
    params = parse(plan.flags, command=None).params
    devices = request.machine.devices
    run = _predicted(evaluator, params, "tg", rate, PROBE, session.build.number, devices)
    if run is None:
        return False
    if run.plausible:
        keep(ratios([run]), devices, session.environ)
    return run.plausible


def ratios(runs: Iterable[Run]) -> list[Ratio]:
    """Return the geometric mean of each kind and class."""
    groups: dict[tuple[str, str, str, int | None], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.kind, run.placement, run.backend, run.build), []).append(run)
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    return [
        Ratio(
            *key[:2],
            # Geometric: twice as fast and half as fast cancel out
            float(f"{exp(sum(log(run.ratio) for run in alike) / len(alike)):.4g}"),
            len(alike),
            *key[2:],
            max(run.date or today for run in alike),
        )
        for key, alike in groups.items()
    ]


def keep(rows: Sequence[Ratio], devices: Sequence[Device], environ: Mapping[str, str]) -> None:
    """Keep what was measured on this machine. Raises AutolayersError."""
    store.keep([speed_of(row, devices) for row in rows], environ)


# --- llama-bench's own output


def read_bench(
    path: str, model: str | None, devices: Sequence[Device], host: Host | None
) -> tuple[list[Run], list[str]]:
    """Return the runs of a file, and a note for each reason for which some do not count. `model`
    stands for the files that were measured, if they are elsewhere now. Raises UsageError,
    ModelError."""
    runs: list[Run] = []
    # one note for each reason, whatever the number of rows
    notes: dict[str, None] = {}
    evaluators: dict[tuple[str, str], Evaluator] = {}
    try:
        with opened(path) as file:
            text = file.read(_MAX_SIZE).decode("utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(
            f"--bench {path}: {getattr(error, 'strerror', None) or 'not text'}"
        ) from None
    rows = [row for row in rows_of_text(text) if "n_gen" in row]
    if not rows:
        raise UsageError(
            f"--bench {path}: no rows of llama-bench: it writes them with -o json or -o jsonl"
        )
    for row in rows:
        try:
            # (prompt, generated, depth) of a row, in tokens
            prompt, generate, depth = (
                _count(row, name) for name in ("n_prompt", "n_gen", "n_depth")
            )
            # -pg: one rate for both, which says nothing of either
            if bool(prompt) == bool(generate):
                raise _Left("tests of a prompt and an answer together do not count")
            if max(prompt, generate) < _LEAST:
                raise _Left(f"tests of fewer than {_LEAST} tokens do not count")
            rate = row.get("avg_ts")
            if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 < rate < 1e7:
                raise _Left("avg_ts is not a number of tokens per second")
            rate = float(rate)
            weights = model or str(row.get("model_filename", ""))
            if not os.path.isfile(weights):
                raise _Left(
                    f"{printable(weights)[:200]} is not here: name the model after the file"
                )
            own = _devices_of(row, devices)
            key = weights, ",".join(device.name for device in own)
            # Rows of one file and the same devices share an evaluator, whose graphs are slow
            if key not in evaluators:
                machine = Machine.of(own, host, None, {})
                evaluators[key] = Evaluator.of(read_model(weights), replace(machine, measured=()))
            evaluator = evaluators[key]
            # llama-bench makes each test's context as long as the test
            params = replace(_params(row), n_ctx=prompt + generate + depth)
            kind, test = "pp" if prompt else "tg", Trial(prompt, generate, depth)
            build = _count(row, "build_number")
            run = _predicted(evaluator, params, kind, rate, test, build, own)
            if run is None:
                raise _Left(
                    f"llama.cpp would refuse it: {evaluator.refusal or LaunchRefused('unknown')}"
                )
            if not run.plausible:
                raise _Left(
                    f"{rate:.4g} tokens per second are {run.ratio:.3g} of the prediction: not of "
                    "this machine or model"
                )
            # e.g. "2026-08-15T09:12:33Z"
            when = str(row.get("test_time", ""))[:10]
            runs.append(replace(run, date=when if _DATE.fullmatch(when) else ""))
        except _Left as why:
            notes.setdefault(str(why))
    return runs, list(notes)


class _Left(Exception):
    """Why a row does not count."""


def _count(row: Mapping[str, Any], name: str) -> int:
    value = row.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
        raise _Left(f"{name} is not a whole number")
    return value


def _devices_of(row: Mapping[str, Any], devices: Sequence[Device]) -> list[Device]:
    """Return this machine's devices under the backend that was measured; none for the CPU's. Raises
    _Left if they are others."""
    # e.g. "CUDA" or "CUDA,BLAS"
    names = [canonical(name.strip()) for name in str(row.get("backends", "")).split(",")]
    if Rpc.name in names:
        raise _Left("launches with RPC servers do not count")
    gpus = [name for name in names if name in BACKENDS and name != HOST]
    if not gpus:
        return []
    try:
        # The same cards by another driver, e.g. Vulkan in place of CUDA, have other rates
        own = driven(devices, gpus[0])
    except UsageError as error:
        raise _Left(str(error)) from None
    # Vulkan adds the driver: "AMD Radeon RX 7900 XTX (RADV NAVI31)"
    here = {device.description.partition(" (")[0].strip() for device in own}
    for card in filter(None, map(str.strip, str(row.get("gpu_info", "")).split(","))):
        nameless = any(not device.description for device in own)
        if not nameless and card.partition(" (")[0].strip() not in here:
            raise _Left(f"measured with {printable(card)[:100]}, which is not here")
    if not own:
        raise _Left(f"measured with {gpus[0]}, and no GPU is here")
    return own


def _params(row: Mapping[str, Any]) -> Params:
    """Return the launch's flags. Raises _Left if llama-server has no such launch."""
    try:
        # The launch, in llama-bench's words.
        words: list[str] = []
        for form in ROWS.values():
            name, flag = form["json"], form["flag"]
            if not name:
                continue
            # llama-bench's switches take 0 or 1
            if form["how"] in ("on", "off"):
                words += [flag, str(int(bool(row.get(name))))]
            elif name in row:
                words += [flag, str(row[name])]
        if "flash_attn" in row:
            words += ["-fa", _ATTENTION.get(str(row["flash_attn"]).lower(), "auto")]
        if _count(row, "n_cpu_moe"):
            words += ["-ncmoe", str(row["n_cpu_moe"])]
        shares = str(row.get("tensor_split") or "")
        # e.g. "3.00/1.00"
        if shares.strip("0./"):  # 0.00: none
            words += _unless_none("-ts", shares)
        for name, flag in (("devices", "-dev"), ("tensor_buft_overrides", "-ot")):
            words += _unless_none(flag, str(row.get(name) or ""))
        return parse(list(as_server(words)), command=None).params
    except AutolayersError as error:
        raise _Left(str(error)) from None


def _unless_none(flag: str, value: str) -> list[str]:
    return [] if value in _NO_VALUE else [flag, value]
