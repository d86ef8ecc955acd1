"""`autolayers sweep MODEL...`: what if."""

from __future__ import annotations

import os
import sys

from ..errors import DoesNotFit, UsageError
from ..flags.check import read
from ..flags.policy import read_policy
from ..output import emit, show
from ..records import replace
from . import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..planner.sweep import Point


def main(words: list[str]) -> int:
    """Prints the sweep's table, bars or JSON."""
    from ..api import machine_for
    from ..planner.sweep import sweep

    arguments = read("sweep", words, os.environ)
    own, params, policy = arguments.own, arguments.params, read_policy(arguments.own)
    names = list(arguments.positional) or [name for name in (params.model,) if name]
    if not names:
        raise UsageError("which model? autolayers sweep MODEL.gguf; autolayers sweep --help says more")
    if "gpus" in own and policy.gpu:
        raise UsageError("--gpus and --gpu both say the machines: give one of them")
    if "contexts" in own and params.n_ctx is not None:
        raise UsageError("--contexts and -c both say the contexts: give one of them")
    if "types" in own and params.cache_type_k is not None:
        raise UsageError("--types and -ctk both say the cache types: give one of them")
    contexts = own.get("contexts") or ((params.n_ctx,) if params.n_ctx else ())
    specs = own.get("gpus") or (policy.gpu,)
    machines = [(spec or "this machine", machine_for(params, replace(policy, gpu=spec), None, None, os.environ)[0])
                for spec in specs]
    models = [load(name, arguments.value("-hft")) for name in names]
    points = sweep(models, machines, params, policy, contexts, own.get("types", ()))
    fits = False
    if own.get("format") == "json":
        import json

        found = list(points)
        emit(json.dumps({"schema": 1, "points": [point.to_dict() for point in found]}, indent=1) + "\n")
        fits = any(point.plan is not None and point.plan.fits for point in found)
    else:
        fits = _print(points, bool(own.get("plot")))
    return 0 if fits else DoesNotFit.exit_code


def _print(points: Iterator[Point], plot: bool) -> bool:
    """Each model on each machine as soon as it is known; whether anything fits."""
    from itertools import groupby

    from ..report.sweep import bars, sweep_text
    from ..report.table import Style

    style = Style.of(sys.stdout, os.environ)
    fits = False
    for _, group in groupby(points, lambda point: (id(point.model), point.machine)):
        block = list(group)
        show((bars if plot else sweep_text)(block, style) + "\n")
        sys.stdout.flush()
        fits = fits or any(point.plan is not None and point.plan.fits for point in block)
    show("# weights, = KV cache, - compute, | free memory\n" if plot else
         "* predicted, not measured: with an empty context, and with a full one\n")
    return fits
