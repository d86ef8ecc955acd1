"""The state directory, which keeps measurements of this machine, and atomic replacement of files.

keep(path(environ, "measured.json"), found)      # JSON, readable for this user alone
read(path(environ, "measured.json"))             # None if it is missing or unreadable
write("Modelfile", data, backup=True)            # "Modelfile.bak"
"""

from __future__ import annotations

import contextlib
import os
import time

from .errors import AutolayersError
from .files import opened

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import BinaryIO

MAX_SIZE = 1 << 20  # bytes of a state file
_PATIENCE = 5.0  # seconds to wait for another process's lock
_BACKUPS = 1000
_PREFIX, _SUFFIX = ".autolayers-", ".tmp"  # .autolayers-PID-MACHINE-RANDOM.tmp
_ABANDONED = 24 * 3600.0  # seconds after which another machine's temporary file is nobody's


def directory(environ: Mapping[str, str]) -> str:
    """Return ${XDG_STATE_HOME:-~/.local/state}/autolayers, %LOCALAPPDATA%\autolayers on Windows.
    Raises AutolayersError if there is no home directory. A relative XDG_STATE_HOME is ignored, as
    the XDG base directory specification asks."""
    home = environ.get("USERPROFILE" if os.name == "nt" else "HOME") or os.path.expanduser("~")
    if os.name == "nt":
        root = environ.get("LOCALAPPDATA") or os.path.join(home, "AppData", "Local")
    else:
        root = environ.get("XDG_STATE_HOME", "")
        # relative paths must be ignored, says the specification
        root = root if os.path.isabs(root) else os.path.join(home, ".local", "state")
    if not os.path.isabs(root):
        raise AutolayersError(
            "there is no home directory for autolayers' state: set XDG_STATE_HOME"
        )
    return os.path.join(root, "autolayers")


def path(environ: Mapping[str, str], *names: str) -> str:
    """Return a file in the state directory. Raises AutolayersError without a home."""
    return os.path.join(directory(environ), *names)


def machine_name() -> str:
    """Return this machine's name: several machines may share a home directory."""
    if hasattr(os, "uname"):
        # platform.node() without its import, which takes as long as a small plan
        return os.uname().nodename
    import platform

    return platform.node()


def _whose() -> str:
    """Return which processes a PID can be one of: a name for this machine and this container."""
    try:
        # the same PID is another process in another container
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        space = ""
    from zlib import crc32

    return f"{crc32(f'{machine_name()} {space}'.encode()):08x}"


def create(name: str) -> BinaryIO:
    """Return a state file that is written in pieces, such as a log, and that only this user may
    read. Raises AutolayersError."""
    try:
        _make_directory(name)
        _own(name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0)
        return os.fdopen(os.open(name, flags, 0o600), "wb")
    except OSError as error:
        raise _cannot_write(name, error) from None


def read(name: str) -> object:
    """Return a state file's JSON; None where it is missing, no regular file, no JSON, or larger
    than MAX_SIZE bytes."""
    try:
        import json

        with opened(name) as stream:
            # one byte more tells a file that is too large
            data = stream.read(MAX_SIZE + 1)
        document: object = json.loads(data) if len(data) <= MAX_SIZE else None
        return document
    except (OSError, ValueError, RecursionError):
        return None


def keep(name: str, value: object) -> None:
    """Writes a state file that only this user may read. Raises AutolayersError."""
    import json

    try:
        _make_directory(name)
        _own(name)
    except OSError as error:
        raise _cannot_write(name, error) from None
    write(name, json.dumps(value, indent=1).encode(), mode=0o600)


@contextlib.contextmanager
def locked(environ: Mapping[str, str]) -> Iterator[None]:
    """Hold a lock for read-modify-write of state files; after 5 s it continues without the lock.
    Raises AutolayersError if the state directory cannot be written."""
    name = path(environ, "lock")
    try:
        _make_directory(name)
        handle = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise _cannot_write(name, error) from None
    try:
        _lock(handle)
        yield
    finally:
        os.close(handle)  # and unlocks


def set_aside(name: str) -> str | None:
    """Rename a state file that cannot be read to NAME.bad, which is returned; None if there is none
    or it can."""
    if not os.path.lexists(name) or read(name) is not None:
        return None
    try:
        os.replace(name, f"{name}.bad")
    except OSError as error:
        raise _cannot_write(name, error) from None
    return f"{name}.bad"


def _own(name: str) -> None:
    """Removes a link in a state file's place: what it leads to is not ours. Raises AutolayersError
    for a pipe, a directory and the like: opening a pipe would wait for its reader."""
    if os.path.islink(name):
        os.unlink(name)
    elif os.path.lexists(name) and not os.path.isfile(name):
        raise AutolayersError(f"{name} is not a regular file: remove it")


def _make_directory(name: str) -> None:
    """Make the directory of a state file, for this user alone."""
    os.makedirs(os.path.dirname(name), mode=0o700, exist_ok=True)


def _lock(handle: int) -> None:
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        try:
            if os.name == "nt":
                import msvcrt

                msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
            else:
                import fcntl

                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except (BlockingIOError, PermissionError):  # POSIX, Windows: another process has it
            # flock has no timeout of its own
            time.sleep(0.01)
        except OSError:  # a file system without locks
            return


def write(name: str, data: bytes, *, mode: int = 0o666, backup: bool = False) -> str | None:
    """Replace a file so that a killed writer leaves the old one: a temporary file in its directory,
    fsync, rename.

    Links are followed; an existing file keeps its mode and owner, a new one gets `mode` less the
    umask. `backup` keeps the old content as NAME.bak, NAME.bak1, ... and returns that name. A pipe
    or device (/dev/stdout) is written to directly. Raises AutolayersError with the name and the
    system's reason.
    """
    try:
        # a link stays a link: its target is replaced
        target = os.path.realpath(name)
        if os.path.exists(target) and not os.path.isfile(target):
            with open(name, "wb") as stream:
                stream.write(data)
            return None
        backup_path = _back_up(target) if backup and os.path.exists(target) else None
        # the temporary file is made there: a rename cannot cross file systems
        folder = os.path.dirname(target)
        _remove_abandoned(folder)
        temporary = os.path.join(
            folder, f"{_PREFIX}{os.getpid()}-{_whose()}-{os.urandom(6).hex()}{_SUFFIX}"
        )
        _create(temporary, data, mode, os.stat(target) if os.path.exists(target) else None)
        try:
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise
        # Makes the rename itself durable; Windows cannot open directories, and some file systems
        # refuse.
        with contextlib.suppress(OSError):
            handle = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        return backup_path
    except OSError as error:
        raise _cannot_write(name, error) from None


def _cannot_write(name: str, error: OSError) -> AutolayersError:
    return AutolayersError(f"cannot write {name}: {error.strerror or error}")


def _back_up(name: str) -> str:
    with opened(name) as stream:
        data = stream.read()
    # O_EXCL finds the first free name, without a race
    for backup_path in (f"{name}.bak{number or ''}" for number in range(_BACKUPS)):
        with contextlib.suppress(FileExistsError):
            _create(backup_path, data, like=os.stat(name))
            return backup_path
    raise AutolayersError(f"{name} has {_BACKUPS} backups already: remove some")


def _create(name: str, data: bytes, mode: int = 0o666, like: os.stat_result | None = None) -> None:
    """Creates a file with its mode and owner set before its content; if writing fails, the file is
    removed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    # nobody else may open it before it has its owner and mode
    handle = os.open(name, flags, mode if like is None else 0o600)
    try:
        with os.fdopen(handle, "wb") as stream:
            if like is not None:
                if hasattr(os, "chown"):
                    with contextlib.suppress(OSError):  # only root may give a file away
                        os.chown(name, like.st_uid, like.st_gid)
                os.chmod(name, like.st_mode & 0o7777)
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _remove_abandoned(folder: str) -> None:
    """Removes the temporary files of writers that were killed; those of other machines, whose
    processes cannot be seen, after a day."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if name.startswith(_PREFIX) and name.endswith(_SUFFIX):
                pid, whose = [*name[len(_PREFIX) :].split("-"), ""][:2]
                if not (pid.isascii() and pid.isdecimal() and len(pid) < 10):
                    continue
                file = os.path.join(folder, name)
                if whose == _whose():
                    import psutil

                    gone = not psutil.pid_exists(int(pid))
                else:
                    gone = os.stat(file).st_mtime < time.time() - _ABANDONED
                if gone:
                    os.unlink(file)
