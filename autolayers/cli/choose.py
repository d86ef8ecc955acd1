"""`autolayers choose MODEL...`: which file of a repository, a directory or Ollama's store to take
for this machine."""

from __future__ import annotations

import os

from .. import __version__
from ..errors import AutolayersError, DoesNotFit, ModelError, UsageError
from ..files import opened
from ..flags.check import read
from ..flags.write import to_words
from ..output import emit, emit_json, say, say_all, show
from ..parallel import in_processes, in_threads
from ..planner.compare import quality
from ..planner.compare.best import JOBS
from ..planner.compare.cards import example, find
from ..planner.compare.choose import Choice, Recommended, advise, assess, front, wanted_ctx
from ..quoting import shell
from ..records import replace
from ..report.choose import advice_words, cards_text, choices_text
from ..report.table import Style
from ..request import Request
from ..sources import network_environ
from ..sources.offers import Offer, offers
from ..units import GiB, human
from .model import load
from .progress import Progress
from .words import models_named, other_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..flags.parse import Arguments
    from ..model import Model
    from ..planner import Machine

# llama-perplexity prints a few lines a file: more than 16 MiB is something else
MOST = 1 << 24  # characters of --quality
# One card and pairs of it are tried
_MOST_CARDS = 2  # of --for cards


def main(words: list[str]) -> int:
    """Print the table and the advice; 5 if nothing fits."""
    arguments = read("choose", words, os.environ)
    own = arguments.own
    names = models_named(arguments)
    if not names:
        raise UsageError(
            "name the models: autolayers choose hf:USER/REPO, a directory, files or ollama:; "
            "`autolayers best` chooses among the models of today"
        )
    # The files by name; their headers are read afterwards
    offered = _offered(names, arguments)
    if own.get("for") == "cards":
        return _cards(offered, arguments)
    if "speed" in own:
        raise UsageError("--speed needs --for cards")
    # One machine for all of them, asked once
    request = Request.of(arguments, os.environ).said()
    job = JOBS.get(str(own.get("for")))
    if job:
        request = job.asked(request, "workload" in own)
    readable, models = _models(offered, arguments)
    # What llama-perplexity measured, by its output in a file
    path, measured = own.get("quality"), []
    if path is not None:
        try:
            with opened(path) as file:
                # A log may have anything between its lines: only those with figures are read
                measured = quality.read(file.read(MOST).decode("utf-8", "replace"), path)
        except OSError as error:
            raise UsageError(f"--quality {path}: {error.strerror or error}") from None
        if not measured:
            raise UsageError(
                f'--quality {path}: no line "Mean KLD"; llama-perplexity --kl-divergence prints one'
            )

    # A plan for each file, on all cores
    def work(model: Model) -> Choice:
        return assess(model, request, measured)

    with Progress(len(models), "planning ") as progress:
        answers = in_processes(work, models, done=progress.step)
    answered = []
    for offer, answer in zip(readable, answers, strict=True):
        if not isinstance(answer, AutolayersError):
            answered.append((offer, answer))
            continue
        # One file that cannot be planned does not end a list of thirty
        say(str(answer) if offer.name in str(answer) else f"{offer.name}: {answer}")
    if not answered:
        raise ModelError("none of these models can be planned")
    choices = [choice for _, choice in answered]
    n_ctx = wanted_ctx(request)
    advice = advise(choices, n_ctx, job.least if job else 0.0)
    # A context that no file was trained for is planned, but somebody should know
    trained = max(choice.n_ctx_train for choice in choices)
    if trained < n_ctx and (request.params.n_ctx or request.policy.n_ctx):
        say(f"none of these models was trained for a context of {n_ctx}: the longest is {trained}")
    form = str(own.get("format") or "text")
    # Text prints the whole command, json and hf the file's flags alone
    command = _command(answered[advice.take], arguments, form) if advice else ()
    _print(form, names, answered, request.machine, n_ctx, advice, command)
    return 0 if advice else DoesNotFit.exit_code


def _command(taken: tuple[Offer, Choice], arguments: Arguments, form: str) -> tuple[str, ...]:
    """Return what starts the recommended file; for programs llama-server's flags for it alone."""
    # offer.starts: the command of the program that has it, for a model of Ollama's store
    offer, choice = taken
    if form != "text":
        return offer.words
    own = (
        ("llama-server", *offer.words, *choice.flags, *other_words(arguments))
        if offer.words
        else ()
    )
    return offer.starts or own


def _cards(offered: list[Offer], arguments: Arguments) -> int:
    """Print the GPUs that run the model; 5 if none does."""
    form = str(arguments.own.get("format") or "text")
    # Raise UsageError for what --for cards does not take.
    # The question is which GPU: a given one would be ignored
    if any(name in arguments.own for name in ("gpu", "machine", "backend", "budget")):
        raise UsageError(
            "--for cards tries all GPUs: omit --gpu, --machine, --backend and --budget"
        )
    if form == "hf":
        raise UsageError("--format hf prints a model; --for cards prints GPUs")
    if len(offered) != 1:
        raise UsageError(
            f"--for cards takes one model, not {len(offered)}: name one, such as "
            f"{shell([offered[0].source])}"
        )
    # One header is enough: the cards are known
    (model,) = _models(offered, arguments)[1]
    # No machine: each card is put into this request in turn
    request = Request.of(arguments, devices=(), max_devices=_MOST_CARDS).said()
    min_speed = float(arguments.own.get("speed", 0.0))
    # A model of 4096 tokens must not rule out every card for the default of 8192
    n_ctx = min(wanted_ctx(request), max(1, model.n_ctx_train))
    # kind of machine -> what runs the model, the least memory first
    by_kind = find(model, request, n_ctx, min_speed, say)
    if form == "json":
        emit_json(
            {
                "schema": 1,
                "autolayers": __version__,
                "model": {"path": model.path, "size": model.size},
                "n_ctx": n_ctx,
                "speed": min_speed or None,
                "cards": {
                    kind: [runs.to_dict() for runs in rows] for kind, rows in by_kind.items()
                },
            }
        )
    else:
        # A command to try: for a card that many people have, where one is among them
        runs = example(by_kind)
        command = (
            []
            if runs is None
            else [
                "autolayers",
                offered[0].source,
                "--gpu",
                # As --gpu takes it: rtx-3090 or 2xrtx-3090
                runs.name if runs.count == 1 else f"{runs.count}x{runs.name}",
                *(["--ram", f"{request.policy.ram / GiB:g}GiB"] if request.policy.ram else []),
                "-c",
                str(n_ctx),
                # The user's own constraints, so that the command gives the plan that was listed
                *to_words(replace(request.params, model=None, n_ctx=None)),
                *other_words(arguments),
            ]
        )
        show(
            cards_text(
                model.name,
                model.size,
                n_ctx,
                min_speed,
                by_kind,
                Style.here(),
                command,
            )
        )
    return 0 if any(by_kind.values()) else DoesNotFit.exit_code


def _offered(names: list[str], arguments: Arguments) -> list[Offer]:
    environ = network_environ(os.environ, arguments)
    listed: list[Offer] = []
    for name in names:
        with Progress() as progress:
            models, notes = offers(name, environ, progress.looking)
        listed += models
        say_all(notes)
    return listed


def _models(offered: list[Offer], arguments: Arguments) -> tuple[list[Offer], list[Model]]:
    """Return the models whose headers can be read; a line on stderr for each of the others."""
    with Progress(len(offered), "reading header ") as progress:
        # Threads, because a header of the Hub is waiting for the network
        models_or_errors = in_threads(
            lambda offer: load(offer.source, arguments), offered, progress.step
        )
    read: list[tuple[Offer, Model]] = []
    for offer, model in zip(offered, models_or_errors, strict=True):
        if isinstance(model, AutolayersError):
            # Its own message and exit code say more than "none of these"
            if len(offered) == 1:
                raise model
            say(str(model))
        else:
            read.append((offer, model))
    if not read:
        raise ModelError("none of these can be read")
    return [offer for offer, _ in read], [model for _, model in read]


def _print(
    form: str,
    names: list[str],
    answered: list[tuple[Offer, Choice]],
    machine: Machine,
    n_ctx: int,
    advice: Recommended | None,
    command: tuple[str, ...],
) -> None:
    labels = [offer.name for offer, _ in answered]
    choices = [choice for _, choice in answered]
    # The same sentence in text and in JSON
    text = advice_words(labels, choices, advice, n_ctx)
    # For $(...): flags of the file to take, or nothing, with the reason on stderr
    if form == "hf":
        if advice is None:
            say(text)
            return
        # e.g. a model of Ollama's store: llama-server has no flag for it
        if not command:
            source = answered[advice.take][0].source
            raise UsageError(f"--format hf: llama-server cannot download {source}")
        emit(shell(command) + "\n")
    elif form == "json":
        emit_json(_json(labels, answered, machine, n_ctx, advice, command, text))
    else:
        files = names[0] if len(names) == 1 else f"{len(choices)} files"
        title = f"{files} on {_sizes(machine)}, context {n_ctx} or more"
        style = Style.here()
        show(choices_text(title, labels, choices, advice, n_ctx, command, style))


def _json(
    labels: list[str],
    answered: list[tuple[Offer, Choice]],
    machine: Machine,
    n_ctx: int,
    advice: Recommended | None,
    command: tuple[str, ...],
    text: str,
) -> dict[str, object]:
    """Return the answer for --format json."""
    take, larger = (advice.take, advice.next) if advice else (None, None)
    # Whether no other file is as small, as fast and not known to be less close to the original
    in_front = front([choice for _, choice in answered], take)
    return {
        "schema": 1,
        "autolayers": __version__,
        "n_ctx": n_ctx,
        "devices": [
            {
                "name": device.name,
                "description": device.description,
                "free": machine.limits[device.name],
            }
            for device in machine.devices
        ],
        "ram": machine.ram,
        "files": [
            {
                "name": offer.name,
                "source": offer.source,
                "words": list(offer.words),
                **choice.to_dict(),
                "front": first,
            }
            for (offer, choice), first in zip(answered, in_front, strict=True)
        ],
        "advice": {
            "take": None if take is None else labels[take],
            "words": list(command),
            "text": text,
            "next": None if larger is None else labels[larger],
        },
    }


def _sizes(machine: Machine) -> str:
    """Return the machine's devices and RAM with their sizes."""
    sizes = [f"{device.name} {human(machine.limits[device.name])}" for device in machine.devices]
    if machine.ram is not None:
        sizes.append(f"RAM {human(machine.ram)}")
    return ", ".join(sizes)
