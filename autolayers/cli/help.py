"""`autolayers --help` and each command's help, made from the rows of autolayers.flags.own: plain
text, 80 columns."""

from __future__ import annotations

import textwrap

from ..errors import UsageError
from ..flags.own import COMMANDS, FLAGS, OwnFlag

_WIDTH = 80
_COLUMN = 26  # column of the help texts

ABOUT = "the best llama.cpp launch of a GGUF model on this machine's memory"
MODEL = "a .gguf file (any shard of a split model), https://..., hf:USER/REPO[:QUANT], ollama:NAME"
EXIT_CODES = (
    "0 fits, 1 failure, 2 usage, 3 unreadable model, 4 no device information, 5 does not fit, "
    "126/127 program not executable or not found, 130 interrupted; otherwise the started program's "
    "own"
)
EXAMPLES = (
    "autolayers model.gguf --gpu 24GiB",
    "llama-server -m model.gguf $(autolayers model.gguf)",
    "autolayers run llama-server -m model.gguf -c 16k",
)


def short() -> str:
    """Return what a bare `autolayers` prints."""
    return "\n".join(
        [
            f"autolayers: {ABOUT}",
            *(f"  {line}" for line in EXAMPLES),
            "autolayers --help lists commands and flags; autolayers choose hf:USER/REPO "
            "picks a file",
            "",
        ]
    )


def overview() -> str:
    """Return the text of `autolayers --help`: all commands, and the plan's flags."""
    usage = f"usage: autolayers {COMMANDS['plan'].usage}\n       autolayers COMMAND ...\n"
    rows = [
        ("MODEL", MODEL),
        *(
            (f"{name} ...", command.summary)
            for name, command in COMMANDS.items()
            # Ollama's own commands are in its help, plan's flags below
            if name != "plan" and " " not in name
        ),
    ]
    rows.append(("help COMMAND", "the flags of a command"))
    return "\n".join(
        [
            f"autolayers: {ABOUT}",
            "",
            usage,
            *_columns(rows, 18),
            "",
            _paragraph(COMMANDS["plan"].about),
            "",
            "own flags:",
            *_columns(_flags("plan"), _COLUMN),
            "",
            _paragraph("exit codes: " + EXIT_CODES),
            "",
            *(f"  {line}" for line in EXAMPLES),
            "",
        ]
    )


def help_of(name: str) -> str:
    """Return the text of `autolayers COMMAND --help`. Raises UsageError for an unknown command."""
    # The command of these words. "ollama --help" arrives here with the flag as its second word
    words = [word for word in name.split() if not word.startswith("-")]
    # "ollama plan" before "ollama", and "run llama-server" is run
    command = COMMANDS.get(" ".join(words[:2])) or COMMANDS.get(" ".join(words[:1]))
    if command is None:
        # plan is what no word stands for
        names = [name for name in COMMANDS if " " not in name and name != "plan"]
        raise UsageError(f"no command {name!r}: {', '.join(names)}")
    # Its help is the overview: who writes no command gets plan
    if command.name == "plan":
        return overview()
    usage = f"usage: autolayers {command.usage}"
    # As a sentence
    summary = command.summary[0].upper() + command.summary[1:]
    summary += "" if summary[-1] in "?!." else "."
    lines = [
        *textwrap.wrap(usage, _WIDTH, subsequent_indent=" " * 7, break_on_hyphens=False),
        "",
        _paragraph(f"{summary} {command.about}".rstrip()),
        "",
    ]
    # "ollama plan" and the others, where "ollama" is asked for
    below = [
        (other.name, other.summary)
        for other in COMMANDS.values()
        if other.name.startswith(command.name + " ")
    ]
    if below:
        lines += [*_columns(below, _COLUMN), ""]
    return "\n".join([*lines, *_columns(_flags(command.name), _COLUMN), ""])


def spelled(flag: OwnFlag) -> str:
    """Return "-q, --quiet" or "--ram SIZE"."""
    return ", ".join(flag.names) + (f" {flag.metavar}" if flag.metavar else "")


def _flags(command: str) -> list[tuple[str, str]]:
    return [(spelled(flag), flag.help) for flag in FLAGS if command in flag.commands]


def _columns(rows: list[tuple[str, str]], column: int) -> list[str]:
    """Return the lines of terms and their help; a term that is too long gets its own line."""
    lines: list[str] = []
    for term, meaning in rows:
        head = f"  {term}"
        # e.g. "-c, --ctx, --ctx-size, --num-ctx N|max"
        if len(head) + 2 > column:
            lines.append(head)
            head = ""
        lines += textwrap.wrap(
            meaning,
            _WIDTH,
            initial_indent=head.ljust(column),
            subsequent_indent=" " * column,
            # Names of flags and URLs must survive a copy
            break_long_words=False,
            break_on_hyphens=False,
        )
    return lines


def _paragraph(text: str) -> str:
    """Wrap the text, except lines that begin with spaces."""
    return "\n".join(
        line
        # Examples to copy, such as those of completion
        if line.startswith(" ")
        else textwrap.fill(line, _WIDTH, break_long_words=False, break_on_hyphens=False)
        for line in text.split("\n")
    )
