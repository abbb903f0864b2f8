"""What keeps the gateway from starting and is no fault of its own: told in a sentence instead of a traceback."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from typing import Final

from backends.tls import TlsError
from cache.tokenizer import TokenizerError
from gateway.cli.console import fail

_ADDRESS_ERRORS: Final = frozenset(
    {errno.EACCES, errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EPERM}
)


@contextlib.contextmanager
def told_plainly(host: str, port: int, *, if_taken: str) -> Iterator[None]:
    """Turn errors of starting on `host` and `port` into a message and exit code 1.

    `if_taken` says how to choose another port. Anything else is raised as it is.
    """
    try:
        yield
    except (TokenizerError, TlsError) as error:
        fail(str(error))
    except socket.gaierror as error:
        fail(f"cannot listen on {host}: {error.strerror}")
    except OSError as error:
        if error.errno not in _ADDRESS_ERRORS:
            raise
        hint = f"; {if_taken}" if error.errno == errno.EADDRINUSE else ""
        fail(f"cannot listen on {host} port {port}: {os.strerror(error.errno)}{hint}")
