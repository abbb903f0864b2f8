"""Takes up a changed configuration file, or file of keys, on a signal or because it is another one than before.

All or nothing: a file that cannot be used leaves the running configuration in force, and says so once. What is
compared is the file's content: a link that is switched, as orchestrators do, counts, and a touched file does not.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from backends.tls import TlsError
from cache.tokenizer import TokenizerError
from gateway.config import Config, ConfigError, load_config
from gateway.logs import set_up_logging

if TYPE_CHECKING:
    from gateway.program import Program

log = logging.getLogger(__name__)

Keys = tuple[bytes | None, bytes | None]
"""Digests of the file of keys and of that of an issuer's."""


class StoppingError(Exception):
    """The program is about to end, and takes up nothing any more."""


class Reloader:
    """Watches one file for one program."""

    def __init__(self, program: Program, file: Path) -> None:
        self._program = program
        self.file = file
        self._seen = self._look()
        self._asked = asyncio.Event()
        self._lock = asyncio.Lock()

    def start(self) -> None:
        """Watch from now on."""
        self._program.background.start(self._watch(), "configuration file")

    def at_once(self) -> None:
        """Take the file up now, changed or not."""
        self._asked.set()

    async def reload(self) -> list[str]:
        """Take the file up; returns the settings that need a restart.

        Raises:
            ConfigError, TokenizerError, TlsError, StoppingError: Nothing was changed.
        """
        async with self._lock:
            self._seen = self._look()
            config = load_config(self.file)
            keys = _keys_digest(config)
            restart = await self._apply(config)
            self._seen = self._seen[0], keys
            return restart

    async def _apply(self, config: Config) -> list[str]:
        before = self._program.config
        if config == before:
            self._program.take_up_keys()
            log.info("configuration: nothing has changed in %s", self.file)
            return []
        restart = await self._program.apply(config)
        if config.log != before.log:
            set_up_logging(config.log)
        log.info("configuration: %s is in force", self.file)
        if restart:
            log.warning("configuration: only a restart takes up %s", ", ".join(restart))
        return restart

    async def _watch(self) -> None:
        while True:
            if await self._is_asked():
                self._program.reload_certificates()
            elif (looked := self._look()) == self._seen or looked[0] is None:
                continue
            elif looked[0] == self._seen[0]:
                self._take_up_keys(looked[1])
                continue
            try:
                await self.reload()
            except (ConfigError, TokenizerError, TlsError, StoppingError) as error:
                text = error.in_a_line if isinstance(error, ConfigError) else error
                log.error("configuration: the old one stays in force: %s", text)  # noqa: TRY400 - the message is all
            except Exception:  # the next change may be a better one
                log.exception("configuration: a fault of the gateway's own while %s was taken up", self.file)

    def _look(self) -> tuple[bytes | None, Keys]:
        """The content of the configuration and those of the files of keys which it names, as digests."""
        return _digest(self.file), _keys_digest(self._program.config)

    def _take_up_keys(self, keys: Keys) -> None:
        file = self._program.config.tenants.keys_file
        before = self._seen[1]
        self._seen = self._seen[0], keys
        # A revoked key is taken out of the file; a file that is gone is more likely a mistake.
        if keys[0] is None and before[0] is not None:
            log.warning("keys: there is no file %s any more; those that were in it stay in force", file)
            return
        try:
            self._program.take_up_keys()
        except ConfigError as error:
            log.error("keys: the old ones stay in force: %s", error.in_a_line)  # noqa: TRY400 - the message is all
        else:
            log.info("keys: %s", "those of the issuer are in force" if keys[0] == before[0] else f"{file} is in force")

    async def _is_asked(self) -> bool:
        """Wait for a signal, or for the time to look; True for the one."""
        watch = self._program.config.reload.watch
        try:
            async with asyncio.timeout(watch or None):
                await self._asked.wait()
        except TimeoutError:
            return False
        self._asked.clear()
        return True


def _keys_digest(config: Config) -> Keys:
    issuer = config.tenants.jwt
    return _digest(config.tenants.keys_file), None if issuer is None else _digest(issuer.jwks_file)


def _digest(file: Path | None) -> bytes | None:
    """Of the content; None where there is no file or it cannot be read, as in the moment in which it is replaced."""
    if file is None:
        return None
    try:
        return hashlib.sha256(file.read_bytes()).digest()
    except OSError:
        return None
