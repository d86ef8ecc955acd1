"""The error messages in a program's sources, and which of them `autolayers explain` knows.

    python tools/messages.py ~/.cache/autolayers-tests/llama.cpp/b11549/source
    python tools/messages.py SOURCES --without      # those without a cause, each with its place
    python tools/messages.py SOURCES --folder tools/server --folder common

Sources of llama.cpp (C++), Ollama and llama-swap (Go) and KoboldCpp (Python) are read. A message is
the literal of a call that logs an error, throws, aborts or asserts, with something in the place of
each of its conversions. Only what stands in the sources is counted, not how often it is printed.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from autolayers.diagnosis.diagnosis import explain

# of llama.cpp: what runs when a model is loaded and served
FOLDERS = (
    *("src", "common", "tools/server", "tools/mtmd", "ggml/src"),
    *(f"ggml/src/ggml-{backend}" for backend in ("cuda", "vulkan", "sycl", "metal", "rpc", "cpu")),
)
# A call that says that something failed; an assertion counts by its message
CALLS = {
    ".cpp": re.compile(
        r"\b(?:LLAMA_LOG_ERROR|LOG_ERR|LOG_ERROR|SRV_ERR|SLT_ERR|LOG_JSON_ERR|GGML_LOG_ERROR|"
        r"GGML_ABORT|GGML_ASSERT|SYCL_CHECK_MSG|std::runtime_error|std::invalid_argument|"
        r"std::out_of_range|common_params_fit_exception|send_error)\s*\("
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


def calls(text: str, pattern: re.Pattern[str]) -> Iterator[tuple[int, str, str]]:
    """Yield (line, name, what stands between its parentheses) of each call."""
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
        )


def message(name: str, inside: str) -> str:
    """Return what the call prints, as far as its literals say it."""
    if name == "GGML_ASSERT":
        # printed as it stands in the source
        return f"GGML_ASSERT({' '.join(inside.split())}) failed" if '"' in inside else ""
    parts = ["".join(filter(None, found)) for found in _LITERAL.findall(inside)]
    said = "".join(parts).replace('\\"', '"').replace("\\n", " ").strip()
    # the function's name before the colon
    said = re.sub(r"^%s ?: ", "some_function: ", said)
    filled = _CONVERSION.sub(lambda match: "7" if match[1] in "diuxXzp" else "x", said)
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
        for path in sorted((root / folder).glob("*" if folder in FOLDERS else "**/*")):
            kind = SUFFIX.get(path.suffix)
            if kind is None or not path.is_file() or "test" in path.name:
                continue
            text = path.read_text("utf-8", "replace")
            for line, name, inside in calls(text, CALLS[kind]):
                said = message(name, inside)
                if said and name in ("GGML_ABORT", "GGML_ASSERT"):
                    said = f"{path.relative_to(root)}:{line}: {said}"
                elif said and name.startswith(THROWN):
                    said = caught(str(path.relative_to(root)), said)
                if kind == ".py" and not _FAILED.search(said):
                    continue
                if said and said not in seen:
                    seen.add(said)
                    yield f"{path.relative_to(root)}:{line}", said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sources", type=Path)
    parser.add_argument("--folder", action="append", default=[])
    parser.add_argument("--without", action="store_true", help="list those without a cause")
    args = parser.parse_args()
    known: Counter[str] = Counter()
    every: Counter[str] = Counter()
    for place, said in messages(args.sources, tuple(args.folder) or FOLDERS):
        folder = str(Path(place).parent)
        every[folder] += 1
        cause = explain(said.encode(), files=False).cause
        if cause not in ("unknown", "not_in_log"):
            known[folder] += 1
        elif args.without:
            print(f"{place}: {said[:160]}")
    for folder, count in sorted(every.items()):
        print(f"{folder:<28} {known[folder]:>5} of {count:>5} with a cause")
    print(f"{'all':<28} {sum(known.values()):>5} of {sum(every.values()):>5} with a cause")


if __name__ == "__main__":
    main()
