"""Models of the Hugging Face Hub: hf:USER/REPO[@REVISION][:QUANT] and
hf:USER/REPO/path/FILE.gguf[@REVISION].

    GET HF_ENDPOINT/api/models/USER/REPO/tree/REVISION?recursive=true     the files, 1000 a page
    GET HF_ENDPOINT/USER/REPO/resolve/REVISION/path/FILE.gguf             redirects to the file

Among several files the one is chosen that `llama-server -hf` would load
(common/download.cpp:find_best_model), because the plan is for that launch. If more than one
matches, a warning names the others.
"""

from __future__ import annotations

import re
from urllib.parse import quote, urlsplit, urlunsplit

from ..errors import ModelError
from ..gguf import Header, read_header
from ..model.quantisation import named
from ..net import Limit, NetError, is_loopback, origin, public
from .http import MAX_PARTS, Get, Remote, open_url, patience

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


HUB = "https://huggingface.co"
_MAX_PAGES = 100
MAX_FILES = 100_000  # the Hub's pages have 1000 each
_SHOWN = 20  # models that a message names

_DEFAULTS = ("Q4_K_M", "Q8_0")  # llama-server's, in this order, before the first file of all
# in names of files that are not models
_OTHERS = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
_FILE = re.compile(r"hf:([\w.-]+/[\w.-]+)/(.+\.gguf)(?:@(.+))?", re.ASCII | re.IGNORECASE)
_REPOSITORY = re.compile(
    r"hf:([\w.-]+/[\w.-]+)(?:@([\w./-]+))?(?::([\w.-]+))?", re.ASCII | re.IGNORECASE
)
_PART = re.compile(r"-(\d{5})-of-\d{5}\.gguf$", re.IGNORECASE)


class Hub:
    """The Hub, by HF_ENDPOINT (a mirror) and HF_TOKEN."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.endpoint = (environ.get("HF_ENDPOINT", "").strip() or HUB).rstrip("/")
        try:
            self._origin = origin(self.endpoint)
        except NetError as error:
            raise ModelError(f"HF_ENDPOINT: {error} (expected http(s)://HOST)") from None
        # A token that was pasted with its line end
        self._token = environ.get("HF_TOKEN", "").strip()

    def token_for(self, url: str) -> str:
        """Return HF_TOKEN, for this Hub only, and only over an encrypted or local connection."""
        requested = origin(url)
        # (scheme, host, port)
        safe = requested[0] == "https" or is_loopback(requested[1])
        return self._token if safe and requested == self._origin else ""

    def file_url(self, url: str) -> str:
        """Return the link of a file, for the link of its page."""
        own = origin(url)
        split = urlsplit(url)
        # the address that a browser shows for a file
        # /blob/ is a page about the file, /resolve/ the file itself
        page = re.fullmatch(r"(/[^/]+/[^/]+)/blob/(.+\.gguf)", split.path)
        if page and own == self._origin:
            return urlunsplit(split._replace(path=f"{page[1]}/resolve/{page[2]}"))
        return url

    def repository_of(self, url: str) -> str:
        """Return USER/REPO for the link of a repository's page; "" for other links."""
        if origin(url) != self._origin:
            return ""
        page = re.fullmatch(r"/([^/]+/[^/]+?)(/tree/[^/]+)?/?", urlsplit(url).path)
        return page[1] if page and not page[1].lower().endswith(".gguf") else ""

    def listing_url(self, repository: str, revision: str) -> str:
        """Return the URL of a repository's list of files, as JSON."""
        tree = f"{repository}/tree/{quote(revision, safe='')}"
        return f"{self.endpoint}/api/models/{tree}?recursive=true"

    def download_url(self, repository: str, revision: str, path: str) -> str:
        return f"{self.endpoint}/{repository}/resolve/{quote(revision, safe='')}/{quote(path)}"

    def header(self, name: str) -> Header:
        """Return the Header of the model `name`. Raises ModelError."""
        repository, revision, wanted, quant = parse_name(name)
        limit = patience()
        files = self.files(repository, revision, name, limit)
        notes: list[str] = []
        if wanted:
            if wanted not in files:
                raise ModelError(f"{name}: no such file; {choices(repository, models_of(files))}")
            path = wanted
        else:
            path, notes = choose(repository, files, quant)
        projector = projector_of(files, path)
        if projector and path != projector:
            notes.append(
                f"`llama-server -hf` loads {projector} of {repository} too, which is not in this "
                "plan: download it and give it with --mmproj, or launch with --no-mmproj"
            )
        # One limit of time for the list of files and all shards
        parts = open_url(self.download_url(repository, revision, path), self.token_for, limit)
        paths = parts_of(path, len(parts))
        at = "" if revision == "main" else f"@{revision}"
        named = [
            Remote(part.url, self.token_for, f"hf:{repository}/{file}{at}", limit)
            for part, file in zip(parts, paths, strict=True)
        ]
        header = read_header(list(named))
        return Header(
            header.version,
            header.alignment,
            header.metadata,
            header.tensors,
            header.files,
            (*header.notes, *notes),
        )

    def files(self, repository: str, revision: str, name: str, limit: Limit) -> list[str]:
        """Return the paths of a repository's files, in the Hub's order. `name` is for errors."""
        url = self.listing_url(repository, revision)
        paths: list[str] = []
        for _ in range(_MAX_PAGES):
            answer, following = Get(url, self.token_for, name, limit).json()
            if not isinstance(answer, list):
                raise ModelError(
                    f"{name}: {public(self.endpoint)} answers with no list of files; is "
                    "HF_ENDPOINT right?"
                )
            paths += [path for path in map(_path_of, answer) if path is not None]
            if len(paths) > MAX_FILES:
                break
            # A next page on another host would get the token
            if not following or not _same_origin(following, url):
                return paths
            url = following
        raise ModelError(
            f"{name}: its list of files does not end; name one: hf:{repository}/FILE.gguf"
        )


def _path_of(entry: object) -> str | None:
    """Return the path of a file of the Hub's list; None for what is no file."""
    if not isinstance(entry, dict) or entry.get("type") != "file":
        return None
    path = entry.get("path")
    return path if isinstance(path, str) and path.isprintable() else None


def _same_origin(one: str, other: str) -> bool:
    try:
        return origin(one) == origin(other)
    except NetError:
        return False


def choose(repository: str, files: list[str], quant: str = "") -> tuple[str, list[str]]:
    """Return (the file that llama-server loads, warnings). Raises ModelError with the existing
    ones."""
    models = models_of(files)
    if not models:
        raise ModelError(
            f"hf:{repository}: no GGUF model in it; look for a repository whose name ends with "
            "-GGUF"
        )
    for wanted in (quant,) if quant else _DEFAULTS:
        # As find_best_model: "Q4_K" matches "-Q4_K.gguf" and "-Q4_K-00001-of-", not "-Q4_K_M.gguf"
        pattern = re.compile(re.escape(wanted) + "[.-]", re.IGNORECASE)
        matching = [path for path in models if pattern.search(path)]
        if matching:
            # Q8_0 stands in where there is no Q4_K_M: all other files are named then
            first = wanted in (quant, _DEFAULTS[0])
            others = matching[1:] if first else [path for path in models if path != matching[0]]
            break
    else:
        if quant:
            raise ModelError(
                f"hf:{repository}:{quant}: no such file; {choices(repository, models)}"
            )
        matching, others = models, models[1:]
    if not others:
        return matching[0], []
    return matching[0], [
        f"{matching[0]} of {repository} is used, as by `llama-server -hf`; "
        f"{choices(repository, others, 'others')}"
    ]


def words_of(repository: str, files: list[str], path: str) -> tuple[str, ...]:
    """Return llama-server's flags for this file: -hf with its quant if that is unambiguous,
    otherwise with its name."""
    quant = named(path)
    # The short form only where llama-server would choose this very file
    if quant and choose(repository, files, quant[1])[0] == path:
        return "-hf", f"{repository}:{quant[1]}"
    return "-hf", repository, "-hff", path


def parse_name(name: str) -> tuple[str, str, str, str]:
    """Return the parts of an hf: name: (repository, revision, file, quant), the last two "" if not
    given."""
    if file := _FILE.fullmatch(name):
        path = file[2]
        if any(part in ("", ".", "..") for part in path.split("/")):
            raise ModelError(f"{name}: {path} is not a path in a repository")
        return file[1], file[3] or "main", path, ""
    if repository := _REPOSITORY.fullmatch(name):
        return repository[1], repository[2] or "main", "", repository[3] or ""
    raise ModelError(f"{name}: expected hf:USER/REPO, hf:USER/REPO:QUANT or hf:USER/REPO/FILE.gguf")


def models_of(files: list[str]) -> list[str]:
    """Return the models among the files, a split one by its first shard
    (gguf_filename_is_model)."""

    def is_model(path: str) -> bool:
        part = _PART.search(path)
        return (
            path.lower().endswith(".gguf")
            and not any(word in path.rpartition("/")[2].lower() for word in _OTHERS)
            and (part is None or int(part[1]) == 1)
        )

    return [path for path in files if is_model(path)]


def projector_of(files: list[str], model: str) -> str:
    """Return the projector that belongs to a model: in its directory or one above
    (find_best_mmproj)."""
    projectors = [
        path
        for path in files
        if path.lower().endswith(".gguf")
        and "mmproj" in path
        # "dir/mmproj.gguf" belongs to "dir/sub/model.gguf" too
        and (model.startswith(path.rpartition("/")[0] + "/") or "/" not in path)
    ]
    # The one with the most directories in common
    return max(projectors, key=lambda path: path.count("/"), default="")


def has_parts(path: str) -> int:
    """Return the number of shards of this file's model, by its name."""
    part = _PART.search(path)
    return min(int(path[-10:-5]), MAX_PARTS) if part else 1


def parts_of(path: str, count: int) -> list[str]:
    """Return the files of a model of `count` shards, given the first."""
    if count == 1:
        return [path]
    # Numbers of parts have five digits always
    stem = path[: -len("-00001-of-00001.gguf")]
    return [f"{stem}-{i + 1:05d}-of-{count:05d}.gguf" for i in range(count)]


def choices(repository: str, models: list[str], what: str = "there is") -> str:
    """Return what the user can write instead: quants if they are distinct, otherwise files."""
    if not models:
        return f"{repository} has no GGUF model"
    quants = [match[1] if (match := named(path)) else "" for path in models]
    distinct = all(quants) and len(set(quants)) == len(quants)
    ends = [f":{quant}" for quant in quants] if distinct else [f"/{path}" for path in models]
    shown = ", ".join(f"hf:{repository}{end}" for end in ends[:_SHOWN])
    rest = f" and {len(ends) - _SHOWN} more" if len(ends) > _SHOWN else ""
    return f"{what}: {shown}{rest}"
