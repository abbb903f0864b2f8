"""What a semantic cache would have served, and how often it would have been wrong: counts by category."""

from __future__ import annotations

from dataclasses import dataclass, field

from policies.semantic_bounds import Noise, exact_interval


@dataclass(slots=True)
class CategoryCounts:
    """Of one category, since the start."""

    candidates: int = 0
    """Requests with an entry that passed the guards and the floor."""
    would_serve: int = 0
    served: int = 0
    quarantined: int = 0
    """Candidates whose entry was in quarantine."""
    labels: int = 0
    """Comparisons of whatever could not be served."""
    labels_wrong: int = 0
    audits: dict[str, list[int]] = field(default_factory=dict)
    """By source: comparisons of what would have been served, and how many were called wrong."""

    def audit(self, source: str, wrong: bool) -> None:
        """Counts a comparison of what would have been served."""
        counted = self.audits.setdefault(source, [0, 0])
        counted[0] += 1
        counted[1] += wrong


@dataclass(frozen=True, slots=True)
class CategoryReport:
    """What is said of one category."""

    candidates: int
    would_serve: int
    served: int
    quarantined: int
    audited: int
    estimate: float | None
    """Share of what would have been served that is wrong, as far as the sources' errors are known; None where
    nothing was compared."""
    low: float
    high: float
    """Its interval of Clopper and Pearson, at this one look."""


def report_of(counts: CategoryCounts, noises: dict[str, Noise], confidence: float) -> CategoryReport:
    """Figures for people. Labels of several sources count as those of one that errs as often as they do on average."""
    audited = sum(labels for labels, _ in counts.audits.values())
    wrong = sum(each for _, each in counts.audits.values())
    false_wrong = sum(counted[0] * noises[name].false_wrong for name, counted in counts.audits.items())
    false_correct = sum(counted[0] * noises[name].false_correct for name, counted in counts.audits.items())
    noise = Noise(false_wrong / audited, false_correct / audited) if audited else Noise()
    low, high = exact_interval(wrong, audited, 1.0 - confidence)
    return CategoryReport(
        candidates=counts.candidates,
        would_serve=counts.would_serve,
        served=counts.served,
        quarantined=counts.quarantined,
        audited=audited,
        estimate=noise.true(wrong / audited) if audited else None,
        low=noise.true(low) if audited else 0.0,
        high=noise.true(high) if audited else 1.0,
    )
