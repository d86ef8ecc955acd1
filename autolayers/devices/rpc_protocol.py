"""The devices of a ggml-rpc-server, by the protocol of ggml/src/ggml-rpc/ggml-rpc.cpp as modelled.

A request is one byte of command, eight bytes of size, the data; an answer is eight bytes of size,
the data; little endian. Versions since 4.0 begin with HELLO. A server has one client at a time:
while it serves a model it does not answer.
"""

from __future__ import annotations

import socket

from ..errors import DeviceError
from ..machine import MAX_DEVICES
from ..net import Limit, one_line
from ..records import dataclass
from .system import MOST_MEMORY

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

PATIENCE = 3.0  # seconds for all questions to one server
_GET_ALIGNMENT, _GET_DEVICE_MEMORY, _HELLO, _DEVICE_COUNT = 1, 11, 14, 15
_CAPABILITIES = 24  # bytes of offered transports: none


@dataclass(frozen=True)
class ServedDevice:
    """One device of a server, bytes."""

    alignment: int
    free: int
    total: int


class Unavailable(DeviceError):
    """A server that nobody can use now: llama.cpp aborts where there is none, and waits for ever
    for a busy one."""


def address(endpoint: str) -> tuple[str, int]:
    """Return the host and port of --rpc's host:port. Raises ValueError for anything else."""
    host, _, port = endpoint.rpartition(":")
    number = port.isascii() and port.isdecimal() and len(port) <= 5
    if not host or not number or not 0 < int(port) < 65536:
        raise ValueError(f"{endpoint!r}: not host:port")
    return host.strip("[]"), int(port)


def ask(endpoint: str, patience: float | None = None) -> list[ServedDevice]:
    """Return the devices of the server at host:port, in its order. `patience`: seconds for all
    questions, None: PATIENCE.

    Raises Unavailable without an answer, DeviceError for one that is not of this protocol or has
    impossible numbers.
    """
    limit = Limit(PATIENCE if patience is None else patience)
    connected = False
    try:
        with socket.create_connection(address(endpoint), limit.left()) as connection:
            connected = True
            # a server of another version answers with another size, which the error names
            version = _command(connection, limit, _HELLO, bytes(_CAPABILITIES), 4 + _CAPABILITIES)
            if version[0] < 4:
                raise ValueError(f"its version {version[0]}.{version[1]} is too old to be asked")
            count = int.from_bytes(_command(connection, limit, _DEVICE_COUNT, b"", 4), "little")
            if not 0 < count <= MAX_DEVICES:
                raise ValueError(f"it has {count} devices; 1 to {MAX_DEVICES} are possible")
            return [_device(connection, limit, index) for index in range(count)]
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        if isinstance(error, TimeoutError):
            why = f"it did not answer within {limit.total:g} s" + (
                ": perhaps it serves another llama-server" if connected else ""
            )
        kind = Unavailable if isinstance(error, OSError) else DeviceError
        raise kind(f"{one_line(endpoint)}: not a usable RPC server ({why})") from None


def _device(connection: socket.socket, limit: Limit, index: int) -> ServedDevice:
    which = index.to_bytes(4, "little")
    alignment = int.from_bytes(_command(connection, limit, _GET_ALIGNMENT, which, 8), "little")
    memory = _command(connection, limit, _GET_DEVICE_MEMORY, which, 16)
    free, total = (int.from_bytes(memory[at : at + 8], "little") for at in (0, 8))
    if not 0 < total < MOST_MEMORY:
        raise ValueError(f"its device {index} has {total} bytes of memory")
    return ServedDevice(alignment, min(free, total), total)


def _command(
    connection: socket.socket, limit: Limit, command: int, data: bytes, size: int
) -> bytes:
    # what is left of the patience for all questions, not a limit for each
    connection.settimeout(limit.left())
    connection.sendall(bytes((command,)) + len(data).to_bytes(8, "little") + data)
    answered = int.from_bytes(_receive(connection, limit, 8), "little")
    if answered != size:
        raise ValueError(f"an answer of {answered} bytes where {size} were expected")
    return _receive(connection, limit, size)


def _receive(connection: socket.socket, limit: Limit, size: int) -> bytes:
    data = b""
    while len(data) < size:
        connection.settimeout(limit.left())
        piece = connection.recv(size - len(data))
        if not piece:
            raise ValueError("it closed the connection")
        data += piece
    return data
