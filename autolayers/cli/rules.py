"""`autolayers rules`: the table, the comparison with a file, JSON."""

from __future__ import annotations

import os
import re

from ..errors import UsageError
from ..flags.check import read
from ..output import emit_json, say, show
from ..quoting import printable
from ..report.table import table
from ..rules.evaluate import evaluate_all
from ..rules.exact import Comparison, compare
from ..rules.inputs import FIELDS, TYPES, flag
from ..rules.inputs import read as read_inputs
from ..units import GiB, human
from .model import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(words: Sequence[str]) -> int:
    """Run `autolayers rules WORDS`: the answer on stdout, the reasons for omitted rules on stderr;
    0.

    Raises UsageError (2) for missing or nonsensical values, ModelError (3) for an unreadable file.
    """
    arguments = read("rules", words)
    # The one model that is named, None without
    names = arguments.positional
    figures = list(filter(None, map(_figure, names)))
    if len(figures) == len(names) > 0 and not any(map(os.path.lexists, names)):
        raise UsageError(f"figures have flags: autolayers rules {' '.join(figures)}")
    if len(names) > 1:
        raise UsageError("rules takes one model at most")
    path = names[0] if names else None
    # A flag's key is its name without the dashes: "--kv-heads" is given["kv_heads"]
    given = {
        name: arguments.own[flag(name)[2:]] for name in FIELDS if flag(name)[2:] in arguments.own
    }
    explain = bool(arguments.own.get("explain"))
    if path is None:
        inputs = read_inputs(given)
        results, refused = evaluate_all(**given)
        # Without a file there is nothing exact to compare with
        rows = {name: Comparison(result) for name, result in results.items()}
    else:
        rows, refused, inputs = compare(load(path), **given)
    if arguments.own.get("json"):
        answer: dict[str, object] = {
            "schema": 1,
            "inputs": {
                name: value for name in FIELDS if (value := getattr(inputs, name)) is not None
            },
        }
        for name, row in rows.items():
            result = row.result
            # {"bytes": 168000000000, "GB": 168.0, ...} or {"layers": 25, ...}
            entry: dict[str, object] = {result.rule.unit: round(result.value)}
            if result.rule.unit == "bytes":
                entry["GB"] = round(result.gb, 6)
            if inputs.gpu is not None and result.gpus is not None:
                entry["gpus"] = result.gpus
            if result.as_published is not None:
                entry["as_published"] = round(result.as_published)
            if row.exact is not None:
                entry["exact"] = row.exact
                entry["error"] = row.error
            entry |= {
                "formula": result.rule.formula,
                "working": result.working,
                "assumes": result.rule.assumes,
                "leaves_out": result.rule.leaves_out,
            }
            answer[name] = entry
        answer["left_out"] = refused
        emit_json(answer, 2)
        return 0
    heading = [
        text.format(value)
        for text, value in (
            ("{:.4g}B parameters", None if inputs.params is None else inputs.params / 1e9),
            ("{:g} bits", inputs.bits),
            ("{} layers", inputs.layers),
            (f"{inputs.batch} x {{}} tokens", inputs.sequence),
            ("GPUs of {}", None if inputs.gpu is None else human(inputs.gpu)),
        )
        if value is not None
    ]
    # The sources count so; everything else here is in GiB
    title = (f"{path}: " if path else "") + ", ".join([*heading, "GB = 10^9 bytes"])
    lines = (title, *_table(rows, path is not None, explain))
    show("".join(f"{printable(line)}\n" for line in lines))
    for reason in refused.values():
        say(f"left out: {reason}")
    return 0


def _figure(word: str) -> str:
    """Return a word without a flag as the flag that it may mean; ""."""
    word = word.lower()
    if re.fullmatch(r"\d+(\.\d+)?[bm]", word):
        return f"--params {word.upper()}"
    # q4 is what people call q4_k_m
    of_it = [name for name in (word, f"{word}_k_m", f"{word}_k", f"{word}_0") if name in TYPES]
    return f"--type {of_it[0]}" if of_it else ""


def figure(value: float, unit: str) -> str:
    """ "168.00 GB", "43.75 MB" or "25 layers"."""
    if unit == "layers":
        return f"{value:g} layers"
    return f"{value / 1e9:.2f} GB" if value >= 1e8 else f"{value / 1e6:.2f} MB"


def _table(rows: dict[str, Comparison], with_exact: bool, explain: bool) -> list[str]:
    # name, figure, exact and error or GiB, GPUs, title
    cells = [_cells(name, row, with_exact) for name, row in rows.items()]
    # A column that no rule has takes no room
    columns = [column for column in zip(*cells, strict=True) if any(column)]
    first, *others = zip(*columns, strict=True)
    # The title comes last and may be of any length
    texts = table(first, others, left=(0, len(first) - 1))
    lines = []
    for text, comparison in zip(texts, rows.values(), strict=True):
        lines.append(text)
        if explain:
            rule, working = comparison.result.rule, comparison.result.working
            told = (
                f"{rule.formula}  =  {working}",
                f"assumes: {rule.assumes}",
                f"leaves out: {rule.leaves_out}",
                f"source: {rule.source}",
                f"note: {rule.erratum}" if rule.erratum else "",
            )
            lines += [f"    {line}" for line in told if line]
    return lines


def _cells(name: str, row: Comparison, with_exact: bool) -> list[str]:
    result, unit = row.result, row.result.rule.unit
    cells = [name, figure(result.value, unit)]
    # Next to the exact figure a second unit would only be noise
    if with_exact:
        cells.append("" if row.exact is None else f"exact {figure(row.exact, unit)}")
        cells.append("" if row.error is None else f"{row.error:+.0%}")
    else:
        cells.append(f"{result.value / GiB:.2f} GiB" if unit == "bytes" else "")
    count = result.gpus
    if count is None:
        gpus = ""
    else:
        gpus = "1 GPU" if count == 1 else f"{count} GPUs"
    # The rule's title, with notes on this result
    notes = [result.note] if result.note else []
    if result.as_published is not None:
        # A source whose own arithmetic does not give the figure that it prints
        notes.append(f"its source: {figure(result.as_published, result.rule.unit)}")
    return [
        *cells,
        gpus,
        f"{result.rule.title} ({'; '.join(notes)})" if notes else result.rule.title,
    ]
