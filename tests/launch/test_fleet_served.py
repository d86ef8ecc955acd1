"""Users of a fleet would wait longer than was promised.

A fleet with real programs: three servers from the files that `fleet` wrote, each in a control
group with its limit, HAProxy with its own before them, users at the load that was promised; one
server is killed in the middle.

Binaries: $AUTOLAYERS_LLAMACPP_BIN, or tests/build_llamacpp.sh builds them; haproxy. Needs the right
to make control groups. $AUTOLAYERS_FLEET_SECONDS says how long (default 24); docs/fleet.md has a
longer run, which this prints:

    AUTOLAYERS_FLEET_SECONDS=600 pytest -n 0 -s -m llamacpp tests/launch/test_fleet_served.py
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import pytest
from control_groups import Group, group_of
from served import BOX, CHAT, Server

from autolayers.cli import main

pytestmark = [
    pytest.mark.llamacpp,
    pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 is Linux's"),
]
SECONDS = float(os.environ.get("AUTOLAYERS_FLEET_SECONDS", "24"))
USERS, RATE = 50, 35.0
WORDS = ["--users", str(USERS), "--min-rate", str(RATE), "--ram-limit", "1GiB", "-t", "1"]


@dataclass
class Asked:
    """A request: when it began and ended, seconds to the first token, tokens, tokens per second
    after the first."""

    begin: float
    end: float = 0.0
    first: float = 0.0
    tokens: int = 0
    rate: float = 0.0
    error: str = ""


@dataclass
class User(threading.Thread):
    """Asks again as soon as it has an answer."""

    number: int
    port: int
    until: float
    asked: list[Asked] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)

    def __hash__(self) -> int:
        return self.number

    def run(self) -> None:
        turn = 0
        while time.monotonic() < self.until:
            turn += 1
            one = Asked(time.monotonic())
            try:
                self._ask(one, [(self.number * 31 + turn * 7 + i) % 200 + 5 for i in range(64)])
            except (OSError, http.client.HTTPException, AssertionError) as error:
                one.error = f"{type(error).__name__}: {error}"
            one.end = time.monotonic()
            self.asked.append(one)

    def _ask(self, one: Asked, prompt: list[int]) -> None:
        body = json.dumps({"prompt": prompt, "n_predict": 48, "ignore_eos": True, "stream": True})
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            connection.request("POST", "/completion", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            assert answer.status == 200, answer.status
            ended = False
            for line in answer:
                if not line.startswith(b"data: "):
                    continue
                one.tokens += 1
                one.first = one.first or time.monotonic() - one.begin
                ended = ended or b'"stop":true' in line
            assert ended, "the answer was cut off"
            one.rate = (one.tokens - 1) / (time.monotonic() - one.begin - one.first)
        finally:
            connection.close()


@pytest.fixture
def groups() -> Iterator[list[Group]]:
    made = [group_of(f"-{number}") for number in range(3)]
    if None in made:
        pytest.skip("no control group can be made here")
    yield [group for group in made if group]
    for group in made:
        assert group is not None
        group.remove()


def test_users_are_served_and_one_server_is_killed(
    groups: list[Group], binaries: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    haproxy = shutil.which("haproxy", path=os.environ["PATH"] + ":/usr/sbin")
    if haproxy is None:
        pytest.skip("no haproxy")
    (tmp_path / "fleet.json").write_text(json.dumps({"machines": {"box": BOX}}))
    command = ["fleet", str(tmp_path / "fleet.json"), str(CHAT), *WORDS]
    assert main([*command, "--json"]) == 0
    said = json.loads(capfd.readouterr().out)
    for form in ("compose", "haproxy"):
        assert main([*command, "--format", form, "-o", str(tmp_path)]) == 0
    capfd.readouterr()
    started: list[subprocess.Popen[bytes]] = []
    try:
        servers = []
        for number, group in enumerate(groups, 1):
            servers.append(
                Server(
                    tmp_path / f"box-{number}" / "compose.yaml",
                    f"127.0.0.{number}",
                    binaries / "llama-server",
                    group,
                    tmp_path / f"log-{number}",
                )
            )
        for server in servers:
            server.answers()
        started.append(
            subprocess.Popen(
                [haproxy, "-f", str(tmp_path / "haproxy.cfg")],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )
        time.sleep(2)
        begin = time.monotonic()
        users = [User(number, 8000, begin + SECONDS) for number in range(USERS)]
        for user in users:
            user.start()
        time.sleep(SECONDS / 2)
        victim = servers[1]
        ending = time.monotonic()
        victim.process.kill()
        victim.process.wait()
        killed = ending, time.monotonic()
        time.sleep(min(10.0, SECONDS / 6))
        victim.start()
        back = victim.answers()
        for user in users:
            user.join(SECONDS + 300)
        memory = [group.most() for group in groups]
    finally:
        for process in [*started, *(server.process for server in servers)]:
            process.kill()
            process.wait()
    (plan,) = said["servers"]
    with capfd.disabled():
        print(
            "\n".join(["", *summary(users, killed, back, memory, servers, plan), "", *each(users)])
        )
    failed = [one for user in users for one in user.asked if one.error]
    # those that the killed server had, and no others
    assert len(servers) == len(said["machines"]) and len(failed) <= victim.slots
    assert [one for one in failed if not is_cut_off(one, killed)] == [], killed
    assert all(user.asked[-1].error == "" and user.asked[-1].end > killed[1] for user in users)
    assert all(server.process.returncode == -9 for server in servers)
    assert all(most <= server.limit for most, server in zip(memory, servers, strict=True))


def is_cut_off(one: Asked, killed: tuple[float, float]) -> bool:
    """Whether a request was in flight while the server ended."""
    begin, end = killed
    return one.begin <= end and one.end >= begin


def summary(
    users: list[User],
    killed: tuple[float, float],
    back: float,
    memory: list[int],
    servers: list[Server],
    plan: dict[str, Any],
) -> list[str]:
    """A table: what was said, and what all got."""
    good = [one for user in users for one in user.asked if not one.error]
    failed = [one for user in users for one in user.asked if one.error]
    others = sum(not is_cut_off(one, killed) for one in failed)
    firsts = [one.first for one in good]
    rates = [one.rate for one in good]
    said, load = plan["per_user_tokens_per_second"], plan["load_seconds"]
    rows = [
        ("clients, seconds", "", f"{len(users)}, {SECONDS:g}"),
        ("requests served", "", f"{len(good)}"),
        (
            "requests that failed",
            f"at most {servers[1].slots}, those of the killed server",
            f"{len(failed)}, {others} of them not in flight when it was killed",
        ),
        (
            "tokens/s of a request: least, 1 in 20, median",
            f"{RATE:g} promised, {said:.1f} predicted",
            f"{min(rates):.1f}, {quantiles(rates, n=20)[0]:.1f}, {median(rates):.1f}",
        ),
        (
            "tokens/s of a client with waiting, least",
            "",
            f"{min(rate_of(user) for user in users):.1f}",
        ),
        (
            "seconds to the first token: median, 19 in 20",
            f"{plan['seconds_to_first_token']:.2f}",
            f"{median(firsts):.2f}, {quantiles(firsts, n=20)[-1]:.2f}",
        ),
        ("the killed server is back, seconds after its start", f"{load:g}", f"{back:.2f}"),
        (
            "MiB of each server",
            f"limit {servers[0].limit >> 20}",
            ", ".join(str(size >> 20) for size in memory),
        ),
    ]
    return ["| | said | measured |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]


def rate_of(user: User) -> float:
    """Tokens per second of a client, waiting for the first token counted."""
    seconds = sum(one.end - one.begin for one in user.asked)
    return sum(one.tokens for one in user.asked) / seconds


def each(users: list[User]) -> list[str]:
    """A table: what each client got."""
    lines = [
        "| client | requests | failed | promised t/s | least | median | with waiting |",
        "|---|---|---|---|---|---|---|",
    ]
    for user in users:
        good = [one.rate for one in user.asked if not one.error]
        failed = len(user.asked) - len(good)
        lines.append(
            f"| {user.number + 1} | {len(good)} | {failed} | {RATE:g} | {min(good):.1f} "
            f"| {median(good):.1f} | {rate_of(user):.1f} |"
        )
    return lines
