"""A fleet with real programs: three servers from the files that `fleet` wrote, each in a control
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
from support import FIXTURES

from autolayers.cli import main

pytestmark = [
    pytest.mark.llamacpp,
    pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 is Linux's"),
]
CHAT = FIXTURES / "tiny" / "chat.gguf"
SECONDS = float(os.environ.get("AUTOLAYERS_FLEET_SECONDS", "24"))
USERS, RATE = 50, 20.0
BOX = {
    "host": {"total": 16 << 30, "cores": 1, "bandwidth": 10e9},
    "count": 3,
    "address": "127.0.0.{}",
}
WORDS = ["--users", str(USERS), "--min-rate", str(RATE), "--ram-limit", "1GiB", "-t", "1"]


class Server:
    """The llama-server of a machine's compose.yaml, in a group that has its mem_limit. Its folders
    are where they are mounted from, and it listens at the machine's address, as no container has
    one of its own here."""

    def __init__(self, file: Path, address: str, program: Path, group: Group, log: Path) -> None:
        yaml = pytest.importorskip("yaml")
        (service,) = yaml.safe_load(file.read_text())["services"].values()
        (mount,) = service["volumes"]
        self.words = [
            str(program),
            *(word.replace(mount["target"], mount["source"]) for word in service["command"]),
        ]
        self.words[self.words.index("--host") + 1] = address
        assert f":{self.port}:" in service["ports"][0]
        self.address, self.group, self.log = address, group, log
        self.slots = int(self.words[self.words.index("-np") + 1])
        self.limit = int(service["mem_limit"].removesuffix("m")) << 20
        group.holds(self.limit)
        self.start()

    @property
    def port(self) -> str:
        return self.words[self.words.index("--port") + 1]

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.words, stdout=log, stderr=log, preexec_fn=self.group.enter
            )

    def answers(self, within: float = 60.0) -> float:
        """Seconds until it is healthy."""
        begin = time.monotonic()
        while time.monotonic() < begin + within:
            asked = http.client.HTTPConnection(self.address, int(self.port), timeout=5)
            try:
                asked.request("GET", "/health")
                if asked.getresponse().status == 200:
                    return time.monotonic() - begin
            except OSError:
                assert self.process.poll() is None, self.log.read_text(errors="replace")[-2000:]
            finally:
                asked.close()
            time.sleep(0.05)
        raise AssertionError("not healthy")


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
        victim.process.kill()
        victim.process.wait()
        killed = time.monotonic()
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
    figures = shown(users, killed, back, memory, servers, plan)
    with capfd.disabled():
        print(json.dumps(figures, indent=1))
    failed = [one for user in users for one in user.asked if one.error]
    # those that the killed server had, and no others
    assert len(failed) <= victim.slots
    assert all(one.begin < killed and one.end >= killed - 0.5 for one in failed), failed
    assert all(user.asked[-1].error == "" and user.asked[-1].end > killed for user in users)
    assert all(server.process.returncode == -9 for server in servers)
    assert all(most <= server.limit for most, server in zip(memory, servers, strict=True))


def shown(
    users: list[User],
    killed: float,
    back: float,
    memory: list[int],
    servers: list[Server],
    plan: dict[str, Any],
) -> dict[str, object]:
    """What each got against what was said."""
    good = [one for user in users for one in user.asked if not one.error]
    rates = [one.rate for one in good]
    each = [
        sum(one.tokens for one in user.asked) / sum(one.end - one.begin for one in user.asked)
        for user in users
    ]
    return {
        "seconds": SECONDS,
        "users": len(users),
        "requests": len(good),
        "failed": sum(bool(one.error) for user in users for one in user.asked),
        "of which before the kill or begun after it": sum(
            bool(one.error) and (one.end < killed - 0.5 or one.begin > killed)
            for user in users
            for one in user.asked
        ),
        "promised tokens/s": RATE,
        "predicted tokens/s": plan["per_user_tokens_per_second"],
        "tokens/s of a request, least, 1 in 20, median": [
            round(min(rates), 1),
            round(quantiles(rates, n=20)[0], 1),
            round(median(rates), 1),
        ],
        "tokens/s of a user with waiting, least": round(min(each), 1),
        "seconds to the first token, predicted, median, 19 in 20": [
            plan["seconds_to_first_token"],
            round(median(one.first for one in good), 2),
            round(quantiles([one.first for one in good], n=20)[-1], 2),
        ],
        "back after seconds, predicted, measured": [plan["load_seconds"], round(back, 2)],
        "MiB, limit": servers[0].limit >> 20,
        "MiB, most": [size >> 20 for size in memory],
    }
