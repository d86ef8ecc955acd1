"""A launch as the writers need it: words without secrets, the Params they mean, and a name."""

from __future__ import annotations

import os
import re

from ...backends import HOST, backend_of
from ...errors import UsageError
from ...flags.params import Params
from ...flags.parse import items, parse
from ...flags.table import Argument
from ...flags.write import to_words
from ...net import public
from ..command import WrappedCommand
from ..secrets import launcher_without_secrets, without_secrets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ...flags.parse import Arguments
    from ...planner import Plan

_PORT = "8080"
_ELSEWHERE = ("hf:", "docker:", "http://", "https://")


class LaunchFile:
    """A command with the words added to it. `secrets`: the environment variables that carry the words left out."""

    def __init__(self, command: WrappedCommand, added: Sequence[str], plan: Plan, environ: Mapping[str, str]) -> None:
        self.command = command
        self.backend = backend_of(next(iter(plan.breakdown.devices), HOST))
        words = [*command.words, *added]
        self.words, names = without_secrets(words)
        self.launcher, more = launcher_without_secrets(command)
        self.secrets = list(dict.fromkeys([*names, *more]))
        self.arguments = parse(self.words, environ, command=None)
        self.params = self.arguments.params
        self.host = self.arguments.value("--host")
        self.port = self.arguments.value("--port") or _PORT
        self._model = parse(words, environ, command=None).params.model

    @classmethod
    def of_plan(cls, plan: Plan, arguments: Arguments, model: str | None, environ: Mapping[str, str]) -> LaunchFile:
        """A llama-server with a plan's flags; `model` as the user named it, None: as the plan does."""
        words = [] if "-m" in plan.flags else to_words(Params(model=model or plan.model.path))
        command = WrappedCommand((), ("llama-server",), (*words, *arguments.rest), "llama-server")
        return cls(command, plan.flags, plan, environ)

    @property
    def name(self) -> str:
        """The alias, or the model's file name without directory, ending and part number, other characters as dashes."""
        if alias := self.arguments.value("-a"):
            return alias.split(",")[0]
        model = self._model or "llama-server"
        base = (public(model) if "://" in model else model).replace("\\", "/").rpartition("/")[2]
        return plain_name(re.sub(r"(-\d{5}-of-\d{5})?\.gguf$", "", base)) or "model"

    @property
    def program(self) -> list[str]:
        """The launcher with an absolute path: services do not search the user's PATH."""
        import shutil

        first, *others = self.launcher
        return [os.path.abspath(found) if (found := shutil.which(first)) else first, *others]

    @property
    def files(self) -> list[str]:
        """Paths that the launch reads."""
        params = self.params
        paths = [params.model, params.model_draft, params.mmproj, *params.lora, *params.control_vector]
        return [path for path in paths if path and not path.startswith(_ELSEWHERE)]

    @property
    def absolute_words(self) -> list[str]:
        """The words, paths of this machine as absolute ones."""
        here = set() if self.command.container else set(self.files)
        return [os.path.abspath(word) if word in here else word for word in self.words]

    @property
    def model(self) -> str:
        """The model's file or place. Raises UsageError without one."""
        if self.params.model is None:
            raise UsageError("no model in the command: add -m MODEL")
        return self.params.model

    def secret_notes(self, where: str) -> list[str]:
        """A comment for each secret that was left out."""
        return [f"# {name} is read from {where}" for name in self.secrets]


def plain_name(text: str) -> str:
    """The text with a dash for what a file's or a service's name should not have."""
    return re.sub(r"[^\w.+-]+", "-", text)


def named(launches: Sequence[LaunchFile]) -> Iterator[tuple[str, LaunchFile]]:
    """The launches under names that differ: a number where two are the same."""
    seen: set[str] = set()
    for launch in launches:
        name, number = launch.name, 1
        while name in seen:
            number += 1
            name = f"{launch.name}-{number}"
        seen.add(name)
        yield name, launch


def without(words: Sequence[str], *flags: str) -> list[str]:
    """The words without these arguments of llama-server, by their canonical names."""
    return [word for item in items(words) if not (isinstance(item.flag, Argument) and item.flag.canonical in flags)
            for word in item.words]
