"""`autolayers completion SHELL`: a script that completes commands, flags, their values, card names and .gguf
files.

Each script asks the same questions in its shell's language: which command is this, does the word before the
cursor take a list of values or a file, does the current word begin with a dash; else it offers models and, as
the first word, commands.
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
    from collections.abc import Iterable, Sequence

_LLAMA = "llama-server"       # after the program of these:
_WRAPPING = ("run", "tune")
_FIRST = [name for name in COMMANDS if " " not in name]
_OTHERS = [name for name in _FIRST if name != "plan"]
_OLLAMA = [name.split()[1] for name in COMMANDS if name.startswith("ollama ")]
_UNUSUAL = {*TRUE, *FALSE, *AUTO} - {"on", "off", "auto"}       # other spellings of these three


def main(words: Sequence[str]) -> int:
    """Prints the script of one shell."""
    names = read("completion", words).positional
    if len(names) != 1 or names[0] not in SHELLS:
        raise UsageError(f"name the shell: autolayers completion {'|'.join(SHELLS)}")
    sys.stdout.write(SHELLS[names[0]]())
    return 0


# --- the words to complete

def _own(command: str) -> dict[str, str]:
    """A command's own flags -> their help."""
    return {name: flag.help for name, flag in own_flags(command).items()}


def _llama() -> list[str]:
    return [name for row in ARGUMENTS for name in (*row.names, *row.negated)]


def _reads_llama() -> list[str]:
    return [_LLAMA, *(name for name, command in COMMANDS.items() if command.llama)]


def _values() -> dict[str, Sequence[str]]:
    """"COMMAND FLAG" -> the words that may follow; the command is * for llama-server's flags."""
    from ..devices.cards import CARDS

    found: dict[str, Sequence[str]] = {}
    for row in ARGUMENTS:
        if row.kind.choices:
            found |= {f"* {name}": [word for word in row.kind.choices if word not in _UNUSUAL]
                      for name in row.names}
    for command in COMMANDS:
        for name, flag in own_flags(command).items():
            if flag.choices or flag.metavar.startswith("SIZE|NAME"):
                found[f"{command} {name}"] = flag.choices or tuple(CARDS)
    return found


def _takes_file() -> list[str]:
    """Flags whose value may be a file name."""
    own = {name: flag for command in COMMANDS for name, flag in own_flags(command).items()}
    return [*dict.fromkeys([*(name for row in ARGUMENTS if row.takes_value for name in row.names),
                            *(name for name, flag in own.items() if flag.takes_value)])]


def _takes_value(*commands: str) -> list[str]:
    return [*dict.fromkeys(name for command in commands for name, flag in own_flags(command).items()
                           if flag.takes_value)]


def _by_words(values: dict[str, Sequence[str]]) -> list[tuple[list[str], Sequence[str]]]:
    """Groups the keys that have the same words."""
    together: dict[tuple[str, ...], list[str]] = {}
    for key, words in values.items():
        together.setdefault(tuple(words), []).append(key)
    return [(keys, words) for words, keys in together.items()]


# --- bash

def bash() -> str:
    flags = "\n".join(f"            {_sh(command)}) flags={_sh(' '.join(_own(command)))} ;;"
                      for command in COMMANDS)
    values = "\n".join(f"        {'|'.join(_glob(key) for key in keys)}) values={_sh(' '.join(words))} ;;"
                       for keys, words in _by_words(_values()))
    return f"""\
# autolayers: completion for bash, made by `autolayers completion bash`
_autolayers() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} command=plan flags= values= head= i
    COMPREPLY=()
    case ${{COMP_WORDS[1]}} in
        {'|'.join(_FIRST)}) ((COMP_CWORD > 1)) && command=${{COMP_WORDS[1]}} ;;
    esac
    if [[ $command == ollama ]]; then
        ((COMP_CWORD == 2)) && {{ COMPREPLY=($(compgen -W {_sh(' '.join(_OLLAMA))} -- "$cur")); return; }}
        command="ollama ${{COMP_WORDS[2]}}"
    elif [[ $command =~ ^({'|'.join(_WRAPPING)})$ ]]; then
        for ((i = 2; i < COMP_CWORD; i++)); do
            case ${{COMP_WORDS[i]}} in
                {'|'.join(_takes_value(*_WRAPPING))}) ((i++)) ;;
                -*|=) ;;
                *) command={_LLAMA}; break ;;
            esac
        done
    fi
    # --flag=value is three words here
    if [[ $cur == '=' ]]; then
        cur=
    elif [[ $prev == '=' ]]; then
        prev=${{COMP_WORDS[COMP_CWORD-2]}}
    fi
    case "$command $prev" in
{values}
    esac
    if [[ $values ]]; then
        [[ $cur == *,* ]] && head=${{cur%,*}},
        COMPREPLY=($(compgen -P "$head" -W "$values" -- "${{cur##*,}}"))
        return
    fi
    compopt -o filenames 2>/dev/null
    case " {' '.join(_takes_file())} " in
        *" $prev "*) [[ $prev == -* ]] && {{ local IFS=$'\n'; COMPREPLY=($(compgen -f -- "$cur")); return; }} ;;
    esac
    if [[ $cur == -* ]]; then
        case $command in
{flags}
        esac
        case $command in
            {'|'.join(map(_sh, _reads_llama()))}) flags+={_sh(' ' + ' '.join(_llama()))} ;;
        esac
        COMPREPLY=($(compgen -W "$flags" -- "$cur"))
        return
    fi
    case $command in
        completion) COMPREPLY=($(compgen -W {_sh(' '.join(SHELLS))} -- "$cur")); return ;;
        {'|'.join(_WRAPPING)}) COMPREPLY=($(compgen -c -- "$cur")); return ;;
    esac
    ((COMP_CWORD == 1)) && COMPREPLY=($(compgen -W {_sh(' '.join(_OTHERS))} -- "$cur"))
    local IFS=$'\n'
    COMPREPLY+=($(compgen -f -X '!*.gguf' -- "$cur") $(compgen -d -- "$cur"))
}}
complete -F _autolayers autolayers
"""


def _sh(text: str) -> str:
    """A word of bash and zsh."""
    return "'" + text.replace("'", "'\\''") + "'"


def _glob(key: str) -> str:
    """"COMMAND FLAG" as a pattern of `case`."""
    command, _, name = key.rpartition(" ")
    return f"*' {name}'" if command == "*" else f"'{key}'"


# --- zsh

def zsh() -> str:
    flags = "\n".join(f"            {_sh(command)}) flags=({' '.join(map(_described, _own(command).items()))}) ;;"
                      for command in COMMANDS)
    values = "\n".join(f"        {'|'.join(_glob(key) for key in keys)}) values=({' '.join(map(_sh, words))}) ;;"
                       for keys, words in _by_words(_values()))
    first = " ".join(_described((name, COMMANDS[name].summary)) for name in _OTHERS)
    actions = " ".join(_described((name, COMMANDS[f"ollama {name}"].summary)) for name in _OLLAMA)
    return f"""\
#compdef autolayers
# autolayers: completion for zsh, made by `autolayers completion zsh`
_autolayers() {{
    local cur=$words[CURRENT] prev=$words[CURRENT-1] command=plan i
    local -a flags values
    case $words[2] in
        {'|'.join(_FIRST)}) (( CURRENT > 2 )) && command=$words[2] ;;
    esac
    if [[ $command == ollama ]]; then
        (( CURRENT == 3 )) && {{ flags=({actions}); _describe command flags; return }}
        command="ollama $words[3]"
    elif [[ $command =~ '^({'|'.join(_WRAPPING)})$' ]]; then
        for (( i = 3; i < CURRENT; i++ )); do
            case $words[i] in
                {'|'.join(_takes_value(*_WRAPPING))}) (( i++ )) ;;
                -*) ;;
                *) command={_LLAMA}; break ;;
            esac
        done
    fi
    if [[ $cur == --*=* ]]; then
        prev=${{cur%%=*}}
        compset -P '*='
    fi
    case "$command $prev" in
{values}
    esac
    if (( $#values )); then
        compset -P '*,'
        compadd -a values
        return
    fi
    case " {' '.join(_takes_file())} " in
        *" $prev "*) [[ $prev == -* ]] && {{ _files; return }} ;;
    esac
    if [[ $cur == -* ]]; then
        case $command in
{flags}
        esac
        case $command in
            {'|'.join(map(_sh, _reads_llama()))}) flags+=({' '.join(map(_sh, _llama()))}) ;;
        esac
        _describe -o flag flags
        return
    fi
    case $command in
        completion) compadd {' '.join(SHELLS)}; return ;;
        {'|'.join(_WRAPPING)}) _command_names -e; return ;;
    esac
    _files -g '*.gguf'
    (( CURRENT == 2 )) && flags=({first}) && _describe command flags
}}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _autolayers "$@"; else compdef _autolayers autolayers; fi
"""


def _described(item: tuple[str, str]) -> str:
    name, meaning = item
    return _sh(f"{name}:{meaning}" if meaning else name)


# --- fish

def fish() -> str:
    flags = "\n".join(f"            case {_fish(command)}\n{_fish_lines(_own(command).items(), 16)}"
                      for command in COMMANDS)
    values = "\n".join(f"        case {_fish_list(keys)}\n            set values {_fish_list(words)}"
                       for keys, words in _by_words(_values()))
    first = [(name, COMMANDS[name].summary) for name in _OTHERS]
    actions = [(name, COMMANDS[f"ollama {name}"].summary) for name in _OLLAMA]
    return f"""\
# autolayers: completion for fish, made by `autolayers completion fish`
function __autolayers
    set -l words (commandline -opc)
    set -l cur (commandline -ct)
    set -l prev $words[-1]
    set -l command plan
    if contains -- "$words[2]" {' '.join(_FIRST)}
        set command $words[2]
    end
    if test "$command" = ollama
        if test (count $words) -eq 2
{_fish_lines(actions, 12)}
            return
        end
        set command "ollama $words[3]"
    else if contains -- $command {' '.join(_WRAPPING)}
        set -l value 0
        for word in $words[3..-1]
            if test $value -eq 1
                set value 0
            else if contains -- $word {' '.join(_takes_value(*_WRAPPING))}
                set value 1
            else if not string match -q -- '-*' $word
                set command {_LLAMA}
                break
            end
        end
    end
    set -l values
    switch "$command $prev"
{values}
    end
    if set -q values[1]
        set -l head (string match -r '.*,' -- $cur)
        printf '%s\\n' "$head"$values
        return
    end
    if contains -- $prev {' '.join(_takes_file())}
        __fish_complete_path $cur
        return
    end
    if string match -q -- '-*' $cur
        switch $command
{flags}
        end
        if contains -- $command {_fish_list(_reads_llama())}
            printf '%s\\n' {' '.join(_llama())}
        end
        return
    end
    switch $command
        case completion
            printf '%s\\n' {' '.join(SHELLS)}
            return
        case {' '.join(_WRAPPING)}
            __fish_complete_command
            return
    end
    __fish_complete_path $cur | string match -r '^[^\\t]*(?:\\.gguf|/)(?=\\t|$)'
    if test (count $words) -eq 1
{_fish_lines(first, 8)}
    end
end
complete -c autolayers -f -a '(__autolayers)'
"""


def _fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _fish_list(words: Iterable[str]) -> str:
    return " ".join(map(_fish, words))


def _fish_lines(items: Iterable[tuple[str, str]], indent: int) -> str:
    """printf of "word<TAB>meaning" lines."""
    words = [word for item in items for word in item]
    return " " * indent + "printf '%s\\t%s\\n' " + _fish_list(words)


# --- PowerShell: Register-ArgumentCompleter; if it returns nothing, PowerShell completes files

def powershell() -> str:
    flags = "\n".join(f"        {_ps(command)} = {_ps_list(_own(command))}" for command in COMMANDS)
    values = "\n".join(f"        {_ps(key)} = {_ps_list(words)}" for key, words in _values().items())
    return f"""\
# autolayers: completion for PowerShell, made by `autolayers completion powershell`
Register-ArgumentCompleter -Native -CommandName autolayers -ScriptBlock {{
    param($wordToComplete, $commandAst, $cursorPosition)
    $flags = @{{
{flags}
    }}
    $values = @{{
{values}
    }}
    $before = $commandAst.CommandElements | Where-Object {{ $_.Extent.EndOffset -lt $cursorPosition }}
    $words = @($before | ForEach-Object {{ $_.ToString() }})
    $command = 'plan'
    if ($words.Count -gt 1 -and $words[1] -cin {_ps_list(_FIRST)}) {{ $command = $words[1] }}
    if ($command -ceq 'ollama' -and $words.Count -gt 2) {{ $command = "ollama $($words[2])" }}
    if ($command -cin {_ps_list(_WRAPPING)}) {{
        for ($i = 2; $i -lt $words.Count; $i++) {{
            if ($words[$i] -cin {_ps_list(_takes_value(*_WRAPPING))}) {{ $i++ }}
            elseif (-not $words[$i].StartsWith('-')) {{ $command = '{_LLAMA}'; break }}
        }}
    }}
    $prev = $words[-1]
    $found = @()
    if ($values.ContainsKey("$command $prev")) {{ $found = $values["$command $prev"] }}
    elseif ($values.ContainsKey("* $prev")) {{ $found = $values["* $prev"] }}
    elseif ($wordToComplete.StartsWith('-')) {{
        $found = @($flags[$command])
        if ($command -cin {_ps_list(_reads_llama())}) {{ $found += {_ps_list(_llama())} }}
    }}
    elseif ($command -ceq 'ollama') {{ $found = {_ps_list(_OLLAMA)} }}
    elseif ($command -ceq 'completion') {{ $found = {_ps_list(SHELLS)} }}
    elseif ($words.Count -eq 1) {{ $found = {_ps_list(_OTHERS)} }}
    $head = ''
    $last = $wordToComplete
    if ($wordToComplete.Contains(',')) {{
        $head = $wordToComplete.Substring(0, $wordToComplete.LastIndexOf(',') + 1)
        $last = $wordToComplete.Substring($head.Length)
    }}
    $found | Where-Object {{ $_.StartsWith($last, [StringComparison]::Ordinal) }} | ForEach-Object {{
        [System.Management.Automation.CompletionResult]::new("$head$_", $_, 'ParameterValue', $_)
    }}
}}
"""


def _ps(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _ps_list(words: Iterable[str]) -> str:
    return f"@({', '.join(map(_ps, words))})"


SHELLS = {"bash": bash, "zsh": zsh, "fish": fish, "powershell": powershell}
