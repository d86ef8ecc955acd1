"""Tables of commands, flags, formats and prices of docs/commands.md, launch.md, launch-files.md,
planner.md and tune.md, and the man page, from the rows of the program's own tables.

    python docs/make.py commands launch launch-files planner tune autolayers.1
"""

from __future__ import annotations

from autolayers import __version__
from autolayers.backends import BACKENDS, HOST, backend
from autolayers.cli.help import ABOUT, EXAMPLES, EXIT_CODES, MODEL, spelled
from autolayers.flags.formats import FORMATS
from autolayers.flags.own import COMMANDS, FLAGS, OwnFlag
from autolayers.flags.table import rows_of
from autolayers.launch.bench import ALIKE, ROWS
from autolayers.launch.formats.reach import Reach
from autolayers.planner import prices

_EXAMPLES = {
    "kv_offload": ", 1 for `-nkvo`",
    "op_offload": ", 1 for `--no-op-offload`",
    "repack": ", 0 or 1",
    "no_host": ", 0 or 1",
    "embedding": ", 0 or 1",
    "tensor_split": ": `3/1`",
    "device": ": `CUDA0/CUDA1`",
    "overrides": ": `a=CPU;b=CPU`, with `-cmoe`, `-ncmoe` and `-ncffn`",
    "load_mode": ", `-mmp` of older builds",
}


def part(name: str) -> str:
    """A table between markers: "bench", "commands", "prices", "reach", or "flags COMMAND" without
    those that a plan has too."""
    what, _, command = name.partition(" ")
    if what == "reach":
        return _reach()
    if what == "prices":
        return _prices()
    if what == "bench":
        return _bench()
    if what == "commands":
        rows = [
            (f"autolayers {'MODEL...' if name == 'plan' else f'{name} ...'}", row.summary)
            for name, row in COMMANDS.items()
            if " " not in name
        ]
        return _list(rows)
    shared = set() if command == "plan" else set(_flags("plan"))
    return _list([(spelled(flag), flag.help) for flag in _flags(command) if flag not in shared])


def _prices() -> str:
    """Every price; one without a factor has one by its case."""
    factors = [f"{row.factor:g}" if row.factor else "by the case" for row in prices.ROWS]
    rows = [
        f"| {row.what} | {factor} | {row.why} |"
        for row, factor in zip(prices.ROWS, factors, strict=True)
    ]
    return "\n".join(["| drawback | factor | why |", "|---|---|---|", *rows])


def _bench() -> str:
    """llama-server's flags and what llama-bench calls them."""
    rows = [
        (rows_of(field)[0].canonical, f"`{row['flag']}`{_EXAMPLES.get(field, '')}")
        for field, row in ROWS.items()
    ]
    alike = [name for name, said in rows if said == f"`{name}`"] + [*ALIKE]
    other = [(name, said) for name, said in rows if name not in alike]
    same = ", ".join(f"`{name}`" for name in alike)
    differ = [f"| `{name}` | {said} |" for name, said in other]
    table = "\n".join(["| llama-server | llama-bench |", "|---|---|", *differ])
    return f"{table}\n\nCalled the same: {same}."


def man() -> str:
    """The man page, in the macros of man(7)."""
    lines = [
        f'.TH AUTOLAYERS 1 "" "autolayers {__version__}" "User Commands"',
        '.\\" made by python docs/make.py; do not edit',
        ".SH NAME",
        _roff(f"autolayers - {ABOUT}"),
        ".SH SYNOPSIS",
    ]
    for command in COMMANDS.values():
        if command.name != "ollama":
            lines += [f".B autolayers\n{_roff(command.usage)}", ".br"]
    lines += [".SH DESCRIPTION", _roff(COMMANDS["plan"].about), ".TP", "MODEL", _roff(MODEL)]
    for command in COMMANDS.values():
        lines += [".SH OPTIONS" if command.name == "plan" else f".SH {_roff(command.name.upper())}"]
        if command.name != "plan":
            lines += [
                _roff(f"{command.summary[0].upper()}{command.summary[1:]}."),
                *_about(command.about),
            ]
        flags = [flag for flag in _flags(command.name) if "--help" not in flag.names]
        shared = [flag for flag in flags if command.name != "plan" and flag in _flags("plan")]
        for flag in flags:
            if flag not in shared:
                lines += [".TP", f".B {_roff(spelled(flag))}", _roff(flag.help)]
        if shared:
            lines += [
                ".PP",
                _roff("As for a plan: " + ", ".join(flag.names[-1] for flag in shared) + "."),
            ]
    lines += [
        ".SH EXIT STATUS",
        _roff(EXIT_CODES + "."),
        ".SH ENVIRONMENT",
        _roff(
            "LLAMA_ARG_* as llama-server reads them. HF_TOKEN and HF_ENDPOINT for hf: and "
            "Hugging Face's URLs. "
            "OLLAMA_HOST, OLLAMA_MODELS and the settings of Ollama's server. "
            "NO_COLOR."
        ),
        ".SH EXAMPLES",
        ".nf",
        *map(_roff, EXAMPLES),
        ".fi",
    ]
    return "\n".join(lines) + "\n"


def _flags(command: str) -> list[OwnFlag]:
    return [flag for flag in FLAGS if command in flag.commands]


def _list(rows: list[tuple[str, str]]) -> str:
    return "\n".join(f"- `{term}`: {meaning}" for term, meaning in rows)


def _about(text: str) -> list[str]:
    """Paragraphs, and lines that begin with blanks as they are."""
    lines = []
    for line in filter(None, text.split("\n")):
        lines += (
            [".PP", ".nf", _roff(line), ".fi"] if line.startswith(" ") else [".PP", _roff(line)]
        )
    return lines


def _roff(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text.startswith((".", "'")) else text


def _reach() -> str:
    """How the GPUs of each backend are reached from what is no shell of this machine."""
    rows = []
    for name in BACKENDS:
        reach = Reach(backend(name))
        refused = [kind for kind in FORMATS if not reach.reaches(kind)]
        if reach.backend.remote or name == HOST:
            continue
        given = f"NVIDIA's driver `{reach.driver}`" if reach.driver else ""
        given = given or ", ".join(f"`{node}`" for node in reach.nodes) or "not in a container"
        if reach.reaches("docker"):
            given = f"image `server{reach.backend.image}`, {given}"
        rows.append((name, given + f"; refused: {', '.join(refused)}" * bool(refused)))
    return _list(rows)
