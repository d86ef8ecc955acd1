"""docs/rules.md, from the table: `python docs/make.py rules`."""

from __future__ import annotations

from collections.abc import Iterable

from autolayers.rules.inputs import MIXTURES, flag
from autolayers.rules.table import RULES, Example, Rule

_INTRODUCTION = """\
# Rules of thumb

<!-- Made by `python docs/make.py rules`; edit autolayers/rules/table.py instead. -->

`autolayers rules` computes the published formulas for a model that has no file yet:

    autolayers rules --params 70B --bits 16 --gpu 80GiB
    autolayers rules --params 8B --bits 4 --layers 32 --hidden 4096 --heads 32 --kv-heads 8 \\
        --sequence 8192 --explain
    autolayers rules MODEL.gguf --gpu 24GiB       # each rule with its error, (rule - exact) / exact

They are estimates; for a file, `autolayers MODEL` computes the exact figures. *Exact* is what
llama-server allocates with every layer on one GPU that is large enough, all buffers and the host's
part included. Three rules are compared with a part of it: *holding* with the weights, *kv_cache*
with the context, and *layers_that_fit* with the plan for `--gpu` (`--strategy layers`), whose
n_gpu_layers counts one more, the output layer. Training has no exact figure here.

**Units.** GB is 10^9 bytes, as the sources count. A GPU has its real size: write `--gpu 80GiB` for
one sold as 80 GB, which holds 80 x 2^30 bytes (85.9 GB). `--gpu 80GB` means 80 x 10^9 bytes here,
unlike for a plan. The number of GPUs is the value divided by that size, rounded up; it allows for
no context and no uneven split.

**Bits.** `--bits` takes a number or a type. ggml's types count the scales of their blocks (q4_0:
4.5); fp32, fp16, fp8, int8, int4 and nf4 are what they say, and mixtures what llama.cpp's table
says of Llama 3.1 8B: {mixtures}. Of a file they are what people quote for the type of most weights
(4 for q4_K).

**JSON** (`--json`): one key per rule, by the names below, with `bytes` (or `layers`) and `GB`;
`gpus` if `--gpu` is given; `as_published` if the source's own arithmetic gives another figure;
`exact` and `error` if there is a file. Then follow `inputs` and `left_out`.

In Python:

    from autolayers import rules
    rules.evaluate("serving", params="70B", bits=16, gpu="80GiB")  # a Result, or UsageError
    # every rule that can be computed, and why the others cannot
    results, left_out = rules.evaluate_all(params="70B", bits=16)
    rules.compare(autolayers.read_model("model.gguf"), sequence=8192)

## The rules

P is `--params`, Q `--bits`; every rule takes `--gpu`. `--explain` prints what each assumes, what it
leaves out and its source; `autolayers rules --help` says what the inputs mean.

| rule | formula | needs | takes | an example |
|---|---|---|---|---|
"""


def _example(example: Example) -> str:
    words = " ".join(f"{flag(name)} {value}" for name, value in example.given.items())
    return f"`{words}` {example.figure}" + f", {example.gpus} GPUs" * (example.gpus is not None)


def _line(rule: Rule) -> str:
    right = [example for example in rule.examples if not example.published]
    takes = _code(flag(name) for name in rule.takes if name != "gpu")
    name, needs = f"`{rule.name}`: {rule.title}", _code(map(flag, rule.needs))
    return f"| {name} | {rule.formula} | {needs} | {takes} | {_example(right[-1])} |"


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def render() -> str:
    """The whole document, ending with a newline."""
    mixtures = ", ".join(f"{name} {bits:g}" for name, bits in MIXTURES.items())
    errata: dict[str, list[str]] = {}
    for rule in RULES.values():
        if rule.erratum:
            errata.setdefault(rule.erratum, []).append(rule.name)
    return "\n".join(
        [
            _INTRODUCTION.replace("{mixtures}", mixtures) + "\n".join(map(_line, RULES.values())),
            "\n## Where sources err\n",
            *(f"- {_code(names)}: {text}" for text, names in errata.items()),
            "",
        ]
    )
