"""What becomes of the pieces of a session: kept, or rejected with rule and value; and counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from sortk.prepare.clean_summary import OUTPUTS, CleanSummary
from sortk.prepare.rules import Excerpt, Rule, judge
from sortk.spans import Span, to_seconds


class Kept(NamedTuple):
    """A piece that is kept; times in microseconds."""

    start: int
    end: int
    n_speakers: int
    speech_us: int  # in which at least one speaks
    n_words: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a session's pieces."""

    session_id: str
    summary: CleanSummary
    kept: dict[str, list[Kept]] = field(default_factory=lambda: {name: [] for name in OUTPUTS})
    """By output."""
    rejected: list[dict[str, Any]] = field(default_factory=list)

    def judge(self, output: str, pieces: Sequence[Excerpt], by_rules: Mapping[str, Rule]) -> None:
        """Keeps or drops each piece, and counts it."""
        counts = self.summary.outputs[output]
        for piece in pieces:
            start, end = piece.span
            if start == end:  # nothing is left of the session
                continue
            dropped = judge(piece, by_rules)
            counts.take(end - start, len(piece.words))
            if dropped is None:
                counts.keep(end - start, piece.speech_us, len(piece.words))
                kept = Kept(start, end, len(piece.speakers), piece.speech_us, len(piece.words))
                self.kept[output].append(kept)
                continue
            self._reject(output, piece.span, *dropped)

    def reject_outside(self, outside: Sequence[Span]) -> None:
        """Drops, from all outputs, what the session's UEM leaves out. Value: its seconds."""
        for output, counts in self.summary.outputs.items():
            for start, end in outside:
                counts.take(end - start, 0)
                self._reject(output, (start, end), "outside_uem", to_seconds(end - start))

    def _reject(self, output: str, span: Span, rule: str, value: float) -> None:
        self.summary.outputs[output].reject(rule, span[1] - span[0])
        self.rejected.append(rejected_line(self.session_id, output, span, rule, value))

    def to_json(self) -> dict[str, Any]:
        return {"kept": self.kept, "rejected": self.rejected, "counts": asdict(self.summary)}


def rejected_line(session_id: str, output: str, span: Span, rule: str, value: float) -> dict[str, Any]:
    """Return an entry of rejected.jsonl."""
    seconds = to_seconds(span[1] - span[0])
    return {"id": piece_id(session_id, span), "rule": rule, "value": value, "output": output, "seconds": seconds}


def piece_id(session_id: str, span: Span) -> str:
    """meeting1-0090000-0109500: start and end in milliseconds of the recording."""
    start_ms, end_ms = (round(us / 1000) for us in span)
    return f"{session_id}-{start_ms:07d}-{end_ms:07d}"
