"""The error messages in a program's sources, and which of them `autolayers explain` knows.

    python tools/messages.py ~/.cache/autolayers-tests/llama.cpp/b11549/source
    python tools/messages.py SOURCES --without      # those without a cause, each with its place
    python tools/messages.py SOURCES --folder tools/server --folder common
    python tools/messages.py --write SOURCES SOURCES ...    # tests/diagnosis/messages.csv

Sources of llama.cpp (C++), Ollama and llama-swap (Go) and KoboldCpp (Python) are read. A message is
the literal of a call that logs an error, throws, aborts or asserts, with something in the place of
each of its conversions. Only what stands in the sources is counted, not how often it is printed.
Without --folder those folders are read that a program runs when it loads and serves a model.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from autolayers.diagnosis.diagnosis import explain

# what runs when a model is loaded and served, by the file that tells the program; a folder with
# "/**" is read with those in it
PROGRAMS = {
    "koboldcpp.py": ("KoboldCpp", "."),
    "src/llama.cpp": (
        "llama.cpp",
        *("src", "common", "tools/server", "tools/mtmd", "ggml/src"),
        *(
            f"ggml/src/ggml-{backend}"
            for backend in ("cuda", "vulkan", "sycl", "metal", "rpc", "cpu")
        ),
    ),
    "llm/llama_server.go": (
        "Ollama",
        *("llm", "server", "discover", "fs/**", "ml", "runner", "template"),
    ),
    "llama-swap.go": (
        "llama-swap",
        *("internal/config", "internal/matrix", "internal/process", "internal/router"),
    ),
}
# in these folders, of other work: quantising, files of Ollama's account, converting
OTHER = re.compile(
    r"llama-quant|imatrix|mtmd-cli|mtmd-debug|^convert_|cloud_proxy|auth\.go|upload\.go"
    r"|recommendation|(?:list|show)_cache|request_log|quantization\.go|ggml-opencl|class\.py"
)
TABLE = Path(__file__).parents[1] / "tests" / "diagnosis" / "messages.csv"
# A call that says that something failed; an assertion counts by its message
CALLS = {
    ".cpp": re.compile(
        r"\b(?:LLAMA_LOG_ERROR|LOG_ERR|LOG_ERROR|SRV_ERR|SLT_ERR|LOG_JSON_ERR|GGML_LOG_ERROR|"
        r"GGML_ABORT|GGML_ASSERT|SYCL_CHECK_MSG|std::runtime_error|std::invalid_argument|"
        r"std::out_of_range|common_params_fit_exception|send_error|printf|fprintf)\s*\("
    ),
    ".go": re.compile(
        r"\b(?:fmt\.Errorf|errors\.New|slog\.(?:Error|Warn)|\w*[lL]ogger\.(?:Errorf?|Warnf?)|"
        r"http\.Error|log\.(?:Fatalf?|Print(?:f|ln)?)|SendError|sendErrorResponse)\("
    ),
    ".py": re.compile(r"\b(?:print|exit_with_error|raise \w+)\("),
}
SUFFIX = {
    **dict.fromkeys((".cpp", ".h", ".hpp", ".c", ".cc", ".cu", ".cuh", ".m", ".mm"), ".cpp"),
    ".go": ".go",
    ".py": ".py",
}
# What is thrown is printed by whoever catches it: the file that throws, and the line it ends in
CAUGHT = (
    (
        r"^src/llama-(?:model|hparams|vocab|mmap|arch)[\w-]*\.\w+$",
        "llama_model_load: error loading model: {}",
    ),
    (
        r"^src/llama-(?:context|kv-cache|memory|graph|moe-cache)[\w-]*\.\w+$",
        "llama_init_from_model: failed to initialize the context: {}",
    ),
    (r"^src/llama-grammar", "parse: error parsing grammar: {}"),
    (r"^src/llama-adapter", "llama_adapter_lora_init: failed to apply lora adapter: {}"),
    (r"^common/(?:arg|common|speculative)\.\w+$", 'error while handling argument "-x": {}'),
    (
        r"^common/fit\.cpp$",
        "common_fit_params: failed to fit params to free device memory: {}",
    ),
    (
        r"^(?:tools/server/server-(?:chat|common|context|task|schema|decision|tools)|common/chat)",
        '{{"error":{{"code":400,"message":"{}","type":"invalid_request_error"}}}}',
    ),
    (r"^tools/server/server-mcp", "srv  llama_server: MCP starting failed: {}"),
    (r"^tools/mtmd/clip\.cpp$", "clip_init: failed to load model 'mmproj.gguf': {}"),
    # llama-swap's
    (r"^internal/config/", 'level=ERROR msg="failed to load config" config=a error="{}"'),
)
THROWN = (
    *("std::runtime_error", "std::invalid_argument", "std::out_of_range", "common_params_fit"),
    *("fmt.Errorf", "errors.New"),
)
_LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"|`([^`]{1,400})`|\'((?:[^\'\\\n]|\\.)*)\'')
_CONVERSION = re.compile(r"%(?:[-+ #0]*\d*(?:\.[\d*]+)?)(?:hh?|ll?|z|t|j)?([a-zA-Z])")
_FAILED = re.compile(r"rror|ailed|annot|unable|missing|invalid|not found", re.IGNORECASE)
_PRINTS = ("print", "printf", "fprintf")
# the first column of a function's first line
_FUNCTION = re.compile(r"^[A-Za-z_][^;{}()\n]{0,200}?([\w~]+)\s?\(", re.MULTILINE)
_NUMBERS = dict.fromkeys("diuxXzp", "7") | dict.fromkeys("fFgGeE", "7.00")


def calls(text: str, pattern: re.Pattern[str]) -> Iterator[tuple[int, str, str, int]]:
    """Yield (line, name, what stands between its parentheses, index) of each call."""
    for match in pattern.finditer(text):
        depth, at = 1, match.end()
        while at < len(text) and depth and at - match.end() < 2000:
            if text[at] == '"':
                literal = _LITERAL.match(text, at)
                at = literal.end() if literal else at + 1
                continue
            depth += {"(": 1, ")": -1}.get(text[at], 0)
            at += 1
        yield (
            text.count("\n", 0, match.start()) + 1,
            match[0].rstrip(" ("),
            text[match.end() : at - 1],
            match.start(),
        )


def function_of(text: str, at: int) -> str:
    """Return the name of the function in which this place of a C++ file stands."""
    names = [match[1] for match in _FUNCTION.finditer(text, max(0, at - 20_000), at)]
    return names[-1] if names else "some_function"


def message(name: str, inside: str, function: str = "some_function") -> str:
    """Return what the call prints, as far as its literals say it."""
    if name == "GGML_ASSERT":
        # printed as it stands in the source
        return f"GGML_ASSERT({' '.join(inside.split())}) failed" if '"' in inside else ""
    inside = re.sub(r'%"\s*PRI\w+\s*"', "%d", inside)
    parts = ["".join(filter(None, found)) for found in _LITERAL.findall(inside)]
    # Go's slog: a message and the names of its values
    if name.startswith("slog."):
        parts = [f'msg="{parts[0]}"', *(f" {key}=x" for key in parts[1:])] if parts else []
    said = "".join(parts).replace('\\"', '"').replace("\\n", " ").strip()
    # the function's name before the colon
    said = re.sub(r"^%s ?: ", f"{function}: ", said)
    filled = _CONVERSION.sub(lambda match: _NUMBERS.get(match[1], "x"), said)
    says = filled != "fatal error" and re.search(r"[a-zA-Z]{3,}.*[a-zA-Z]{3,}", filled)
    return filled if says else ""


def caught(path: str, said: str) -> str:
    """Return what is printed of a message that a file throws."""
    for pattern, line in CAUGHT:
        if re.search(pattern, path):
            return line.format(said)
    return said


def messages(root: Path, folders: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield (place, message) of each error in the files of these folders, each message once."""
    seen: set[str] = set()
    for folder in folders:
        deep, folder = folder.endswith("/**"), folder.removesuffix("/**")
        for path in sorted((root / folder).glob("**/*" if deep else "*")):
            kind = SUFFIX.get(path.suffix)
            if kind is None or not path.is_file() or "test" in path.name or OTHER.search(path.name):
                continue
            text = path.read_text("utf-8", "replace")
            for line, name, inside, at in calls(text, CALLS[kind]):
                said = message(name, inside, function_of(text, at) if "%s" in inside else "")
                if said and name in ("GGML_ABORT", "GGML_ASSERT"):
                    said = f"{path.relative_to(root)}:{line}: {said}"
                elif said and name.startswith(THROWN):
                    said = caught(str(path.relative_to(root)), said)
                if name in _PRINTS and not _FAILED.search(said):
                    continue
                if said and said not in seen:
                    seen.add(said)
                    yield f"{path.relative_to(root)}:{line}", said


def counted(root: Path, folders: tuple[str, ...], without: bool = False) -> dict[str, list[int]]:
    """Return how many messages each folder has, and how many of them have a cause."""
    counts: dict[str, list[int]] = {}
    for place, said in messages(root, folders):
        of = counts.setdefault(str(Path(place).parent), [0, 0])
        of[0] += 1
        if explain(said.encode(), files=False).known:
            of[1] += 1
        elif without:
            print(f"{place}: {said[:160]}")
    return counts


def program(root: Path) -> tuple[str, tuple[str, ...]]:
    """Return the name of the program whose sources these are, and its folders."""
    for file, (name, *folders) in PROGRAMS.items():
        if (root / file).is_file():
            return name, tuple(folders)
    return root.name, ("./**",)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sources", type=Path, nargs="+")
    parser.add_argument("--folder", action="append", default=[])
    parser.add_argument("--without", action="store_true", help="list those without a cause")
    parser.add_argument("--write", action="store_true", help="the table, a row a program")
    args = parser.parse_args()
    table = [["program", "folder", "messages", "with a cause"]]
    for root in args.sources:
        name, folders = program(root)
        counts = counted(root, tuple(f"{one}/**" for one in args.folder) or folders, args.without)
        for folder, (every, known) in sorted(counts.items()):
            print(f"{name:<12} {folder:<24} {known:>5} of {every:>5} with a cause")
            table.append([name, folder, str(every), str(known)])
        every, known = (sum(row[i] for row in counts.values()) for i in (0, 1))
        print(f"{name:<12} {'all':<24} {known:>5} of {every:>5} with a cause")
    if args.write:
        with TABLE.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(table)


if __name__ == "__main__":
    main()
