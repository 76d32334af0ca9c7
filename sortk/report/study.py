"""Draws a search for postprocessing as SVG: DER over the trials, and how much each parameter matters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import accumulate

WIDTH, HEIGHT = 1000, 340
TOP, BOTTOM = 56, 290  # of both plots
LEFT, MIDDLE = 70, 620  # the plot of trials is between them
BARS, BAR_WIDTH, BAR_HEIGHT = 780, 180, 20  # of the plot of parameters
N_LINES = 4  # across the plot of trials
TRIAL, BEST = "#9db7d5", "#c2562b"


def draw_study(history: Sequence[tuple[int, float]], importance: Mapping[str, float], title: str = "") -> str:
    """Return the SVG; `history` has number and DER (a fraction) of each finished trial, `importance` adds up to 1."""
    body = [*_draw_trials(history), *_draw_importance(importance)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
            f'height="{HEIGHT}" font-family="system-ui, sans-serif" font-size="12" fill="#222222">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
            f'<text x="{LEFT}" y="26" font-size="15" font-weight="600">{escape(title)}</text>',
            *body,
            "</svg>\n",
        ]
    )


def _draw_trials(history: Sequence[tuple[int, float]]) -> Iterator[str]:
    """Draw a dot for each trial, and the lowest DER so far as a line; trials far above the best are left out."""
    ders = [100 * der for _, der in history]
    lowest = min(ders, default=0.0)
    highest = min(max(ders, default=1.0), max(2 * lowest, lowest + 1.0))
    span = max(highest - lowest, 0.01)
    step = (MIDDLE - LEFT) / max(len(ders) - 1, 1)

    def y(der: float) -> float:
        return BOTTOM - 10 - (BOTTOM - TOP - 20) * (der - lowest) / span

    for line in range(N_LINES + 1):
        der = lowest + span * line / N_LINES
        yield f'<line x1="{LEFT}" y1="{y(der):.1f}" x2="{MIDDLE}" y2="{y(der):.1f}" stroke="#e4e4e4"/>'
        yield f'<text x="{LEFT - 8}" y="{y(der) + 4:.1f}" text-anchor="end" fill="#555555">{der:.2f} %</text>'
    for number, der in enumerate(ders):
        if der <= highest:
            yield f'<circle cx="{LEFT + number * step:.1f}" cy="{y(der):.1f}" r="2.5" fill="{TRIAL}"/>'
    best = [
        f"{LEFT + number * step:.1f},{y(der):.1f}" for number, der in enumerate(accumulate(ders, min)) if der <= highest
    ]
    yield f'<polyline points="{" ".join(best)}" fill="none" stroke="{BEST}" stroke-width="2"/>'
    middle = (LEFT + MIDDLE) / 2
    caption = f"DER of {len(ders)} trials; the line is the lowest so far"
    yield f'<text x="{middle}" y="{BOTTOM + 28}" text-anchor="middle" fill="#555555">{caption}</text>'


def _draw_importance(importance: Mapping[str, float]) -> Iterator[str]:
    for row, (name, share) in enumerate(sorted(importance.items(), key=lambda item: -item[1])):
        y = TOP + 10 + row * (BAR_HEIGHT + 14)
        yield f'<text x="{BARS - 8}" y="{y + 14}" text-anchor="end">{escape(name)}</text>'
        width = BAR_WIDTH * share
        yield f'<rect x="{BARS}" y="{y}" width="{width:.1f}" height="{BAR_HEIGHT}" rx="3" fill="{TRIAL}"/>'
        yield f'<text x="{BARS + width + 6:.1f}" y="{y + 14}" fill="#555555">{100 * share:.0f} %</text>'
    middle = BARS + BAR_WIDTH / 2
    yield f'<text x="{middle}" y="{BOTTOM + 28}" text-anchor="middle" fill="#555555">parameter importance</text>'
