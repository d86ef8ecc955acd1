"""The wrapped command: its launcher, llama.cpp's words, and the words that the plan adds.

    run --retry 2 llama-server -m model.gguf         own flags, then the command
    run /opt/llama/llama-cli -m model.gguf -p Hello  any program that takes the same flags
    run nice -n 5 llama-server -m model.gguf         words before a llama-* program start it
    run llama serve -m model.gguf                    the combined program
    run ./serve.sh -- -m model.gguf                  -- marks where llama.cpp's words begin
    run docker run --gpus all -v /data:/models ghcr.io/ggml-org/llama.cpp:server -m /models/m.gguf

A given word is never changed, moved or dropped. The exceptions are a -- that marks where
llama.cpp's words begin, a context of 16k, which llama.cpp would read as 16, and --flag=value, which
is two words for it.
"""

from __future__ import annotations

from os.path import lexists

from ..engines import Engine, of_program
from ..engines.ik_llama import IK_LLAMA
from ..engines.ik_llama import words as ik_words
from ..errors import UsageError
from ..flags.check import refuse_unknown
from ..flags.own import own_flags
from ..flags.params import Params, Scaled
from ..flags.parse import config_files, items_of_fork, parse
from ..flags.table import lookup
from ..flags.write import to_words
from ..records import dataclass, replace
from ..tables import listed
from . import bench

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from ..builds import Build

    Overrides = tuple[tuple[str, str], ...]

_CONTAINERS = ("docker", "podman", "nerdctl")
# Switches of `docker run`; each of its other options takes a value
_CONTAINER_SWITCHES = frozenset(
    listed(
        "-d --detach -i --interactive -t --tty --rm --init --privileged --read-only -P "
        "--publish-all -q --quiet --no-healthcheck --oom-kill-disable --help --replace --tls-verify"
    )
)

# of llama-perplexity: sequences that share a cache
_TASKS = frozenset(("--hellaswag", "--winogrande", "--multiple-choice"))

FILES = ("mmproj", "model_draft", "lora", "control_vector")  # fields of Params
# commands of the program `llama` (app/llama.cpp) whose own program has another name
_COMMANDS = {
    "serve": "server",
    "client": "cli",
    "complete": "completion",
    "bench": "bench",
    "perplexity": "perplexity",
}


@dataclass(frozen=True)
class WrappedCommand:
    """A command as given, in its parts; see `read`."""

    # up to and including the program; a container's image and its entry point
    launcher: tuple[str, ...]
    words: tuple[str, ...]  # llama.cpp's
    # "llama-server", "llama-bench", "serve.sh": no directory, no .exe
    program: str
    mounts: tuple[tuple[str, str], ...] = ()  # (directory in the container, directory here)
    container: bool = False
    meant: tuple[str, ...] | None = None  # what a fork's words are planned as, see forks
    engine: Engine | None = None  # what they say of the program

    @property
    def executable(self) -> str:
        """The launcher's word for llama.cpp's program, the first word if none is known."""
        return self.launcher[_program(self.launcher)]

    @property
    def bench(self) -> bool:
        return self.program == "llama-bench"

    @property
    def plannable(self) -> tuple[str, ...]:
        """`words` translated to llama-server's, for the planner."""
        words = self.words if self.meant is None else self.meant
        # llama-bench has its own flags and their defaults
        # (-c is none of them, and lists such as -p 512,1024 make several launches)
        if self.bench:
            return bench.as_server(words)
        program = of_program(self.program)
        # The words come first, so that given ones after them win
        if program.chunk and not _TASKS.isdisjoint(words):
            return ("-np", "1", "-kvu", *words)
        return ("-np", "1", *words) if program.one_sequence else words

    @property
    def environ(self) -> dict[str, str]:
        """The LLAMA_ARG_* that the command itself sets: `env LLAMA_ARG_X=1 ...`, `docker run -e
        LLAMA_ARG_X=1 ...`."""
        pairs = (word.removeprefix("--env=").partition("=") for word in self.launcher[:-1])
        return {
            name: value for name, equals, value in pairs if equals and name.startswith("LLAMA_ARG_")
        }

    def read_besides(self, environ: Mapping[str, str]) -> tuple[Mapping[str, str], tuple[str, ...]]:
        """Return the environment and the config files that llama.cpp reads besides its words; a
        container does not see this environment, only what its command passes."""
        if self.container:
            return self.environ, ()
        # ~/.config/llama.cpp/config.ini and the like
        return {**environ, **self.environ}, tuple(config_files(environ))

    def here(self, path: str) -> str:
        """Return a path of the command, as a path of this machine."""
        # the deepest mount first: another one may lie within it
        # e.g. ("/models", "/data"): /models/m.gguf is /data/m.gguf here
        for inside, outside in self.mounts:
            if path == inside or path.startswith(inside.rstrip("/") + "/"):
                return outside.rstrip("/") + path[len(inside.rstrip("/")) :]
        return path

    def files_here(self, params: Params) -> Params:
        """`params` with the companions' paths on this machine."""
        here: dict[str, Any] = {}
        for name in FILES:
            value = getattr(params, name)
            if isinstance(value, tuple):
                here[name] = tuple(
                    Scaled(self.here(path), path.scale)
                    if isinstance(path, Scaled)
                    else self.here(path)
                    for path in value
                )
            elif value:
                here[name] = self.here(value)
        return replace(params, **here)


def read(argv: Sequence[str], command: str = "run") -> WrappedCommand:
    """Splits the words after `autolayers run` (or tune). Raises UsageError: no command, or an own
    flag after the program."""
    wrapped = list(argv[own_end(argv, command) :])
    if wrapped[:1] == ["--"]:
        del wrapped[0]
    # Raise UsageError if the first word is no program.
    if not wrapped:
        raise UsageError(
            f"nothing to {command}: autolayers {command} [flags] llama-server -m model.gguf ..."
        )
    if wrapped[0].startswith("-"):
        # An unknown flag is a mistyped own one: the nearest is suggested
        if lookup(wrapped[0].partition("=")[0]) is None:
            refuse_unknown(wrapped[0], command)
        raise UsageError(
            f"{wrapped[0]}: not a flag of autolayers {command} (llama-server's follow the word "
            "llama-server)"
        )
    # a command in quotes is one word for the shell
    if len(wrapped) == 1 and " -" in wrapped[0] and not lexists(wrapped[0]):
        raise UsageError(f"{wrapped[0]}: one word, not a command: remove the quotes around it")
    if wrapped[0].lower().endswith(".gguf"):
        raise UsageError(
            f"{wrapped[0]} is a model, not a program: autolayers {command} llama-server -m MODEL"
        )
    name = _basename(wrapped[0])
    # `docker run`, `docker container run`
    if name in _CONTAINERS and "run" in wrapped[:3]:
        return _container(wrapped, command)
    # e.g. 3 of ["nice", "-n", "5", "llama-server", ...]
    start = _program(wrapped)
    program = _basename(wrapped[start])
    following = wrapped[start + 1 : start + 2]
    # the combined program: its first word is the command
    if program == "llama" and following and not following[0].startswith("-"):
        start += 1
        program = "llama-" + _COMMANDS.get(wrapped[start], wrapped[start])
    launcher, words = wrapped[: start + 1], wrapped[start + 1 :]
    # the user's own mark counts more than what is guessed
    if "--" in words:
        split = words.index("--")
        launcher, words = [*launcher, *words[:split]], words[split + 1 :]
    return WrappedCommand(tuple(launcher), _plain(words, program, command), program)


# with these llama-server loads no model: it prints and exits
_ANSWERS = frozenset(
    listed(
        "-h --help --usage --version --license --list-devices -cl --cache-list --completion-bash"
    )
)

# fields of a plan for embeddings that llama-server alone has
_TO_EMBED = frozenset(("embedding", "reranking", "cache_ram"))


def needs_no_plan(command: WrappedCommand) -> str | None:
    """Return the word of a command with which llama-server loads no model, None where it may load
    one."""
    if not command.program.startswith("llama-"):
        return None
    return next(
        (name for name in (word.partition("=")[0] for word in command.words) if name in _ANSWERS),
        None,
    )


def _plain(words: Sequence[str], program: str, command: str) -> tuple[str, ...]:
    """llama.cpp's words, with contexts such as 16k as numbers and --flag=value as two words. Raises
    UsageError for an own flag of autolayers' command."""
    if program == "llama-bench":  # its flags differ
        unknown, plain = words, words
    else:
        items = list(items_of_fork(words))
        unknown = [item.name for item in items if item.flag is None]
        plain = [word for item in items for word in item.words]
    own = own_flags(command)
    for name in (word.partition("=")[0] for word in unknown):
        if name.startswith("--") and name.replace("_", "-") in own:
            raise UsageError(f"{name} is autolayers' own flag: write it before {program}")
    return tuple(plain)


def own_end(argv: Sequence[str], command: str = "run") -> int:
    """Return the index where the wrapped command begins."""
    own = own_flags(command)
    i = 0
    while i < len(argv):
        name, equals, _ = argv[i].partition("=")
        # llama.cpp takes underscores too
        name = name.replace("_", "-") if name.startswith("--") else name
        if name not in own:
            break
        # --retry 2 are two words, --retry=2 and --verify one
        i += 2 if own[name].takes_value and not equals else 1
    return min(i, len(argv))


def _basename(word: str) -> str:
    name = word.replace("\\", "/").rpartition("/")[2]
    return name[:-4] if name.lower().endswith(".exe") else name


def _program(wrapped: Sequence[str]) -> int:
    """Return the index of the program that takes llama.cpp's words: the first llama-*, otherwise
    the first word."""
    for i, word in enumerate(wrapped):
        after = wrapped[i + 1] if i + 1 < len(wrapped) else ""
        # Whether a word, and the one after it, name a program of llama.cpp
        if word.startswith("-") or "=" in word or word.endswith(".gguf"):
            found = False
        else:
            name = _basename(word)
            commands = (*_COMMANDS, *_COMMANDS.values())
            found = name.startswith("llama-") or (name == "llama" and after in commands)
        if found:
            return i
        if word == "--" or (i and field_of(word) == "model"):
            break  # from here on words are arguments
    return 0


def _container(wrapped: list[str], command: str) -> WrappedCommand:
    # docker run [flags] IMAGE [program] [words]
    mounts, i = _container_flags(wrapped, wrapped.index("run") + 1)
    if wrapped[i : i + 1] == ["--"]:
        i += 1
    if i >= len(wrapped):
        raise UsageError(f"{wrapped[0]} run: no image in the command")
    image = i
    program = "llama-server"
    while i + 1 < len(wrapped) and not wrapped[i + 1].startswith("-"):
        i += 1  # the program inside the image, or a shell that starts it
        program = _basename(wrapped[i])
    launcher, words = wrapped[: i + 1], wrapped[i + 1 :]
    if words[:1] == ["--"]:
        del words[0]
    # llama.cpp's images with the tag :light start llama-cli
    if i == image and ":light" in wrapped[image]:
        program = "llama-cli"
    whole = [pair for pair in mounts if all(pair)]
    # An anonymous volume has no directory here: its pair has an empty part
    deepest_first = tuple(sorted(whole, key=lambda pair: -len(pair[0])))
    plain = _plain(words, program, command)
    return WrappedCommand(tuple(launcher), plain, program, deepest_first, True)


def _container_flags(wrapped: Sequence[str], i: int) -> tuple[list[tuple[str, str]], int]:
    """Return (inside, outside) of each mount of `docker run`, and the place of the first word
    that is no flag."""
    mounts = []
    while i < len(wrapped) and wrapped[i].startswith("-") and wrapped[i] != "--":
        name, equals, value = wrapped[i].partition("=")
        i += 1
        # -it bundles two flags that take no value
        bundled = not name.startswith("--") and len(name) > 2 and set(name[1:]) <= set("ditPq")
        if not (equals or bundled or name in _CONTAINER_SWITCHES):
            value = wrapped[i] if i < len(wrapped) else ""
            i += 1
        if name in ("-v", "--volume"):
            # HOST:CONTAINER[:OPTIONS], where HOST may begin with a Windows drive:
            # C:\data:/models has a colon that separates nothing
            has_drive = value[1:2] == ":" and value[2:3] in ("\\", "/")
            drive = value[:2] if has_drive else ""
            outside, colon, rest = value[len(drive) :].partition(":")
            mounts.append((rest.partition(":")[0], drive + outside) if colon else ("", ""))
        elif name == "--mount":
            # type=bind,source=OUTSIDE,target=INSIDE
            given = {part.partition("=")[0]: part.partition("=")[2] for part in value.split(",")}
            inside = given.get("target") or given.get("dst") or given.get("destination") or ""
            mounts.append((inside, given.get("source") or given.get("src") or ""))
    return mounts, i


# --- the plan's flags


# Given as llama.cpp's own default they forbid no other launch (frames.plain), so the plan's counts.
_FREE = ("device", "split_mode", "main_gpu")


def additions(
    command: WrappedCommand,
    flags: Sequence[str],
    build: Build,
    environ: Mapping[str, str],
    config_files: Sequence[str] = (),
) -> tuple[list[str], list[str]]:
    """Return (words to add, notes): the plan's flags that the command lacks and the build knows.

    `flags` are the plan's, complete. Settings from the environment or a config file are repeated as
    flags, because the plan relies on them, except those that llama.cpp would then apply twice.
    """
    typed = parse(command.plannable, command=None)
    spoken = parse(command.plannable, environ, config_files, command=None)
    own: list[str] = []
    if build.engine.name == IK_LLAMA.name:
        given_own = command.engine.words if command.engine else ()
        flags, own = ik_words.apart(flags, given_own, build.flags or (), build.bare_flash)
    # Parsed back into fields, so that spellings do not matter
    wanted = parse(flags, command=None).params
    # by field: -c, --ctx-size and LLAMA_ARG_CTX_SIZE are one
    given = {field_of(flag) for flag, _ in typed.given} - {""}
    # a flag that accumulates would add to the variable's value instead of replacing it
    twice = {
        row[0].field for flag, _ in spoken.given if (row := lookup(flag)) and row[0].accumulates
    }
    words: list[str] = []
    notes: list[str] = []
    if command.bench and bench.fits_itself(command.words):
        return [], ["llama-bench fits the model itself (--fit-target): no flags are added"]
    server = command.program.startswith("llama-server") or not command.program.startswith("llama-")
    embeds = bool(wanted.embedding or wanted.reranking)
    # The words of each field, in the fields' order
    values = {name: getattr(wanted, name) for name in Params.__dataclass_fields__}
    # No devices, `()`, are a value: -dev none
    for name, written in [
        (name, _words_of(name, value))
        for name, value in values.items()
        if value is not None and (value != () or name in ("device", "device_draft"))
    ]:
        # llama-embedding does nothing else, and its parser would refuse these words
        if embeds and not server and name in _TO_EMBED:
            continue
        theirs = getattr(spoken.params, name)
        if name in ("overrides", "overrides_draft"):
            # of several -ot the first match counts, so given ones stay in front
            # `spoken`, not `typed`: a variable's overrides are in the process already
            # Same beginning: the plan kept the given ones in front and added its own
            pairs = getattr(wanted, name)
            alike = pairs[: len(theirs)] == theirs
            lacking = pairs[len(theirs) :] if alike else [p for p in pairs if p not in theirs]
            written = _words_of(name, tuple(lacking), build)
        # the plan may have another value than the given one, but not of a word that is written
        # twice: the last one counts
        elif name in twice or (
            name in given and (name not in _FREE or theirs == getattr(wanted, name))
        ):
            continue
        # as the command wrote it: a path inside the container
        elif name in FILES and command.mounts and theirs:
            written = _words_of(name, theirs)
        if written and not build.knows(written[0]):
            # a fork has other words, or none
            if not build.fork:
                notes.append(f"this llama.cpp does not know {written[0]}: left out")
            continue
        # before it took a value, -fa alone meant on
        if name == "flash_attn" and build.bare_flash:
            written = ["-fa"] if wanted.flash_attn == "on" else []
        words += bench.for_bench(name, written) if command.bench else written
    return [*words, *own], notes


def _words_of(name: str, value: Any, build: Build | None = None) -> list[str]:
    """Return a field's value in llama-server's words, in a build's where one is given."""
    return to_words(replace(Params(), **{name: value}), build.knows if build else None)


def field_of(flag: str) -> str:
    rows = lookup(flag)
    return rows[0].field if rows else ""


def complete(command: WrappedCommand, added: Sequence[str]) -> list[str]:
    """Return the whole command line."""
    return [*command.launcher, *command.words, *added]
