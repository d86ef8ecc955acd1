"""Models of the Hugging Face Hub that are on this machine already: what `llama-server -hf` has
downloaded before.

    DIRECTORY/models--USER--REPO/
        refs/main                           the commit that was requested last
        snapshots/COMMIT/path/FILE.gguf     links into blobs/
        blobs/OID.downloadInProgress        not finished; .incomplete: by the Hub's own client
    LLAMA.CPP/                              of older builds of llama.cpp
        manifest=USER=REPO=TAG.json
        USER_REPO_path_FILE.gguf

Mirrors hf_cache::get_cache_directory and get_cached_files (common/hf-cache.cpp, the same from b9093
to b11549), and of the older layout migrate_old_cache_to_hf_cache.
"""

from __future__ import annotations

import json
import os
import re
import sys

from ..errors import ModelError
from ..files import opened
from ..gguf import FileInfo, Header, read_header
from ..quoting import shell
from ..records import dataclass, field
from .huggingface import choices, choose, has_parts, models_of, parse_name, parts_of, projector_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


_COMMIT = re.compile(r"[0-9a-fA-F]{40}")
# of llama.cpp, and of huggingface_hub
_UNFINISHED = (".downloadInProgress", ".incomplete")
_MANIFEST_SIZE = 1 << 20


@dataclass(frozen=True)
class _Cached:
    """The cached part of a repository. `files`: path in the repository -> path here; `unfinished`:
    files that are not fully downloaded."""

    repository: str
    files: dict[str, str] = field(default_factory=dict)
    unfinished: tuple[str, ...] = ()
    # the directory where llama-server looks instead, "" if it finds these
    elsewhere: str = ""

    def model(self, wanted: str, quant: str) -> tuple[str, list[str]]:
        """Return (the model's path, warnings); ("", []) if it is not here or incomplete."""
        if wanted:
            return (wanted if wanted in self.files and self.whole(wanted) else ""), []
        try:
            path, notes = choose(self.repository, [*self.files], quant)
        except ModelError:
            return "", []
        return (path, notes) if self.whole(path) else ("", [])

    def whole(self, path: str) -> bool:
        """Return whether all shards of a model are here."""
        return all(part in self.files for part in parts_of(path, has_parts(path)))


def look_up(
    name: str, environ: Mapping[str, str], platform: str = sys.platform
) -> tuple[_Cached, str, list[str]]:
    """Return what the caches have of the repository of an hf: name, the path of its model in it
    ("": not here) and warnings. The first cache with the model is used. Raises ModelError for an
    invalid name."""
    repository, revision, wanted, quant = parse_name(name)
    nothing = _Cached(repository)
    for cache in _caches(repository, revision, environ, platform):
        path, notes = cache.model(wanted, quant)
        if path:
            # llama-server looks in the first directory alone
            if cache.elsewhere:
                notes = [
                    *notes,
                    f"{cache.files[path]} was read; llama-server looks only in {cache.elsewhere} "
                    "and would download the model again",
                ]
            return cache, path, notes
        # What several caches have together is only named in messages: no launch mixes them
        nothing = _Cached(
            repository, {**cache.files, **nothing.files}, (*nothing.unfinished, *cache.unfinished)
        )
    return nothing, "", []


def header(name: str, environ: Mapping[str, str]) -> tuple[Header | None, _Cached]:
    """Return the Header of an hf: name's model, under its name on the Hub; None if no cache has all
    of it. Raises ModelError for an unreadable file."""
    cache, path, notes = look_up(name, environ)
    if not path:
        return None, cache
    read = read_header(cache.files[path])
    at = "" if (revision := parse_name(name)[1]) == "main" else f"@{revision}"
    # Renamed: a plan's words should name the model, not a blob's path here
    files = tuple(
        FileInfo(f"hf:{cache.repository}/{part}{at}", file.size, file.promised, file.data_offset)
        for part, file in zip(parts_of(path, len(read.files)), read.files, strict=True)
    )
    if mmproj := projector(cache, path):
        notes = [
            *notes,
            f"`llama-server -hf` loads {os.path.basename(mmproj)} of {cache.repository} too, which "
            f"is not in this plan: give it with --mmproj {shell([mmproj])}, or launch with "
            "--no-mmproj",
        ]
    return Header(
        read.version, read.alignment, read.metadata, read.tensors, files, (*read.notes, *notes)
    ), cache


def projector(cache: _Cached, model: str) -> str:
    """Return the projector that `llama-server -hf` loads with a model, as a path of this machine;
    "" if none."""
    path = projector_of([*cache.files], model)
    return cache.files[path] if path and path != model else ""


def what_there_is(cache: _Cached) -> str:
    """ "; there is: hf:USER/REPO:Q8_0" of the complete models that are here, "" if there are
    none."""
    models = [path for path in models_of([*cache.files]) if cache.whole(path)]
    return f"; {choices(cache.repository, models)}" if models else ""


def what_is_unfinished(cache: _Cached) -> str:
    """Return the unfinished download of the repository, and how to resume it; "" if there is
    none."""
    return (
        f"only partly downloaded: {cache.unfinished[0]} is not finished; `llama-server -hf "
        f"{shell([cache.repository])}` resumes it"
        if cache.unfinished
        else ""
    )


def directories(environ: Mapping[str, str], platform: str = sys.platform) -> list[str]:
    """Return the directories with the Hub's layout; llama-server uses only the first."""
    home = "USERPROFILE" if platform == "win32" else "HOME"
    # in the order of get_cache_directory
    # (variable, the directory below it)
    places = (
        ("LLAMA_CACHE", ""),
        ("HF_HUB_CACHE", ""),
        ("HUGGINGFACE_HUB_CACHE", ""),
        ("HF_HOME", "hub"),
        ("XDG_CACHE_HOME", "huggingface/hub"),
        (home, ".cache/huggingface/hub"),
    )
    return list(
        dict.fromkeys(
            os.path.join(environ[name], *below.split("/")).rstrip("/")
            for name, below in places
            if environ.get(name)
        )
    )


def old_directory(environ: Mapping[str, str], platform: str = sys.platform) -> str:
    """Return llama.cpp's own cache (fs_get_cache_directory); "" if unknown."""
    # It names both caches, of either layout
    if environ.get("LLAMA_CACHE"):
        return environ["LLAMA_CACHE"]
    home = environ.get("HOME", "")
    root = (
        environ.get("LOCALAPPDATA", "")
        if platform == "win32"
        else home and os.path.join(home, "Library", "Caches")
        if platform == "darwin"
        else environ.get("XDG_CACHE_HOME") or (home and os.path.join(home, ".cache"))
    )
    return root and os.path.join(root, "llama.cpp")


def _caches(
    repository: str, revision: str, environ: Mapping[str, str], platform: str
) -> Iterator[_Cached]:
    places = directories(environ, platform)
    for place in places:
        cache = _hub_layout(
            os.path.join(place, "models--" + repository.replace("/", "--")), repository, revision
        )
        if cache is not None:
            yield (
                cache
                # only the first one is llama-server's
                if place == places[0]
                else _Cached(repository, cache.files, cache.unfinished, places[0])
            )
    old = old_directory(environ, platform)
    # The older layout has no commits
    if old and revision == "main":
        # The files in this repository's manifests.
        user, _, name = repository.partition("/")
        # one manifest for each tag that was downloaded
        # e.g. "manifest=unsloth=Qwen3-8B-GGUF=Q4_K_M.json",
        # "unsloth_Qwen3-8B-GGUF_Qwen3-8B-Q4_K_M.gguf"
        start, prefix = f"manifest={user}={name}=", f"{user}_{name}_"
        present = _entries(old)
        files: dict[str, str] = {}
        for entry in present:
            if not (entry.startswith(start) and entry.endswith(".json")):
                continue
            for path in _manifest(os.path.join(old, entry)):
                for part in parts_of(path, has_parts(path)):
                    file_name = prefix + part.replace("/", "_")
                    if file_name in present:
                        files[part] = os.path.join(old, file_name)
        old_layout = _Cached(
            repository,
            files,
            tuple(path for path in _unfinished(old) if os.path.basename(path).startswith(prefix)),
        )
        yield old_layout


def _hub_layout(place: str, repository: str, revision: str) -> _Cached | None:
    """Mirror get_cached_files; None if the repository was never requested."""
    if not os.path.isdir(place):
        return None
    commit = (
        revision if _COMMIT.fullmatch(revision) else _commit(os.path.join(place, "refs"), revision)
    )
    files: dict[str, str] = {}
    root = os.path.join(place, "snapshots", commit) if commit else ""
    # a model may be in a folder of the repository
    for folder, _, names in os.walk(root) if root else ():
        for name in sorted(names):
            path = os.path.join(folder, name)
            if os.path.isfile(path):  # a link whose blob is gone does not count
                files[os.path.relpath(path, root).replace(os.sep, "/")] = path
    files = {path: files[path] for path in sorted(files)}
    return _Cached(repository, files, tuple(_unfinished(os.path.join(place, "blobs"))))


def _commit(refs: str, revision: str) -> str:
    """Mirror get_cached_ref: of main, otherwise of the first other branch; or only of a given
    revision."""

    def read(name: str) -> str:
        try:
            with opened(os.path.join(refs, *name.split("/"))) as file:
                # 40 digits; more than 64 characters are no commit
                commit = file.readline(64).decode("utf-8", "replace").strip()
        except (OSError, ValueError):
            return ""
        return commit if _COMMIT.fullmatch(commit) else ""

    if sha := read(revision):
        return sha
    # a repository whose only branch is not main
    return next(filter(None, map(read, _entries(refs) if revision == "main" else ())), "")


def _manifest(path: str) -> Iterator[str]:
    """Yield the paths of the model and its projector."""
    try:
        with opened(path) as file:
            content = json.loads(file.read(_MANIFEST_SIZE))
        # {"ggufFile": {"rfilename": "..."}, ...}, as the Hub answers llama.cpp's User-Agent
        for key in ("ggufFile", "mmprojFile"):
            name = content[key]["rfilename"] if key in content else None
            if isinstance(name, str):
                yield name
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return


def _unfinished(place: str) -> Iterator[str]:
    yield from (os.path.join(place, name) for name in _entries(place) if name.endswith(_UNFINISHED))


def _entries(place: str) -> list[str]:
    """Return a directory's entries; none if it is missing or unreadable."""
    try:
        return sorted(os.listdir(place))
    except OSError:
        return []
