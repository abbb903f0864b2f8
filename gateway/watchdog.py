"""Looks after what no callback tells: requests that take too long as a whole, and workers that hang.

A worker hangs when it has work, says that it is well, and nothing comes. Whatever it sends on any request is a sign of
life, so what is watched is each worker's progress over all its requests, here from the bytes of their answers.
"""

from __future__ import annotations

import logging
from typing import Protocol

from backends.errors import UpstreamFault
from backends.fleet_state import FleetState
from backends.fleet_worker import Reservation, Worker
from gateway.exchange import Exchange

log = logging.getLogger(__name__)


class Live(Protocol):
    """Where the requests under way are found."""

    live: set[Exchange]


class Watchdog:
    """Call `sweep` a few times a second."""

    def __init__(self, fleet: FleetState, pipeline: Live) -> None:
        self._fleet = fleet
        self._pipeline = pipeline

    def sweep(self, now: float) -> None:
        """Look at every request and every worker once."""
        for worker in self._fleet.sweep(now):
            log.info("worker %s is back after its ejection", worker.id)
        late = [exchange for exchange in self._pipeline.live if self._is_late(exchange, now)]
        for exchange in late:
            exchange.give_up(UpstreamFault.REQUEST_TIMEOUT)
        for worker in self._fleet.workers:
            if worker.active and worker.progress.is_hung(now, worker.prefill.seconds(now)):
                self._hung(worker, now)

    def _is_late(self, exchange: Exchange, now: float) -> bool:
        """Note what has come of its answer; has it taken too long?"""
        reservation = exchange.reservation
        if reservation is not None:
            self._follow(exchange, reservation, now)
        return now > exchange.deadline

    @staticmethod
    def _follow(exchange: Exchange, reservation: Reservation, now: float) -> None:
        """Tell the worker's progress what has come of one request. One that is over before it is first seen here
        has told of it with its first byte.
        """
        progress, flight = reservation.worker.progress, reservation.flight
        if flight is None and reservation.generates:
            flight = reservation.flight = progress.sent(exchange.record.routed_at, streams=reservation.streams)
            if not reservation.pending:
                progress.streaming(now, flight)
        n_bytes = exchange.record.response_bytes
        if n_bytes != exchange.seen_bytes:
            exchange.seen_bytes = n_bytes
            progress.progressed(now)
        if flight is not None and exchange.client.paused != flight.paused:
            (progress.paused if exchange.client.paused else progress.resumed)(now, flight)

    def _hung(self, worker: Worker, now: float) -> None:
        stuck = [exchange for exchange in self._pipeline.live if exchange.worker is worker]
        ejected = self._fleet.eject_hung(worker, now)
        log.warning(
            "worker %s hangs: %d requests and no progress%s",
            worker.id, len(stuck), "; it is left out" if ejected else "",
        )  # fmt: skip
        for exchange in stuck:
            exchange.give_up(UpstreamFault.HUNG)
