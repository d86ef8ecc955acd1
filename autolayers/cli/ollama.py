"""`autolayers ollama modelfile|plan|create|verify|list`: words in, one call each, the answer
out."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress

from ..devices import Inventory
from ..errors import AutolayersError, DoesNotFit, ModelError, UsageError
from ..files import opened
from ..flags.check import read
from ..flags.own import COMMANDS
from ..flags.parse import items
from ..ollama import modelfile
from ..ollama.advice import OllamaAdvice, advise
from ..ollama.log import Log, ServerLog
from ..ollama.other_models import MODELS_A_GPU, allowed_for
from ..ollama.settings import READ, Settings, predicted, used
from ..ollama.target import Target, from_file, from_modelfile, from_name, is_gguf
from ..ollama.verify import verify
from ..output import emit, emit_json, say, say_all, show
from ..quoting import posix, printable, shell
from ..records import replace
from ..request import Request
from ..sources.ollama.api import NotRunning, OllamaError, OllamaServer
from ..sources.ollama.store import Name, names, roots
from ..state import write
from ..units import human, whole
from .help import help_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

# own flags that the planner reads itself
_PLANNER = ("--budget", "--margin", "--llama-build")
_PATIENCE = 3.0  # seconds to wait for optional answers


def main(words: Sequence[str]) -> int:
    """Exit code: 0 planned and fits, 5 does not fit, 1 if verify could not load it. Errors are
    raised."""
    if not words:
        # On stderr: nothing was asked for
        sys.stderr.write(help_of("ollama"))
        return 2
    actions = {
        "modelfile": _modelfile,
        "plan": _plan,
        "create": _create,
        "verify": _verify,
        "list": _list,
    }
    # `autolayers ollama run` means Ollama's own command
    if words[0] not in actions:
        raise UsageError(
            f"autolayers ollama has no command {words[0]!r:.40}: {', '.join(actions)}; those of "
            "Ollama itself start with ollama alone"
        )
    return actions[words[0]](_Command(words[0], words[1:], os.environ))


# the variables that flags stand for
_VARIABLES = {"parallel": "OLLAMA_NUM_PARALLEL", "kv-type": "OLLAMA_KV_CACHE_TYPE"}


class _Command:
    """One command with its environment and server."""

    def __init__(self, action: str, words: Sequence[str], environ: Mapping[str, str]) -> None:
        command = f"ollama {action}"
        arguments = read(command, words)
        usage = COMMANDS[command].usage.split()
        # True counts as 1: one name, except for list
        if len(arguments.positional) != (action != "list"):
            wanted = (
                "no model name is expected" if action == "list" else f"one {usage[2]} is required"
            )
            raise UsageError(f"{command}: {wanted}, got {len(arguments.positional)}")
        self.what, self.environ = "".join(arguments.positional), environ
        self.arguments, self.own = arguments, arguments.own
        # llama-server's flags are for the plan, and go to the planner as they were written
        self.words = [
            word
            for item in items(words, command)
            if item.argument or item.name in _PLANNER
            for word in item.words
        ]
        self.server = OllamaServer.from_environment(environ)
        # Whether to read the log: of a local server, and not in a plan for another
        # machine
        self.log = (
            Log(environ, self.own.get("log")).server()
            if self.server.is_local and ("log" in self.own or not self._elsewhere)
            else ServerLog({})
        )
        # What is set here counts more than what the server was started with
        changed = {**self.log.settings, **environ}
        # Say which variables are others in the server's log
        for variable, value in self.log.settings.items():
            here = self.environ.get(variable, value)
            # A user exports a variable in a shell, and the service does not see it
            if variable in READ and here != value:
                there = f"{value} in the server's log"
                say(f"{variable} is {here} here and {there}: the plan uses this one")
        for name, variable in _VARIABLES.items():
            # A flag counts more than either
            if name in self.own:
                changed[variable] = str(self.own[name])
        self.settings = Settings.from_environment(changed)
        self._asked: Request | None = None

    @property
    def _elsewhere(self) -> bool:
        return "gpu" in self.own or "machine" in self.own

    def request(self, remote: bool) -> Request:
        """Return the request and its machine, resolved once. `remote`: the model will run on the
        server's machine."""
        if self._asked is None:
            # Its API says what it has loaded, but not which GPUs it has
            if remote and not (self.server.is_local or self._elsewhere):
                raise UsageError(
                    f"the server {self.server.url} is another machine: describe its GPUs with "
                    "--gpu SIZE or --machine FILE"
                )
            # amend changes found devices only: described ones are taken as they are
            request = Request.of(self.arguments, self.environ, amend=self._as_ollama_has_it)
            # A described machine, without the devices that Ollama's server does not use
            devices, unused = used(self.settings, request.machine.devices)
            if self._elsewhere and unused:
                without = request.on(devices, request.host)
                request = replace(without, notes=(*request.notes, *unused))
            self._asked = request.said()
        return self._asked

    def _as_ollama_has_it(self, inventory: Inventory) -> Inventory:
        """Return this machine's devices, or those of the server's log if none is found here. Memory
        that Ollama holds now counts as free: it is released when the planned model loads."""
        devices, notes = list(inventory.devices), inventory.notes
        if not devices and self.log.gpus:
            # these figures are from before the loaded models took any
            # Name the GPUs of the server's log, and when their free memory was read.
            times = ((gpu.name, self.log.at.get(gpu.name)) for gpu in self.log.gpus)
            names = [f"{name} (free memory of {time})" if time else name for name, time in times]
            return Inventory(
                tuple(self.log.gpus),
                inventory.host,
                ((f"GPUs from the server's log: {', '.join(names)}"),),
            )
        # e.g. integrated GPUs, which Ollama leaves alone unless a variable says otherwise
        devices, unused = used(self.settings, devices)
        notes = (*notes, *unused)
        loaded = []
        with suppress(OllamaError):
            if devices and self.server.is_local:
                # Only what holds device memory: the rest changes no placement
                loaded = [entry for entry in self.server.ps(_PATIENCE) if entry["size_vram"]]
        if loaded:
            held_by = ", ".join(str(entry.get("name")) for entry in loaded)
            are = f"{held_by} {'is' if len(loaded) == 1 else 'are'} loaded in Ollama"
            # /api/ps gives a sum over all GPUs: which one holds it is not known
            if len(devices) > 1:
                notes = (*notes, f"{are} and counted as used memory: `ollama stop` frees it")
            else:
                held, card = sum(entry["size_vram"] for entry in loaded), devices[0]
                # An answer that cannot be true must not make memory appear
                if held > card.total:
                    notes = (
                        *notes,
                        f"Ollama reports {human(held)} on a GPU of {human(card.total)}: not "
                        "counted",
                    )
                else:
                    notes = (*notes, f"{are}; the plan assumes that this memory is freed")
                    devices = [replace(card, free=min(card.total, card.free + held))]
        return Inventory(tuple(devices), inventory.host, notes)

    def keep(self, target: Target) -> None:
        """Take what a model holds that stays loaded from the machine, for the next one."""
        advice = self.advise(target, remote=True, own={})
        request, plan = self.request(remote=True), advice.plan
        taken = {row.name: row.used + row.margin for row in plan.devices if row.used}
        self._asked = request.less(taken, plan.host.taken)

    def advise(
        self, target: Target, remote: bool = False, own: Mapping[str, Any] | None = None
    ) -> OllamaAdvice:
        remote = remote or target.remote
        request, own = self.request(remote), self.own if own is None else own
        return advise(
            target,
            self.settings,
            request.machine.devices,
            request.host,
            num_ctx=own.get("num-ctx"),
            num_batch=own.get("num-batch"),
            words=self.words,
            pin="pin" in own,
            version=self._version(remote),
            explain="quiet" not in own,
        )

    def _version(self, remote: bool) -> str:
        """Return the version of the server that will load the model, "" if unknown. A Modelfile may
        be for any server, so a remote one is not queried for it."""
        if not remote and not self.server.is_local:
            return ""
        try:
            return self.server.version(_PATIENCE)
        except OllamaError:
            return ""


def _plan(command: _Command) -> int:
    stay = [name for name in str(command.own.get("stay", "")).split(",") if name]
    for name in stay:
        command.keep(from_name(name, command.environ, command.server))
    # The model of a file or a name.
    what = command.what
    # A file of the folder before a model of the same name
    if not os.path.isfile(what):
        target_of = from_name(what, command.environ, command.server)
    else:
        target_of = from_file(what) if is_gguf(what) else _of_modelfile(command, _read(what), what)
    advice = command.advise(target_of, remote=not os.path.isfile(command.what))
    if stay:
        # An answer with what Ollama needs so that these stay loaded beside the model
        devices = command.request(remote=True).machine.devices
        target, server = advice.target, list(advice.server)
        given = whole(command.environ.get("OLLAMA_MAX_LOADED_MODELS", ""))
        if len(stay) >= (given or MODELS_A_GPU * max(1, len(devices))):
            server.append(f"OLLAMA_MAX_LOADED_MODELS={len(stay) + 1}")
        notes = [
            f"{name} stays: curl {command.server.url}/api/generate -d "
            + posix([json.dumps({"model": name, "keep_alive": -1})])
            for name in stay
        ]
        guess = predicted(target.model, target.model.size, advice.num_ctx * advice.parallel)
        allowed = allowed_for(guess, devices, command.settings)
        # A num_gpu that is not all skips that check
        if devices and guess > allowed and advice.num_gpu in (None, advice.everything):
            notes.append(
                f"Ollama unloads one of those first all the same: it takes this model for "
                f"{human(guess)}, of {human(allowed)} that it may have; num_ctx or --kv-type makes "
                "it smaller, and a num_gpu of fewer layers is not looked at"
            )
        advice = replace(advice, server=tuple(server), notes=(*advice.notes, *notes))
    if "json" in command.own:
        emit_json(_as_dict(advice))
    # -1 is Ollama's own value for "choose it yourself"
    elif "quiet" in command.own:
        emit(f"{-1 if advice.num_gpu is None else advice.num_gpu}\n")
    else:
        _print(*advice.summary, *(f"  {reason}" for reason in advice.reasons))
        if advice.server:
            _print(
                "settings of the server (`systemctl edit ollama`), for every model it serves, that "
                "give this placement:",
                *(f"  {line}" for line in advice.server),
            )
    # JSON has them under "warnings"
    if "json" not in command.own:
        say_all(advice.notes)
    return 0 if advice.plan.fits else DoesNotFit.exit_code


def _modelfile(command: _Command) -> int:
    own, what = command.own, command.what
    in_place = "in-place" in own
    if in_place and own.get("output") is not None:
        raise UsageError("--in-place and --output exclude each other: give one of them")
    # A Modelfile is changed in place, everything else gets a new one
    if what == "-" or (os.path.isfile(what) and not is_gguf(what)):
        if in_place and what == "-":
            raise UsageError("--in-place needs a file")
        return _rewritten(command)
    if "auto" in own:
        raise UsageError(
            f"--auto changes a Modelfile, which {what} is not: `ollama create {shell([what])} "
            "--auto` changes a model"
        )
    if in_place:
        raise UsageError(f"--in-place changes a Modelfile, which {what} is not: use -o FILE")
    # FROM needs a name that Ollama's server finds: an absolute path or a model's name
    # The target of a GGUF file or a model's name, and what FROM names
    # --model: where the file lies here, if FROM's name is of another machine
    named = command.own.get("model")
    # Whether it is a file name and not a model's name
    what = command.what
    separated = os.sep != "/" and os.sep in what
    written_so = separated or what.startswith((".", "/", "~")) or what.endswith(".gguf")
    if written_so or os.path.exists(what):
        path = os.path.expanduser(command.what if named is None else named)
        target, source = from_file(path), os.path.abspath(os.path.expanduser(command.what))
    elif named:
        target, source = from_file(named, command.what), command.what
    else:
        target, source = from_name(command.what, command.environ, command.server), command.what
    advice = command.advise(target)
    _must_fit(advice)
    # A minimal Modelfile with the plan in comments.
    server = [f"server: {' '.join(advice.server)}"] if advice.server else []
    written = modelfile.minimal(
        source, advice.over(advice.target.parameters), [*advice.summary, *advice.notes, *server]
    )
    _say_notes(advice)
    return _written(command, written, advice.summary)


def _rewritten(command: _Command) -> int:
    """Write a Modelfile, from a file or standard input, with the plan's parameters."""
    if command.what == "-":
        # One byte more than may be, so that a larger file is refused and not cut
        data, source = sys.stdin.buffer.read(modelfile.MAX_SIZE + 1), "standard input"
    else:
        data, source = _read(command.what), command.what
    if "auto" in command.own:
        # --auto needs no plan, and so no GPU and no model's file
        return _written(command, modelfile.rewrite(data, {"num_gpu": -1}, source), ["num_gpu -1"])
    target = _of_modelfile(command, data, source)
    advice = command.advise(target)
    _must_fit(advice)
    # Every byte but those of the parameters stays
    written = modelfile.rewrite(data, advice.over(target.parameters), source)
    _say_notes(advice)
    return _written(command, written, advice.summary)


def _say_notes(advice: OllamaAdvice) -> None:
    """Say an advice's notes, and what the server's environment needs, once for all models."""
    say_all(advice.notes)
    if advice.server:
        say(f"settings of the Ollama server, for every model: {' '.join(advice.server)}")


def _written(command: _Command, data: bytes, summary: Sequence[str]) -> int:
    """Write a Modelfile, and print a line that summarises it."""
    own = command.own
    # Bytes: a Modelfile may be in any encoding
    if own.get("output") is None and "in-place" not in own:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return 0
    backup = write(own.get("output") or command.what, data, backup="backup" in own)
    if backup:
        say(f"the old file is kept as {backup}")
    _print(summary[0])
    return 0


def _create(command: _Command) -> int:
    own, server = command.own, command.server
    if "as" not in own and "auto" not in own:
        raise UsageError("ollama create: --as NEW is required")
    # --auto may change a model under its own name
    name, new = Name.parse(command.what), Name.parse(own.get("as", command.what))
    if not server.has(name):  # the server would download it
        raise ModelError(
            f"the server at {server.url} has no model {name}: `ollama pull {shell([str(name)])}` "
            "downloads it"
        )
    # Ollama itself replaces a model of that name without a question
    if "force" not in own and not ("auto" in own and new.same(name)) and server.has(new):
        raise UsageError(f"{new} exists already: --force replaces it")
    if "auto" in own:
        server.create(str(new), str(name), {"num_gpu": -1})
        _print(
            f"{new}: num_gpu -1 (a loaded model keeps its layers until `ollama stop "
            f"{shell([str(new)])}`)"
        )
        return 0
    target = from_name(command.what, command.environ, server)
    advice = command.advise(target, remote=True)
    _must_fit(advice)
    parameters = advice.over(target.parameters)
    server.create(str(new), str(name), parameters)
    _say_notes(advice)
    _print(f"{new}: " + ", ".join(f"{key} {value}" for key, value in parameters.items()))
    return 0


def _verify(command: _Command) -> int:
    own, server = command.own, command.server
    server.version()  # before any work: does it exist
    target = from_name(command.what, command.environ, server)
    # Its own memory would count as used by something else
    server.unload(command.what)
    advice = command.advise(target, remote=True)
    say_all(advice.notes)
    result = verify(
        advice, command.what, server, log=own.get("log"), environ=command.environ, say=say
    )
    if "json" in own:
        emit_json({**_as_dict(advice), "verified": result.to_dict()})
    else:
        _print(*result.lines)
    if result.loaded and "write" in own:
        server.create(command.what, command.what, result.parameters)
        say(
            f"stored in {command.what}: "
            + ", ".join(f"{key} {value}" for key, value in result.parameters.items())
        )
    return 0 if result.loaded else 1


def _list(command: _Command) -> int:
    """Print one line per model; models without a GGUF are named on stderr, and an error only where
    there are no others."""
    answers: list[dict[str, object]] = []
    fits: list[bool] = []
    failed = 0
    for name in _names(command):
        try:
            advice = command.advise(from_name(name, command.environ, command.server), remote=True)
        # One unreadable model of a store of fifty does not end the list
        except AutolayersError as error:
            say(f"{name}: {error}")
            failed = error.exit_code
            continue
        fits.append(advice.plan.fits)
        if "json" in command.own:
            answers.append({"model": name, **_as_dict(advice)})
        else:
            _print(
                f"{name}: {advice.summary[0].partition(': ')[2]}"
                + ("" if advice.plan.fits else ", does not fit")
            )
            sys.stdout.flush()
    if "json" in command.own:
        emit_json(answers)
    if not fits:
        return failed
    return 0 if all(fits) else DoesNotFit.exit_code


def _names(command: _Command) -> list[str]:
    """Return the server's models, or the store's if no server runs."""
    try:
        models = [str(entry.get("name")) for entry in command.server.tags()]
        if not models:
            say(
                f"the server at {command.server.url} has no models: `ollama pull NAME` downloads "
                "one"
            )
        return models
    except NotRunning:
        if not command.server.is_local:
            raise
        models = [str(name) for name in names(command.environ)]
        if not models:
            say(
                f"no models: no server at {command.server.url}, and none in "
                f"{' or '.join(roots(command.environ))} (set OLLAMA_HOST and OLLAMA_MODELS if they "
                "are elsewhere)"
            )
        return models


def _of_modelfile(command: _Command, data: bytes, source: str) -> Target:
    parsed = modelfile.parse(data, source)
    directory = (
        os.getcwd() if source == "standard input" else os.path.dirname(os.path.abspath(source))
    )
    return from_modelfile(
        parsed, directory, command.own.get("model"), command.environ, command.server
    )


def _as_dict(advice: OllamaAdvice) -> dict[str, object]:
    # The layers that Ollama offloads without num_gpu, if known and not all.
    own = advice.own_choice
    own_layers = None if own is None else own.params.layers_wanted(advice.everything)
    return {
        "num_gpu": advice.num_gpu,
        "num_ctx": advice.num_ctx,
        "num_batch": advice.num_batch,
        "pin_num_batch": advice.pin_batch,
        "parallel": advice.parallel,
        "n_layers_all": advice.everything,
        "parameters": advice.parameters,
        "ollamas_own_layers": own_layers,
        "server": list(advice.server),
        "warnings": list(advice.notes),
        "plan": advice.plan.to_dict(),
    }


def _must_fit(advice: OllamaAdvice) -> None:
    if not advice.plan.fits:
        reason = next(iter(advice.plan.warnings or advice.plan.reasons), "too little memory")
        raise DoesNotFit(
            f"{advice.target.label} does not fit with num_ctx {advice.num_ctx}: {reason}; nothing "
            "was written"
        )


def _read(path: str) -> bytes:
    try:
        with opened(path) as stream:
            return stream.read(modelfile.MAX_SIZE + 1)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None


def _print(*lines: str) -> None:
    show("".join(f"{printable(line)}\n" for line in lines))
