"""A TCP server in front of another whose replies come at a rate: `python -m tests.bench.throttle PORT BYTES_PER_S`."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Final

_PIECE: Final = 256 << 10


@contextlib.contextmanager
def throttled(port: int, rate: float) -> Iterator[str]:
    """URL of the Redis behind `port`, whose replies come at `rate` bytes a second over each connection."""
    words = [sys.executable, "-m", "tests.bench.throttle", str(port), str(rate)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:  # its own: it takes nobody's GIL
        assert process.stdout is not None
        try:
            yield f"redis://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.kill()


def serve(port: int, rate: float) -> None:
    """Say on which port, and do it until killed."""
    server = socket.create_server(("127.0.0.1", 0))
    print(server.getsockname()[1], flush=True)
    while True:
        client, _ = server.accept()
        upstream = socket.create_connection(("127.0.0.1", port))
        for each in (client, upstream):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=_pump, args=(client, upstream, None), daemon=True).start()
        threading.Thread(target=_pump, args=(upstream, client, rate), daemon=True).start()


def _pump(source: socket.socket, target: socket.socket, rate: float | None) -> None:
    """Until one of them ends. At a rate: nothing is sent before what was sent before has had its time."""
    free_at = 0.0
    buffer = memoryview(bytearray(_PIECE))
    with contextlib.suppress(OSError):
        while count := source.recv_into(buffer):
            if rate is not None:
                time.sleep(max(0.0, free_at - time.monotonic()))
                free_at = max(free_at, time.monotonic()) + count / rate
            target.sendall(buffer[:count])
    for each in (source, target):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    serve(int(sys.argv[1]), float(sys.argv[2]))
