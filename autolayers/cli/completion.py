"""`autolayers completion SHELL`: a script that completes commands, flags, their values, card names
and .gguf files.

Each script only asks the program, `autolayers __complete COUNT WORD...` with the words before the
cursor. COUNT says how many there are, because a shell may drop the last one where it is empty.
Every line of the answer is a word, a tab and its meaning, or a kind of word that the shell knows
best: `:gguf`, `:files`, `:commands`.
"""

from __future__ import annotations

import sys

from ..errors import UsageError
from ..flags.check import read
from ..flags.kinds import AUTO, FALSE, TRUE
from ..flags.own import COMMANDS, own_flags
from ..flags.table import ARGUMENTS
from ..tables import text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ..flags.own import OwnFlag

# All of them ask this program, so a new flag needs no new script
# shell -> the file of the package with its script
SHELLS = {
    "bash": "cli/completion.bash",
    "zsh": "cli/completion.zsh",
    "fish": "cli/completion.fish",
    "powershell": "cli/completion.ps1",  # where it prints nothing, PowerShell completes files
}
_LLAMA = "llama-server"  # after the program of these:
_WRAPPING = ("run", "compare", "prove", "tune")
_MACHINES = ("cluster", "fleet")  # whose first word is a file that lists machines
_UNUSUAL = {*TRUE, *FALSE, *AUTO} - {"on", "off", "auto"}  # other spellings of these three
# A number that a script would never send must not become a list of that length
_MOST = 10_000  # words


def main(words: Sequence[str]) -> int:
    """Print the script of one shell."""
    names = read("completion", words).positional
    if len(names) != 1 or names[0] not in SHELLS:
        raise UsageError(f"name the shell: autolayers completion {'|'.join(SHELLS)}")
    sys.stdout.write(script(names[0]))
    return 0


def script(shell: str) -> str:
    """Return the completion script of a shell in `SHELLS`."""
    return text(SHELLS[shell])


def complete(words: Sequence[str]) -> int:
    """Print what may stand at the cursor, for `autolayers __complete`."""
    # Words that are not those of a script, e.g. typed by hand: complete an empty word
    count = (
        int(words[0]) if words and words[0].isdecimal() and len(words[0]) < len(str(_MOST)) else 1
    )
    # A shell may drop an empty last argument: the count puts it back
    typed = [*words[1:], *[""] * count][: max(1, count)]
    sys.stdout.writelines(
        f"{word}\t{meaning}\n" if meaning else f"{word}\n" for word, meaning in offers(typed)
    )
    return 0


def offers(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (word, meaning) of what may replace the last of the words after `autolayers`, which may
    be ""."""
    before, head, word = _split(words)
    command = _command(words)
    flag = before[-1] if before else ""
    # A flag's value comes before everything else: `--gpu r` completes cards, not models
    values = _values(command, flag)
    if values:
        # of a list the last item is completed
        head += word[: word.rfind(",") + 1]
        word = word[word.rfind(",") + 1 :]
        completions = dict.fromkeys(values, "")
    elif _takes_value(command, flag):
        completions = {":files": ""}
    # Flags only after a dash: hundreds of llama-server's would hide the models
    elif word.startswith("-"):
        completions = _flags(command)
    elif command == "ollama":
        completions = _summaries("ollama ")
    elif command == "completion":
        completions = dict.fromkeys(SHELLS, "")
    # What a command takes at a place: a program, the machines' file, or a model.
    elif command in _WRAPPING:
        completions = {":commands": ""}
    elif command in _MACHINES and len(before) == 1:
        completions = {":files": ""}
    else:
        completions = {":gguf": "", **(_summaries() if len(words) == 1 else {})}
    for name, meaning in completions.items():
        # The shell itself lists files and programs, and filters them
        if name.startswith(":"):
            yield name, meaning
        elif name.startswith(word):
            yield head + name, meaning


def _split(words: Sequence[str]) -> tuple[Sequence[str], str, str]:
    """Return (the words before, what stays of the word at the cursor, the rest of it, which is
    completed)."""
    # e.g. ["model.gguf", "--format=j"] gives (["model.gguf", "--format"], "--format=", "j")
    *before, word = words
    if word == "=":  # bash makes three words of --flag=value
        return before, "", ""
    if before and before[-1] == "=":
        return before[:-1], "", word
    if word.startswith("--") and "=" in word:
        flag, _, value = word.partition("=")
        return [*before, flag], f"{flag}=", value
    return before, "", word


def _command(words: Sequence[str]) -> str:
    """Return the command whose flags may follow, "ollama" before its own, llama-server behind a
    program that is run."""
    # The word at the cursor is not typed to its end yet
    name = words[0] if len(words) > 1 and words[0] in COMMANDS else "plan"
    if name == "ollama" and len(words) > 2:
        return f"ollama {words[1]}"
    # After `run llama-server` its flags follow, before it those of run
    runs = name in _WRAPPING and _names_program(name, words[1:-1])
    return _LLAMA if runs else name


def _names_program(command: str, words: Sequence[str]) -> bool:
    """Return whether one of a command's words is the program that it runs."""
    is_value = False
    for word in words:
        # bash splits --retry=2 into three words
        if word == "=":
            continue
        if not is_value and not word.startswith("-"):
            return True
        # The 2 of `--retry 2` is no program
        flag = own_flags(command).get(word)
        is_value = flag is not None and flag.takes_value
    return False


def _summaries(prefix: str = "") -> dict[str, str]:
    """Return the commands that follow a prefix, with what each does."""
    return {
        name.removeprefix(prefix): command.summary
        for name, command in COMMANDS.items()
        # plan is what a model's name starts, nobody types it
        if name.startswith(prefix) and " " not in name.removeprefix(prefix) and name != "plan"
    }


def _own(command: str) -> Mapping[str, OwnFlag]:
    """Return the own flags of a command; none of llama-server."""
    return own_flags(command) if command in COMMANDS else {}


def _flags(command: str) -> dict[str, str]:
    """Return a command's flags, with their help."""
    own = {name: flag.help for name, flag in _own(command).items()}
    if command == _LLAMA or (command in COMMANDS and COMMANDS[command].llama):
        # Without help: autolayers has no text for llama-server's own flags
        program = "" if command == _LLAMA else "server"
        rows = [row for row in ARGUMENTS if row.is_of(program) and not row.last]
        own |= {name: "" for row in rows for name in (*row.names, *row.negated)}
    return own


def _values(command: str, name: str) -> Sequence[str]:
    """Return the words that may follow a flag, () where it takes others or none."""
    flag = _own(command).get(name)
    if flag is None:
        # llama-server's flags, e.g. -ctk f16|q8_0|...
        choices = next((row.kind.choices for row in ARGUMENTS if name in row.names), ())
        return [word for word in choices or () if word not in _UNUSUAL]
    # Names of cards are data, too many for the row of --gpu
    if flag.metavar.startswith("SIZE|NAME"):
        from ..devices.cards import CARDS

        return tuple(CARDS)
    return flag.choices


def _takes_value(command: str, name: str) -> bool:
    flag = _own(command).get(name)
    return (
        flag.takes_value
        if flag is not None
        else any(name in row.names and row.takes_value for row in ARGUMENTS)
    )
