"""The model of a path, a name or a Modelfile, and what Ollama loads with it."""

from __future__ import annotations

import glob
import os

from ..errors import ModelError
from ..files import opened
from ..gguf import Header, read_header
from ..model import Model, is_projector, read_model
from ..records import dataclass, field, replace
from ..sources.ollama import stored_or_shown
from ..sources.ollama.api import NoSuchModel, OllamaServer
from ..sources.ollama.show import header
from ..sources.ollama.store import Name, NotInStore, Stored, StoreUnreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from .modelfile import Modelfile

# files that FROM DIRECTORY prefers to GGUF (parser.go:filesForModel); Ollama converts them
_CONVERTED = (
    "model*.safetensors",
    "*/model*.safetensors",
    "consolidated*.safetensors",
    "pytorch_model*.bin",
    "consolidated*.pth",
)


_DRAFTED = 4  # draft_num_predict of a model with a DRAFT layer


@dataclass(frozen=True)
class Target:
    """`size` is the length of the model's file in bytes, which Ollama's guess uses. `hidden` is an
    upper bound in bytes of layers whose files cannot be read here."""

    label: str
    model: Model
    size: int
    parameters: Mapping[str, Any] = field(default_factory=dict)
    projectors: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    draft: str | None = None
    hidden: int = 0
    hidden_projector: bool = False  # the unreadable part is, or has, a projector
    remote: bool = False  # described by a server on another machine
    notes: tuple[str, ...] = ()

    @property
    def vision(self) -> bool:
        """Whether it has a projector, in its own file or inside the model's."""
        inside = f"{self.model.architecture}.vision.block_count" in self.model.header.metadata
        return bool(self.projectors or self.hidden_projector) or inside

    @property
    def drafting(self) -> tuple[str, int]:
        """(the kind of drafting that Ollama uses, tokens at once); ("", 0): none.

        A DRAFT layer drafts four by default, the model's own MTP blocks only if draft_num_predict
        is set.
        """
        given = self.parameters.get("draft_num_predict")
        count = given if isinstance(given, int) else _DRAFTED if self.draft else 0
        if count <= 0 or not (self.draft or self.model.hparams.n_layer_nextn):
            return "", 0
        if self.draft:
            return (
                "draft-dflash" if read_model(self.draft).hparams.dflash_block_size else "draft-mtp"
            ), count
        return "draft-mtp", count


def from_file(path: str, label: str = "") -> Target:
    """Return a GGUF file. Raises ModelError."""
    return _target(label or path, read_header(path))


def from_name(text: str, environ: Mapping[str, str], server: OllamaServer) -> Target:
    """Return a model of the local store or, if that is unreadable or lacks it, of the server.

    Raises ModelError if neither has it, OllamaError if the server is needed but cannot be asked.
    """
    stored = stored_or_shown(text, environ, server)
    if not isinstance(stored, Stored):
        # The target of /api/show; the parts that it hides are at most the rest of /api/tags' size.
        model_header = header(text, stored)
        # All layers of the manifest, so the rest of it is what /api/show does not describe
        # The bytes of a model in /api/tags; 0 if it is not there.
        whole = 0
        for entry in server.tags():
            try:
                same = Name.parse(str(entry.get("name"))).same(Name.parse(text))
            except ModelError:
                continue
            if same and isinstance(entry.get("size"), int):
                whole = entry["size"]
        modelfile = str(stored.get("modelfile", ""))
        has_others = (
            stored.get("projector_info") or "ADAPTER " in modelfile or "DRAFT " in modelfile
        )
        hidden = max(0, whole - model_header.n_bytes) if has_others else 0
        notes = [f"{text} is planned from the description of the server at {server.url}"]
        if hidden:
            notes.append(
                "it has a projector, adapter or draft model that the server does not describe: "
                f"{hidden} bytes are reserved for it"
            )
        elif has_others:
            notes.append(
                "it has a projector, adapter or draft model that the server does not describe: its "
                "memory is not in the plan"
            )
        parameters = _shown_parameters(str(stored.get("parameters") or ""))
        return _target(
            text,
            model_header,
            parameters=parameters,
            hidden=hidden,
            remote=not server.is_local,
            hidden_projector=bool(stored.get("projector_info")),
            notes=tuple(notes),
        )
    return _target(
        str(stored.name),
        read_header(stored.model),
        parameters=stored.parameters,
        projectors=stored.projectors,
        adapters=stored.adapters,
        draft=stored.draft,
    )


def from_modelfile(
    modelfile: Modelfile,
    directory: str,
    model: str | None,
    environ: Mapping[str, str],
    server: OllamaServer,
) -> Target:
    """Return the target of a Modelfile in `directory`; `model` is FROM's GGUF if it cannot be
    resolved here.

    Its own parameters override those of the model in FROM.
    """
    own = modelfile.parameters()
    # With `model` given what FROM names need not be here
    resolve = model is None
    files: list[str] = []
    name = ""
    for command in modelfile.named("model"):
        paths = _files(_path(command.args, directory), command.args) if resolve else []
        files += paths
        if paths:
            continue
        name = command.args
        # Whether FROM can only mean a file: no model name begins or ends like that.
        if resolve and (
            name.startswith((".", "/", "~"))
            or name.partition(" #")[0].rstrip().lower().endswith(".gguf")
        ):
            hint = " (comments need their own line)" if " #" in name else ""
            raise ModelError(f"{modelfile.source}:{command.line}: FROM {name}: no such file{hint}")
    notes: list[str] = []
    adapter = _extra(modelfile, "adapter", directory, notes)
    draft = _extra(modelfile, "draft", directory, notes)
    projectors: tuple[str, ...] = ()
    if model is not None:
        base = from_file(model, name)
    elif files:
        # Several FROM lines: a model, and its projector
        projectors = tuple(path for path in files if is_projector(read_header(path)))
        weights = [path for path in files if path not in projectors]
        if not weights:
            raise ModelError(
                f"{modelfile.source}: FROM {files[0]} is a projector; where is its model?"
            )
        base = from_file(weights[0])
    else:
        if not name:
            raise ModelError(f"{modelfile.source}: FROM names nothing")
        try:
            base = from_name(name, environ, server)
        except (NotInStore, StoreUnreadable, NoSuchModel) as error:
            raise ModelError(
                f"{modelfile.source}: FROM {name}: {error}; --model PATH names its GGUF"
            ) from None
    return replace(
        base,
        parameters={**base.parameters, **own},
        projectors=(*base.projectors, *projectors),
        adapters=(*base.adapters, *adapter),
        draft=next(iter(draft), base.draft),
        notes=(*base.notes, *notes),
    )


def _extra(modelfile: Modelfile, kind: str, directory: str, notes: list[str]) -> list[str]:
    """Return the path of the last ADAPTER or DRAFT; none, with a note, if there is no such file."""
    paths = []
    # The last one counts
    for command in modelfile.named(kind)[-1:]:
        models = [weights.args for weights in modelfile.named("model")]
        if kind == "draft" and command.args in models:
            raise ModelError(
                f"{modelfile.source}:{command.line}: DRAFT {command.args} is the "
                "model itself: Ollama refuses that"
            )
        path = _path(command.args, directory)
        if os.path.isfile(path):
            paths.append(path)
        else:
            notes.append(
                f"{command.keyword} {command.args}: no such file here, so its memory is "
                "not in the plan"
            )
    return paths


def _target(label: str, header: Header, **rest: Any) -> Target:
    model = Model(header, header.files[0].path, checked=False)  # Ollama's own engine takes more
    return Target(label, model, sum(file.promised for file in header.files), **rest)


def _shown_parameters(text: str) -> dict[str, int]:
    """Return the numbers of /api/show's lines such as "num_ctx 8192" (large ones as
    1.048576e+06)."""
    numbers = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name in ("num_ctx", "num_batch", "num_gpu", "main_gpu", "draft_num_predict"):
            try:
                # Go prints large numbers as 1.048576e+06
                numbers[name] = int(float(value))
            except (ValueError, OverflowError):
                continue
    return numbers


def _path(text: str, directory: str) -> str:
    return os.path.join(directory, os.path.expanduser(text)) if text else ""


def _files(path: str, text: str) -> list[str]:
    """Return the GGUF files that FROM would import; none if it names a model."""
    if os.path.isfile(path):
        return [path]
    if not os.path.isdir(path):
        return []
    # Ollama takes the first pattern that matches, and these come before GGUF
    if any(glob.glob(os.path.join(glob.escape(path), pattern)) for pattern in _CONVERTED):
        raise ModelError(
            f"FROM {text} holds weights that Ollama converts first: give the converted GGUF with "
            "--model PATH"
        )
    paths = sorted(
        glob.glob(os.path.join(glob.escape(path), "*.gguf"))
        or [file for file in glob.glob(os.path.join(glob.escape(path), "*.bin")) if is_gguf(file)]
    )
    if not paths:
        raise ModelError(f"FROM {text}: no GGUF in that directory")
    return paths


def is_gguf(path: str) -> bool:
    """Return whether a file begins with GGUF's magic, in either byte order; False if it cannot be
    read."""
    try:
        with opened(path) as stream:
            return stream.read(4) in (b"GGUF", b"FUGG")
    except OSError:
        return False
