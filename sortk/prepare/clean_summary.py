"""What cleaning has kept, dropped and repaired. Times are whole microseconds, so in = out + rejected, exactly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sortk.spans import to_seconds

OUTPUTS = ("diar", "asr", "scored")


@dataclass
class OutputCounts:
    """Of one output."""

    us_in: int = 0
    us_out: int = 0
    speech_us_out: int = 0  # of us_out: at least one speaks
    pieces_out: int = 0
    words_in: int = 0
    words_out: int = 0
    us_rejected: dict[str, int] = field(default_factory=dict)  # by rule
    pieces_rejected: dict[str, int] = field(default_factory=dict)

    def take(self, us: int, n_words: int) -> None:
        """A piece comes in ..."""
        self.us_in += us
        self.words_in += n_words

    def keep(self, us: int, speech_us: int, n_words: int) -> None:
        """... and goes out, ..."""
        self.us_out += us
        self.speech_us_out += speech_us
        self.pieces_out += 1
        self.words_out += n_words

    def reject(self, rule: str, us: int) -> None:
        """... or does not."""
        _add_counts(self.us_rejected, {rule: us})
        _add_counts(self.pieces_rejected, {rule: 1})

    def drop(self, rule: str, us: int, speech_us: int, n_words: int) -> None:
        """A piece that was kept is not wanted after all."""
        self.us_out -= us
        self.speech_us_out -= speech_us
        self.pieces_out -= 1
        self.words_out -= n_words
        self.reject(rule, us)

    def add(self, other: OutputCounts) -> None:
        for name, value in vars(other).items():
            if isinstance(value, dict):
                _add_counts(getattr(self, name), value)
            else:
                setattr(self, name, getattr(self, name) + value)

    def to_json(self) -> dict[str, Any]:
        by_rule = {
            rule: {"pieces": self.pieces_rejected[rule], **_time(us)} for rule, us in sorted(self.us_rejected.items())
        }
        return {
            "in": _time(self.us_in),
            "out": {"pieces": self.pieces_out, **_time(self.us_out)},
            "rejected": {"pieces": sum(self.pieces_rejected.values()), **_time(sum(self.us_rejected.values()))},
            "rejected_by_rule": by_rule,
            "speech_out": _time(self.speech_us_out),
            "words": {"in": self.words_in, "out": self.words_out},
        }


def _add_counts(counts: dict[str, int], others: Mapping[str, int]) -> None:
    for name, count in others.items():
        counts[name] = counts.get(name, 0) + count


def _time(us: int) -> dict[str, float]:
    return {"seconds": to_seconds(us), "hours": us / 3.6e9}


@dataclass
class CleanSummary:
    """Of a set, or of one session."""

    sessions: int = 0
    outputs: dict[str, OutputCounts] = field(default_factory=lambda: {name: OutputCounts() for name in OUTPUTS})
    repairs: dict[str, int] = field(default_factory=dict)

    def add(self, other: CleanSummary) -> None:
        self.sessions += other.sessions
        _add_counts(self.repairs, other.repairs)
        for name, counts in other.outputs.items():
            self.outputs[name].add(counts)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> CleanSummary:
        """From `dataclasses.asdict`, as the result file of a session has it."""
        outputs = {name: OutputCounts(**counts) for name, counts in values["outputs"].items()}
        return cls(values["sessions"], outputs, dict(values["repairs"]))

    def to_json(self) -> dict[str, Any]:
        """For people and other programs."""
        outputs = {name: counts.to_json() for name, counts in self.outputs.items()}
        return {"sessions": self.sessions, **outputs, "repairs": dict(sorted(self.repairs.items()))}

    def __str__(self) -> str:
        """The table: a block per output, in which out and the rejected rows sum up to in."""
        lines = [f"{self.sessions} sessions"]
        for name, counts in self.outputs.items():
            lines += [f"{name:<26}{'pieces':>8}{'seconds':>16}{'hours':>11}{'share':>8}"]
            lines += [_row(*row, counts.us_in) for row in _rows(counts)]
        repairs = ", ".join(f"{name} {count}" for name, count in sorted(self.repairs.items()))
        return "\n".join([*lines, f"repairs: {repairs or 'none'}"])


def _rows(counts: OutputCounts) -> Iterator[tuple[str, int | None, int]]:
    yield "  in", None, counts.us_in
    yield "  out", counts.pieces_out, counts.us_out
    for rule, us in sorted(counts.us_rejected.items()):
        yield f"  rejected: {rule}", counts.pieces_rejected[rule], us
    yield "  (speech in out)", None, counts.speech_us_out


def _row(name: str, pieces: int | None, us: int, us_in: int) -> str:
    share = us / us_in if us_in else 0.0
    shown = "" if pieces is None else str(pieces)
    return f"{name:<26}{shown:>8}{to_seconds(us):>16.6f}{us / 3.6e9:>11.4f}{share:>8.1%}"
