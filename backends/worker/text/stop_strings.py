"""Finds stop strings in text that comes in pieces, and holds back only what may become one. Pure."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Looks for several texts at once (Knuth-Morris-Pratt, one automaton for each).

    The match is the one that is complete first; of those which are complete with the same character, the one that
    began first. So it depends on the text alone, not on how it was cut.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(dict.fromkeys(stop for stop in stops if stop))
        self._first = frozenset(stop[0] for stop in self._stops)
        self._fails = tuple(map(_borders, self._stops))
        self._matched = [0] * len(self._stops)
        self._held = ""
        self.found: str | None = None

    def push(self, text: str) -> tuple[str, bool]:
        """Text that can be shown, and whether a stop string was found behind it; what follows that is dropped."""
        if self.found is not None:
            return "", True
        if not self._held and self._first.isdisjoint(text):
            return text, False
        begin = len(self._held)
        text = self._held + text
        for at in range(begin, len(text)):
            if found := self._step(text[at]):
                self.found = found
                self._held = ""
                return text[: at + 1 - len(found)], True
        shown = len(text) - max(self._matched, default=0)
        self._held = text[shown:]
        return text[:shown], False

    def finish(self) -> str:
        """What was held back: no more text comes."""
        held, self._held = self._held, ""
        return held

    def _step(self, char: str) -> str | None:
        """Take one character; the longest stop string that it completes."""
        found: str | None = None
        for which, (stop, fails) in enumerate(zip(self._stops, self._fails, strict=True)):
            matched = self._matched[which]
            while matched and stop[matched] != char:
                matched = fails[matched - 1]
            if stop[matched] == char:
                matched += 1
            if matched == len(stop):
                found = stop if found is None or len(stop) > len(found) else found
                matched = fails[matched - 1]
            self._matched[which] = matched
        return found


def _borders(text: str) -> list[int]:
    """For each head of `text`, the length of the longest shorter head that is also its tail."""
    borders = [0] * len(text)
    length = 0
    for at in range(1, len(text)):
        while length and text[at] != text[length]:
            length = borders[length - 1]
        length += text[at] == text[length]
        borders[at] = length
    return borders
