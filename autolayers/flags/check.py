"""The one check of a whole command line: every flag must be one of its command's own or of
llama-server's.

    # UsageError: --retry is no flag of autolayers sweep: run has it
    read("sweep", ["model.gguf", "--retry", "2"])
"""

from __future__ import annotations

from ..errors import UsageError
from ..quoting import shell
from ..records import replace
from .own import COMMANDS, own_flags, takers
from .parse import Arguments, config_files, parse
from .table import ARGUMENTS, lookup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from .params import Params

# of other programs
_OTHERS = {
    "--vram": "--gpu",
    "--context": "--ctx-size",
    "--cpu": "--backend cpu",
    "--text": "--format text",
}
_PASS_ON = " (--strict-flags off passes on what a newer llama.cpp may know)"


def read(command: str, words: Sequence[str], environ: Mapping[str, str] | None = None) -> Arguments:
    """Return the words of a command, with the environment and llama.cpp's config files where
    `environ` is given.

    Raises UsageError for invalid values, and for unknown flags unless --strict-flags is off.
    """
    arguments = parse(words, environ, () if environ is None else config_files(environ), command)
    for name in arguments.unknown:
        refuse_unknown(name, command, arguments.own.get("strict-flags") != "off")
    # A shell writes model-*.gguf out: five shards are one model
    arguments = replace(arguments, positional=_without_parts(arguments.positional))
    if COMMANDS[command].llama:
        # what the user typed now: a variable may have been set for something else
        # (LLAMA_ARG_CTX_SIZE of a service must not contradict --ctx of one question)
        typed = arguments if environ is None else parse(words, command=command)
        # What is given is never silently ignored
        given = [value for flag, value in typed.given if flag in ("-m", "--model")]
        if len(two := list(dict.fromkeys(given))[:2]) > 1:
            raise UsageError(
                f"{' and '.join(shell(['-m', name]) for name in two)}: llama-server loads the last "
                "one; give one of them, or both without -m to plan them together"
            )
        refuse_contradictions(arguments.own, typed.params)
        if typed.params.model and command not in ("ollama modelfile", "explain"):
            # the first word of a cluster or fleet is the machines' file
            models = arguments.positional[command in ("cluster", "fleet") :]
            if models and typed.params.model not in models:
                # In the words of the user, who wrote -hf USER/REPO
                name, other = typed.params.model, models[0]
                flag = shell(["-hf", name[3:]] if name.startswith("hf:") else ["-m", name])
                # the command for `run`, without the word
                if other.rpartition("/")[2] in ("llama-server", "llama-cli", "llama-bench"):
                    raise UsageError(
                        f"{other} is a program: autolayers run {shell([other])} {flag}"
                    )
                raise UsageError(f"{other} and {flag} are two models: give one of them")
    return arguments


def _without_parts(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names; of a split model's shards (model-*.gguf) only the first."""
    if not any("-of-" in name for name in names):
        return tuple(names)
    import re

    parts_of: dict[str, set[str]] = {}
    whole = []
    for name in names:
        # e.g. "model-00002-of-00005.gguf"
        part = re.fullmatch(r"(.+)-(\d{5})(-of-\d{5}\.gguf)", name)
        numbers = parts_of.setdefault(part[1] + part[3], set()) if part else set()
        # a model that is named twice is two models; its other parts are not
        if not numbers or (part and part[2] in numbers):
            whole.append(name)
        # The shards of this model that were seen: a second 00001 is the model again
        numbers |= {part[2]} if part else set()
    return tuple(whole)


def refuse_contradictions(own: Mapping[str, Any], typed: Params) -> None:
    """Raise UsageError if own flags and llama-server's contradict each other. `typed`: from the
    words alone, since a word overrides a variable."""
    n_ctx = typed.n_ctx
    wanted = own.get("ctx")
    smallest = own.get("ctx-min")
    if n_ctx and wanted is not None and wanted != n_ctx:
        raise UsageError(f"-c {n_ctx} and --ctx {wanted} both set the context: give one of them")
    # --ctx max sets no number to compare with
    largest = n_ctx or (wanted if isinstance(wanted, int) else 0)
    if largest and smallest is not None and smallest > largest:
        raise UsageError(f"--ctx-min {smallest} is more than the requested context, {largest}")
    # Two names of one thing: which of them counts would be a guess
    if own.get("margin") is not None and typed.fit_target is not None:
        raise UsageError("--margin and -fitt both set the margins: give one of them")
    if own.get("kv-types") and (typed.cache_type_k or typed.cache_type_v):
        raise UsageError("--kv-types and -ctk both set the cache types: give one of them")


def refuse_unknown(name: str, command: str, strict: bool = True) -> None:
    """Raise UsageError for a flag that a command does not have; unless `strict`, only for another
    command's own flags."""
    flag, equals, value = name.partition("=")
    own, reads_llama = own_flags(command), COMMANDS[command].llama
    flags = [*own, *_llama_names()] if reads_llama else list(own)
    # -c=8192: only flags with two dashes may be joined to a value
    if equals and flag in flags:
        raise UsageError(f"{name}: write {flag} {value}")
    # a flag of another command of autolayers
    owners = takers(flag.replace("_", "-") if flag.startswith("--") else flag)
    # What another program's flag is called here, "" where it is none of `flags`.
    # "--backend cpu" may be offered only where the command has --backend
    meant = _OTHERS.get(flag, "")
    near = meant if meant.partition(" ")[0] in flags else ""
    near = near or nearest(flag, own if owners else flags) or ""
    instead = f"; did you mean {near}?" if near else ""
    if owners:
        # Ollama's commands by their common name where all of them do: five would fill the line
        ollama = [command for command in COMMANDS if command.startswith("ollama ")]
        whole = set(ollama) <= set(owners)
        *names, last = dict.fromkeys(
            "ollama" if whole and owner in ollama else owner for owner in owners
        )
        have = f"{', '.join(names)} and {last} have" if names else f"{last} has"
        raise UsageError(f"{flag} is no flag of {title(command)}: {have} it{instead}")
    # --strict-flags off: a newer llama.cpp may know it, so it is passed on
    if strict:
        instead = (
            instead or (f": see {'autolayers' if command == 'plan' else title(command)} --help")
        ) + (_PASS_ON if reads_llama else "")
        raise UsageError(f"{flag} is no flag of {title(command)}{instead}")


def refuse_of_program(name: str, program: str) -> None:
    """Raise UsageError for a flag after the program of `autolayers run` that llama.cpp does not
    have."""
    flag, equals, value = name.partition("=")
    flags = _llama_names()
    if equals and flag in flags:
        raise UsageError(f"{name}: write {flag} {value}")
    near = nearest(flag, flags)
    raise UsageError(
        f"{flag} is no flag of {program}" + (f"; did you mean {near}?" if near else "") + _PASS_ON
    )


def nearest(name: str, flags: Iterable[str]) -> str | None:
    """Return the flag with the most similar spelling, if any."""
    import difflib

    flags = list(flags)
    # llama.cpp reads --ctx_size as --ctx-size
    wanted = name.replace("_", "-")
    # underscores, capitals or a dash too few, before anything similar
    for spelling in (wanted, wanted.lower(), "-" + wanted.lower()):
        if spelling in flags:
            return spelling
    # 0.7: --gpulayers is near --gpu-layers, --foo is near nothing
    return next(iter(difflib.get_close_matches(wanted.lower(), flags, 1, 0.7)), None)


def flag_meant(refused: str) -> tuple[str, ...]:
    """Return the flag that is meant by a refused one, with its value where that was left out; ()
    if none is."""
    row, _ = lookup(refused) or (None, True)
    if row is None:
        near = nearest(refused, [name for row in ARGUMENTS for name in row.names])
        return (near,) if near else ()
    if row.now:
        return (row.now,)
    # `-fa -c 8192` of older builds
    return (refused, row.kind.bare) if row.kind.bare else ()


def title(command: str) -> str:
    """Return how messages name a command: "autolayers run"."""
    return "autolayers MODEL" if command == "plan" else f"autolayers {command}"


def _llama_names() -> list[str]:
    return [name for row in ARGUMENTS for name in (*row.names, *row.negated)]
