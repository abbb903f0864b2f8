"""Whether an answer may be served to a request that only means the same: decided by what labels have proved.

**What is promised.** Of a tenant's answers that are served by meaning, the share that is wrong is at most δ: with
`confidence`, at all times at once, as long as labels err no more than their source is said to, and the risk of what is
served stays what it was. Where it changes, `ChangeDetector` limits the damage, and evidence starts anew. Where nothing
is proved nothing is served. Not promised: anything of a single answer, or of the first few hundred, where one wrong
answer is more than δ; and a category by itself is only kept from being estimated above δ.

**How.** A candidate's expected risk comes from a curve over similarity that all entries of its category share, and from
what its own entry has shown (`RiskCurve`, `Entries`). It is served if the tenant's candidates of no greater expected
risk have a bound of at most δ (`Evidence`), those of its category among them an estimate of at most δ, and its own
expected risk is at most about twice that. Labels are got by asking a worker after all, and comparing: for all that may
not be served, which is a miss anyway, and for a share, drawn at random, of what may. An entry found wrong goes into
quarantine.

The idea to learn for each entry when it may be served, by exploring at random under a bound on the error, is that of
Schroeder et al., "vCache: Verified Semantic Prompt Caching" (ICLR 2026, arXiv 2502.03771). It bounds the share of wrong
answers among *all* requests and learns each entry by itself. Here it is the share among those served, which is more
to ask, and labels are pooled.

Pure: time and randomness are arguments; `now` is in seconds of a clock that a restart does not set back. Bounded in
entries and categories.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from policies.guards.strength import NAMES
from policies.semantic_change import ChangeDetector
from policies.semantic_curve import RiskCurve, Standings, bin_of
from policies.semantic_entries import QUARANTINED, Entries
from policies.semantic_evidence import LEVELS, Evidence, level_of
from policies.semantic_report import CategoryCounts, CategoryReport, report_of
from policies.semantic_types import Candidate, Choice, Decision, Outcome, SemanticSettings, Why

__all__ = ["Candidate", "Choice", "Decision", "Outcome", "SemanticPolicy", "SemanticSettings", "Why"]

_MOST_CLASSES: Final = 64
_OTHERS: Final = ("*", 0)
"""Where those learn that are met when there is room for no more."""
_KEPT: Final = 0.1
"""Of what the curve has learnt, after a change."""
_MOST_CLIENTS: Final = 1_024
_HOUR: Final = 3_600.0
_FORMAT: Final = 3
_STRENGTHS: Final = {strength: name for name, strength in NAMES.items()}

_Class = tuple[str, int]


class _Known:
    """What is known of a category and a strength of the guards."""

    __slots__ = ("counts", "curve", "detector", "epoch", "evidence")

    def __init__(self, settings: SemanticSettings, standings: Standings) -> None:
        self.curve = RiskCurve(standings)
        self.evidence = _evidence(settings)
        self.detector = ChangeDetector()
        self.epoch = 0
        self.counts = CategoryCounts()


def _evidence(settings: SemanticSettings) -> Evidence:
    noises = tuple(settings.sources.values())
    return Evidence(noises, 1.0 - settings.confidence, settings.evidence_labels, settings.evidence_age)


class SemanticPolicy:
    """Of one tenant: only its own labels count for it."""

    def __init__(self, settings: SemanticSettings) -> None:
        self.settings = settings
        self._noises = tuple(settings.sources.values())
        self._sources = {name: (at, noise) for at, (name, noise) in enumerate(settings.sources.items())}
        self._entries = Entries(settings.max_entries, settings.recovery, settings.strikes)
        self._standings = Standings()
        self._evidence = _evidence(settings)
        self._detector = ChangeDetector()
        self._trusted = 0
        """Answers served since the start or the last change."""
        self._classes: dict[_Class, _Known] = {}
        self._reports: dict[str, tuple[float, int]] = {}

    def decide(
        self,
        candidate: Candidate,
        sample: float,
        now: float,
        *,
        client_floor: float | None = None,
        client_delta: float | None = None,
        client_max_age: float | None = None,
        answers: int = 1,
    ) -> Decision:
        """What to do with a request. `sample` is drawn anew for each, evenly from [0, 1). What a client asks for only
        counts where it is stricter than the settings. `answers` is of how many requests, all the same, it decides.
        Counts the candidate, lets go of what is too old, and changes nothing else.
        """
        refused = self._refused(candidate, client_floor, client_max_age)
        if refused is not None:
            return Decision(Choice.MISS, refused, 1.0, 1.0, would_serve=False)
        known = self._known(candidate)
        known.counts.candidates += 1
        for evidence in (self._evidence, known.evidence):
            evidence.let_go(now)
        settings = self.settings
        estimate, bound, why = self._judged(known, candidate, settings.delta)
        audited = why is Why.BOUND and not settings.shadow
        rate = settings.audits(self._trusted, doubts=self._detector.level > 0.0) if audited else settings.learn_rate
        if why is Why.BOUND and client_delta is not None and client_delta < settings.delta:
            # Drawn as often as if its client had said nothing: the labels of those who are never served would outnumber
            # the others'.
            estimate, bound, why = self._judged(known, candidate, client_delta)
        if why is Why.QUARANTINE:
            known.counts.quarantined += 1
        would_serve = why is Why.BOUND
        if would_serve:
            known.counts.would_serve += 1
            if sample >= rate and not settings.shadow:
                known.counts.served += answers
                self._trusted += answers
                return Decision(Choice.SERVE, why, estimate, bound, would_serve, answers=answers)
            why = Why.AUDIT
        choice = Choice.EXPLORE if sample < rate else Choice.MISS
        return Decision(choice, why, estimate, bound, would_serve, rate, answers)

    def observe(self, candidate: Candidate, decision: Decision, *, wrong: bool, source: str, now: float) -> Outcome:
        """A comparison that `decide` asked for by EXPLORE: of the entry's answer with what a worker said. Only such
        labels prove something, for chance alone chose them; what clients report goes to `report_wrong`. It counts as
        what it was when it was decided: of many requests at a time that meet the same wrong entry each is wrong.

        Raises KeyError for a source that the settings do not know.
        """
        at, noise = self._sources[source]
        known = self._known(candidate)
        changed = False
        if decision.would_serve:
            known.counts.audit(source, wrong)
        else:
            known.counts.labels += 1
            known.counts.labels_wrong += wrong
        if decision.why is not Why.QUARANTINE:
            estimate = decision.estimate
            changed = self._watch(known, estimate, wrong, at)
            if not changed:
                for evidence in (known.evidence, self._evidence):
                    evidence.observe(estimate, at, wrong, now, share=decision.share, answers=decision.answers)
            standing = self._entries.standing(candidate.entry, candidate.similarity, known.epoch)
            known.curve.observe(bin_of(candidate.similarity), max(standing, 0), noise.unbiased(wrong))
        drop = self._entries.observe(candidate.entry, candidate.similarity, wrong, known.epoch)
        return Outcome(quarantined=wrong, drop=drop, changed=changed)

    def report_wrong(self, entry: str, client: str, now: float) -> Outcome:
        """A client says that an answer served from this entry was wrong. It can only tighten: the entry goes into
        quarantine. What clients say is not drawn at random and may be malicious, so it proves nothing of other entries,
        and only so many reports an hour count from each.
        """
        since, number = self._reports.pop(client, (now, 0))
        if now - since >= _HOUR:
            since, number = now, 0
        self._reports[client] = since, number + 1
        if len(self._reports) > _MOST_CLIENTS:
            del self._reports[next(iter(self._reports))]
        if number >= self.settings.client_reports:
            return Outcome()
        return Outcome(quarantined=True, drop=self._entries.condemn(entry))

    def forget(self, entry: str) -> None:
        """The cache no longer has this entry."""
        self._entries.forget(entry)

    def report(self) -> dict[str, CategoryReport]:
        """By category and strength of the guards (`prices/strict`): what was, or would have been, served, and its
        error.
        """
        noises = dict(self.settings.sources)
        return {
            f"{category}/{_STRENGTHS.get(guard, guard)}": report_of(known.counts, noises, self.settings.confidence)
            for (category, guard), known in self._classes.items()
        }

    def snapshot(self) -> dict[str, Any]:
        """All that was learnt as plain data: some 50 bytes for each entry, some kilobytes for
        each category.
        """
        return {
            "format": _FORMAT,
            "sources": list(self._sources),
            "judged_by": self.settings.judged_by,
            "entries": self._entries.dump(),
            "standings": self._standings.dump(),
            "evidence": self._evidence.dump(),
            "level": self._detector.level,
            "trusted": self._trusted,
            "classes": [
                [category, guard, known.epoch, known.detector.level, known.curve.dump(), known.evidence.dump()]
                for (category, guard), known in self._classes.items()
            ],
        }

    def restore(self, data: Mapping[str, Any]) -> None:
        """Takes the place of all that was learnt. Raises ValueError for data of another shape, and then has changed
        nothing; sources other than today's are another shape too.
        """
        judges = list(self._sources), self.settings.judged_by
        if data.get("format") != _FORMAT or (data.get("sources"), data.get("judged_by")) != judges:
            raise ValueError("evidence of another format or of other sources")
        told = SemanticPolicy(self.settings)
        try:
            told._load(data)
        except (KeyError, TypeError) as error:
            raise ValueError("evidence of another shape") from error
        vars(self).update(vars(told))

    def _load(self, data: Mapping[str, Any]) -> None:
        self._entries.load(data["entries"])
        self._standings.load(data["standings"])
        self._evidence.load(data["evidence"])
        self._detector.level = float(data["level"])
        self._trusted = int(data["trusted"])
        for category, guard, epoch, level, curve, evidence in data["classes"]:
            known = self._classes[str(category), int(guard)] = _Known(self.settings, self._standings)
            known.epoch, known.detector.level = int(epoch), float(level)
            known.curve.load(curve)
            known.evidence.load(evidence)

    def _refused(self, candidate: Candidate, floor: float | None, max_age: float | None) -> Why | None:
        if candidate.guard <= 0:
            return Why.GUARD
        # Written so that a similarity that is no number is refused.
        if not candidate.similarity >= max(self.settings.floor, floor or 0.0):
            return Why.FLOOR
        lifetime = self.settings.lifetime(candidate.category)
        if not candidate.age <= (lifetime if max_age is None else min(lifetime, max_age)):
            return Why.EXPIRED
        return None

    def _known(self, candidate: Candidate) -> _Known:
        key = candidate.category, candidate.guard
        known = self._classes.get(key)
        if known is None:
            if len(self._classes) >= _MOST_CLASSES:
                key = _OTHERS
            known = self._classes.get(key) or self._classes.setdefault(key, _Known(self.settings, self._standings))
        return known

    def _judged(self, known: _Known, candidate: Candidate, delta: float) -> tuple[float, float, Why]:
        """Expected risk, the bound for its like, and what follows but for chance."""
        standing = self._entries.standing(candidate.entry, candidate.similarity, known.epoch)
        if standing == QUARANTINED:
            return 1.0, 1.0, Why.QUARANTINE
        risk = known.curve.risk(bin_of(candidate.similarity), standing)
        proved = self._evidence.proved(risk, delta, known.evidence)
        if proved is None:
            return risk, 1.0, Why.LEARNING
        bound = proved[1]
        if self._detector.doubts:
            return risk, bound, Why.CHANGED
        return risk, bound, Why.BOUND

    def _watch(self, known: _Known, estimate: float, wrong: bool, source: int) -> bool:
        """Whether this label shows that the world has changed; then all of the category is learnt anew. What counts is
        what is served, and what is of no greater risk than δ.
        """
        delta = self.settings.delta
        level = level_of(delta)
        proved = self._evidence.proved(0.0, delta)
        if proved is not None:
            level = max(level, proved[0])
        if level < 0 or estimate > LEVELS[level]:
            return False
        noise = self._noises[source]
        if self._detector.observe(wrong, noise, self._evidence.rate(level), delta):
            for each in self._classes.values():
                self._start_anew(each)
            return True
        # A category of few requests may change alone, too little to be seen in all.
        if known.detector.observe(wrong, noise, known.evidence.rate(level), delta):
            self._start_anew(known)
            return True
        return False

    def _start_anew(self, known: _Known) -> None:
        self._evidence.forget()
        self._trusted = 0
        known.evidence.forget()
        known.detector = ChangeDetector()
        known.curve.fade(_KEPT)
        known.epoch += 1
