"""The live view while a replay runs; on anything but a terminal, nothing."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gateway.replay import figures
from gateway.replay.stats import percentile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gateway.replay.records import RequestRecord
    from gateway.replay.schedule import Clock

_PERIOD_S: Final = 0.25
_LATE_S: Final = 0.1  # from here on it is coloured
_RECENT: Final = 200  # answers that the running TTFT is taken from


class Progress:
    """Running figures, kept up to date by looking only at records that were not finished the last time."""

    def __init__(self, records: Sequence[RequestRecord]) -> None:
        self.records = records
        self.sent = self.done = self.failed = 0
        self.prompt_tokens = self.cached_tokens = 0
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._unsent = list(records)
        self._open: list[RequestRecord] = []
        self.late: float | None = None
        self.ends = max((record.scheduled for record in records), default=0.0)

    def update(self) -> None:
        """Look at the records again; sessions send theirs out of the order of the trace."""
        begun = [record for record in self._unsent if record.sent is not None]
        if begun:
            self._unsent = [record for record in self._unsent if record.sent is None]
            self._open += begun
            self.sent += len(begun)
            self.late = max(record.lateness or 0.0 for record in begun)
        ended = [record for record in self._open if record.finished is not None]
        if ended:
            self._open = [record for record in self._open if record.finished is None]
        for record in ended:
            self._count(record)

    def _count(self, record: RequestRecord) -> None:
        self.done += 1
        self.failed += record.error is not None
        if record.cached_tokens is not None:
            self.cached_tokens += record.cached_tokens
            self.prompt_tokens += record.prompt_tokens or 0
        if record.ttft is not None:
            self._recent.append(record.ttft)

    @property
    def in_flight(self) -> int:
        """Sent and not ended."""
        return len(self._open)

    @property
    def hit_share(self) -> float | None:
        """Share of prompt tokens from cache so far; None before the first answer that tells."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None

    @property
    def ttft_p50(self) -> float | None:
        """Median of the last answers."""
        return percentile(sorted(self._recent), 0.5) if self._recent else None


def render(progress: Progress, now: float) -> Group:
    """Two lines: how far in time and requests, and how it goes."""
    total = len(progress.records)
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    grid.add_column(no_wrap=True, justify="right")
    grid.add_row(
        Text(f"{progress.done:,} of {total:,} answered", style="bold"),
        ProgressBar(total=max(1, total), completed=progress.done),
        Text(f"{figures.clock(now)} / {figures.clock(max(now, progress.ends))}", style="dim"),
    )
    late = progress.late
    parts = [
        ("sent ", f"{progress.sent:,}", ""),
        ("in flight ", f"{progress.in_flight:,}", "cyan"),
        ("failed ", f"{progress.failed:,}", "bold red" if progress.failed else ""),
        ("from cache ", figures.share(progress.hit_share), "green"),
        ("TTFT p50 ", figures.seconds(progress.ttft_p50), "cyan"),
        ("client late ", figures.seconds(late), "yellow" if (late or 0) > _LATE_S else ""),
    ]
    line = Text("   ").join(Text.assemble((name, "dim"), (value, style)) for name, value, style in parts)
    return Group(grid, line)


@contextmanager
def watch(records: Sequence[RequestRecord], clock: Clock, *, console: Console) -> Iterator[None]:
    """Show `render` of the records four times a second until left. Needs a running event loop."""
    if not console.is_terminal:
        yield
        return
    progress = Progress(records)
    with Live(render(progress, 0.0), console=console, auto_refresh=False, transient=True) as live:
        task = asyncio.ensure_future(_keep_fresh(live, progress, clock))
        try:
            yield
        finally:
            task.cancel()


async def _keep_fresh(live: Live, progress: Progress, clock: Clock) -> None:
    while True:
        progress.update()
        live.update(render(progress, clock.now()), refresh=True)
        await asyncio.sleep(_PERIOD_S)
