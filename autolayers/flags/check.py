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
from .table import ARGUMENTS

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
    """The words of a command, with the environment and llama.cpp's config files where `environ` is
    given.

    Raises UsageError for invalid values, and for unknown flags unless --strict-flags is off.
    """
    arguments = parse(words, environ, () if environ is None else config_files(environ), command)
    for name in arguments.unknown:
        refuse_unknown(name, command, arguments.own.get("strict-flags") != "off")
    arguments = replace(arguments, positional=_without_parts(arguments.positional))
    if COMMANDS[command].llama:
        said = arguments if environ is None else parse(words, command=command)
        _refuse_two_models(said)
        typed = said.params
        refuse_contradictions(arguments.own, typed)
        # the first word is the machines' file
        models = arguments.positional[command in ("cluster", "fleet") :]
        if (
            typed.model
            and models
            and command not in ("ollama modelfile", "explain")
            and typed.model not in models
        ):
            given = shell(
                ["-hf", typed.model[3:]] if typed.model.startswith("hf:") else ["-m", typed.model]
            )
            if models[0].rpartition("/")[2] in ("llama-server", "llama-cli", "llama-bench"):
                raise UsageError(
                    f"{models[0]} is a program: autolayers run {shell([models[0]])} {given}"
                )
            raise UsageError(f"{models[0]} and {given} are two models: give one of them")
    return arguments


def _refuse_two_models(typed: Arguments) -> None:
    """Raise UsageError for two -m: llama-server would load the last."""
    models = list(dict.fromkeys(value for flag, value in typed.given if flag in ("-m", "--model")))
    if len(models) > 1:
        first, second = (shell(["-m", name]) for name in models[:2])
        raise UsageError(
            f"{first} and {second}: llama-server loads the last one; give one of "
            f"them, or both without -m "
            "to plan them together"
        )


def _without_parts(names: Sequence[str]) -> tuple[str, ...]:
    """The names; of a split model's shards (model-*.gguf) only the first."""
    if not any("-of-" in name for name in names):
        return tuple(names)
    import re

    found: dict[str, set[str]] = {}
    kept = []
    for name in names:
        part = re.fullmatch(r"(.+)-(\d{5})(-of-\d{5}\.gguf)", name)
        numbers = found.setdefault(part[1] + part[3], set()) if part else set()
        if not numbers or (part and part[2] in numbers):
            kept.append(name)
        numbers |= {part[2]} if part else set()
    return tuple(kept)


def refuse_contradictions(own: Mapping[str, Any], typed: Params) -> None:
    """Raises UsageError if own flags and llama-server's contradict each other. `typed`: from the
    words alone, since a word overrides a variable."""
    n_ctx, wanted, least = typed.n_ctx, own.get("ctx"), own.get("ctx-min")
    if n_ctx and wanted is not None and wanted != n_ctx:
        raise UsageError(f"-c {n_ctx} and --ctx {wanted} both set the context: give one of them")
    most = n_ctx or (wanted if isinstance(wanted, int) else 0)
    if most and least is not None and least > most:
        raise UsageError(f"--ctx-min {least} is more than the requested context, {most}")
    if own.get("margin") is not None and typed.fit_target is not None:
        raise UsageError("--margin and -fitt both set the margins: give one of them")
    if own.get("kv-types") and (typed.cache_type_k or typed.cache_type_v):
        raise UsageError("--kv-types and -ctk both set the cache types: give one of them")


def refuse_unknown(name: str, command: str, strict: bool = True) -> None:
    """Raises UsageError for a flag that a command does not have; unless `strict`, only for another
    command's own flags."""
    flag, equals, value = name.partition("=")
    own, reads_llama = own_flags(command), COMMANDS[command].llama
    known = [*own, *(_llama_names() if reads_llama else ())]
    if equals and flag in known:
        raise UsageError(f"{name}: write {flag} {value}")
    owners = takers(flag.replace("_", "-") if flag.startswith("--") else flag)
    meant = _OTHERS.get(flag)
    near = (
        meant
        if meant and meant.partition(" ")[0] in known
        else nearest(flag, own if owners else known)
    )
    instead = f"; did you mean {near}?" if near else ""
    if owners:
        raise UsageError(f"{flag} is no flag of {title(command)}: {_listed(owners)} it{instead}")
    if strict:
        instead = instead or f": see {'autolayers' if command == 'plan' else title(command)} --help"
        raise UsageError(
            f"{flag} is no flag of {title(command)}{instead}{_PASS_ON if reads_llama else ''}"
        )


def refuse_of_program(name: str, program: str) -> None:
    """Raises UsageError for a flag after the program of `autolayers run` that llama.cpp does not
    have."""
    flag, equals, value = name.partition("=")
    known = _llama_names()
    if equals and flag in known:
        raise UsageError(f"{name}: write {flag} {value}")
    near = nearest(flag, known)
    raise UsageError(
        f"{flag} is no flag of {program}" + (f"; did you mean {near}?" if near else "") + _PASS_ON
    )


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The flag with the most similar spelling, if any."""
    import difflib

    known = list(known)
    wanted = name.replace("_", "-")
    for spelling in (wanted, wanted.lower(), "-" + wanted.lower()):
        if spelling in known:
            return spelling
    return next(iter(difflib.get_close_matches(wanted.lower(), known, 1, 0.7)), None)


def title(command: str) -> str:
    """How messages name a command: "autolayers run"."""
    return "autolayers MODEL" if command == "plan" else f"autolayers {command}"


def _llama_names() -> list[str]:
    return [name for row in ARGUMENTS for name in (*row.names, *row.negated)]


def _listed(commands: Sequence[str]) -> str:
    """ "run has", "plan, run and ollama have": Ollama's commands by their common name where all of
    them do."""
    ollama = [command for command in COMMANDS if command.startswith("ollama ")]
    all_of_ollama = set(ollama) <= set(commands)
    *names, last = dict.fromkeys(
        "ollama" if all_of_ollama and command in ollama else command for command in commands
    )
    return f"{', '.join(names)} and {last} have" if names else f"{last} has"
