"""A ggml-rpc-server that only answers questions about its devices, or does what a script says
instead."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress

Devices = list[tuple[int, int, int]]  # alignment, free, total; bytes


def answer(
    devices: Devices, command: int, data: bytes, version: tuple[int, int, int] = (7, 0, 0)
) -> bytes:
    """What a server with these devices answers."""
    index = int.from_bytes(data[:4], "little")
    if command == 14:  # HELLO
        body = bytes((*version, 0)) + bytes(24)
    elif command == 15:  # DEVICE_COUNT
        body = struct.pack("<I", len(devices))
    elif command == 1:  # GET_ALIGNMENT
        body = struct.pack("<Q", devices[index][0])
    else:  # GET_DEVICE_MEMORY
        body = struct.pack("<QQ", *devices[index][1:])
    return struct.pack("<Q", len(body)) + body


class FakeRpc:
    """`script` gets the connection and one request's (command, data); None answers as the protocol
    says."""

    def __init__(
        self,
        devices: Devices,
        version: tuple[int, int, int] = (7, 0, 0),
        script: Callable[[socket.socket, int, bytes], None] | None = None,
    ) -> None:
        self.devices, self.version, self.script = devices, version, script
        self.asked: list[int] = []
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self.socket.getsockname()[1]}"
        self.thread = threading.Thread(target=self._accept, daemon=True)
        self.thread.start()

    def __enter__(self) -> FakeRpc:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            # wakes accept; after a mere close it could take another socket's
            self.socket.shutdown(socket.SHUT_RDWR)
        self.thread.join(5)
        self.socket.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self.socket.accept()
                with suppress(OSError), connection:  # one client at a time, as the real one
                    self._serve(connection)

    def _serve(self, connection: socket.socket) -> None:
        stream = connection.makefile("rb")
        while head := stream.read(9):
            command, size = struct.unpack("<BQ", head)
            data = stream.read(size)
            self.asked.append(command)
            if self.script:
                self.script(connection, command, data)
            else:
                connection.sendall(answer(self.devices, command, data, self.version))
