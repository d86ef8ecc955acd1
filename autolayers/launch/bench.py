"""llama-bench (tools/llama-bench/llama-bench.cpp): llama-server's flags converted to its own and
back, and one measurement.

    words, lacking = bench_words(params, program.flags)       # -nkvo 1, -ts 3/1, -ot a=CPU;b=CPU
    rates = measure(program, [*words, ...], test, timeout=60, environ=os.environ)

Its flags take a value where llama-server's are switches. A comma starts the next test, so lists
have other separators. The tests determine the context and the sequences.
"""

from __future__ import annotations

import json
import re
import time

from ..detect import read_version
from ..errors import AutolayersError
from ..flags.kinds import FLAG
from ..flags.params import Params
from ..flags.parse import items, parse
from ..flags.table import lookup, rows_of
from ..programs import NoAnswer, ask
from ..quoting import printable
from ..records import dataclass
from ..tables import listed
from ..tables import rows as rows_of_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from typing import Any

    from ..planner.compare.rivals import Trial

ROWS = {row["field"]: row for row in rows_of_table("launch/bench.tsv")}
# how a value is written; lists are separated by slashes and rules by semicolons: a comma starts the
# next test
_WRITTEN: dict[str, Callable[[Any], str]] = {
    "": str,
    # -2 is "all", a word that it does not take
    "layers": lambda n: "999" if n == -2 else str(n),
    "off": lambda on: str(int(not on)),
    "on": lambda on: str(int(on)),
    "shares": lambda shares: "/".join(f"{share:g}" for share in shares),
    "names": lambda names: "/".join(names) or "none",
    "list": ",".join,
    "rules": lambda pairs: ";".join(f"{pattern}={buffer}" for pattern, buffer in pairs),
}
# set by the test, or always fixed by a plan
_OF_TESTS = frozenset(
    listed("n_ctx n_parallel kv_unified kv_unified_per_slot warmup fit fit_target fit_ctx")
)
# flags that both have and that do not affect memory
ALIKE = ("-C", "--cpu-strict", "--poll", "--prio")
_BENCH_ONLY = ("-o", "-r", "-v", "--progress", "--repack")  # mean something else to llama-server
_SWITCHES = {
    "-nkvo": "-nkvo",
    "--no-kv-offload": "-nkvo",
    "-nopo": "--no-op-offload",
    "--no-op-offload": "--no-op-offload",
    "--no-host": "--no-host",
    "-embd": "--embedding",
    "--embeddings": "--embedding",
}
_TESTS = {"-p": 512, "-n": 128, "-d": 0, "-pg": 0}  # what is usual
_LONG = {"--n-prompt": "-p", "--n-gen": "-n", "--n-depth": "-d"}
_COUNTS = ("n_batch", "n_ubatch")  # a list of them is several tests
_TEXTS = ("-ts", "--tensor-split", "-dev", "--device", "-ot", "--override-tensor")
_PLACEMENT = ("n_gpu_layers", "split_mode", "tensor_split", "main_gpu", "device", "overrides")
_BELIEVED = 3.0  # if repetitions differ by more than this factor, the slower one counts


class BenchFailed(AutolayersError):
    """A launch could not be measured; the message is one line without the program's name."""


@dataclass(frozen=True)
class Program:
    """A llama-bench. `words` start it; `flags`: the names in its --help; `jsonl`: it has that
    output; `commit`: "" if unknown."""

    words: tuple[str, ...]
    flags: frozenset[str]
    jsonl: bool
    commit: str = ""

    @property
    def name(self) -> str:
        return self.words[0]


@dataclass(frozen=True)
class BenchRates:
    """llama-bench's tokens per second of the prompt and of generation. `doubt`: why a slower
    repetition than the best counts."""

    prompt: float
    token: float
    build: int
    commit: str
    processor: str
    doubt: str = ""


def in_its_words(params: Params, flags: Collection[str]) -> tuple[list[str], list[str]]:
    """Return (words, llama-server's flags that it lacks) for a launch. `flags`: the flags that this
    build has."""
    words: list[str] = []
    lacking: list[str] = []
    for name in Params.__record_fields__:  # type: ignore[attr-defined]
        value = getattr(params, name)
        # No devices, `()`, is -dev none
        if value is None or (value == () and name != "device") or name in _OF_TESTS:
            continue
        pair = _flag_and_value(*_pair(name, value), flags) if name in ROWS else []
        # A sign that llama-bench separates rules or launches by
        if pair and not (
            name == "overrides" and any(set(",;") & set(part) for pair in value for part in pair)
        ):
            words += pair
        else:
            lacking.append(rows_of(name)[0].canonical)
    return words, lacking


def _pair(field: str, value: Any) -> tuple[str, str]:
    """Return llama-bench's flag of a field of Params, and its value."""
    row = ROWS[field]
    return row["flag"], _WRITTEN[row["how"]](value)


def _flag_and_value(flag: str, value: str, flags: Collection[str]) -> list[str]:
    """Return a flag and its value in this build's form; [] if it has none."""
    # `flags` are names of the --help, where -rpc has two spellings
    if flag in flags or (flag == "-rpc" and "--rpc" in flags):
        return [flag, value]
    if flag == "-lm" and "-mmp" in flags:  # older builds: one switch each
        return (
            ["-mmp", str(int("mmap" in value or value == "auto"))]
            if value != "dio" and "mlock" not in value
            else []
        )
    return []


def rest_in_its_words(words: Sequence[str], flags: Collection[str]) -> tuple[list[str], list[str]]:
    """Return the same for a command's words that do not affect memory."""
    same: list[str] = []
    lacking: list[str] = []
    for item in items(words):
        known_flag = item.argument
        # A flag with a field is part of the plan already
        if known_flag is not None and known_flag.field:
            continue
        name = known_flag.canonical if known_flag else item.name
        if name in ALIKE and name in flags:
            same += [name, *item.words[1:]]
        else:
            lacking.append(item.name)
    return same, lacking


def read_program(words: Sequence[str], environ: Mapping[str, str], timeout: float = 30) -> Program:
    """Return the llama-bench that these words start, described by its --help. Raises
    BenchFailed."""
    commit = ""
    try:
        answer = ask([*words, "--help"], environ, timeout)
        if "--version" in answer.out:
            commit = read_version(ask([*words, "--version"], environ, timeout).out)[1]
    except NoAnswer as error:
        raise BenchFailed(f"{words[0]}: {error}") from None
    text = answer.out + answer.err
    # Names at the start of each line of the --help, up to its default, which may have dashes too
    flags = frozenset(
        name
        for line in text.splitlines()
        if line.strip().startswith("-")
        for name in re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", line.partition("(default")[0])
    )
    # Without these nothing can be measured
    if not {"-ngl", "-p", "-n", "-o"} <= flags:
        raise BenchFailed(f"{words[0]}: not llama-bench, by its --help")
    return Program(tuple(words), flags, "jsonl" in text, commit)


def measure(
    program: Program,
    words: Sequence[str],
    test: Trial,
    timeout: float,
    environ: Mapping[str, str],
    repetitions: int = 2,
) -> BenchRates:
    """Run one test of a launch. Raises BenchFailed if it fails, exceeds its time or prints
    impossible values."""
    command = [
        *program.words,
        *words,
        "-p",
        str(test.prompt),
        "-n",
        str(test.generate),
        "-d",
        str(test.depth),
        "-r",
        str(repetitions),
        "-o",
        "jsonl" if program.jsonl else "json",
    ]
    begin = time.monotonic()
    try:
        answer = ask(command, environ, timeout)
    except NoAnswer as error:
        raise BenchFailed(str(error)) from None
    # A bound for all times that its rows may claim
    took = time.monotonic() - begin
    if answer.code:
        # The signal or the exit code of a failed run, with its last line
        if answer.code < 0:
            memory = ", perhaps out of memory" if answer.code == -9 else ""
            why = f"ended by signal {-answer.code}{memory}"
        else:
            line = _last_line(answer.err) or _last_line(answer.out) or "no message"
            why = f"exit code {answer.code}: {line}"
        raise BenchFailed(why)
    rows = list(rows_of_text(answer.out))
    prompt = _rate(rows, test.prompt, 0, test.depth, took)
    token = _rate(rows, 0, test.generate, test.depth, took)
    row = prompt[2]
    build, commit, processor = row.get("build_number"), row.get("build_commit"), row.get("cpu_info")
    return BenchRates(
        prompt[0],
        token[0],
        build if isinstance(build, int) else 0,
        commit if isinstance(commit, str) else "",
        processor if isinstance(processor, str) else "",
        prompt[1] or token[1],
    )


def rows_of_text(text: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of its output, a list or one per line."""
    try:
        # -o json is one list, -o jsonl an object on each line, between lines of the log
        content = json.loads(text)
        yield from (
            row
            for row in (content if isinstance(content, list) else [content])
            if isinstance(row, dict)
        )
        return
    except (ValueError, RecursionError):
        pass
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            yield row


def _rate(
    rows: Sequence[dict[str, Any]], prompt: int, generate: int, depth: int, took: float
) -> tuple[float, str, dict[str, Any]]:
    """Return (tokens per second, a doubt, the row) of one test. `took`: seconds by this process's
    clock."""
    what = "prompt" if prompt else "generation"
    # (prompt, generated, depth) of a row, in tokens
    row = next(
        (
            row
            for row in rows
            if (row.get("n_prompt"), row.get("n_gen"), row.get("n_depth", 0))
            == (prompt, generate, depth)
        ),
        None,
    )
    if row is None:
        raise BenchFailed(f"no {what} of {prompt or generate} tokens in its output")
    # Positive whole numbers, one at least
    found = row.get("samples_ns")
    given = found if isinstance(found, list) else []
    samples = [ns for ns in given if isinstance(ns, int) and not isinstance(ns, bool) and ns > 0]
    if not samples or len(samples) != len(given):
        raise BenchFailed(f"the times of its {what} are not numbers of nanoseconds")
    # Its clock may be a virtual machine's, which jumps: 5 % and 0.1 s are allowed
    if sum(samples) > 1.05e9 * took + 1e8:
        raise BenchFailed(
            f"its {what} took {sum(samples) / 1e9:.1f} s of a run of {took:.1f} s: a clock jumped"
        )
    # nanoseconds of each repetition
    fast, slow = min(samples), max(samples)
    tokens = (prompt + generate) * 1e9
    if slow <= _BELIEVED * fast:
        return tokens / fast, "", row
    doubt = (
        f"repetitions of its {what} differ by a factor of {slow / fast:.0f}: the machine is "
        "busy, or a clock jumped"
    )
    # The slower one: too good a rate would win the comparison
    return tokens / slow, doubt, row


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower() or "failed" in line.lower()]
    return printable((errors or lines or [""])[-1].strip())[:200]


# --- a plan for a llama-bench command

# it then places the layers itself, and ends where some are placed already (common_fit_params)
_FITS = frozenset(("-fitt", "--fit-target", "-fitc", "--fit-ctx"))


def fits_itself(words: Sequence[str]) -> bool:
    """Return whether a llama-bench command leaves the placement to llama-bench."""
    return not _FITS.isdisjoint(words)


def for_bench(name: str, words: list[str]) -> list[str]:
    """Return the words of a plan's field for `autolayers run llama-bench`: its tests set the
    rest."""
    if name not in _PLACEMENT or not words:
        return []
    value = getattr(parse(words, command=None).params, name)
    if name == "n_gpu_layers":
        return words
    return [*_pair(name, value)]


def as_server(words: Sequence[str]) -> tuple[str, ...]:
    """Return the largest launch of a llama-bench command, as llama-server's flags: one sequence,
    its longest test, its largest batches.

    Every test has a context of its own, for its prompt or its generation, -pg's for both, behind
    the depth (get_cmd_params_instances, to_llama_cparams of b11549).
    """
    largest = _Largest()
    i = 0
    while i < len(words):
        value = words[i + 1] if i + 1 < len(words) else ""
        i += largest.take(words[i], value)
    return largest.words()


class _Largest:
    """The largest launch of a llama-bench command, word by word."""

    def __init__(self) -> None:
        self._plain = ["-np", "1"]
        self._tests: dict[str, list[int]] = {}  # by -p, -n, -d and -pg: tokens
        self._counts: dict[str, int] = {}  # by -b and -ub

    def take(self, word: str, value: str) -> int:
        """Add a flag, with the word behind it; return how many of both are its own."""
        key = _LONG.get(word, word)
        if key in _TESTS:
            numbers = _numbers(value)
            tokens = sum(numbers) if key == "-pg" else max(numbers, default=0)
            # A repeated -p adds tests, as a list does
            self._tests.setdefault(key, []).append(tokens)
        elif word in _SWITCHES:
            # "0,1" is two tests: without the switch is taken as llama-server's default
            self._plain += [_SWITCHES[word]] if value == "1" else []
        elif word in _TEXTS:
            # llama-server's separator is the comma
            self._plain += [word, value.replace("/", ",").replace(";", ",")]
        elif (rows := lookup(word)) is None or word in _BENCH_ONLY:
            # Unknown: what follows is its value unless it looks like a flag
            return 1 if value.startswith("-") or word in ("-v", "--progress") else 2
        else:
            # The same for a flag that llama-server has too.
            row = rows[0]
            if row.field in _COUNTS and (numbers := _numbers(value)):
                self._counts[word] = max(self._counts.get(word, 0), *numbers)
                return 2
            if row.kind is FLAG:
                return 1
            # The first of a list: its other values are other tests
            self._plain += [word, value.split(",")[0]] if row.field else []
            return 2
        return 2

    def words(self) -> tuple[str, ...]:
        """Return the launch, with a context for its longest test."""
        words = [*self._plain]
        for flag, number in self._counts.items():
            words += [flag, str(number)]
        size = {key: max(self._tests.get(key, [usual])) for key, usual in _TESTS.items()}
        n_ctx = max(size["-p"], size["-n"], size["-pg"]) + size["-d"]
        return (*words, "-c", str(n_ctx)) if n_ctx else tuple(words)


def _numbers(value: str) -> list[int]:
    """Return the numbers of a list or range in llama-bench's words, without a range's step."""
    # e.g. "128-512+128" -> 128, 512; "1-1024*2" -> 1, 1024
    parts = re.sub(r"[+*]\d+", "", value).replace("-", ",").split(",")
    return [int(part) for part in parts if part.isascii() and part.isdecimal() and len(part) < 10]
