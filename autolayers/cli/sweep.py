"""`autolayers sweep MODEL...`: what if."""

from __future__ import annotations

import os
import sys

from ..errors import UsageError
from ..flags.check import read
from ..flags.policy import read_policy
from ..records import replace
from . import load


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
    machines = [(spec or "here", machine_for(params, replace(policy, gpu=spec), None, None, os.environ)[0])
                for spec in specs]
    models = [load(name, arguments.value("-hft")) for name in names]
    points = sweep(models, machines, params, policy, contexts, own.get("types", ()))
    if own.get("format") == "json":
        import json

        print(json.dumps({"schema": 1, "points": [point.to_dict() for point in points]}, indent=1))
        return 0
    from ..report.sweep import bars, sweep_text
    from ..report.table import Style

    sys.stdout.write((bars if own.get("plot") else sweep_text)(points, Style.of(sys.stdout, os.environ)))
    return 0
