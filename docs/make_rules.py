"""docs/rules.md, from the table: `python docs/make.py rules`."""

from __future__ import annotations

from autolayers.cli.rules import figure
from autolayers.flags.own import own_flags
from autolayers.rules.evaluate import evaluate
from autolayers.rules.inputs import FIELDS, TYPES, flag
from autolayers.rules.table import RULES, Example, Rule

_INTRODUCTION = """\
# Rules of thumb

<!-- Made by `python docs/make.py rules`; edit autolayers/rules/table.py instead. -->

`autolayers rules` computes the published formulas for a model that has no file yet:

    autolayers rules --params 70B --bits 16 --gpu 80GiB
    autolayers rules --params 8B --bits 4 --layers 32 --hidden 4096 --heads 32 --kv-heads 8 \\
        --sequence 8192 --explain
    autolayers rules MODEL.gguf --gpu 24GiB

They are estimates. For a file, `autolayers MODEL` computes the exact figures, and
`autolayers rules MODEL` shows each rule with its error, (rule - exact) / exact. *Exact* is what
llama-server allocates with every layer on one GPU that is large enough, all buffers and the host's
part included. Three rules are compared with a part of it: *holding* with the weights, *kv_cache*
with the context, and *layers_that_fit* with the plan for `--gpu` (`--strategy layers`), whose
n_gpu_layers counts one more, the output layer. Training has no exact figure here. The bits are
those that people quote for the type of most weights (4 for q4_K), unless `--bits` is given.

In Python:

    from autolayers import rules
    rules.evaluate("serving", params="70B", bits=16, gpu="80GiB")  # a Result, or UsageError
    # every rule that can be computed, and why the others cannot
    results, left_out = rules.evaluate_all(params="70B", bits=16)
    rules.compare(autolayers.read_model("model.gguf"), sequence=8192)

**Units.** GB is 10^9 bytes, as the sources count. A GPU has its real size: write `--gpu 80GiB` for
one sold as 80 GB, which holds 80 x 2^30 bytes (85.9 GB). `--gpu 80GB` means 80 x 10^9 bytes here,
unlike for a plan. The number of GPUs is the value divided by that size, rounded up; it allows for
no context and no uneven split.

**JSON** (`--json`): one key per rule, by the names below, with `bytes` (or `layers`) and `GB`;
`gpus` if `--gpu` is given; `as_published` if the source's own arithmetic gives another figure;
`exact` and `error` if there is a file. Then follow `inputs` and `left_out`.
"""


def _example(rule: Rule, example: Example) -> str:
    words = " ".join(f"{flag(name)} {value}" for name, value in example.given.items())
    text = f"- `{words}`: {example.figure}"
    if example.gpus is not None:
        text += f", {example.gpus} GPUs"
    if example.published:
        correct = evaluate(rule.name, **example.given)
        text += f" as its source has it ({figure(correct.value, rule.unit)} is right)"
    return text


def _section(rule: Rule) -> str:
    rows = [
        f"## `{rule.name}`: {rule.title}",
        "",
        f"    {rule.formula}",
        "",
        f"- needs: {', '.join(f'`{flag(name)}`' for name in rule.needs)}",
    ]
    if rule.takes:
        rows.append(f"- takes: {', '.join(f'`{flag(name)}`' for name in rule.takes)}")
    rows += [
        f"- assumes: {rule.assumes}",
        f"- leaves out: {rule.leaves_out}",
        f"- source: {rule.source}",
    ]
    if rule.erratum:
        rows += ["", f"**What is right.** {rule.erratum}"]
    rows += [
        "",
        "Worked examples:",
        "",
        *(_example(rule, example) for example in rule.examples),
        "",
    ]
    return "\n".join(rows)


def render() -> str:
    """The whole document, ending with a newline."""
    inputs = ["## Inputs", "", "| option | meaning |", "|---|---|"]
    flags = own_flags("rules")
    inputs += [f"| `{flag(name)}` | {flags[flag(name)].help} |" for name in FIELDS]
    types = ", ".join(f"{name} {bits:g}" for name, bits in TYPES.items())
    inputs += ["", f"Types and their bits per weight: {types}.", ""]
    return "\n".join(
        [_INTRODUCTION, *(_section(rule) for rule in RULES.values()), "\n".join(inputs)]
    )
