"""What this process knows of the log of what was forgotten, and how it learns more.

With Redis, what another gateway forgets is known here after the next look at the log: `refresh_s` and a round trip
later at most. Where Redis does not answer, what is known counts for `trusted_s` more; after that nothing is read or
stored until it answers again, so that an answer too few is served rather than one that was forgotten.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from math import inf
from os import urandom
from typing import Final

from cache.epoch_log import MOST_BYTES, EpochLog
from cache.response_entry import Stamp
from cache.response_epochs import (
    GENERATION_BYTES,
    ITEM_BYTES,
    NONCE_BYTES,
    EpochTable,
    ForgetRule,
    decode_header,
    decode_rule,
    encode_header,
    encode_rule,
)
from cache.response_key import ModelTag, ScopeTag
from cache.response_openings import Openings
from cache.store import StoreError

log = logging.getLogger(__name__)

_MOST_PENDING: Final = 256
"""Rules that wait until the log can be written; more of them become one that forgets all."""
_EVERYTHING: Final = ForgetRule(None, None, inf)
_CLOSE_SECONDS: Final = 5.0


class Epochs:
    """`stamp` and `readable` take a microsecond and wait for nothing; safe for many threads."""

    def __init__(
        self,
        store: EpochLog,
        *,
        refresh_s: float = 0.2,
        trusted_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Reads a log of its own at once, and a shared one from a thread, every `refresh_s`. Raises ValueError where
        what is known would not be trusted until the next look.
        """
        if not 0 < refresh_s < trusted_s:
            raise ValueError("what is known is trusted for longer than until the next look")
        self._log = store
        self._refresh_s = refresh_s
        self._trusted_s = trusted_s if store.shared else inf
        self._clock = clock
        self._table: EpochTable | None = None
        self._known_at = -inf
        self._last = b""
        """The last item that was read."""
        self._pending: tuple[ForgetRule, ...] = ()
        self._failing = False
        self._working = threading.Lock()
        """Held while the log is read or written."""
        self._changing = threading.Lock()
        """Held for a moment, to change `_pending`."""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if store.shared:
            self._start()
        else:
            self.refresh()

    def stamp(self) -> Stamp | None:
        """Of a request that begins now; None: what was forgotten is not known, and nothing is read or stored."""
        table = self._table
        if table is None or self._clock() - self._known_at > self._trusted_s:
            return None
        return table.stamp()

    def readable(
        self, scope: ScopeTag, model: ModelTag, stamp: Stamp, stored_at: float, openings: Openings = None
    ) -> bool:
        """May an answer be read that was stored then, to a request that began at `stamp` and has such a prompt?"""
        table = self._table
        if table is None or self._clock() - self._known_at > self._trusted_s:
            return False
        if self._pending and any(rule.covers(scope, model, stored_at, openings) for rule in self._pending):
            return False
        return table.readable(scope, model, stamp, stored_at, openings)

    def forget(self, rule: ForgetRule) -> bool:
        """It holds here from now on. True where it is in the log too; else it is tried again, and until then nothing
        that the rule is about is read, whenever it was stored.
        """
        with self._changing:
            pending = (*self._pending, rule)
            self._pending = pending if len(pending) <= _MOST_PENDING else (_EVERYTHING,)
        done = self.refresh()
        if not done:
            self._start()
        return done

    def refresh(self) -> bool:
        """Read what is new in the log, and write what waits. True: all is known and written. Never raises."""
        with self._working:
            try:
                began = self._clock()
                self._read()
                self._write()
            except StoreError as error:
                # Of a shared log its tier tells.
                if not self._failing and not self._log.shared:
                    log.warning("what is forgotten cannot be noted down for now: %s", error)
                self._failing = True
                return False
            self._known_at = began
            self._failing = False
            return True

    def close(self) -> None:
        """Stop looking. What waits is tried once more, if it could not be written yet."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)
        if self._pending:
            self.refresh()

    # --- the log ----------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        table = self._table
        if table is not None:
            # The last known item once more: if it is there, all before it is as it was.
            first = table.position * ITEM_BYTES
            found = self._log.read(first)
            if found[:ITEM_BYTES] == self._last and self._apply(table, found[ITEM_BYTES:], first + ITEM_BYTES):
                return
        self._read_anew()

    def _read_anew(self) -> None:
        found = self._log.read(0)
        generation = decode_header(found[:ITEM_BYTES])
        # Of a log that is known already the last item that was read is gone, and who knows what else.
        if generation is not None and (self._table is None or self._table.generation != generation):
            table = EpochTable(generation)
            self._last = found[:ITEM_BYTES]
            if self._apply(table, found[ITEM_BYTES:], ITEM_BYTES):
                self._table = table
                return
        self._begin(damaged=bool(found))

    def _apply(self, table: EpochTable, items: bytes, first: int) -> bool:
        """False where they are damaged, or the log is too long."""
        if len(items) % ITEM_BYTES or first + len(items) > MOST_BYTES:
            return False
        rules = []
        for at in range(0, len(items), ITEM_BYTES):
            rule = decode_rule(table.generation, items[at : at + ITEM_BYTES])
            if rule is None:
                return False
            rules.append(rule)
        table.apply(rules)
        if items:
            self._last = items[-ITEM_BYTES:]
        return True

    def _begin(self, *, damaged: bool) -> None:
        """Another log, in which nothing that was stored until now can be read."""
        if damaged:
            log.warning("the log of what was forgotten is full or damaged: all stored answers are forgotten")
            self._log.clear()
        self._log.append(encode_header(urandom(GENERATION_BYTES)))
        found = self._log.read(0)
        generation = decode_header(found[:ITEM_BYTES])
        if generation is None:
            raise StoreError("the log of what was forgotten cannot be begun")
        table = EpochTable(generation)
        self._last = found[:ITEM_BYTES]
        if not self._apply(table, found[ITEM_BYTES:], ITEM_BYTES):
            raise StoreError("the log of what was forgotten cannot be begun")
        self._table = table

    def _write(self) -> None:
        pending = self._pending
        if not pending:
            return
        assert self._table is not None
        for rule in pending:
            self._log.append(encode_rule(self._table.generation, rule, urandom(NONCE_BYTES)))
        # Known from the log before it is taken from the list: it holds all the time.
        self._read()
        with self._changing:
            self._pending = tuple(rule for rule in self._pending if not any(rule is one for one in pending))

    # --- the thread -------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        with self._changing:
            if self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(target=self._run, name="response-epochs", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            self.refresh()
            if self._stop.wait(self._refresh_s):
                return
