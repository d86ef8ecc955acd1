"""A kill or a full disk would leave a broken state file behind.

Where state is kept, and files that are replaced as a whole: kills, full disks, other writers,
hostile content.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from autolayers import state, store
from autolayers.devices import measure
from autolayers.errors import AutolayersError
from autolayers.store import Observation, keep, read

posix = pytest.mark.skipif(os.name != "posix", reason="modes, owners and signals of POSIX")


# --- the directory


@posix
def test_where_state_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert state.directory({"XDG_STATE_HOME": "/state", "HOME": "/home/you"}) == "/state/autolayers"
    assert state.directory({"HOME": "/home/you"}) == "/home/you/.local/state/autolayers"
    assert (
        state.directory({"XDG_STATE_HOME": "here", "HOME": "/home/you"})
        == "/home/you/.local/state/autolayers"
    )
    assert state.directory({}) == "/home/me/.local/state/autolayers"
    with pytest.raises(AutolayersError, match="set XDG_STATE_HOME"):
        state.directory({"HOME": "there"})


@posix
def test_state_is_for_this_user_alone(tmp_path: Path) -> None:
    name = state.path({"XDG_STATE_HOME": str(tmp_path)}, "observations", "x.json")
    state.keep(name, {"a": [1]})
    assert state.read(name) == {"a": [1]}
    assert stat.S_IMODE(os.stat(name).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(os.path.dirname(name)).st_mode) == 0o700


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff", b"[" * 200_000, b'"' + b"x" * state.MAX_SIZE + b'"']
)
def test_what_cannot_be_read_is_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    assert state.read(str(tmp_path / "file")) is None


@posix
def test_no_file_a_directory_and_a_pipe_are_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert [state.read(str(tmp_path / name)) for name in ("none", "", "pipe")] == [None, None, None]


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{}",
        "null",
        "3",
        '[1, "x", null]',
        '[{"build": 1e999, "backend": "", "flags": [], "differences": {}}]',
        '[{"build": 1, "backend": "", "flags": 7, "differences": {}}]',
        '[{"build": 1, "backend": "", "flags": [], "differences": []}]',
        '[{"build": 1, "backend": "", "flags": [], "differences": {"CUDA0": 1e999}}]',
        "[" * 100_000,
    ],
)
def test_observations_and_measurements_that_are_none(tmp_path: Path, content: str) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    for name in (("observations", "m.json"), ("measured.json",)):
        path = Path(state.path(environ, *name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    assert read(Observation, environ, "m") == [] and measure.load(environ) is None


def test_observations_of_many_processes_are_all_kept(tmp_path: Path) -> None:
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "LOCALAPPDATA": str(tmp_path)}
    code = (
        "import os, sys\nfrom autolayers.store import Observation, keep\n"
        "for i in range(5): keep([Observation(int(sys.argv[1]), 'CUDA', (str(i),), "
        "{'CUDA0': i})], os.environ, 'm')"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", code, str(number)], env=environ)
        for number in range(4)
    ]
    assert [writer.wait() for writer in writers] == [0] * 4
    assert len(read(Observation, environ, "m")) == 20


# files as version 0.1 wrote them, and what of them is read
OLD = [
    (
        store.CheckedBuild,
        {
            "program": "/bin/llama-server",
            "digest": "d",
            "build": 11549,
            "commit": "c",
            "date": "2026",
            "architectures": {"llama": {"compute CPU": 5}},
        },
    ),
    (
        store.Answered,
        [{"program": "d", "words": ["-c", "1"], "build": 1, "printed": {"Host": [1, 2, 3]}}],
    ),
    (
        store.Tuned,
        [
            {
                "build": "b11549",
                "machine": "m",
                "question": "",
                "flags": ["-ngl", "3"],
                "prompt": 100,
                "token": 2.5,
                "date": "2026",
            }
        ],
    ),
    (
        store.Planned,
        [
            {
                "model": "d",
                "question": "q",
                "free": {"Host": 7},
                "flags": ["-ngl", "3"],
                "faster": {"flags": ["-ngl", "4"], "tokens_per_second": 3.5},
            }
        ],
    ),
    (
        store.Beside,
        [
            {
                "machine": "m",
                "card": "c",
                "backend": "CUDA",
                "driver": "580",
                "build": 1,
                "size": 9,
                "date": "",
            }
        ],
    ),
]


@pytest.mark.parametrize(("kind", "content"), OLD, ids=lambda value: getattr(value, "__name__", ""))
def test_a_file_of_an_earlier_version_is_read_and_added_to(
    tmp_path: Path, kind: type[store.Row], content: object
) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path), "LOCALAPPDATA": str(tmp_path)}
    file = tmp_path / "autolayers" / kind.FILE.format("x")
    state.keep(str(file), content)
    (row,) = read(kind, environ, "x")
    entry = content[0] if isinstance(content, list) else content
    assert isinstance(entry, dict)
    keep([row], environ, "x")
    (kept,) = json.loads(file.read_text())
    assert {name: kept[name] for name in entry} == entry
    # what a later version adds does not make a row unknown; another type does
    state.keep(str(file), [{**entry, "later": 1}])
    assert read(kind, environ, "x") == [row]
    for name in entry:
        state.keep(str(file), [entry, {**entry, name: 1e999}, {**entry, name: [{}]}, 3, None])
        assert read(kind, environ, "x") == [row]


def test_a_file_is_never_larger_than_what_is_read(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path), "LOCALAPPDATA": str(tmp_path)}
    flags = tuple(["x" * 1000] * 100)
    for build in range(15):
        keep([Observation(build, "CUDA", flags, {})], environ, "m")
    kept = [row.build for row in read(Observation, environ, "m")]
    assert kept == list(range(kept[0], 15)) and len(kept) > 5


def test_the_newest_observation_of_a_launch_counts(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path), "LOCALAPPDATA": str(tmp_path)}
    for size in (1, 2):
        keep([Observation(9000, "CUDA", ("-ngl", "3"), {"CUDA0": size})], environ, "m")
    assert read(Observation, environ, "m") == [
        Observation(9000, "CUDA", ("-ngl", "3"), {"CUDA0": 2})
    ]


# --- replacing a file


@posix
@pytest.mark.parametrize("fatal", ["chmod", "fsync", "replace"])
def test_a_killed_writer_leaves_the_old_file_and_the_next_one_tidies_up(
    tmp_path: Path, fatal: str
) -> None:
    target = tmp_path / "Modelfile"
    old = b"FROM m\n" + b"# x\n" * 1000
    target.write_bytes(old)
    target.chmod(0o600)
    code = (
        f"import os, signal, sys\nfrom autolayers import state\n"
        f"os.{fatal} = lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"state.write(sys.argv[1], b'FROM other\\n')\n"
    )
    process = subprocess.run([sys.executable, "-c", code, str(target)], check=False)
    assert process.returncode == -signal.SIGKILL
    assert target.read_bytes() == old
    (left,) = set(os.listdir(tmp_path)) - {"Modelfile"}
    # nobody may read what only the owner could
    assert stat.S_IMODE((tmp_path / left).stat().st_mode) == 0o600
    state.write(str(target), b"FROM third\n")
    assert os.listdir(tmp_path) == ["Modelfile"] and target.read_bytes() == b"FROM third\n"


@posix
def test_a_writer_at_work_is_left_alone(tmp_path: Path) -> None:
    busy = tmp_path / f".autolayers-{os.getppid()}-0123456789ab.tmp"
    busy.write_bytes(b"half")
    state.write(str(tmp_path / "file"), b"x")
    assert sorted(os.listdir(tmp_path)) == sorted([busy.name, "file"])


@posix
def test_writers_of_another_machine_are_left_alone_for_a_day(tmp_path: Path) -> None:
    """They share the home directory; their processes are not this machine's."""
    for i, name in enumerate(("424242-abcdef", "424242-0badcafe-abcdef", "424243-0badcafe-abcdef")):
        file = tmp_path / f".autolayers-{name}.tmp"
        file.write_bytes(b"half")
        if i == 2:
            os.utime(file, (time.time() - 90000,) * 2)
    state.write(str(tmp_path / "file"), b"x")
    assert sorted(os.listdir(tmp_path)) == [
        ".autolayers-424242-0badcafe-abcdef.tmp",
        ".autolayers-424242-abcdef.tmp",
        "file",
    ]


@posix
def test_writing_keeps_mode_and_link_and_takes_backups(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "Modelfile"
    real.write_bytes(b"one")
    real.chmod(0o640)
    link.symlink_to(real)
    assert state.write(str(link), b"two", backup=True) == f"{real}.bak"
    assert state.write(str(link), b"three", backup=True) == f"{real}.bak1"
    assert link.is_symlink() and real.read_bytes() == b"three"
    assert (
        stat.S_IMODE(real.stat().st_mode)
        == stat.S_IMODE((tmp_path / "real.bak").stat().st_mode)
        == 0o640
    )
    assert (tmp_path / "real.bak").read_bytes() == b"one" and (
        tmp_path / "real.bak1"
    ).read_bytes() == b"two"
    assert sorted(os.listdir(tmp_path)) == ["Modelfile", "real", "real.bak", "real.bak1"]


@posix
def test_a_new_file_has_the_mode_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        state.write(str(tmp_path / "new"), b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640


def test_a_name_may_be_as_long_as_the_file_system_takes(tmp_path: Path) -> None:
    name = tmp_path / ("n" * 255)
    state.write(str(name), b"x")
    assert name.read_bytes() == b"x"


@posix
def test_what_is_no_regular_file_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE)
    assert state.write(str(pipe), b"through", backup=True) is None
    assert reader.communicate(timeout=300)[0] == b"through" and os.listdir(tmp_path) == ["pipe"]


def test_backups_end_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "_BACKUPS", 3)
    target = tmp_path / "Modelfile"
    target.write_bytes(b"old")
    for _ in range(3):
        state.write(str(target), b"new", backup=True)
    with pytest.raises(AutolayersError, match="has 3 backups already"):
        state.write(str(target), b"newer", backup=True)
    assert target.read_bytes() == b"new"


@pytest.mark.skipif(os.name != "posix", reason="modes")
def test_what_is_kept_is_this_users_alone(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir(mode=0o755)
    with state.create(str(tmp_path / "logs" / "1.log")) as log:
        log.write(b"a prompt")
    state.keep(str(tmp_path / "x.json"), 1)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*.*")} == {0o600}


# --- places that cannot be written


def test_a_place_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(
        AutolayersError,
        match=r"cannot write .*nowhere.Modelfile: No such file or "
        r"directory",
    ):
        state.write(str(tmp_path / "nowhere" / "Modelfile"), b"x")
    (tmp_path / "file").write_bytes(b"")
    environ = {"XDG_STATE_HOME": str(tmp_path / "file"), "LOCALAPPDATA": str(tmp_path / "file")}
    for what in (
        lambda: keep([Observation(1, "", (), {})], environ, "m"),
        lambda: state.keep(state.path(environ, "x"), 1),
        lambda: state.create(state.path(environ, "logs", "1.log")),
    ):
        with pytest.raises(AutolayersError, match=r"cannot write .*: "):
            what()


@pytest.mark.parametrize("call", ["fsync", "replace", "open"])
def test_a_full_disk_is_one_line_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    target = tmp_path / "measured.json"
    target.write_bytes(b"old")

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, full)
    for write in (lambda: state.write(str(target), b"new"), lambda: state.keep(str(target), {})):
        with pytest.raises(AutolayersError) as error:
            write()
        assert str(error.value) == f"cannot write {target}: No space left on device"
    monkeypatch.undo()
    assert target.read_bytes() == b"old" and os.listdir(tmp_path) == ["measured.json"]


@posix
def test_a_file_larger_than_allowed_is_one_line(tmp_path: Path) -> None:
    """A real limit of the system, as a full disk is: the write itself fails, in the middle."""
    target = tmp_path / "Modelfile"
    target.write_bytes(b"old")
    code = (
        "import resource, signal, sys\nfrom autolayers import state\n"
        "from autolayers.errors import AutolayersError\n"
        "signal.signal(signal.SIGXFSZ, "
        "signal.SIG_IGN)\nresource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try: state.write(sys.argv[1], b'x' * 100_000)\nexcept AutolayersError as error: "
        "print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(target)], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"cannot write {target}: File too large\n"
    assert target.read_bytes() == b"old" and os.listdir(tmp_path) == ["Modelfile"]


@pytest.mark.slow
def test_a_measurement_that_cannot_be_kept_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setattr(measure, "ram", lambda size: 1e10)
    monkeypatch.setattr(measure, "in_use", lambda: 0.0)
    environ = {"XDG_STATE_HOME": str(tmp_path / "file"), "LOCALAPPDATA": str(tmp_path / "file")}
    with pytest.raises(AutolayersError, match=r"cannot write .*measured\.json: "):
        measure.measure(1 << 30, environ)
    kept, _ = measure.measure(
        1 << 30, {"XDG_STATE_HOME": str(tmp_path), "LOCALAPPDATA": str(tmp_path)}
    )
    assert measure.load({"XDG_STATE_HOME": str(tmp_path), "LOCALAPPDATA": str(tmp_path)}) == kept


def test_what_is_measured_beside_busy_programs_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be too slow, and all later plans with it."""
    for name in ("ram", "disk"):
        monkeypatch.setattr(measure, name, lambda *_: 1e10)
    environ = {"XDG_STATE_HOME": str(tmp_path), "LOCALAPPDATA": str(tmp_path)}
    monkeypatch.setattr(measure, "in_use", lambda: 0.73)
    found, notes = measure.measure(1 << 30, environ)
    assert found["ram"] == 1e10 and measure.load(environ) is None
    assert any("other programs used 73% of the processor" in note for note in notes)
    monkeypatch.setattr(measure, "in_use", lambda: 0.1)
    found, notes = measure.measure(1 << 30, environ)
    assert measure.load(environ) == found and not any("used" in note for note in notes)


@posix
def test_a_lock_that_is_held_delays_but_does_not_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "_PATIENCE", 0.1)
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    code = (
        "import os, time\nfrom autolayers import state\n"
        "with state.locked(os.environ): print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env={**os.environ, **environ}
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        keep([Observation(1, "", (), {})], environ, "m")
        assert len(read(Observation, environ, "m")) == 1
    finally:
        holder.kill()
        holder.communicate()


@pytest.mark.skipif(os.name != "posix", reason="pipes and links")
@pytest.mark.parametrize(
    "write", [lambda name: state.keep(name, [1]), lambda name: state.create(name).close()]
)
def test_a_state_file_that_is_none_is_not_written_through(
    tmp_path: Path, write: Callable[[str], None]
) -> None:
    """A pipe would wait for its reader; a link leads to somebody else's file."""
    pipe, link, other = tmp_path / "pipe.json", tmp_path / "link.json", tmp_path / "other"
    os.mkfifo(pipe)
    with pytest.raises(AutolayersError, match="is not a regular file: remove it"):
        write(str(pipe))
    other.write_text("theirs")
    link.symlink_to(other)
    write(str(link))
    assert other.read_text() == "theirs" and link.is_file() and not link.is_symlink()


def test_a_damaged_state_file_is_kept_aside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path), "HOME": str(tmp_path)}
    file = tmp_path / "autolayers" / "observations" / "x.json"
    file.parent.mkdir(parents=True)
    file.write_text("not JSON")
    keep([Observation(1, "", (), {})], environ, "x")
    assert file.with_name("x.json.bad").read_text() == "not JSON"
    assert [row["build"] for row in json.loads(file.read_text())] == [1]
    assert "damaged" in capsys.readouterr().err
