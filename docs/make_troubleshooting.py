"""docs/troubleshooting.md: what failed launches print and what helps, from the tables that
`autolayers explain` uses.

    python docs/make.py troubleshooting
"""

from __future__ import annotations

import csv
from pathlib import Path

from autolayers.diagnosis.advice import LIBRARIES, SIBLINGS
from autolayers.diagnosis.causes import CAUSES, Cause, CauseRemedy
from autolayers.diagnosis.signs import SIGNS, Sign

_HEAD = """# Troubleshooting

Made by `python docs/make.py troubleshooting`; do not edit.

    autolayers explain server.log                 # or: journalctl -u ollama | autolayers explain -
    autolayers explain server.log -m model.gguf   # plans the launch that works on the log's machine
    autolayers explain server.log -m model.gguf --json
    autolayers explain 4242                       # a running llama-server; `autolayers ps` has PIDs
    autolayers explain model.gguf --gpu 12GiB     # why this plan

The log is read on this machine and sent nowhere. One line names the cause. Then come the figures,
what else the log shows, what to try, the launch that works, and the line numbers of the evidence.
The exit code is 0 if the log is explained, 1 if it is not, and 3 if there is no log. When a launch
dies, `autolayers run` prints the same on a terminal, and `--retry` applies the remedy.

If the log has the rates of answers, and the model and GPU are known, the page compares them with
the predicted ones and names a launch that is much faster, if there is one (`rates` in `--json`). A
command that failed for another reason than memory is printed again with the fewest changes: another
port, the flag that was meant, the first part of a split model. Where the log shows the command,
each thing to try is that whole command with the change; in `--json` `remedies[].flags` is all that
is typed after `llama-server`, `change` what is new of it. Without the command both are the change.
In `--json` the causes have these names:

"""
_MESSAGES = Path(__file__).resolve().parent.parent / "tests" / "diagnosis" / "messages.csv"
_SOURCES = """## Messages of the sources

Error messages in what each program runs to load and serve a model (llama.cpp b11549, the others of
November 2026), and how many of them name a cause by themselves; `python tools/messages.py SOURCES
--without` lists the others.

| program | messages | with a cause |
|---|---|---|"""
_PHASES = {
    "load": "while weights load",
    "cache": "at the KV cache",
    "compute": "at graph buffers",
    "run": "in use",
    "start": "at the start",
}
_ERA = """
A *build* is given for lines that only some builds print. Builds after b9014 print less: at the
default level they show no buffer sizes, no offloaded layers and no graph splits; `-lv 4` brings
them back.
"""


def render() -> str:
    """The whole document as Markdown."""
    rows = [f"| [`{cause.name}`](#{cause.name}) | {cause.title} |" for cause in CAUSES.values()]
    table = "\n".join(["| cause | is |", "|---|---|", *rows])
    return "\n".join([_HEAD + table, _ERA, *map(_section, CAUSES.values()), *_messages()])


def _messages() -> list[str]:
    """How many messages of the programs' sources have a cause, of all that their folders show."""
    found: dict[str, list[int]] = {}
    with open(_MESSAGES, encoding="utf-8", newline="") as table:
        for row in csv.DictReader(table):
            both = found.setdefault(row["program"], [0, 0])
            both[0] += int(row["messages"])
            both[1] += int(row["with a cause"])
    rows = [f"| {name} | {all_of} | {known} |" for name, (all_of, known) in found.items()]
    return [_SOURCES, *rows, ""]


def _section(cause: Cause) -> str:
    lines = [f"## {cause.name}", "", f"{cause.title}. {cause.means}", ""]
    signs = [sign for sign in SIGNS if sign.cause == cause.name]
    if signs:
        rows = dict.fromkeys(
            f"| `{sign.said}` | "
            f"{_PHASES.get(sign.phase, 'as the next lines say')} | "
            f"{_builds(sign)} |"
            for sign in signs
        )
        lines += ["| a line has | when | build |", "|---|---|---|", *rows, ""]
    if cause.lines:
        said = [
            line.format(device="CUDA0", asked="", left="", detail="", what="...", backends="...")
            for line in cause.lines.values()
        ]
        lines += [
            "Or, where the log shows it:",
            "",
            *(f"- {line}" for line in dict.fromkeys(said)),
            "",
        ]
    if cause.remedies:
        lines += ["What helps:", "", *map(_remedy, cause.remedies), ""]
    if cause.name == "missing_library":
        lines += [
            "Who brings it:",
            "",
            "| a name that begins with | comes with |",
            "|---|---|",
            *(f"| {_names(pattern)} | {why} |" for pattern, why in LIBRARIES),
            "",
        ]
    if cause.name == "gpu_build":
        lines += [
            "AMD's chips that run a sibling's code: "
            + "; ".join(
                f"{chip} with `HSA_OVERRIDE_GFX_VERSION={version}`"
                for chip, version in SIBLINGS.items()
            )
            + ".",
            "",
        ]
    return "\n".join(lines)


def _names(pattern: str) -> str:
    """The names that a pattern of LIBRARIES has, without its signs."""
    plain = pattern.replace("(?:lib)?", "").replace("(?:", "").replace("(?i:", "").replace("\\", "")
    return ", ".join(f"`{name.strip('()')}`" for name in plain.split("|"))


def _builds(sign: Sign) -> str:
    if sign.first or sign.last:
        return (
            (f"from about b{sign.first}" if sign.first else "")
            + (" " if sign.first and sign.last else "")
            + (f"to about b{sign.last}" if sign.last else "")
        )
    return ""


def _remedy(remedy: CauseRemedy) -> str:
    flags = f"`{' '.join(remedy.flags)}`: " if remedy.flags else ""
    when = f" ({_PHASES[remedy.phase]})" if remedy.phase else ""
    return f"- {flags}{remedy.why}{when}"
