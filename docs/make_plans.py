"""Writes docs/plans.md: autolayers' plans and --fit's own, for 12 models on 6 machines, and
published launches.

    python docs/make.py plans        (a minute; not among what make.py makes or checks unasked)

Headers are the fixtures'; --fit's answer is autolayers.planner.one.fit. tests/planner/test_fit.py
asks the real llama-server and llama-fit-params for every cell of it.
"""

from __future__ import annotations

import pathlib
import sys

import make_published

import autolayers
from autolayers.flags.params import N_UBATCH, Params
from autolayers.planner import FitChoice, Plan
from autolayers.work.speed import Speed

ROOT = pathlib.Path(__file__).resolve().parent.parent

MODELS = (
    "llama-3.2-1b-q8_0",
    "gemma-3-4b-q8_0",
    "phi-3-mini-q4_k_m",
    "qwen3-8b-q4_k_m",
    "llama-3.1-8b-q4_k_m",
    "gemma-2-9b-q4_k_m",
    "gpt-oss-20b-mxfp4",
    "qwen3-30b-a3b-q4_k_m",
    "granite-4.0-h-small-q4_k_m",
    "llama-3.3-70b-q4_k_m",
    "qwen3-next-80b-a3b-q4_k_m",
    "llama-4-scout-q4_k_m",
)
MACHINES = (
    ("8 GiB", "rtx-4060"),
    ("12 GiB", "rtx-3060"),
    ("16 GiB", "rtx-5070-ti"),
    ("24 GiB", "rtx-3090"),
    ("2 x 24 GiB", "rtx-3090,rtx-3090"),
    ("24 + 8 GiB", "rtx-3090,rtx-3070"),
)
RAM = "64GiB"
ENOUGH = 16384
SAME = "the same"

HEAD = f"""\
# Plans

Made by `python docs/make.py plans`; do not edit. Each model is planned without flags on six
machines with {RAM} of RAM: by autolayers, and as `llama-server --fit on` would choose.

- **layers**: on the GPUs, of all, the output layer included. *-k exp*: the experts of k layers
  (*ffn*: their FFN weights) are in RAM. *-ub*: the micro-batch, if it is not 512.
- **context**: tokens, shared by the four default slots. Below 16384 a word says why: *trained* for
  no more; *full*: no launch with more fits; *16k: 14.0 t/s*: 16384 would take more than 5 %
  (mixtures: 10 %) longer, at that rate.
- **t/s**, **prompts**: tokens per second, predicted ([speeds](speeds.md) has the errors) for
  `--workload chat`.
- `--fit` keeps 1024 MiB free on each GPU, autolayers what [devices](devices.md) derives. *breaks*:
  its choice leaves less than that; *does not fit*: the model is too large for the machine. Its
  cells are those of llama-server and llama-fit-params (`tests/planner/test_fit.py`).
"""


def cell(params: Params, n_ctx: int | str, everything: int, speed: Speed) -> str:
    n = (
        everything
        if params.n_gpu_layers is None or params.n_gpu_layers < 0
        else min(params.n_gpu_layers, everything)
    )
    text = f"{n}/{everything}"
    experts = len({p.split(".")[1] for p, b in params.overrides if "exps" in p or "gate_up" in p})
    ffn = len([p for p, b in params.overrides if "exps" not in p and "gate_up" not in p])
    if len(params.overrides) == 1 and params.overrides[0][0].startswith(r"\."):
        text += " -all exp"
    elif experts:
        text += f" -{experts} exp"
    elif ffn:
        text += f" -{ffn} ffn"
    if params.n_ubatch not in (None, N_UBATCH):
        text += f" -ub {params.n_ubatch}"
    return f"{text} | {n_ctx} | {speed.generation:.1f} | {speed.prompt:.0f}"


def why(plan: Plan) -> str:
    """Why the context is below 16k, in a word."""
    use = plan.breakdown
    if use.n_ctx >= ENOUGH:
        return ""
    if use.n_ctx_seq >= plan.model.n_ctx_train:
        return " (trained)"
    larger = [other for other in plan.alternatives if other.change == ("-c", str(ENOUGH))]
    return f" (16k: {larger[0].speed.generation:.1f} t/s)" if larger else " (full)"


def row(name: str, plan: Plan) -> str:
    everything = plan.n_layer + 1
    ours = cell(plan.params, f"{plan.breakdown.n_ctx}{why(plan)}", everything, plan.speed)
    if not plan.fits:
        ours = "does not fit | | | "
    rival: FitChoice | None = plan.fit_choice
    theirs = " | | | "
    if rival:
        theirs = cell(rival.params, rival.breakdown.n_ctx, everything, rival.speed)
        if not rival.fits:
            theirs += " (breaks)"
        if theirs == cell(plan.params, plan.breakdown.n_ctx, everything, plan.speed):
            theirs = f"{SAME} | | | "
    return f"| {name} | {ours} | {theirs} |"


def alike(rows: list[str]) -> str:
    """The models for which --fit chooses the same, which a table need not say twice."""
    same = []
    for name, *cells in (line.strip("| ").split(" | ") for line in rows if SAME in line):
        same.append(f"{name} {', '.join(cells[:4])}")
    return f"The same as `--fit`: {'; '.join(same)}."


def planned(name: str, cards: str) -> str:
    """The line of one model on one machine."""
    model = autolayers.read_model(ROOT / "fixtures" / "headers" / f"{name}.gguf")
    return row(name, autolayers.plan(model, ["--gpu", cards, "--ram", RAM], explain=True))


def render() -> str:
    lines = [HEAD]
    for title, cards in MACHINES:
        lines += [
            f"## {title} ({cards.replace(',', ' + ')})",
            "",
            "| model | autolayers: layers | context | t/s | prompts | --fit: layers | context | "
            "t/s | prompts |",
            "|---|---|---:|---:|---:|---|---:|---:|---:|",
        ]
        rows = []
        for name in MODELS:
            rows.append(planned(name, cards))
            print(title, rows[-1], file=sys.stderr, flush=True)
        lines += [line for line in rows if SAME not in line]
        lines += ["", alike(rows), ""] if any(SAME in line for line in rows) else [""]
    return "\n".join(lines) + "\n" + make_published.render()
