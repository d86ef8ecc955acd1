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

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_LLAMA = "llama-server"  # after the program of these:
_WRAPPING = ("run", "tune")
_MACHINES = ("cluster", "fleet")  # whose first word is a file that lists machines
_UNUSUAL = {*TRUE, *FALSE, *AUTO} - {"on", "off", "auto"}  # other spellings of these three
_MOST = 10_000  # words


def main(words: Sequence[str]) -> int:
    """Prints the script of one shell."""
    names = read("completion", words).positional
    if len(names) != 1 or names[0] not in SHELLS:
        raise UsageError(f"name the shell: autolayers completion {'|'.join(SHELLS)}")
    sys.stdout.write(SHELLS[names[0]])
    return 0


def complete(words: Sequence[str]) -> int:
    """`autolayers __complete`: prints what may stand at the cursor."""
    count = (
        int(words[0]) if words and words[0].isdecimal() and len(words[0]) < len(str(_MOST)) else 1
    )
    typed = [*words[1:], *[""] * count][: max(1, count)]
    sys.stdout.writelines(
        f"{word}\t{meaning}\n" if meaning else f"{word}\n" for word, meaning in offers(typed)
    )
    return 0


def _first_words(command: str, words: Sequence[str], place: int) -> dict[str, str]:
    """Return what a command takes at a place: a program, the machines' file, or a model."""
    if command in _WRAPPING:
        return {":commands": ""}
    if command in _MACHINES and place == 1:
        return {":files": ""}
    return {":gguf": "", **(_summaries() if len(words) == 1 else {})}


def offers(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (word, meaning) of what may replace the last of the words after `autolayers`, which may
    be ""."""
    before, head, word = _split(words)
    command = _command(words)
    flag = before[-1] if before else ""
    values = _values(command, flag)
    if values:
        # of a list the last item is completed
        head += word[: word.rfind(",") + 1]
        word = word[word.rfind(",") + 1 :]
        found = dict.fromkeys(values, "")
    elif _takes_value(command, flag):
        found = {":files": ""}
    elif word.startswith("-"):
        found = _flags(command)
    elif command == "ollama":
        found = _summaries("ollama ")
    elif command == "completion":
        found = dict.fromkeys(SHELLS, "")
    else:
        found = _first_words(command, words, len(before))
    for name, meaning in found.items():
        if name.startswith(":"):
            yield name, meaning
        elif name.startswith(word):
            yield head + name, meaning


def _split(words: Sequence[str]) -> tuple[Sequence[str], str, str]:
    """Return (the words before, what stays of the word at the cursor, the rest of it, which is
    completed)."""
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
    name = words[0] if len(words) > 1 and words[0] in COMMANDS else "plan"
    if name == "ollama" and len(words) > 2:
        return f"ollama {words[1]}"
    runs = name in _WRAPPING and _names_program(name, words[1:-1])
    return _LLAMA if runs else name


def _names_program(command: str, words: Sequence[str]) -> bool:
    """Return whether one of a command's words is the program that it runs."""
    is_value = False
    for word in words:
        if word == "=":
            continue
        if not is_value and not word.startswith("-"):
            return True
        flag = own_flags(command).get(word)
        is_value = flag is not None and flag.takes_value
    return False


def _summaries(prefix: str = "") -> dict[str, str]:
    """Return the commands that follow a prefix, with what each does."""
    return {
        name.removeprefix(prefix): command.summary
        for name, command in COMMANDS.items()
        if name.startswith(prefix) and " " not in name.removeprefix(prefix) and name != "plan"
    }


def _flags(command: str) -> dict[str, str]:
    """Return a command's flags, with their help."""
    own = (
        {name: flag.help for name, flag in own_flags(command).items()}
        if command in COMMANDS
        else {}
    )
    if command == _LLAMA or (command in COMMANDS and COMMANDS[command].llama):
        own |= {name: "" for row in ARGUMENTS for name in (*row.names, *row.negated)}
    return own


def _values(command: str, name: str) -> Sequence[str]:
    """Return the words that may follow a flag, () where it takes others or none."""
    flag = own_flags(command).get(name) if command in COMMANDS else None
    if flag is None:
        choices = next((row.kind.choices for row in ARGUMENTS if name in row.names), ())
        return [word for word in choices or () if word not in _UNUSUAL]
    if flag.metavar.startswith("SIZE|NAME"):
        from ..devices.cards import CARDS

        return tuple(CARDS)
    return flag.choices


def _takes_value(command: str, name: str) -> bool:
    flag = own_flags(command).get(name) if command in COMMANDS else None
    return (
        flag.takes_value
        if flag is not None
        else any(name in row.names and row.takes_value for row in ARGUMENTS)
    )


# --- the scripts

BASH = r"""# autolayers: completion for bash, made by `autolayers completion bash`
_autolayers() {
    local cur=${COMP_WORDS[COMP_CWORD]} line IFS=$'\n'
    [[ $cur == '=' ]] && cur=
    COMPREPLY=()
    while read -r line; do
        case $line in
            :gguf) compopt -o filenames 2>/dev/null
                   COMPREPLY+=($(compgen -f -X '!*.gguf' -- "$cur") $(compgen -d -- "$cur")) ;;
            :files) compopt -o filenames 2>/dev/null; COMPREPLY+=($(compgen -f -- "$cur")) ;;
            :commands) COMPREPLY+=($(compgen -c -- "$cur")) ;;
            *) COMPREPLY+=("${line%%$'\t'*}") ;;
        esac
    done < <(command autolayers __complete "$COMP_CWORD" "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -F _autolayers autolayers
"""  # noqa: E501

ZSH = r"""#compdef autolayers
# autolayers: completion for zsh, made by `autolayers completion zsh`
_autolayers() {
    local line tab=$'\t' kind
    local -a found
    for line in "${(@f)$(command autolayers __complete $((CURRENT - 1)) "${(@Q)words[2,CURRENT]}" 2>/dev/null)}"; do
        case $line in
            :*) kind=$line ;;
            *$tab*) found+=("${${line%%$tab*}//:/\\:}:${line#*$tab}") ;;
            ?*) found+=("${line//:/\\:}") ;;
        esac
    done
    (( $#found )) && _describe autolayers found
    [[ $kind == :files && $words[CURRENT] == --*=* ]] && compset -P '*='
    case $kind in
        :gguf) _files -g '*.gguf' ;;
        :files) _files ;;
        :commands) _command_names -e ;;
    esac
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _autolayers "$@"; else compdef _autolayers autolayers; fi
"""  # noqa: E501

FISH = r"""# autolayers: completion for fish, made by `autolayers completion fish`
function __autolayers
    set -l words (commandline -opc)
    set -l cur (commandline -ct)
    for line in (command autolayers __complete (count $words) $words[2..-1] "$cur" 2>/dev/null)
        switch $line
            case :gguf
                __fish_complete_path "$cur" | string match -r '^[^\t]*(?:\.gguf|/)(?=\t|$)'
            case :files
                __fish_complete_path "$cur"
            case :commands
                __fish_complete_command
            case '*'
                printf '%s\n' $line
        end
    end
end
complete -c autolayers -f -a '(__autolayers)'
"""

# if it returns nothing, PowerShell completes files
_POWERSHELL = r"""# autolayers: completion for PowerShell, made by `autolayers completion powershell`
Register-ArgumentCompleter -Native -CommandName autolayers -ScriptBlock {
    param($wordToComplete, $commandAst, $cursorPosition)
    $before = $commandAst.CommandElements | Where-Object { $_.Extent.EndOffset -lt $cursorPosition }
    $words = @(@($before | ForEach-Object { $_.ToString() } | Select-Object -Skip 1) + $wordToComplete)
    autolayers __complete $words.Count @words 2>$null | Where-Object { $_ -notlike ':*' } | ForEach-Object {
        $word, $meaning = $_ -split "`t", 2
        if (-not $meaning) { $meaning = $word }
        [System.Management.Automation.CompletionResult]::new($word, $word, 'ParameterValue', $meaning)
    }
}
"""  # noqa: E501

SHELLS = {"bash": BASH, "zsh": ZSH, "fish": FISH, "powershell": _POWERSHELL}
