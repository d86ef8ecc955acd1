"""The page's questions and their answers, as JSON. The same code behind the loopback server and in
the browser.

    engine = Engine()
    engine.call("plan", {"model": "llama-3.1-8b-q4_k_m", "gpu": "24GiB", "ctx": "8192"})
    # {"need": 8388608}: send that many bytes; or {"model": {...}}
    engine.add("model.gguf", 4920739232, first_bytes)

form.py reads a question's launch, names.py its model's name; verdict.py has the sentence for
everybody.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from importlib import metadata
from threading import Lock

from .. import __version__, bundled
from ..builds.sources import NEWEST
from ..bundled import projectors, published
from ..devices import machine_file
from ..devices.cards import CARDS
from ..devices.names import candidates
from ..diagnosis.diagnosis import explain
from ..errors import AutolayersError, LaunchRefused, UsageError
from ..flags.kinds import CACHE_TYPES
from ..flags.workload import WORKLOADS
from ..gguf import Header, join_parts, read_part, split_of
from ..launch.secrets import without_secrets
from ..machine import Host
from ..memory.companions import NONE, Companions
from ..memory.estimate import Known
from ..model import Model, is_projector, read_model
from ..planner import Plan, plan_in_steps, plan_request
from ..planner.compare import best
from ..planner.compare.quality import level, usual
from ..planner.compare.sweep import cases, sweep
from ..planner.compare.yours import beside, is_better
from ..planner.quantisations import QUANTISATIONS, above, below
from ..quoting import posix, powershell
from ..records import replace
from ..report.summary import summary
from ..report.svg import svg
from ..report.table import Style
from ..report.text import SHORT, bought, larger_card, remedy_words
from ..report.yours import beside as lined
from ..report.yours import difference
from ..request import Request, with_draft_checked
from ..sources.http import open_url
from ..sources.huggingface import (
    Hub,
    choose,
    has_parts,
    models_of,
    parse_name,
    projector_of,
    words_of,
)
from ..sources.offers import Offer, offers
from ..units import at_least
from .export import NAMES, export
from .form import command, error_of, flags_to_try, request_of, text, texts
from .names import BUNDLED, family, near, quantisation, understood
from .verdict import faster, loss, needed, verdict, where

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    Question = Mapping[str, Any]
    Answer = dict[str, Any]

# bytes of a header that are requested at first, and at most
# (a header is mostly the vocabulary: a few MiB)
FIRST_SLICE, LARGEST_SLICE = 2 << 20, 128 << 20
HUB = "https://huggingface.co"
ITS_OWN = "auto"  # the projector of a bundled model's repository
COLUMNS = 80  # of a picture
_TITLES = {"documents": "long documents"}
LEAST = 2048  # the slider's first context
MAX_LOG = 64 << 20  # characters of a log
MAX_MODELS = 64  # kept at once; the oldest is dropped
MAX_BUNDLED = 16  # kept at once
MAX_PARTS = 512
# A page stays open for hours: nothing that grows with questions may grow without an end
_MAX_MACHINES = 16  # whose graphs are kept for the next questions
_MAX_STEPS = 4  # questions whose reasons are under way
_UNDRAWN = frozenset(("margin_parts", "total", "beside", "request", "limit", "mapped"))
AHEAD = 8  # contexts whose memory the slider shows while it is dragged
CONTEXTS = (4096, 8192, 16384, 32768, 65536, 131072, 262144)
# of somebody without a machine here: the best model for it
PRESET = {"gpu": "rtx-3060", "ram": "32"}
USUAL = "chat"  # what a model is wanted for, where nobody says it
# Cards to pick with one touch, one of each size that people have; names of --gpu
CHIPS = (
    "rtx-3060",
    "rtx-4060-ti-16g",
    "rtx-3090",
    "rtx-4090",
    "rtx-5090",
    "rx-7900-xtx",
    "m4-pro-24g",
    "none",
)


class NotOpened(UsageError):
    """A model that the page has to open first."""


class _NeedMore(Exception):
    """The header continues after the bytes that were sent."""


class _Part:
    """The first bytes of a remote file, for read_header; it cannot seek."""

    def __init__(self, name: str, size: int | None, data: bytes) -> None:
        self.name, self.size = name, size
        self._data, self._at = data, 0

    def read(self, n: int) -> bytes:
        # read_header reads on, so the page has to send a longer slice
        if self._at >= len(self._data) and (self.size is None or self._at < self.size):
            raise _NeedMore
        piece = self._data[self._at : self._at + n]
        self._at += len(piece)
        return piece


class Engine:
    """Answers questions about models that were opened by name, sent as bytes, or are bundled.

    `open_model` reads a model by name (None: names cannot be opened); `here`: this machine's own
    devices may be used.
    """

    def __init__(
        self, open_model: Callable[[str], Model] | None = None, here: bool = False
    ) -> None:
        self._open, self._here = open_model, here
        self._models: dict[str, Model] = {}
        self._bundled: dict[str, Model] = {}
        # by name, so that a launch finds them there too
        self._opened: set[str] = set()
        # llama-server's flags for models of the Hub
        self._words: dict[str, tuple[str, ...]] = {}
        # Files that were dropped on the page, by their names
        self._projectors: dict[str, Header] = {}
        # model's name -> part's number -> its header
        self._parts: dict[str, dict[int, Header]] = {}
        # question -> its reasons that are still to come; two requests may ask at once
        self._steps: dict[str, tuple[Lock, Iterator[Plan]]] = {}
        # of the same questions, with what is known
        self._plans: dict[str, Plan] = {}
        # model and build of the latest question
        self._known: tuple[object, object, Known] = None, None, Known()
        # What the page may call: a method's name arrives in the address
        questions = (
            self.start,
            self.name,
            self.open,
            self.plan,
            self.more,
            self.yours,
            self.ahead,
            self.picture,
            self.row,
            self.take,
            self.rows,
            self.curve,
            self.file,
            self.locate,
            self.card,
            self.machine,
            self.explain,
        )
        self._methods: dict[str, Callable[[Question], Answer]] = {
            method.__name__: method for method in questions
        }

    def call(self, method: str, question: Question) -> Answer:
        """Return the answer, or {"error": one line, "kind": the error's class, "field": the form's,
        "" for none}."""
        try:
            if method not in self._methods:
                raise UsageError(f"no such question: {method}")
            return self._methods[method](question)
        except AutolayersError as error:
            return error_of(error, question)

    def start(self, question: Question) -> Answer:
        """Return what the form offers."""
        return {
            "version": __version__,
            "build": NEWEST,
            "here": self._here,
            "opens": self._open is not None,
            "preset": PRESET,
            "home": _home(),
            "models": [*self._models, *bundled.models()],
            # What models are wanted for, and those of today that are for it, the best first
            "jobs": {
                job.name: {
                    "title": _TITLES.get(job.name, job.name),
                    "models": [next(iter(row.files)) for row in best.candidates(job)],
                    # What each is worth at most, so that a list ends where none can be better
                    "worth": [published.quality(row) for row in best.candidates(job)],
                }
                for job in best.JOBS.values()
            },
            "chips": list(CHIPS),
            "names": {name: published.product(name) for name in bundled.models()},
            "projectors": {
                name: size for name in bundled.models() if (size := projectors.size(name))
            },
            "cards": [
                {
                    "name": name,
                    "description": card.description,
                    "gib": round(card.usable / 1024, 1),
                    **({"ram": card.ram} if card.ram else {}),
                }
                for name, card in CARDS.items()
            ],
            "cache_types": list(CACHE_TYPES),
            "formats": [{"name": name, "file": file} for name, file in NAMES.items()],
            # The last one shows how to write one's own
            "workloads": [*WORKLOADS, "2048+512@16k"],
            "first_slice": FIRST_SLICE,
        }

    # --- models

    def name(self, question: Question) -> Answer:
        """Return what was typed or pasted as {"name"}: {"name": that opens it}, or {"near":
        [bundled models]}; of a command also "fill": the fields of the form that it fills."""
        typed = text(question, "name")
        if said := command(typed):
            return {**self.name({"name": said.pop("model")}), "fill": said}
        # A file of this machine comes before everything that its name could mean
        if typed in self._models or (self._open is not None and os.path.exists(typed)):
            return {"name": typed}
        meant = understood(typed)
        if (
            meant in self._models
            or meant in bundled.models()
            or meant.startswith("hf:")
            or "://" in meant
        ):
            return {"name": meant}
        # Only the loopback server has files and an Ollama
        if self._open is not None and (
            meant.startswith("ollama:") or os.sep in meant or meant.endswith(".gguf")
        ):
            return {"name": meant}
        # Nothing opens it: the page shows what is bundled under such a name
        return {"near": near(meant)}

    def open(self, question: Question) -> Answer:
        """Open a model by name: {"name"} -> {"model": summary}, of a repository also its
        "files"."""
        name = text(question, "name")
        answer: Answer = {"model": _summary(name, self.model(name))}
        if self._open is not None and name.startswith("hf:"):
            repository = parse_name(name)[0]
            # The model is open: a list of the repository's other files is an extra
            with suppress(AutolayersError):
                answer["models"] = [
                    self._offered(offer) for offer in offers(f"hf:{repository}", os.environ)[0]
                ]
        return answer

    def _offered(self, offer: Offer) -> Answer:
        self._words[offer.source] = offer.words
        return {
            "name": offer.source,
            "file": offer.source.rpartition("/")[2],
            "label": offer.name,
            "size": 0,
        }

    def model(self, name: str) -> Model:
        """Return the model by the page's name for it. Raises ModelError or UsageError."""
        name = name.removeprefix(BUNDLED)
        # Moved to the end, as a dict keeps the order of insertion
        if name in self._models:
            self._models[name] = self._models.pop(name)  # the newest
            return self._models[name]
        if name in self._bundled or name in bundled.models():
            model = self._bundled.pop(name, None) or bundled.read(name)
            _drop_oldest(self._bundled, MAX_BUNDLED - 1)
            self._bundled[name] = model
            return model
        if not name:
            raise UsageError("no model: choose one, or drop a .gguf file")
        # In a browser the page itself fetches the file's first bytes, and calls `add`
        if self._open is None:
            raise NotOpened(f"{name}: not opened yet: drop the file, or give its address")
        model = self._keep(name, self._open(name))
        self._opened.add(name)
        return model

    def add(self, name: str, size: int | None, data: bytes) -> Answer:
        """Take a file's first bytes; return {"need": n} for its first n bytes instead, {"missing":
        [part, ...]} while shards of a split model are missing, {"model": summary} once it is
        complete, {"projector": name} for one. `size` is the whole file's, None if unknown."""
        try:
            part = read_part(_Part(name, size, data))
            if is_projector(part):
                self._projectors[name] = part
                return {"projector": name}
            # A shard's header has the tensors of that shard alone
            if split_of(part)[1] > 1:
                # add one shard of a split model; return the model once all are there
                index, count = split_of(part)
                # "model-00002-of-00005.gguf" is a part of "model (5 parts)", whichever comes first
                name = (
                    f"{part.files[0].path.rpartition('-of-')[0].rpartition('-')[0]} ({count} parts)"
                )
                if count > MAX_PARTS:
                    raise UsageError(f"{name}: at most {MAX_PARTS} parts")
                parts = self._parts.setdefault(name, {})
                parts[index] = part
                missing = [i + 1 for i in range(count) if i not in parts]
                if missing:
                    # The page asks for these; ten are enough for one line
                    return {"missing": missing[:10], "of": count, "name": name}
                # Headers of shards are large, and the model has all of them now
                del self._parts[name]
                model = read_model(join_parts([parts[i] for i in range(count)]))
                return {"model": _summary(name, self._keep(name, model))}
            return {"model": _summary(name, self._keep(name, read_model(part)))}
        except _NeedMore:
            if len(data) < LARGEST_SLICE:
                # Four times as much each time: a long vocabulary needs few rounds
                return {"need": min(max(4 * len(data), FIRST_SLICE), LARGEST_SLICE)}
            return {
                "error": f"{name}: its header does not end within {LARGEST_SLICE >> 20} MiB, "
                f"which no "
                "model's does",
                "kind": "ModelError",
                "field": "model",
            }
        except AutolayersError as error:
            return {**error_of(error, {}), "field": "model"}

    def _keep(self, name: str, model: Model) -> Model:
        _drop_oldest(self._models, MAX_MODELS - 1)
        self._models[name] = model
        return model

    def locate(self, question: Question) -> Answer:
        """Return where the browser finds a model by {"name"}, an address or hf:USER/REPO[:QUANT]:
        {"urls": [one for each part]}. For a repository first {"listing": url}; when called again
        with its "files", [[path, bytes]], also its "models" and "notes"."""
        name, hub = text(question, "name"), Hub({})
        if not name.startswith("hf:"):
            if not name.startswith(("https://", "http://")):
                raise UsageError(
                    f"{name}: an address (https://...), hf:USER/REPO or hf:USER/REPO:QUANT"
                )
            return {"urls": [part.url for part in open_url(hub.file_url(name))]}
        repository, revision, path, quant = parse_name(name)
        # A row of an earlier listing: its file is known, no further listing is needed
        if path and name in self._words:
            return {
                "urls": [
                    part.url for part in open_url(hub.download_url(repository, revision, path))
                ]
            }
        # The browser itself asks the Hub: Python in it has no sockets
        if "files" not in question:
            return {"listing": hub.listing_url(repository, revision)}
        sizes = {path: size for path, size in _pairs(question) if path.isprintable()}
        files = list(sizes)
        notes: list[str] = []
        if not path:
            path, notes = choose(repository, files, quant)
        # 200 at most: a listing may have thousands
        models = [_file(repository, file, sizes) for file in models_of(files)[:200]]
        for row in models:
            self._words[row["name"]] = self._hub_words(repository, files, row["file"])
        self._words[name] = self._hub_words(repository, files, path)
        return {
            "models": models,
            "notes": notes,
            "file": path,
            "urls": [part.url for part in open_url(hub.download_url(repository, revision, path))],
        }

    def _hub_words(self, repository: str, files: list[str], path: str) -> tuple[str, ...]:
        # Another page of the listing may have it: by its name alone
        if path not in files:
            return ("-hf", repository, "-hff", path)
        # -hf would load a projector that is not in the plan
        no_projector = ("--no-mmproj",) if projector_of(files, path) else ()
        return *words_of(repository, files, path), *no_projector

    # --- logs

    def explain(self, question: Question) -> Answer:
        """Return why the launch of {"log": text} failed or is slow. The form's model and machine
        are those of the launch that works, where they are given."""
        model = self.model(text(question, "model")) if text(question, "model") else None
        options: dict[str, Any] = {}
        if any(text(question, field) for field in ("gpu", "ram", "machine")):
            request = request_of(
                {key: question.get(key) for key in ("gpu", "ram", "machine")}, self._here
            )
            options["own"] = request.arguments.own
            # A machine file has devices; gpu and ram are words that explain reads itself
            if text(question, "machine"):
                options["devices"], options["host"] = request.machine.devices, request.host
        answer = explain_log(text(question, "log", MAX_LOG), model=model, **options)
        if model is None:
            return answer
        file, fetched = posix(["-m", model.path]), posix(self._launch_words(question))
        page = answer["text"].replace(f"llama-server {file} ", f"llama-server {fetched} ")
        return {**answer, "text": page}

    # --- plans

    def plan(self, question: Question) -> Answer:
        """Return the plan, as in --json, with "verdict", "layers" and "command"; its reasons follow
        by `more`."""
        name, request = text(question, "model"), self._request(question)
        # The answer now; the reasons are worked out when `more` asks for them
        # what earlier questions found out, where only the machine and the launch are others
        # Known is of one model, build and companions, and of the header as it is
        if request.companions != NONE or request.params.override_kv:
            known_of = None
        else:
            model, (last, build, known) = self.model(name), self._known
            if (
                last is not model
                or build != request.policy.build
                or len(known.graphs) > _MAX_MACHINES
            ):
                known = Known()
                self._known = model, request.policy.build, known
            known_of = known
        steps = plan_in_steps(self.model(name), request, measurements=known_of)
        plan = next(steps)
        answer = self._drawn(question, request, plan, False)
        _drop_oldest(self._steps, _MAX_STEPS - 1)
        _drop_oldest(self._plans, _MAX_STEPS - 1)
        self._steps[_key(question)] = Lock(), steps
        self._plans[_key(question)] = plan
        return answer

    def yours(self, question: Question) -> Answer:
        """Return the launch of a pasted command, whose means are {"yours"}, beside the question's
        plan: {"text", "is_better", "rows": [[what, yours, this one]]}."""
        flags = f"{text(question, 'flags')} {text(question, 'yours')}"
        request = self._request({**question, "flags": flags})
        own, better = beside(self.model(text(question, "model")), request)
        taken = better if isinstance(own, LaunchRefused) or is_better(own, better) else own
        return {
            "text": difference(own, taken),
            "is_better": taken is better,
            "rows": [list(row) for row in lined(own, taken)],
        }

    def ahead(self, question: Question) -> Answer:
        """Return the memory of the question's plan at other contexts, all else as placed:
        {"points": [{"n_ctx", "devices", "host"}]}, for a slider that is dragged."""
        name, request = text(question, "model"), self._request(question)
        # Its placement is kept: only the context differs, so eight points take a moment
        plan = self._planned(question)
        model = self.model(name)
        longest = max(model.n_ctx_train, CONTEXTS[0])
        # A slider's positions are by ratio: 2k, 4k, ... are equally far apart
        steps = (longest / LEAST) ** (1 / (AHEAD - 1))
        contexts = {min(longest, round(LEAST * steps**i / 1024) * 1024) for i in range(AHEAD)}
        points = []
        for n_ctx in sorted({*contexts, plan.breakdown.n_ctx}):
            params = replace(plan.params, n_ctx=n_ctx)
            at_context = replace(request, arguments=replace(request.arguments, params=params))
            try:
                answer: dict[str, Any] = plan_request(model, at_context).to_dict()
            except LaunchRefused:
                continue
            devices = [_drawn_parts(device) for device in answer["devices"]]
            points.append(
                {"n_ctx": n_ctx, "devices": devices, "host": _drawn_parts(answer["host"])}
            )
        return {"points": points}

    def picture(self, question: Question) -> Answer:
        """Return what a terminal shows of the question's plan, as a picture to post: {"svg"}."""
        # As `--picture` draws it
        words = ["llama-server", *self._launch_words(question)]
        style = Style(True, COLUMNS, drawn=True, blocks=True, painted=True)
        return {"svg": svg(summary(self._planned(question), style, command=words))}

    def _planned(self, question: Question) -> Plan:
        """Return the plan of a question, with the reasons that are known."""
        if _key(question) not in self._plans:
            self.plan(question)
        return self._plans[_key(question)]

    def more(self, question: Question) -> Answer:
        """Return the same question's answer with one more of its reasons; "done" with the last."""
        # A question whose reasons were dropped is done at once
        lock, steps = self._steps.get(_key(question), (Lock(), iter(())))
        # A generator cannot be run by two threads
        with lock:
            plan = next(steps, None)
        if plan is None:
            self._steps.pop(_key(question), None)
            return {"done": True}
        # The picture shows the reasons that are known by now
        self._plans[_key(question)] = plan
        return self._drawn(question, self._request(question), plan, True)

    def _drawn(self, question: Question, request: Request, plan: Plan, reasons: bool) -> Answer:
        """ "instead": the alternatives and their gains; "remedies": what would make it fit."""
        words = [
            "llama-server",
            *self._launch_words(question),
            *plan.flags,
            # The command is copied into posts
            *without_secrets(request.arguments.rest)[0],
        ]
        # each layer: the device that computes it, and the bytes of its weights by buffer. The input
        # layer is shown if a device has any of it.
        # The input layer's lookup stays in RAM with nearly every launch
        first, *others = plan.layers
        names = {device.name for device in plan.devices}
        shown = plan.layers if not names.isdisjoint(first.buffers) else others
        answer: Answer = {
            "plan": plan.to_dict(),
            "verdict": verdict(plan),
            "layers": [
                {"name": row.name, "device": row.device, "buffers": row.buffers} for row in shown
            ],
            "command": {"bash": posix(words), "powershell": powershell(words)},
            "get": self._get(question),
        }
        if reasons:
            answer["instead"] = [
                {
                    "flags": flags_to_try(question, other.flags),
                    "change": other.change,
                    "buys": bought(plan, other),
                }
                for other in plan.alternatives
            ]
            if perhaps := faster(plan):
                perhaps["flags"] = flags_to_try(question, perhaps["flags"])
            answer["faster"] = perhaps
            answer["remedies"] = [
                {
                    "flags": flags_to_try(question, remedy.flags) if remedy.flags else [],
                    "change": remedy.change,
                    "words": larger_card(plan, remedy)
                    or remedy_words(replace(remedy, flags=remedy.change), SHORT),
                }
                for remedy in plan.remedies
            ]
        return answer

    def rows(self, question: Question) -> Answer:
        """Return the rows of "which quantisation": the bundled ones of {"model"}, or what types its
        tensors could have."""
        name = text(question, "model").removeprefix(BUNDLED)
        models = family(name) if name in bundled.models() else []
        # Real files, the largest first
        if len(models) > 1:
            return {
                "rows": [
                    {"model": model, "label": quantisation(model)}
                    for model in sorted(models, key=lambda model: -self.model(model).size)
                ]
            }
        whole = self.model(name)
        return {
            "rows": [
                # Only this file is known: what it would be with all tensors of another type
                *({"model": name, "as": kind, "label": kind.upper()} for kind, _ in above(whole)),
                {"model": name, "label": quantisation(name) or "this file"},
                *({"model": name, "as": kind, "label": kind.upper()} for kind, _ in below(whole)),
            ]
        }

    def row(self, question: Question) -> Answer:
        """Return one model of a table on the form's machine; with {"as"}, as if all of it had that
        type; with {"at"}, at that context, where it fits, so that rows are compared alike."""
        model, kind = self.model(text(question, "model")), text(question, "as")
        if kind:
            if kind not in QUANTISATIONS:
                raise UsageError(f"as: expected one of {', '.join(QUANTISATIONS)}")
            model = model.quantised(kind, larger=True)
        quality = usual(model)
        bits = model.bits_per_weight
        row = {
            "model": text(question, "model"),
            "size": model.size,
            **_traits(text(question, "model")),
            **({"mmproj": ITS_OWN} if text(question, "mmproj") == ITS_OWN else {}),
            "bits": round(bits, 2),
            "quality": quality.to_dict() if quality else None,
            "loss": loss(level(quality, None, bits)),
            "context": 0,
            "rate": 0.0,
        }
        # A table has dozens of rows: no search where tensors alone are too much
        if missing := best.missing(model.size, self._request(question)):
            return {
                **row,
                "state": "no",
                "where": f"Does not fit: at least {at_least(missing)} missing",
            }
        try:
            plan = self._row_plan(model, question)
        except LaunchRefused as refusal:
            return {**row, "state": "no", "where": str(refusal)}
        answer = verdict(plan)
        if not plan.fits:
            return {**row, "state": "no", "where": answer["title"]}
        return {
            **row,
            "state": answer["state"],
            "where": where(plan.placement),
            "needed": needed(plan),
            "context": plan.breakdown.n_ctx,
            "rate": round(plan.speed.generation, 2),
        }

    def _row_plan(self, model: Model, question: Question) -> Plan:
        """Return the plan at the context of the row, otherwise, where that is none or does not fit,
        at the form's."""
        # Rates at unequal contexts cannot be compared
        at = question.get("at")
        if isinstance(at, int) and 0 < at <= model.n_ctx_train and not text(question, "ctx"):
            plan = plan_request(model, self._request({**question, "ctx": str(at)}))
            if plan.fits:
                return plan
        return plan_request(model, self._request(question))

    def take(self, question: Question) -> Answer:
        """Return the row of a model of today on the form's machine, of the ranker that
        `autolayers best` and `choose` have: {"model": a name of it, "for": a job}."""
        job = best.JOBS.get(text(question, "for") or USUAL)
        if job is None:
            raise UsageError(f"for: expected one of {', '.join(best.JOBS)}")
        model = published.of(text(question, "model").removeprefix(BUNDLED))
        if model is None or not model.files:
            raise UsageError(f"{text(question, 'model')}: no model of the list")
        asked = {key: question.get(key) for key in ("gpu", "ram", "machine")}
        request = self._request({**asked, "flags": posix(job.words())})
        row = best.take(model, request, job, self.model)
        speed = row.choice.speed
        return {
            **row.to_dict(),
            "of": text(question, "model"),
            "how": row.state,
            # as in `row`
            "state": {"no": "no", best.SLOW: "if"}.get(row.state, "yes"),
            "where": where(row.choice.placement)
            if row.choice.fits
            else f"Does not fit: at least {at_least(row.least)} missing",
            "context": row.choice.n_ctx,
            "rate": round(speed.generation, 2) if speed else 0.0,
            "worth": round(row.worth, 2),
            **_traits(row.name),
            **({"mmproj": ITS_OWN} if job.pictures and projectors.size(row.name) else {}),
        }

    def curve(self, question: Question) -> Answer:
        """Return the price of context: layers and speed for each context and cache type of
        {"types"}."""
        model = self.model(text(question, "model"))
        # A million at most: some models are trained for ten
        longest = min(max(model.n_ctx_train, CONTEXTS[0]), 1 << 20)
        contexts = [*(n for n in CONTEXTS if n < longest), longest]
        # The curve's own axes: what the form says of them does not count
        request = self._request({**question, "ctx": "", "ctk": "", "ctv": ""})
        points = sweep(cases([model], [("", request)], contexts, texts(question, "types")))
        return {
            "n_layer": model.hparams.n_layer_all,
            "points": [point.to_dict() for point in points],
        }

    def file(self, question: Question) -> Answer:
        """Return the launch as a file of {"format"}: its "text", "file" name and "notes"."""
        name, kind = text(question, "model"), text(question, "format")
        path = self._path(question)
        if text(question, "mmproj") == ITS_OWN:
            question = {**question, "flags": f"{text(question, 'flags')} --mmproj-auto"}
        words = self._launch_words(question)
        model = path
        # Launch files name a model of the Hub by itself, so that they download it
        if words[0] == "-hf":
            model = name if name.startswith("hf:") and len(words) > 2 else f"hf:{words[1]}"
        written, notes = export(kind, self.model(name), self._request(question), model)
        return {"text": written, "file": NAMES[kind], "notes": notes}

    def _launch_words(self, question: Question) -> tuple[str, ...]:
        """Return llama-server's flags for the model: where it is, or how it is downloaded."""
        name = text(question, "model").removeprefix(BUNDLED)
        # A path that the user typed counts most
        if not text(question, "path"):
            if name in self._words:
                return self._words[name]
            if name.startswith("hf:"):
                repository, _, path, quant = parse_name(name)
                return (
                    "-hf",
                    f"{repository}:{quant}" if quant else repository,
                    *(("-hff", path) if path else ()),
                )
            if (
                name in bundled.models()
                and name not in self._models
                and (words := published.download(name))
            ):
                # A vision model's words end with --no-mmproj: without it -hf loads a projector
                return tuple(words[:2]) if text(question, "mmproj") else tuple(words)
        return ("-m", self._path(question, ""))

    def _get(self, question: Question) -> str:
        """Return the page of the model's repository; "" if none is known, or the file is on the
        user's computer."""
        words = self._launch_words(question)
        return f"{HUB}/{words[1].partition(':')[0]}" if words[0] == "-hf" else ""

    def _path(self, question: Question, folder: str = "/path/to/") -> str:
        """Return the model's file, as the user gave it, otherwise in an imaginary folder."""
        given, name = text(question, "path"), text(question, "model").removeprefix(BUNDLED)
        # Opened by its path on this machine, so the launch finds it there
        if not given and name in self._opened and "://" not in name and not name.startswith("hf:"):
            given = name
        if not given:
            base = name.replace("\\", "/").rpartition("/")[2].partition("?")[0]
            given = folder + (base if base.lower().endswith(".gguf") else base + ".gguf")
        # A file's name must not be read as a flag
        return f"./{given}" if given.startswith("-") else given

    # --- machines

    def card(self, question: Question) -> Answer:
        """Return the known cards that a renderer's name, as WebGL has it, may mean: {"cards":
        [...]}."""
        # e.g. "ANGLE (NVIDIA, NVIDIA GeForce RTX 3060 (0x00002504) Direct3D11 vs_5_0, D3D11)"
        words = text(question, "name").removeprefix("ANGLE (").partition("Direct3D")[0].split(",")
        # The longest part has the card's name, the short ones the maker's
        for part in sorted(words, key=len, reverse=True):
            name = part.partition("/")[0].partition(" (0x")[0].strip(" )")
            if cards := candidates(name.removeprefix("ANGLE Metal Renderer: ")):
                return {"cards": cards}
        return {"cards": []}

    def machine(self, question: Question) -> Answer:
        """Return the machine as a machine file's text."""
        machine = self._request(question).machine
        ram = machine.ram or 0
        host = Host(
            # total, then what is available
            machine.ram_total or ram,
            ram,
            "given",
            machine.host.bandwidth,
            machine.host.bus,
            machine.host.cores,
            machine.host.disk,
        )
        written = machine_file.to_dict(machine.devices, host)
        return {"text": json.dumps(written if ram else {**written, "host": None}, indent=1)}

    def _request(self, question: Question) -> Request:
        """Return the form's request, with the projector and draft that were dropped or are the
        model's."""
        model = text(question, "model")
        trained = self.model(model).n_ctx_train if model and text(question, "for") else 0
        request = request_of(question, self._here, trained)
        projector, draft = text(question, "mmproj"), text(question, "draft")
        if not projector and not draft:
            return request
        header, path = self._projector(question)
        params = replace(
            request.params,
            mmproj=path or request.params.mmproj,
            model_draft=f"/path/to/{draft}" if draft else request.params.model_draft,
        )
        # Dropped files come before those that flags name
        companions = Companions(
            header or request.companions.mmproj,
            self.model(draft) if draft else request.companions.draft,
            request.companions.loras,
        )
        complete = replace(
            request, arguments=replace(request.arguments, params=params), companions=companions
        )
        return (
            with_draft_checked(self.model(model), complete, used=True)
            if draft and model
            else complete
        )

    def _projector(self, question: Question) -> tuple[Header | None, str]:
        """Return the header of {"mmproj"}, and the path that a launch names; "" where -hf downloads
        it too. Raises UsageError."""
        projector, model = text(question, "mmproj"), text(question, "model")
        if projector != ITS_OWN:
            if projector and projector not in self._projectors:
                raise UsageError(f"{projector}: drop the projector's file again")
            return self._projectors.get(projector), f"/path/to/{projector}" if projector else ""
        header = projectors.header(model.removeprefix(BUNDLED))
        if header is None:
            raise UsageError(f"{model}: no projector is known for it: drop its file")
        # -hf finds the projector in the repository itself
        downloads = self._launch_words(question)[0] == "-hf"
        return header, "" if downloads else "/path/to/mmproj.gguf"


def _drawn_parts(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a device's or RAM's figures without those that no bar draws."""
    return {key: value for key, value in row.items() if key not in _UNDRAWN}


def explain_log(log: str, **options: Any) -> Answer:
    """Return the JSON of `autolayers explain` with its page as "text"; `options` as in explain().
    Nothing that the log names is opened."""
    answer = explain(log.encode("utf-8", "replace"), files=False, **options)
    return {**answer.to_dict(), "text": answer.text()}


def _home() -> str:
    """Return the project's address, as the installed package has it; "" for none."""
    try:
        given = metadata.metadata("autolayers").get_all("Project-URL") or []
    except metadata.PackageNotFoundError:
        return ""
    address = dict(entry.split(", ", 1) for entry in given).get("Repository", "")
    # The template's placeholder, in a checkout without an address
    return "" if "/OWNER/" in address else address


def _drop_oldest(store: dict[str, Any], limit: int) -> None:
    while len(store) > limit:
        store.pop(next(iter(store)))


def _key(question: Question) -> str:
    return json.dumps(dict(question), sort_keys=True)


def _pairs(question: Question) -> Iterator[tuple[str, int]]:
    """Return the "files" of a listing: paths, or [path, bytes]."""
    files = question.get("files")
    for file in files if isinstance(files, list) else ():
        path, size = file if isinstance(file, list) and len(file) == 2 else (file, 0)
        if isinstance(path, str):
            yield path, size if isinstance(size, int) else 0


def _file(repository: str, path: str, sizes: Mapping[str, int]) -> Answer:
    """Return a row of a repository: its size is that of all its parts."""
    # "model-00001-of-00003.gguf" stands for three files
    count = has_parts(path)
    stem = path[: -len("-00001-of-00001.gguf")] if count > 1 else ""
    size = (
        sum(size for file, size in sizes.items() if file.startswith(f"{stem}-"))
        if stem
        else sizes.get(path, 0)
    )
    return {
        "name": f"hf:{repository}/{path}",
        "file": path,
        "label": quantisation(path) or path,
        "size": size,
    }


def _traits(name: str) -> Answer:
    """Return what a row's filters ask of a bundled model."""
    published_model = published.of(name.removeprefix(BUNDLED))
    return (
        {"vision": published_model.vision, "coding": published_model.coding}
        if published_model
        else {}
    )


def _summary(name: str, model: Model) -> Answer:
    return {
        "name": name,
        "title": model.name,
        "architecture": model.architecture,
        "size": model.size,
        "n_layer": model.hparams.n_layer_all,
        "n_ctx_train": model.n_ctx_train,
        "warnings": list(model.header.warnings),
    }
