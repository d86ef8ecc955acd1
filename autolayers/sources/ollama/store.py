"""Ollama's local model store: from a name to its GGUF files.

    stored = find("llama3.1:8b", os.environ)
    stored.model                 # /usr/share/ollama/.ollama/models/blobs/sha256-...
    stored.parameters            # {"num_ctx": 8192}

    MODELS/manifests/HOST/NAMESPACE/MODEL/TAG      JSON, a list of layers: media type, digest, size
    MODELS/blobs/sha256-HEX                        their contents

Names are read as types/model/name.go and server/routes.go:getExistingName of Ollama 0.33
(2026-08-21) read them.
"""

from __future__ import annotations

import json
import os
import re
import sys

from ...errors import ModelError
from ...files import opened
from ...quoting import printable, shell
from ...records import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

HOST, NAMESPACE, TAG = "registry.ollama.ai", "library", "latest"

# the second one is announced (manifest v2): content-addressed, with another default host
_MANIFESTS = ("manifests", "manifests-v2")
_DEFAULT_HOSTS = (HOST, "ollama.com")
_MEDIA_TYPE = "application/vnd.ollama.image."
_MANIFEST_SIZE = 16 << 20  # bytes; one of a safetensors model lists thousands of tensors

_HOST_PART = re.compile(r"\w[-.:\w]{0,349}", re.ASCII)
_NAMESPACE_PART = re.compile(r"\w[-\w]{0,79}", re.ASCII)
_PART = re.compile(r"\w[-.\w]{0,79}", re.ASCII)
_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")


class NotInStore(ModelError):
    """No readable store has a manifest of that name."""


class StoreUnreadable(ModelError):
    """The store exists but this user may not read it, or it is damaged; the server may still
    answer."""


@dataclass(frozen=True)
class Name:
    """HOST/NAMESPACE/MODEL:TAG, defaults filled in.

    >>> str(Name.parse("llama3.1"))
    'llama3.1:latest'
    """

    host: str
    namespace: str
    model: str
    tag: str

    @classmethod
    def parse(cls, text: str) -> Name:
        """Raise ModelError for a name that Ollama would refuse."""
        # Ollama drops both too
        # e.g. "https://hf.co/USER/REPO:Q4_K_M"
        rest = text.split("://", 1)[-1].removesuffix(":local")
        tag, host, namespace = TAG, HOST, NAMESPACE
        # a colon before the last slash is a host's port
        if rest.rfind(":") > rest.rfind("/"):
            rest, tag = rest.rsplit(":", 1)
        parts = rest.rsplit("/", 2)
        model = parts.pop()
        if parts:
            namespace = parts.pop()
        if parts:
            host = parts.pop()
        name = cls(host, namespace, model, tag)
        rules = ((_HOST_PART, host), (_NAMESPACE_PART, namespace), (_PART, model), (_PART, tag))
        if not all(rule.fullmatch(part) for rule, part in rules):
            # It was meant as a path: "no such file" helps more than the grammar of names
            file = text.startswith((".", "/", "~")) or text.lower().endswith(".gguf")
            if text.startswith("hf:"):
                raise ModelError(
                    f"not a model's name: {text!r} (Ollama writes hf.co/USER/REPO:QUANT)"
                )
            raise ModelError(
                f"{text}: no such file"
                if file
                else f"not a model's name: {text!r} (Ollama writes [host/][namespace/]model[:tag])"
            )
        return name

    @property
    def is_cloud(self) -> bool:
        return self.tag == "cloud" or self.tag.endswith("-cloud")

    def same(self, other: Name) -> bool:
        """Return whether both are one model: Ollama compares names without case."""
        return str(self).lower() == str(other).lower()

    def __str__(self) -> str:
        short = f"{self.model}:{self.tag}"
        if self.host != HOST:
            return f"{self.host}/{self.namespace}/{short}"
        return short if self.namespace == NAMESPACE else f"{self.namespace}/{short}"


@dataclass(frozen=True)
class Stored:
    """A model of the store. Paths are blobs; `model` is a GGUF."""

    name: Name
    manifest: str
    model: str
    digest: str  # of the model's blob, "sha256:..."
    projectors: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    draft: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)


def roots(environ: Mapping[str, str], platform: str = sys.platform) -> list[str]:
    """Return the directories of a store, the most likely first: only OLLAMA_MODELS if set,
    otherwise this user's and the service's."""
    given = environ.get("OLLAMA_MODELS", "").strip(" \t\"'")
    if given:
        return [os.path.abspath(os.path.expanduser(given))]
    home = environ.get("USERPROFILE" if platform == "win32" else "HOME") or os.path.expanduser("~")
    places = [os.path.join(home, ".ollama", "models")]
    if platform.startswith("linux"):
        # the installer's service runs as its own user; the container image runs as root
        homes = [_home_of("ollama"), "/usr/share/ollama", "/root"]
        places += [os.path.join(user, ".ollama", "models") for user in homes if user]
    return list(dict.fromkeys(places))


def find(text: str, environ: Mapping[str, str], places: Sequence[str] | None = None) -> Stored:
    """Return the stored model of a name, in the first store that has it.

    Raises NotInStore (with the searched directories), StoreUnreadable, and ModelError for a model
    without a GGUF: one that runs in the cloud, or in MLX from safetensors.
    """
    name = Name.parse(text)
    # The store has a manifest of such a name, without weights
    if name.is_cloud:
        raise ModelError(f"{name} runs in Ollama's cloud: there is no file to plan for")
    places = roots(environ) if places is None else places
    unreadable: OSError | None = None
    for place in places:
        try:
            manifest = _manifest(place, name)
        except OSError as error:
            # Another store may still have it
            unreadable = unreadable or error
            continue
        if manifest is not None:
            return _read(place, name, manifest)
    if unreadable is not None:
        raise _unreadable(unreadable)
    others = _alike(name, environ, places)
    hint = f"; there is {', '.join(others[:10])}" if others else ""
    raise NotInStore(
        f"no model {name} in {' or '.join(places)} (see `ollama list`; OLLAMA_MODELS sets the "
        f"directory){hint}"
    )


def _alike(name: Name, environ: Mapping[str, str], places: Sequence[str]) -> list[str]:
    """Return the stored models of that name with any tag; none if a store may not be read."""
    try:
        stored = names(environ, places)
    except StoreUnreadable:
        return []
    return [str(other) for other in stored if other.model.lower() == name.model.lower()]


def names(environ: Mapping[str, str], places: Sequence[str] | None = None) -> list[Name]:
    """Return every model of the first store that has any. Raises StoreUnreadable where none has,
    and one may not be read."""
    errors: list[OSError] = []
    for place in roots(environ) if places is None else places:
        stored = []
        for directory in _MANIFESTS:
            root = os.path.join(place, directory)
            for path, folders, files in os.walk(root, onerror=errors.append):
                folders.sort()
                stored += _of_folder(os.path.relpath(path, root).split(os.sep), files)
        if stored:
            return stored
    denied = next((error for error in errors if isinstance(error, PermissionError)), None)
    if denied:
        raise _unreadable(denied)
    return []


def _of_folder(parts: list[str], files: list[str]) -> list[Name]:
    """Return the models of a folder host/namespace/model, whose files are the tags."""
    # The tag is the file's name, so models lie three directories down
    if len(parts) != 3:
        return []
    host = HOST if parts[0] in _DEFAULT_HOSTS else parts[0]
    return [Name(host, parts[1], parts[2], tag) for tag in sorted(files) if not tag.startswith(".")]


def _unreadable(error: OSError) -> StoreUnreadable:
    return StoreUnreadable(
        f"{error.filename}: {error.strerror} (Ollama's store belongs to another user: join its "
        "group, or ask the server through OLLAMA_HOST)"
    )


def _home_of(user: str) -> str | None:
    try:
        import pwd

        return pwd.getpwnam(user).pw_dir
    except (ImportError, KeyError):
        return None


def _manifest(place: str, name: Name) -> str | None:
    for directory in _MANIFESTS:
        for host in _DEFAULT_HOSTS if name.host == HOST else (name.host,):
            path: str | None = os.path.join(place, directory)
            for part in (host, name.namespace, name.model, name.tag):
                path = _child(path, part) if path else None
            if path and os.path.isfile(path):
                return path
    return None


def _child(directory: str, part: str) -> str | None:
    """Return an entry in any case, the exact one first. Raises PermissionError if it cannot be
    read."""
    try:
        # Listed, not opened: a name may be written in another case (getExistingName)
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError:
        exact = os.path.join(directory, part)
        if os.path.exists(exact):  # a directory may be searchable without being readable
            return exact
        raise
    match = (
        part
        if part in names
        else next((n for n in sorted(names) if n.lower() == part.lower()), None)
    )
    return os.path.join(directory, match) if match else None


def _read(place: str, name: Name, manifest: str) -> Stored:
    layers = list(_layers(manifest))
    by_kind: dict[str, list[str]] = {}
    for kind, digest in layers:
        by_kind.setdefault(kind, []).append(digest)
    if "model" not in by_kind:
        # One layer for each tensor of a safetensors model
        if "tensor" in by_kind:
            raise ModelError(
                f"{name} is made of safetensors: Ollama runs it in MLX, where num_gpu means nothing"
            )
        if far := _remote(place, name, manifest):
            raise ModelError(f"{name} runs at {far}: there is no file to plan for")
        raise ModelError(f"{name}: its manifest {manifest} names no model layer")
    return Stored(
        name=name,
        manifest=manifest,
        model=_blob(place, name, by_kind["model"][0]),
        digest=by_kind["model"][0],
        projectors=tuple(_blob(place, name, digest) for digest in by_kind.get("projector", ())),
        adapters=tuple(_blob(place, name, digest) for digest in by_kind.get("adapter", ())),
        draft=next((_blob(place, name, digest) for digest in by_kind.get("draft", ())), None),
        parameters=_parameters(place, name, by_kind.get("params", ())),
    )


def _layers(manifest: str) -> Iterator[tuple[str, str]]:
    """Yield (kind, "sha256:HEX") of every layer that Ollama defines; others are ignored."""
    content = _json(manifest)
    layers = content.get("layers") if isinstance(content, dict) else None
    if not isinstance(layers, list):
        raise StoreUnreadable(f"{manifest}: not a manifest")
    for layer in layers:
        kind = layer.get("mediaType") if isinstance(layer, dict) else None
        # Checked: a digest becomes a path, and "../" in it would leave the store
        digest = _DIGEST.fullmatch(str(layer.get("digest"))) if isinstance(kind, str) else None
        if isinstance(kind, str) and kind.startswith(_MEDIA_TYPE) and digest:
            yield kind.removeprefix(_MEDIA_TYPE), f"sha256:{digest[1]}"


def _remote(place: str, name: Name, manifest: str) -> str:
    """Return the host where a model without weights runs, by its configuration; "" if it names
    none."""
    content = _json(manifest)
    config = content.get("config") if isinstance(content, dict) else None
    digest = _DIGEST.fullmatch(str(config.get("digest"))) if isinstance(config, dict) else None
    try:
        details = _json(_blob(place, name, f"sha256:{digest[1]}")) if digest else None
    except StoreUnreadable:
        return ""
    return (
        printable(str(details.get("remote_host") or "")[:200]) if isinstance(details, dict) else ""
    )


def _blob(place: str, name: Name, digest: str) -> str:
    path = os.path.join(place, "blobs", digest.replace(":", "-"))
    old = os.path.join(place, "blobs", digest)  # before a server of 2024 or later has started once
    for candidate in (path, old):
        if os.path.exists(candidate):
            return candidate
    # `ollama pull` was interrupted
    if os.path.exists(f"{path}-partial"):
        raise StoreUnreadable(
            f"{name} is only partly downloaded ({path}-partial): `ollama pull "
            f"{shell([str(name)])}` resumes it"
        )
    raise StoreUnreadable(
        f"{name}: {path} is missing or not accessible (`ollama pull {shell([str(name)])}` restores "
        "it)"
    )


def _parameters(place: str, name: Name, digests: Sequence[str]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for digest in digests:
        content = _json(_blob(place, name, digest))
        if isinstance(content, dict):
            merged.update(content)
    return merged


def _json(path: str) -> object:
    try:
        with opened(path) as stream:
            text = stream.read(_MANIFEST_SIZE + 1)
        if len(text) > _MANIFEST_SIZE:
            raise StoreUnreadable(f"{path}: too large")
        content: object = json.loads(text)
        return content
    except OSError as error:
        raise StoreUnreadable(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise StoreUnreadable(f"{path}: not valid JSON") from None
