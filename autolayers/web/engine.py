"""The page's questions and their answers, as JSON. The same code behind the loopback server and in the
browser.

    engine = Engine()
    engine.call("plan", {"model": "bundled:llama-3.1-8b-q4_k_m", "gpu": "24GiB", "ctx": "8192"})
    engine.add("model.gguf", 4920739232, first_bytes)      # {"need": 8388608}: send that many; or {"model": {...}}

A launch is the content of the page's form, all text: model, machine (a machine file's text) or gpu ("" for
this machine), ram, ctx, np, ctk, ctv, ub, fa, strategy, workload, flags.
"""

from __future__ import annotations

import json
import shlex

from .. import __version__, bundled
from ..devices import machine_file
from ..devices.cards import CARDS
from ..diagnosis.diagnosis import explain
from ..errors import AutolayersError, LaunchRefused, UsageError
from ..flags.check import read
from ..flags.formats import FORMATS
from ..flags.kinds import CACHE_TYPES
from ..flags.workload import WORKLOADS
from ..gguf import join_parts, read_part, split_of
from ..launch.formats import write
from ..launch.secrets import without_secrets
from ..machine import Host
from ..model import read_model
from ..planner import plan_request
from ..planner.compare.sweep import cases, sweep
from ..quoting import powershell
from ..records import replace
from ..report.text import bought, remedy_words, shortage
from ..request import Request
from ..sources.http import open_url
from ..sources.huggingface import Hub, choose, models_of, parse_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from ..flags.parse import Arguments
    from ..gguf import Header
    from ..model import Model
    from ..planner import Plan

    Question = Mapping[str, Any]
    Answer = dict[str, Any]

BUNDLED = "bundled:"
FIRST_SLICE, LARGEST_SLICE = 2 << 20, 128 << 20     # bytes of a header that are requested at first, and at most
MAX_LOG = 64 << 20          # characters of a log
MAX_MODELS = 64             # kept at once; the oldest is dropped
MAX_PARTS = 512
MAX_MATRIX = 256            # cells of one matrix
CONTEXTS = (4096, 8192, 16384, 32768, 65536, 131072, 262144)
# Form field -> llama-server's flag, or autolayers' own
FIELDS = {"ram": "--ram", "ctx": "-c", "np": "-np", "ctk": "-ctk", "ctv": "-ctv", "ub": "-ub", "fa": "-fa",
          "strategy": "--strategy", "workload": "--workload"}
GPUS_OF_MATRIX = ("8GiB", "12GiB", "16GiB", "24GiB", "32GiB", "48GiB", "24GiB,24GiB")


class NeedMore(Exception):
    """The header continues after the bytes that were sent."""


class _Part:
    """The first bytes of a remote file, for read_header; it cannot seek."""

    def __init__(self, name: str, size: int | None, data: bytes) -> None:
        self.name, self.size = name, size
        self._data, self._at = data, 0

    def read(self, n: int) -> bytes:
        if self._at >= len(self._data) and (self.size is None or self._at < self.size):
            raise NeedMore
        found = self._data[self._at:self._at + n]
        self._at += len(found)
        return found


class Engine:
    """Answers questions about models that were opened by name, sent as bytes, or are bundled.

    `open_model` reads a model by name (None: names cannot be opened); `here`: this machine's own devices may
    be used.
    """

    def __init__(self, open_model: Callable[[str], Model] | None = None, here: bool = False) -> None:
        self._open, self._here = open_model, here
        self._models: dict[str, Model] = {}
        self._parts: dict[str, dict[int, Header]] = {}      # model's name -> part's number -> its header
        self._methods: dict[str, Callable[[Question], Answer]] = {
            "start": self.start, "open": self.open, "plan": self.plan, "curve": self.curve,
            "matrix": self.matrix,
            "file": self.file, "locate": self.locate, "machine": self.machine, "explain": self.explain}

    def call(self, method: str, question: Question) -> Answer:
        """The answer, or {"error": one line, "kind": the error's class}."""
        try:
            if method not in self._methods:
                raise UsageError(f"no such question: {method}")
            return self._methods[method](question)
        except AutolayersError as error:
            return _error(error)

    def start(self, question: Question) -> Answer:
        """What the form offers."""
        return {
            "version": __version__, "here": self._here, "opens": self._open is not None,
            "models": [*self._models, *(BUNDLED + name for name in bundled.models())],
            "cards": [{"name": name, "description": card.description, "mib": card.usable}
                      for name, card in CARDS.items()],
            "cache_types": list(CACHE_TYPES), "formats": list(FORMATS), "matrix_gpus": list(GPUS_OF_MATRIX),
            "workloads": [*WORKLOADS, "2048+512@16k"], "first_slice": FIRST_SLICE,
        }

    # --- models

    def open(self, question: Question) -> Answer:
        """Opens a model by name: {"name"} -> {"model": summary}."""
        name = _text(question, "name")
        return {"model": _summary(name, self.model(name))}

    def model(self, name: str) -> Model:
        """The model by the page's name for it. Raises ModelError or UsageError."""
        if name in self._models:
            return self._models[name]
        if name.startswith(BUNDLED):
            return self._keep(name, bundled.read(name.removeprefix(BUNDLED)))
        if not name:
            raise UsageError("no model: choose one, or drop a .gguf file")
        if self._open is None:
            raise UsageError(f"{name}: not opened yet: drop the file, or give its address")
        return self._keep(name, self._open(name))

    def add(self, name: str, size: int | None, data: bytes) -> Answer:
        """A file's first bytes: {"need": n} for its first n bytes instead, {"missing": [part, ...]} while
        shards of a split model are missing, {"model": summary} once it is complete. `size` is the whole
        file's, None if unknown."""
        try:
            part = read_part(_Part(name, size, data))
            if split_of(part)[1] > 1:
                return self._add_part(part)
            return {"model": _summary(name, self._keep(name, read_model(part)))}
        except NeedMore:
            if len(data) < LARGEST_SLICE:
                return {"need": min(max(4 * len(data), FIRST_SLICE), LARGEST_SLICE)}
            return {"error": f"{name}: its header does not end within {LARGEST_SLICE >> 20} MiB, which no "
                             "model's does",
                    "kind": "ModelError"}
        except AutolayersError as error:
            return _error(error)

    def _add_part(self, part: Header) -> Answer:
        """Adds one shard of a split model; returns the model once all are there."""
        index, count = split_of(part)
        name = f"{part.files[0].path.rpartition('-of-')[0].rpartition('-')[0]} ({count} parts)"
        if count > MAX_PARTS:
            raise UsageError(f"{name}: at most {MAX_PARTS} parts")
        parts = self._parts.setdefault(name, {})
        parts[index] = part
        missing = [i + 1 for i in range(count) if i not in parts]
        if missing:
            return {"missing": missing[:10], "of": count, "name": name}
        del self._parts[name]
        model = read_model(join_parts([parts[i] for i in range(count)]))
        return {"model": _summary(name, self._keep(name, model))}

    def _keep(self, name: str, model: Model) -> Model:
        while len(self._models) >= MAX_MODELS:
            self._models.pop(next(iter(self._models)))
        self._models[name] = model
        return model

    def locate(self, question: Question) -> Answer:
        """Where the browser finds a model by {"name"}, an address or hf:USER/REPO[:QUANT]: {"urls": [one for
        each part]}. For a repository first {"listing": url}; when called again with its {"files"}, also its
        other models and "notes"."""
        name, hub = _text(question, "name"), Hub({})
        if not name.startswith("hf:"):
            if not name.startswith(("https://", "http://")):
                raise UsageError(f"{name}: an address (https://...), hf:USER/REPO or hf:USER/REPO:QUANT")
            return {"urls": [part.url for part in open_url(hub.file_url(name))]}
        repository, revision, path, quant = parse_name(name)
        answer: Answer = {}
        if not path:
            if "files" not in question:
                return {"listing": hub.listing_url(repository, revision)}
            files = [file for file in _texts(question, "files") if file.isprintable()]
            path, notes = choose(repository, files, quant)
            answer = {"models": [f"hf:{repository}/{file}" for file in models_of(files)[:200]],
                      "notes": notes}
        return answer | {"urls": [part.url
                                  for part in open_url(hub.download_url(repository, revision, path))]}

    # --- logs

    def explain(self, question: Question) -> Answer:
        """Why the launch of {"log": text} failed or is slow. The form's model and machine are those of the launch that
        works, where they are given."""
        model = self.model(_text(question, "model")) if _text(question, "model") else None
        asked: dict[str, Any] = {"own": _arguments({key: question.get(key) for key in ("gpu", "ram")}).own}
        if text := _text(question, "machine"):
            asked["devices"], asked["host"] = machine_file.parse(text, "machine file")
        return explain_log(_text(question, "log", MAX_LOG), model=model, **asked)

    # --- plans

    def plan(self, question: Question) -> Answer:
        """The plan, as in --json, and the page's drawing data; with {"quick": true} without its reasons.
        "instead": the alternatives and their gains; "remedies": what would make it fit."""
        name = _text(question, "model")
        model, request = self.model(name), self._request(question)
        found = plan_request(model, request, explain=not question.get("quick"))
        words = ["llama-server", *_launch_name(name), *found.flags,
                 *without_secrets(request.arguments.rest)[0]]
        return {"plan": found.to_dict(), "verdict": _verdict(found), "layers": _layers(found),
                "instead": [{"flags": other.flags, "buys": bought(found, other)}
                            for other in found.alternatives],
                "remedies": [remedy_words(remedy) for remedy in found.remedies],
                "command": {"bash": shlex.join(words), "powershell": powershell(words)}}

    def curve(self, question: Question) -> Answer:
        """The price of context: layers and speed for each context and cache type of {"types"}."""
        model = self.model(_text(question, "model"))
        longest = min(max(model.n_ctx_train, CONTEXTS[0]), 1 << 20)
        contexts = [*(n for n in CONTEXTS if n < longest), longest]
        params, policy, machine, companions, _ = self._request({**question, "ctx": "", "ctk": "", "ctv": ""}).terms
        asked = cases([model], [("", machine)], params, contexts, _texts(question, "types"))
        points = sweep(asked, params, policy, companions)
        return {"n_layer": model.hparams.n_layer_all, "points": [point.to_dict() for point in points]}

    def matrix(self, question: Question) -> Answer:
        """How each of {"models"} runs on each of {"gpus"}: a row for each model, a cell for each machine."""
        models, gpus = _texts(question, "models"), _texts(question, "gpus") or list(GPUS_OF_MATRIX)
        if len(models) * len(gpus) > MAX_MATRIX:
            raise UsageError(f"a matrix of at most {MAX_MATRIX} cells: fewer models or machines")
        return {"gpus": gpus, "rows": [
            {"model": name, "size": self.model(name).size,
             "cells": [self._cell(name, question, gpu) for gpu in gpus]}
            for name in models]}

    def _cell(self, name: str, question: Question, gpu: str) -> Answer:
        try:
            found = plan_request(self.model(name), self._request({**question, "gpu": gpu, "machine": ""}))
        except LaunchRefused as refusal:
            return {"how": "no", "placement": str(refusal), "n_ctx": 0, "speed": None}
        return {"how": _how(found), "placement": found.placement, "n_ctx": found.breakdown.n_ctx,
                "speed": found.speed.to_dict()}

    def file(self, question: Question) -> Answer:
        """The launch as a file of {"format"}."""
        name = _text(question, "model")
        model, request = self.model(name), self._request(question)
        found, arguments = plan_request(model, request), request.arguments
        given = replace(arguments.params, model=_launch_name(name)[-1])
        return {"text": write(_text(question, "format"), found, replace(arguments, params=given))}

    def machine(self, question: Question) -> Answer:
        """The machine as a machine file's text."""
        found = self._request(question).machine
        ram = found.ram or 0
        host = Host(found.ram_total or ram, ram, "given", found.ram_bandwidth, found.bus_bandwidth,
                    found.cores, found.disk_bandwidth)
        text = machine_file.to_dict(found.devices, host)
        return {"text": json.dumps(text if ram else {**text, "host": None}, indent=1)}

    def _request(self, question: Question) -> Request:
        """The form's request and its machine."""
        arguments = _arguments(question)
        if "machine" in arguments.own:
            raise UsageError("--machine reads a file of the machine that serves this page: open it in the "
                             "page")
        if text := _text(question, "machine"):
            devices, host = machine_file.parse(text, "machine file")
            return Request.of(arguments, devices=devices, host=host)
        if "gpu" not in arguments.own and not self._here:
            raise UsageError("no machine: add a GPU")
        return Request.of(arguments)


def explain_log(text: str, **asked: Any) -> Answer:
    """The JSON of `autolayers explain` with its page as "text"; `asked` as in explain(). Nothing that the log names is
    opened."""
    answer = explain(text.encode("utf-8", "replace"), files=False, **asked)
    return {**answer.to_dict(), "text": answer.text()}


def _error(error: AutolayersError) -> Answer:
    return {"error": " ".join(str(error).split()), "kind": type(error).__name__}


def _arguments(question: Question) -> Arguments:
    """The form's fields as the words of a command line, read as those are. Raises UsageError."""
    words: list[str] = []
    if _text(question, "gpu") and not _text(question, "machine"):
        words += ["--gpu", _text(question, "gpu")]
    for field, flag in FIELDS.items():
        if value := _text(question, field):
            words += [flag, value]
    try:
        words += shlex.split(_text(question, "flags"))
    except ValueError as error:
        raise UsageError(f"flags: {error}") from None
    arguments = read("plan", words)
    if arguments.positional:
        raise UsageError(f"not a flag: {arguments.positional[0]!r}")
    return arguments


def _texts(question: Question, key: str) -> list[str]:
    values = question.get(key) or []
    if not isinstance(values, list) or len(values) > 1 << 16:
        raise UsageError(f"{key}: not a list")
    return [value for value in values if isinstance(value, str)]


def _text(question: Question, key: str, longest: int = 1 << 16) -> str:
    value = question.get(key)
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > longest:
        raise UsageError(f"{key}: not a text")
    return value.strip()


def _launch_name(name: str) -> list[str]:
    """llama-server's flags for a model, by the page's name for it."""
    if name.startswith("hf:") and not name.endswith(".gguf"):
        return ["-hf", name.removeprefix("hf:")]
    if name.startswith(BUNDLED):
        return ["-m", name.removeprefix(BUNDLED) + ".gguf"]
    return ["-m", name.rpartition("/")[2] if "://" in name or name.startswith("hf:") else name]


def _summary(name: str, model: Model) -> Answer:
    return {"name": name, "title": model.name, "architecture": model.architecture, "size": model.size,
            "n_layer": model.hparams.n_layer_all, "n_ctx_train": model.n_ctx_train,
            "warnings": list(model.header.warnings)}


def _verdict(plan: Plan) -> str:
    return "fits" if plan.fits else f"does not fit: {shortage(plan)}"


def _how(plan: Plan) -> str:
    """wholly | experts | partly | processor | no"""
    if not plan.fits:
        return "no"
    if plan.n_gpu_layers == 0:
        return "processor"
    if plan.params.overrides:
        return "experts"
    return "wholly" if plan.n_gpu_layers > plan.n_layer else "partly"


def _layers(plan: Plan) -> list[Answer]:
    """Each layer: the device that computes it, and the bytes of its weights by buffer. The input layer is
    shown if a device has any of it."""
    first, *others = plan.layers
    names = {device.name for device in plan.devices}
    shown = plan.layers if not names.isdisjoint(first.buffers) else others
    return [{"name": row.name, "device": row.device, "buffers": row.buffers} for row in shown]
