"""What keeps the gateway from starting and is no fault of its own: told in a sentence instead of a traceback."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator, Mapping
from typing import Final, NoReturn

from backends.tls import TlsError
from cache.tokenizer import TokenizerError
from gateway.cli.console import fail
from gateway.config import ConfigError
from gateway.listen_error import ListenError

_ADDRESS_ERRORS: Final = frozenset(
    {errno.EACCES, errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EPERM}
)


@contextlib.contextmanager
def told_plainly(host: str, port: int, *, if_taken: str, flags: Mapping[str, str] | None = None) -> Iterator[None]:
    """Turn errors of starting on `host` and `port` into a message and exit code 1.

    `if_taken` says how to choose another port; where the gateway itself tells which of its sockets it was, `flags`
    names the flag for a setting. Anything else is raised as it is.
    """
    try:
        yield
    except (TokenizerError, TlsError, ConfigError) as error:
        fail(str(error))
    except ListenError as error:
        if error.unknown_host:
            fail(f"cannot listen on {error.host}: {error.strerror}")
        setting = (flags or {}).get(error.setting, error.setting)
        _fail_on(error, error.host, error.port, f"choose another with {setting}")
    except socket.gaierror as error:
        fail(f"cannot listen on {host}: {error.strerror}")
    except OSError as error:
        _fail_on(error, host, port, if_taken)


def _fail_on(error: OSError, host: str, port: int, if_taken: str) -> NoReturn:
    if error.errno not in _ADDRESS_ERRORS:
        raise error
    hint = f"; {if_taken}" if error.errno == errno.EADDRINUSE else ""
    fail(f"cannot listen on {host} port {port}: {os.strerror(error.errno)}{hint}")
