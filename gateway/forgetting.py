"""Forgetting what is kept of a tenant: stored answers, and with everything its KV on all workers.

First what makes it unreadable, for whoever asks from now on and for writes that are under way: the epochs of stored
answers, and another cache salt for its KV. Then what removes it from where it lies, in threads and at workers, which
may take a while and may fail. Last the record of it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from backends.kv_forgetting import KvResult, WorkerForgot, forget_kv
from backends.remote_tokenizer import TokenizeTarget
from cache.response_cache import Forgotten
from gateway import audit
from gateway.admin.control import NO_TENANT, ForgetOrder, UnknownTenantError
from gateway.config import ConfigError
from gateway.kv_epochs import EpochWatch, KvEpochs, keep_epochs
from gateway.tenancy import Tenancy
from policies.types import WorkerId

log = logging.getLogger(__name__)

SECONDS: Final = 30.0
"""For stores to be walked, and for workers to answer."""
_THREADS: Final = 8
_FAILED: Final = Forgotten(noted=False, complete=False)


class KeepsAnswers(Protocol):
    """Whoever keeps answers of tenants: the response cache, and others like it."""

    def forget(
        self,
        scope: bytes | None = None,
        *,
        model: str | None = None,
        older_than: float | None = None,
        prefix: str | None = None,
        dry_run: bool = False,
        seconds: float = 60.0,
    ) -> Forgotten:
        """Make answers unreadable at once, then remove them; with `dry_run` count them. For a thread."""
        ...


@dataclass(frozen=True, slots=True)
class KvForgotten:
    """What became of a tenant's KV."""

    epoch: int
    """How often it was forgotten; with `dry_run`, until now."""
    noted: bool
    """Is that kept, so that it holds after a restart?"""
    workers: Mapping[WorkerId, WorkerForgot] = field(default_factory=dict)
    unsalted: Sequence[WorkerId] = ()
    """Workers that take no salt: what they have cached is not kept apart, and cannot be forgotten."""

    @property
    def complete(self) -> bool:
        """Is all of it out of reach for good, and gone where we can see to that?"""
        failed = any(one.result is KvResult.FAILED for one in self.workers.values())
        return self.noted and not failed and not self.unsalted


class Forgetting:
    """Of one program. Several tenants may be forgotten at a time."""

    def __init__(
        self,
        *,
        keepers: Callable[[], Mapping[str, KeepsAnswers]],
        tenancy: Callable[[], Tenancy | None],
        targets: Callable[[], Sequence[tuple[TokenizeTarget, bool]]],
        folder: Callable[[], Path],
        audit_file: Callable[[], Path | None],
        served_name: Callable[[str], str],
    ) -> None:
        """`keepers` of answers, by what the record calls them. `targets` are all workers, and whether each takes salts.
        `folder`: where epochs are kept. `served_name`: of a model that a client names.
        """
        self._keepers = keepers
        self._tenancy = tenancy
        self._targets = targets
        self._folder = folder
        self._audit_file = audit_file
        self._served_name = served_name
        self._epochs_seen = EpochWatch()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="forget")

    async def forget(self, order: ForgetOrder, peer: str) -> dict[str, object]:
        """See `FleetControl`."""
        tenancy = self._tenancy()
        scope = _scope_of(order.tenant, tenancy)
        # Both begin in this turn of the loop: no request comes in between.
        kv = None if tenancy is None or not order.whole else self._start_kv(order, tenancy)
        answers = {name: self._start_answers(name, keeper, scope, order) for name, keeper in self._keepers().items()}
        forgotten = {name: await one for name, one in answers.items()}
        kv_forgotten = None if kv is None else await kv
        record = _record(order, peer, forgotten, kv_forgotten)
        recorded = await self._recorded(record, _line(order, record, forgotten), dry_run=order.dry_run)
        return record | {"audited": recorded}

    def take_up(self) -> None:
        """Another gateway that shares the state folder may have had KV forgotten; to be called now and then."""
        tenancy = self._tenancy()
        if tenancy is None:
            return
        try:
            told = self._epochs_seen.news(self._folder())
        except ConfigError as error:
            log.error("tenants: how often KV was forgotten is not known: %s", error.in_a_line)  # noqa: TRY400 - the message is all
            return
        if told is not None:
            tenancy.take_epochs(told)

    def close(self) -> None:
        """Begin nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    # -- answers

    def _start_answers(
        self, name: str, keeper: KeepsAnswers, scope: bytes, order: ForgetOrder
    ) -> asyncio.Task[Forgotten]:
        work = partial(
            keeper.forget,
            scope,
            model=None if order.model is None else self._served_name(order.model),
            older_than=order.older_than,
            prefix=order.prefix,
            dry_run=order.dry_run,
            seconds=SECONDS,
        )
        started = asyncio.get_running_loop().run_in_executor(self._threads, work)
        return asyncio.ensure_future(_done(name, started))

    # -- KV

    def _start_kv(self, order: ForgetOrder, tenancy: Tenancy) -> asyncio.Task[KvForgotten]:
        tenant = tenancy.tenants[order.tenant]
        salts = tenant.shared_salts
        counted = None if order.dry_run else tenancy.forget_kv(order.tenant, order.kv_epoch)
        return asyncio.ensure_future(self._forget_kv(order, tenancy, salts, counted))

    async def _forget_kv(
        self, order: ForgetOrder, tenancy: Tenancy, salts: Sequence[str], counted: KvEpochs | None
    ) -> KvForgotten:
        targets = self._targets()
        salted = [target for target, takes_salt in targets if takes_salt]
        owner = tenancy.tenants[order.tenant].account
        purge = forget_kv(salted, salts, [owner], dry_run=order.dry_run, timeout=SECONDS)
        workers = asyncio.ensure_future(purge)
        noted = counted is None or await self._note(order.tenant, tenancy, counted)
        return KvForgotten(
            tenancy.tenants[order.tenant].kv_epoch,
            noted,
            await workers,
            [target.worker for target, takes_salt in targets if not takes_salt],
        )

    async def _note(self, name: str, tenancy: Tenancy, counted: KvEpochs) -> bool:
        """Keep the count. Another process may have counted on: then ours is beyond it."""
        keep = partial(keep_epochs, self._folder(), partial(_beyond, name, counted))
        try:
            kept = await asyncio.get_running_loop().run_in_executor(self._threads, keep)
        except ConfigError as error:
            log.error("KV of %s is forgotten until the gateway starts again: %s", name, error.in_a_line)  # noqa: TRY400 - the message is all
            return False
        for one in {tenancy, self._tenancy()}:  # there may be another one by now
            if one is not None:
                one.take_epochs(kept)
        return True

    # -- the record

    async def _recorded(self, record: Mapping[str, object], line: str, *, dry_run: bool) -> bool:
        audit.tell(line, record, level=logging.INFO if dry_run else logging.WARNING)
        file = self._audit_file()
        if file is None or dry_run:
            return True
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, audit.append, file, record)
        except audit.AuditError as error:
            log.error("the record of what was forgotten cannot be kept: %s", error)  # noqa: TRY400 - the message is all
            return False
        return True


def _scope_of(name: str, tenancy: Tenancy | None) -> bytes:
    """Whose answers it is about."""
    if tenancy is None and name == NO_TENANT:
        return b""
    tenant = None if tenancy is None else tenancy.tenants.get(name)
    if tenant is None:
        raise UnknownTenantError(name)
    return tenant.answers_scope


def _beyond(name: str, counted: KvEpochs, kept: KvEpochs) -> KvEpochs:
    """The counts as they are to be kept: larger than all that were in force anywhere."""
    group = next(iter(counted.groups), None)
    before = max(kept.tenants.get(name, 0), 0 if group is None else kept.groups.get(group, 0))
    epoch = max(counted.tenants[name], before + 1)
    return KvEpochs({name: epoch}, {} if group is None else {group: epoch})


async def _done(name: str, started: asyncio.Future[Forgotten]) -> Forgotten:
    try:
        return await started
    except Exception:  # the others go on, and the answer tells that it is not done
        log.exception("%s: what was to be forgotten may still be there", name)
        return _FAILED


def _record(
    order: ForgetOrder, peer: str, answers: Mapping[str, Forgotten], kv: KvForgotten | None
) -> dict[str, object]:
    """What is answered, logged and kept: no text of a prompt."""
    return {
        "id": uuid.uuid4().hex,
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "event": "forget",
        "by": peer,
        "tenant": order.tenant,
        "dry_run": order.dry_run,
        "rule": {
            "model": order.model,
            "older_than_s": order.older_than,
            "prefix": None if order.prefix is None else _shown(order.prefix),
        },
        "answers": {name: _answers(one) for name, one in answers.items()},
        "kv": None if kv is None else _kv(kv),
        "complete": all(one.noted and one.complete for one in answers.values()) and (kv is None or kv.complete),
    }


def _shown(prefix: str) -> dict[str, object]:
    digest = hashlib.sha256(prefix.encode("utf-8", "surrogatepass")).hexdigest()
    return {"characters": len(prefix), "sha256": digest}


def _answers(one: Forgotten) -> dict[str, object]:
    entries = {tier.value: n for tier, n in one.entries.items()}
    return {"entries": entries, "waiting": one.waiting, "noted": one.noted, "complete": one.complete}


def _kv(kv: KvForgotten) -> dict[str, object]:
    return {
        "epoch": kv.epoch,
        "noted": kv.noted,
        "complete": kv.complete,
        "workers": {
            **{name: {"result": "not kept apart"} for name in kv.unsalted},
            **{
                name: {"result": one.result.value, "frames": dict(one.found), "left": list(one.left)}
                for name, one in kv.workers.items()
            },
        },
    }


def _line(order: ForgetOrder, record: Mapping[str, object], answers: Mapping[str, Forgotten]) -> str:
    """For people, who read no fields."""
    rules = {
        "model": order.model,
        "older_than": None if order.older_than is None else f"{order.older_than:g}s",
        "prefix_characters": None if order.prefix is None else len(order.prefix),
    }
    parts = [f"tenant={order.tenant}", *(f"{name}={value}" for name, value in rules.items() if value is not None)]
    parts += [f"{name}_{tier.value}={n}" for name, one in answers.items() for tier, n in one.entries.items()]
    complete = "yes" if record["complete"] else "no"
    verb = "would forget" if order.dry_run else "forgot"
    return f"{verb} {' '.join(parts)} complete={complete} by={record['by']} id={record['id']}"
