"""Which sessions of two sides belong together; what does not fit is reported, never dropped silently.

session without hypothesis      counts as all wrong; a note names it
hypothesis of another session   is not scored; a note names it
ids that differ in case only    an error: one of them is misspelt
no session in common            an error
"""

from __future__ import annotations

from collections.abc import Iterable

from sortk.formats.files import quote


def note_sessions(references: Iterable[str], hypotheses: Iterable[str], counted_as: str) -> list[str]:
    """Return sentences about what does not fit; ValueError for what makes any score meaningless."""
    expected, given = set(references), set(hypotheses)
    if not expected:
        raise ValueError("the reference has no sessions, so there is nothing to score")
    check_case(expected, given, "hypothesis")
    if given and not expected & given:
        raise ValueError(
            f"reference and hypothesis have no session in common: {name_sessions(expected)} in the reference, "
            f"{name_sessions(given)} in the hypothesis"
        )
    found = {
        f"no hypothesis, counted as all {counted_as}": expected - given,
        "not in the reference, so not scored": given - expected,
    }
    return [f"{what}: {name_sessions(names)}" for what, names in found.items() if names]


def check_case(references: Iterable[str], others: Iterable[str], side: str) -> None:
    """ValueError if a session of the reference is spelt in other letters on the other side."""
    expected, given = set(references), set(others)
    by_folded = {name.casefold(): name for name in sorted(given - expected)}
    for name in sorted(expected - given):
        if twin := by_folded.get(name.casefold()):
            raise ValueError(
                f"session {quote(name)} of the reference is {quote(twin)} in the {side}: "
                "ids must be the same letter by letter, so rename one of them"
            )


def name_sessions(names: Iterable[str]) -> str:
    """`2 sessions (a, b)`; of many, the first."""
    found = sorted(names)
    shown = ", ".join(found[:5]) + (", ..." if len(found) > 5 else "")
    return f"{len(found)} session{'' if len(found) == 1 else 's'} ({shown})"
