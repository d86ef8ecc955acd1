"""A preset of llama-server's own router: --models-preset FILE (common/preset.cpp)."""

from __future__ import annotations

import re

from ...errors import UsageError
from ...flags.params import Params
from ...flags.parse import Item, items, parse
from ...flags.table import LEGACY
from ...flags.write import to_words
from ...quoting import ini
from ...tables import listed
from .launch_file import ALONE, LaunchFile, SharedMemory, named, sizes_note

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# reserved by the router (server-models.cpp:unset_reserved_args), which ignores them in a preset
_ROUTERS = listed(
    "--port --host --api-key-file --ssl-key-file --ssl-cert-file --models-preset --models-dir "
    "--models-max --models-autoload"
)
# All of them append to llama.cpp's list of overrides, in the order of the command line
_OVERRIDES = ("-ot", "-cmoe", "-ncmoe", "-ncffn")


def write(*launches: LaunchFile, sharing: SharedMemory = ALONE) -> str:
    """Return a section for each model. The router unloads the least recently used model once
    --models-max are loaded: the most that fit, whichever they are, all if they fit together."""
    notes = dict.fromkeys(
        note for launch in launches for note in launch.comments("the router's environment")
    )
    for launch in launches:
        launch.starts_keyless('LLAMA_API_KEY="${LLAMA_API_KEY:?}" llama-server --models-preset F')
    sections = []
    sized = bool(sharing.most)
    # A preset cannot hold the router's own --models-max: the first line tells the user to give it
    most = sharing.most or (len(launches) if sharing.together and len(launches) > 1 else 0)
    for name, launch in named(launches):
        # For the reader: the router itself counts models, not bytes
        title = f"# {sizes_note(launch)}\n" if sized else ""
        try:
            # A launch's words without the router's own, each with a warning, and
            # without -a if its name is another model's: the router accepts none twice
            words: list[str] = []
            for item in launch.items:
                flag = item.canonical
                # The first line says --models-max
                if flag in _ROUTERS and not (flag == "--models-max" and most):
                    launch.warnings.append(
                        f"{item.name} does not belong to one model: give it to the router "
                        "(llama-server --models-preset FILE)"
                    )
                # A section's name is the model's name, and the router sets the child's alias to it
                if flag not in _ROUTERS and (flag != "-a" or name == launch.name):
                    words += item.words
            sections.append(title + section(name, words))
        except UsageError as error:  # the others of a directory can be served
            if len(launches) == 1:
                raise
            launch.warnings.append(f"{error}: left out")
    if not sections:
        raise UsageError(
            "a preset can hold none of these names: rename the files, or name them with -a"
        )
    head = [f"# llama-server --models-preset FILE --models-max {most}"] if most else []
    # `version` is reserved for later changes of the form (common_preset_context::load_from_ini)
    return "\n".join(["version = 1", "", *head, *notes, *sections])


def section(name: str, words: Sequence[str]) -> str:
    """Return one [section]: long names without dashes. Raises UsageError for values that an INI
    file cannot express."""
    if "]" in name:
        raise UsageError(f"-a {name!r}: a preset cannot hold it (] ends a section's name)")
    # e.g. "[qwen3-8b]", then "n-gpu-layers = 37"
    lines = [f"[{ini('-a', name)}]"]
    entries: dict[str, str] = {}
    for item in _flat(words):
        key, value = _entry(item)
        # A key stands once in an INI section; llama.cpp splits such values at commas
        adds = item.argument and item.argument.accumulates and key in entries
        entries[key] = f"{entries[key]},{value}" if adds else value
    return "\n".join([*lines, *(f"{key} = {value}" for key, value in entries.items())]) + "\n"


def _flat(words: Sequence[str]) -> Iterator[Item]:
    """Yield the words of today's llama-server, overrides as one argument: a preset keeps one value
    per argument, in its own order."""
    params = parse(words, command=None).params
    given = list(items(words))
    # Whether overrides must become one argument to keep their meaning
    kinds = {item.canonical for item in given} & set(_OVERRIDES)
    # The first override that matches a tensor counts: mixed kinds lose their order in a preset, and
    # of two -ncmoe one would be lost
    counts = [item.name for item in given if item.name in ("-ncmoe", "-ncffn")]
    mixed = len(kinds) > 1 or len(counts) > 1
    for item in given:
        flag = item.argument
        if flag is None:
            if not item.name:
                raise UsageError(
                    f"{item.words[0]!r}: not an argument of llama-server, so a preset cannot hold "
                    "it"
                )
            yield item
        elif flag in LEGACY and flag.field:
            yield from items(to_words(Params(**{flag.field: getattr(params, flag.field)})))
        elif not (mixed and flag.canonical in _OVERRIDES):
            yield item
    if mixed:
        text = ",".join(f"{pattern}={buffer}" for pattern, buffer in params.overrides)
        yield from items(["-ot", text])


def _entry(item: Item) -> tuple[str, str]:
    flag = item.argument
    if flag is None:  # of a newer llama.cpp
        name, equals, value = item.words[0].partition("=")
        # load_from_ini takes "true" for a switch
        value = value if equals else item.words[1] if len(item.words) > 1 else "true"
        if not re.fullmatch("-*[A-Za-z0-9][A-Za-z0-9_.-]*", name):
            raise UsageError(
                f"{name!r}: not an argument of llama-server, so a preset cannot hold it"
            )
        return name.lstrip("-"), ini(name, value)
    if flag.kind.words > 1:
        raise UsageError(f"{item.name}: a preset cannot hold an argument with two values")
    value = item.value
    if not flag.takes_value:
        # e.g. --no-mmap: "mmap = false"
        value = "true" if item.positive else "false"
    return flag.names[-1].lstrip("-"), ini(item.name, value)
