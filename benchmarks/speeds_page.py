"""docs/speeds.md from the tables of fit_speed.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Cells = Sequence[tuple[str, ...]]
KINDS = {"tg": "tokens", "pp": "prompts"}
FAR = 1.5  # a source whose median is off by more is named


def render(tables: Mapping[str, Cells], order: Mapping[str, tuple[float, int]], rows: int) -> str:
    """The page. `tables`: fitted, unseen, stated, more, floors, at_floor, same, other, sources and
    wrong, as printed; `order`: right and all pairs by kind; `rows`: how many were measured."""
    by_class = {name: {row[0]: row for row in tables[name]} for name in tables}
    fitted, unseen, stated = (by_class[name] for name in ("fitted", "unseen", "stated"))
    same, other = (by_class[name] for name in ("same", "other"))
    every = [unseen[f"all {kind}"] for kind in KINDS]
    more = [other[f"all {kind}"] for kind in KINDS]
    sources = len({row[0].rpartition(" ")[0] for row in tables["sources"]})
    added = " and ".join(f"{what} (tg x{tg}, pp x{pp})" for what, tg, pp in tables["more"])
    far = [row for row in tables["sources"] if float(row[3]) > FAR]
    near = [sum(float(row[3]) <= limit for row in tables["sources"]) for limit in (1.25, FAR)]
    floor = [row[1] for row in tables["at_floor"]]
    here = [by_class["floors"][f"all {kind}"] for kind in KINDS]
    wrong = [row for row in tables["wrong"] if row[-1] != "+0.0%"]
    equal = len(tables["wrong"]) - len(wrong)
    lines = [
        f"""\
# How far predicted speeds are off

Made by `python benchmarks/fit_speed.py --docs`; do not edit.

Half of the predictions are within x{every[0][3]} of the measured tokens per second (tg) and within
x{every[1][3]} of prompts (pp), 8 in 10 within x{every[0][4]} and x{every[1][4]}, by constants that
know nothing of the row's source. The range that a plan states (`within x1.30`) is made to hold for
8 in 10. Of two launches on one machine, measured more than 5 % apart, the faster one is predicted
for {_pairs(order)}.

## By class

{rows} measured rates of {sources} sources since 2025 (`fixtures/speeds`). *Fitted*: rows that the
constants were fitted to, as a plan predicts them; *unseen*: by constants fitted without the row's
source. *Ratio*: the median of predicted / measured; *half* and *8 in 10*: the factor that as many
are within; *states*: a plan's own range, *holds*: for how many, made without the row's source. Add
to that range {added}.

| class | rows | fitted: half | 8 in 10 | unseen: ratio | half | 8 in 10 | states | holds |
|---|---:|---:|---:|---:|---:|---:|---:|---:|"""
    ]
    for name, row in unseen.items():
        said = (*row[:2], *fitted[name][3:5], *row[2:5], stated[name][2], stated[name][4])
        lines.append(_line(said))
    lines += [
        f"""
## Sources of one GPU generation

Two sources of one generation, backend and class differ as well: drivers, boards, power and builds
make it, and rows seldom say them. A prediction that knew the generation exactly would have
{floor[0]} of tokens and {floor[1]} of prompts within x1.25 (of the rows that have another source
there {here[0][3]} and {here[1][3]}, instead of {here[0][5]} and {here[1][5]}).""",
        f"""
## With one run of the machine known

What [tune](tune.md) or `run --verify` is worth: a run of the same class. One of another class helps
less: half of the tokens per second are within x{more[0][3]} and not x{more[0][2]}, of the prompts
within x{more[1][3]} and not x{more[1][2]}.

| class | rows | half: before | after | 8 in 10: before | after |
|---|---:|---:|---:|---:|---:|""",
        *(_line(row[:6]) for row in same.values()),
        f"""
## By source, predicted without itself

Of {len(tables["sources"])} medians {near[0]} are within x1.25, {near[1]} within x{FAR}; the others:

| source | rows | ratio |
|---|---:|---:|""",
        *(_line(row[:3]) for row in far),
        f"""
## Pairs in the wrong order

Only the flags that differ are shown. {equal} more are predicted equal, which counts half;
some are one launch that was measured twice (`-ncmoe` above the model's layers): so much do
measurements vary. On the 12 GiB card under Windows, experts of 18 layers in RAM leave less free
than Windows' margin: that launch does not fit.

| rate, model | faster | slower | measured | predicted |
|---|---|---|---:|---:|""",
        *(_line(_apart(*row)) for row in wrong),
    ]
    return "\n".join([*lines, ""])


def _pairs(order: Mapping[str, tuple[float, int]]) -> str:
    return " and ".join(
        f"{right:g} of {all_of} pairs of {KINDS[kind]}" for kind, (right, all_of) in order.items()
    )


def _apart(kind: str, model: str, faster: str, slower: str, *off: str) -> tuple[str, ...]:
    """A pair, with the flags that only one of them has."""
    a, b = ([f"-{flag}" for flag in f" {words}".split(" -")[1:]] for words in (faster, slower))
    only = [" ".join(flag for flag in of if flag not in other) for of, other in ((a, b), (b, a))]
    return (f"{kind} {model}", *(text or "the same flags" for text in only), *off)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
