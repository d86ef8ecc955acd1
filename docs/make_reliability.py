"""docs/reliability.md, from benchmarks/soak.json and the table below: `python docs/make.py
reliability`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FIGURES = Path(__file__).resolve().parent.parent / "benchmarks" / "soak.json"
AIM, QUESTIONS, KILLS = 1_000_000, 100_000, 1_000

_INTRODUCTION = """\
# Reliability

<!-- Made by `python docs/make.py reliability` from benchmarks/soak.json, which
`python benchmarks/soak.py` extends. -->

{open} The headings say what was tried so far and how often it was to be: each run of
`benchmarks/soak.py` continues at the case where the last one ended.
[SECURITY.md](../SECURITY.md) says what must hold,
[CONTRIBUTING.md](../CONTRIBUTING.md#hostile-input) where the limits are.
"""

_KINDS = {
    "commands": "`plan`, `inspect` and `sweep` with flags and values of all kinds",
    "explaining": "`explain` of logs with bytes changed, lines of several logs, hostile words",
    "launches": "plans of headers with bytes changed or up to 512 layers, for 0 to 16 devices, in "
    "every format",
    "machines": "plans in every format for machine files with wrong values, of models with hostile "
    "names",
    "starts": "`run --dry-run` with state files that anybody may have written",
    "headers": "`inspect` of headers with bytes changed, and the number of layers of a plan",
    "settings": "`inspect`, `measured` and plans with an environment, a config file and state "
    "files that anybody may have written",
}

# What an attack in November 2026 found (F1 to F16, and three of the rounds around it) -> its tests
FINDINGS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "F1",
        "printed commands ran a stranger's words in fish and dash",
        (
            "tests/test_quoting.py::test_shells_read_what_is_printable_alike",
            "tests/test_quoting.py::test_shells_run_nothing_of_what_is_not_printable",
            "tests/cli/test_printed_commands.py::test_a_file_may_have_any_name",
            "tests/cli/test_printed_commands.py::test_a_log_may_have_any_words",
        ),
    ),
    (
        "F2",
        "headers that contradict their tensors fitted, exactly",
        (
            "tests/model/test_shapes.py::test_a_file_is_refused_with_the_words_of_llama_cpp",
            "tests/model/test_shapes.py::test_one_wrong_dimension_is_refused_or_not_exact",
        ),
    ),
    (
        "F3",
        "a signal at the start of `run --wait` left the server",
        (
            "tests/launch/test_supervise.py::test_a_signal_as_soon_as_the_server_starts_ends_it",
            "tests/launch/test_supervise.py::test_a_defect_while_waiting_leaves_no_server",
            "tests/launch/test_supervise.py::test_no_server_outlives_a_kill",
            "tests/launch/test_signals.py::test_a_stopped_command_leaves_nothing_and_says_so",
        ),
    ),
    (
        "F4",
        "a server that prints without end took all memory",
        (
            "tests/launch/test_supervise.py::test_a_server_that_prints_without_end_is_ended",
            "tests/launch/test_supervise.py::test_a_server_that_stays_silent_is_given_up",
        ),
    ),
    (
        "F5",
        "`ps` sent a key to whoever held the port",
        ("tests/cli/test_ps.py::test_no_stranger_is_asked_or_given_the_key",),
    ),
    (
        "F6",
        "small headers took 40 s, and all questions waited",
        (
            "tests/planner/test_budget.py::test_a_plan_whose_budget_is_spent_is_the_best_so_far",
            "tests/planner/test_budget.py::"
            "test_what_is_compared_with_a_plan_is_within_its_budget_too",
            "tests/web/test_service.py::test_a_small_question_passes_a_large_one",
            "tests/web/test_service.py::test_nothing_is_computed_for_a_client_that_has_gone",
        ),
    ),
    (
        "F7",
        "connections were reset where many came at once",
        ("tests/web/test_service.py::test_many_clients_at_once_are_all_accepted",),
    ),
    (
        "F8",
        "digits without end in a machine file were a traceback",
        ("tests/devices/test_machine_file.py::test_what_is_wrong_is_one_line",),
    ),
    (
        "F9",
        "state files that are pipes or links hung or were written through",
        (
            "tests/test_state.py::test_a_state_file_that_is_none_is_not_written_through",
            "tests/test_state.py::test_a_damaged_state_file_is_kept_aside",
        ),
    ),
    ("F10", "COLUMNS of 10^9 did not end", ("tests/test_output.py::test_any_columns_end_at_once",)),
    (
        "F11",
        "descendants in their own session survived",
        (
            "tests/launch/test_supervise.py::test_a_descendant_that_left_the_group_ends_too",
            "tests/launch/test_supervise.py::test_a_server_that_ignores_sigterm_is_killed",
        ),
    ),
    (
        "F12",
        "an address that is none, and any defect, had no answer",
        (
            "tests/web/test_service.py::test_an_address_that_is_none_is_refused",
            "tests/web/test_service.py::test_a_defect_is_answered",
        ),
    ),
    (
        "F13",
        "--port went unquoted into files",
        (
            "tests/launch/test_formats.py::test_a_port_is_a_number",
            "tests/launch/test_formats.py::test_nixos_and_llmkube_get_the_port",
        ),
    ),
    (
        "F14",
        "redirects led from public addresses inside",
        ("tests/test_net.py::test_no_public_address_leads_inside",),
    ),
    (
        "F15",
        "release tools and the container's base without digests, Pyodide's files not compared, "
        "the page before the tests",
        (
            "tests/test_packaging.py::test_workflows_pin_what_they_run_and_may_do_little",
            "tests/test_packaging.py::test_nothing_is_published_before_the_tests",
            "tests/test_packaging.py::test_what_a_release_runs_and_ships_has_digests",
            "tests/test_packaging.py::test_the_image_is_built_on_one_that_nobody_can_exchange",
            "tests/web/test_build.py::test_pyodide_is_copied_from_a_folder_that_holds_it",
        ),
    ),
    (
        "F16",
        "tokens that no client can send or anybody guesses",
        (
            "tests/web/test_service.py::"
            "test_a_token_that_no_client_can_send_or_anybody_guesses_is_refused",
        ),
    ),
    (
        "H1",
        "-ts of 16 shares, which llama-server refuses",
        ("tests/flags/test_parse.py::test_a_split_has_no_more_shares_than_llama_cpp_reads",),
    ),
    (
        "L6",
        "a file's name coloured the terminal",
        ("tests/test_output.py::test_a_files_name_colours_nothing_on_a_terminal",),
    ),
    (
        "A1",
        "keys of another type than llama.cpp reads were planned as exact",
        (
            "tests/model/test_keys.py::test_llama_cpp_loads_what_is_planned_and_no_more",
            "tests/model/test_keys.py::test_a_wrong_type_is_refused_in_llama_cpps_words",
        ),
    ),
    (
        "A2",
        "a header in an expression, and eight models, took 18 and 90 s",
        ("tests/test_bounds.py::test_an_expression_takes_steps_in_proportion_to_a_text",),
    ),
    (
        "A3",
        "a backslash or a zone in an address led inside",
        (
            "tests/test_net.py::test_an_address_that_two_readers_read_differently_is_not_asked",
            "tests/test_net.py::test_a_name_that_has_another_address_by_then_is_not_asked",
            "tests/test_net.py::test_no_public_address_leads_inside",
        ),
    ),
    (
        "A6",
        "digits without end, and digits that are none, were a traceback",
        (
            "tests/test_bounds.py::test_no_digits_end_a_reader",
            "tests/test_bounds.py::test_the_log_of_a_stranger_ends_nothing",
        ),
    ),
    (
        "A7",
        "pipes and devices in other people's folders hung",
        (
            "tests/test_bounds.py::test_a_pipe_without_a_writer_is_refused",
            "tests/test_bounds.py::test_a_device_without_an_end_is_refused",
        ),
    ),
    (
        "A8",
        "a program that hangs or closes its streams was waited for, its children stayed, and it "
        "stayed where who asked it was stopped",
        (
            "tests/test_bounds.py::test_a_program_that_closes_its_streams_is_waited_for_without_spinning",
            "tests/test_bounds.py::test_a_child_that_has_left_the_group_does_not_stay",
            "tests/test_bounds.py::test_a_server_that_hangs_is_asked_once_and_named_meanwhile",
            "tests/test_programs.py::test_what_was_asked_ends_with_who_asked",
        ),
    ),
    (
        "A9",
        "a fleet file with a key many times took 15 s",
        ("tests/test_bounds.py::test_a_fleet_names_the_key_that_is_there_twice",),
    ),
    (
        "A10",
        "the body of a GET was the next request, and of two headers the first counted",
        (
            "tests/web/test_server.py::test_the_body_of_a_get_is_no_second_request",
            "tests/web/test_server.py::test_a_header_that_is_there_twice_is_refused",
        ),
    ),
    (
        "A11",
        "the page's offline worker deleted the caches of others at its host",
        ("tests/web/test_browser.py::test_the_offline_worker_touches_only_its_own_caches",),
    ),
    (
        "A12",
        "a thread that the system's limits do not admit was a traceback",
        (
            "tests/test_bounds.py::test_a_thread_that_cannot_be_started_is_one_line",
            "tests/launch/test_supervise.py::"
            "test_a_thread_that_the_system_does_not_admit_is_what_is_said",
        ),
    ),
    (
        "left out",
        "a driver that lies, a clock that jumps, two writers, another user's server, files next "
        "to the model, signals, a full disk",
        (
            "tests/test_edges.py::test_an_edge_ends_in_an_answer_or_one_line",
            "tests/launch/test_signals.py::test_a_stopped_command_leaves_nothing_and_says_so",
            "tests/test_state.py::test_a_full_disk_is_one_line_and_nothing_is_lost",
        ),
    ),
)


def _defects(part: Any) -> list[str]:
    """The defects of a part and of what it holds."""
    found = list(part.get("defects", ()))
    for value in part.values():
        if isinstance(value, dict):
            found += _defects(value)
    return found


def _commands(part: dict[str, Any]) -> list[str]:
    kinds = {kind: part[kind]["ended"] for kind in _KINDS if kind in part}
    total = sum(sum(ended.values()) for ended in kinds.values())
    alone = sum(part[kind].get("processes", 0) for kind in kinds)
    lines = [
        f"## Hostile whole commands: {total:,} of {AIM:,}",
        "",
        f"""\
The command line from its words to its exit code, in one process, without the start of Python. Each
ends in a documented exit code and printable lines, with at most 300 MiB more, within 40 s of a core
that is idle, four times tests/fuzz.py's limit: these runs find what hangs, not what is slow. New
processes repeated {alone:,} cases, and ended with the same exit codes. `python tests/fuzz.py --case
KIND:NUMBER` repeats a case with the sources of that day.""",
        "",
        "| kind | what | cases | exit codes |",
        "|---|---|---|---|",
    ]
    for kind, ended in kinds.items():
        codes = ", ".join(
            f"{name.removeprefix('exit ')}: {count:,}" for name, count in sorted(ended.items())
        )
        lines.append(f"| {kind} | {_KINDS[kind]} | {sum(ended.values()):,} | {codes} |")
    return [*lines, "", f"Last run {part['date']}. {_wrong(part)}", ""]


def _servers(part: dict[str, Any]) -> list[str]:
    runs = part["runs"]
    longest = max(runs, key=lambda run: run["questions"])
    sizes = [sample["mib"] for sample in longest["samples"]]
    grown = 100 * (sizes[-1] / sizes[-3] - 1)
    more = {
        what: max(run["samples"][-1][what] - run["samples"][0][what] for run in runs)
        for what in ("threads", "handles")
    }
    said = ", ".join(f"{name}: {count:,}" for name, count in sorted(part["statuses"].items()))
    late = any(name.startswith("no answer") for name in part["statuses"])
    return [
        f"## `serve` and `web`: {part['questions']:,} questions of {QUESTIONS:,}",
        "",
        f"""\
Both servers in one process, asked by four clients at once: plans, logs, choices, the page's own
calls, a tenth hostile, some that leave before their answer. The longest of {len(runs)} runs
({longest["questions"]:,} questions, {longest["seconds"]:,} s) began with {sizes[0]:.0f} MiB and had
{", ".join(f"{size:.0f}" for size in sizes[1:])} after each fifth: {grown:+.1f} % in the last two,
{"which is flat" if abs(grown) <= 10 else "which is open"}; shorter ones still fill their caches.
Threads and handles after a run, beyond those before it: at most {more["threads"]} and
{more["handles"]}.

Answers by status: {said}.{" No answer: not within the client's 120 s, next to other work." * late}
{_wrong(part)}
""",
    ]


def _kills(part: dict[str, Any]) -> list[str]:
    ways = part["ways"]
    times = sum(row["killed"] for row in ways.values())
    each = ", ".join(
        f"`{way}` {row['killed']:,} ({row['with a server']:,})" for way, row in sorted(ways.items())
    )
    return [
        f"## `run` under SIGKILL: {times:,} times of {KILLS:,}",
        "",
        f"""\
At a random moment of a start. After it no process of the server is left, and each state file is
whole (plain `run` becomes the server itself). Killed, and with a server there: {each}. Last run
{part["date"]}. {_wrong(part)}
""",
    ]


def _edges(part: dict[str, Any]) -> list[str]:
    rows = {name: row for name, row in sorted(part.items()) if isinstance(row, dict)}
    each = ", ".join(f"{name} ({row['commands']:,})" for name, row in rows.items())
    return [
        "## Edges",
        "",
        f"""\
Every command ends in an answer or in one line, and no file is torn. Commands with {each}. Last run
{part["date"]}. {_wrong(part)}
""",
    ]


def _slow(part: dict[str, Any]) -> list[str]:
    """The slowest and the largest of the headers; soak.json has each."""
    rows = {
        words.rpartition("|")[0].replace("|", ", "): figures.split("|")[2:]
        for words, figures in part["rows"].items()
    }
    seconds, slowest = max((float(row[0]), name) for name, row in rows.items())
    mib, largest = max((int(row[1]), name) for name, row in rows.items())
    return [
        "## Deep headers",
        "",
        f"""\
Whole commands on headers of many layers, with the start of Python: at most 10 processor seconds and
300 MiB. {len(rows)} kinds, at most {seconds} s ({slowest} layers) and {mib} MiB ({largest} layers).
Last run {part["date"]}.
""",
    ]


def _wrong(part: dict[str, Any]) -> str:
    found = _defects(part)
    if not found:
        return "No defect is open."
    return "Open: " + "; ".join(line.splitlines()[0] for line in found[:5]) + "."


def render() -> str:
    """The whole document, ending with a newline."""
    figures = json.loads(FIGURES.read_text("utf-8"))
    parts = {
        "commands": _commands,
        "servers": _servers,
        "kills": _kills,
        "edges": _edges,
        "slow": _slow,
    }
    lines = [
        line for name, write in parts.items() if name in figures for line in write(figures[name])
    ]
    mended = [f"- {row['what']} (`{row['test']}`)" for row in figures.get("mended", ())]
    if mended:
        lines += ["## What these runs found, mended since", "", *mended, ""]
    lines += [
        "## What an attack found, and its tests",
        "",
        "Findings of November 2026 (F, then A), what was left of the round before them (H, L), and",
        "what the attackers had left out.",
        "",
        *(
            f"- **{name}** {was}: {', '.join(f'`{test}`' for test in tests)}"
            for name, was, tests in FINDINGS
        ),
    ]
    head = _INTRODUCTION.format(open=_wrong(figures))
    return "\n".join([head, *lines, ""])
