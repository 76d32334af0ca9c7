"""The page in a real browser: what a reader sees, clicks and hears."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from chromium import Tab, browse, find_chromium
from click.testing import CliRunner
from small_experiment import write_experiment

from sortk.cli import main
from sortk.formats import audio
from sortk.inference.results import find_utterances, format_srt
from sortk.records import Segment, Session
from sortk.report.session import format_recording

pytestmark = pytest.mark.skipif(not find_chromium(), reason="no Chromium here; on Debian: apt-get install chromium")

FIXTURES = Path(__file__).parents[1] / "fixtures" / "nemo"
CURSOR = "+document.querySelector('canvas.lanes').dataset.time"
TITLE = "document.querySelector('#view h3').textContent"
CONTRASTS = """
(() => {
  const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
  const linear = (c) => (c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4);
  const light = (rgb) => [.2126, .7152, .0722].reduce((sum, weight, n) => sum + weight * linear(rgb[n] / 255), 0);
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const rgb = numbers(getComputedStyle(at).backgroundColor);
      if (rgb.length === 3 || rgb[3] === 1) return rgb;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.checkVisibility() || element.matches("script, style, noscript, option")) continue;
    const style = getComputedStyle(element), text = light(numbers(element.ownerSVGElement ? style.fill : style.color));
    const back = light(ground(element));
    const contrast = (Math.max(text, back) + .05) / (Math.min(text, back) + .05);
    found.push([contrast, element.tagName + "." + element.className + ": " + element.textContent.slice(0, 30)]);
  }
  return found.sort((a, b) => a[0] - b[0]).slice(0, 5).concat([[99, String(found.length)]]);
})()
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    exp = tmp_path_factory.mktemp("exp") / "made-up"
    write_experiment(exp)
    result = CliRunner().invoke(main, ["report", "--exp", str(exp)])
    assert result.exit_code == 0, result.output
    return exp / "08-score" / "report.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Tab]:
    with browse() as tab:
        yield tab


@pytest.fixture
def tab(browser: Tab) -> Iterator[Tab]:
    """A page may neither complain nor ask any host for anything, whatever a test does with it."""
    browser.complaints.clear()
    browser.requests.clear()
    yield browser
    assert browser.complaints == []
    assert all(url.startswith(("file:", "blob:", "data:")) for url in browser.requests)


def test_the_page_shows_all_its_parts(tab: Tab, report: Path) -> None:
    tab.open(report)
    parts = tab.run("[...document.querySelectorAll('section')].map((part) => part.id)")
    assert parts == ["results", "sessions", "training", "tuning", "data", "settings"]
    assert tab.run("document.querySelector('h1').textContent") == "made <up>"
    assert tab.run("document.querySelectorAll('#rows .row').length") == 6
    assert tab.run("document.querySelectorAll('#training svg polyline').length") > 8
    ticks = (
        "[...document.querySelectorAll('#training svg')].map((chart) => [...chart.querySelectorAll('text[x=\"40\"]')]"
    )
    assert all(len(set(chart)) == len(chart) > 1 for chart in tab.run(f"{ticks}.map((text) => text.textContent))"))
    assert tab.run("ticks(0, 0.02).map(percentTick)") == ["0", "0.5", "1", "1.5", "2"]
    single = "lineChart('', [{ name: 'loss', points: [[2, 0.5]], colour: 'red' }], { xEnd: 2 })"
    assert tab.run(f"{single}.querySelectorAll('circle').length") == 1  # a line of one point cannot be seen
    assert "Stages that have not been run: 00-prepare" in tab.run("document.body.textContent")


def test_the_worst_session_is_open_and_another_can_be_chosen(tab: Tab, report: Path) -> None:
    tab.open(report)
    names = tab.run("[...document.querySelectorAll('#rows .name')].map((name) => name.textContent.replace('♪ ', ''))")
    assert tab.run(TITLE) == names[0]
    tab.click("#rows .row:nth-child(3)")
    assert tab.run(TITLE) == names[2]
    assert tab.run("document.querySelector('[aria-current]').textContent").find(names[2]) >= 0
    painted = "(() => { const c = document.querySelector('canvas.lanes'); const p = c.getContext('2d')"
    painted += ".getImageData(0, 0, c.width, c.height).data; return p.filter((v, n) => n % 4 === 3 && v).length; })()"
    assert tab.run(painted) > 10_000


def test_it_plays_and_the_cursor_follows(tab: Tab, report: Path) -> None:
    tab.open(report)
    assert tab.run(CURSOR) == 0
    tab.click("#play")
    tab.wait(f"{CURSOR} > 0.8")
    assert tab.run("view.audio.currentTime") > 0.5 and not tab.run("view.audio.paused")
    assert tab.run("view.audio.error") is None
    tab.wait("document.querySelectorAll('.word.now').length > 0 || view.time > 5")
    tab.click("#play")
    stopped = tab.run(CURSOR)
    assert tab.run("view.audio.paused") and tab.run(f"{CURSOR}") == stopped


def test_the_keyboard_does_it_all(tab: Tab, report: Path) -> None:
    tab.open(report)
    first = tab.run(TITLE)
    for _ in range(3):
        tab.press("ArrowRight")
    tab.press("ArrowLeft")
    assert tab.run(CURSOR) == pytest.approx(2.0)
    tab.press(" ")
    tab.wait(f"{CURSOR} > 2.3")
    tab.press("j")
    assert tab.run(TITLE) != first and tab.run(CURSOR) == 0 and not tab.run("view.playing")
    tab.press("k")
    assert tab.run(TITLE) == first
    tab.press("k")  # there is none before the first
    assert tab.run(TITLE) == first
    tab.click("#rows .row")
    tab.press(" ")  # with the focus on a row, too
    assert tab.run("view.playing")


def test_words_seek_and_errors_of_words_are_shown(tab: Tab, report: Path) -> None:
    tab.open(report)
    tab.click(".turns .word:nth-of-type(3)")
    assert tab.run("document.querySelector('.word.now') !== null")
    tab.click(".tabs button:nth-child(2)")
    assert tab.run("document.querySelectorAll('.aligned .deleted').length") > 0
    assert tab.run("document.querySelectorAll('.aligned .replaced').length") > 0


@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_it_is_readable_in_any_window_and_theme(tab: Tab, report: Path, width: int, dark: bool) -> None:
    tab.open(report, width=width, dark=dark)
    assert tab.run("document.documentElement.dataset.theme") == ("dark" if dark else "light")
    assert tab.run("document.documentElement.scrollWidth") <= width
    tab.run("document.querySelector('details').open = true")
    for page in (1, 2):
        tab.click(f".tabs button:nth-child({page})")
        *worst, (_, n_texts) = tab.run(CONTRASTS)
        assert int(n_texts) > 100 and worst[0][0] >= 4.5, worst
    assert tab.run("document.documentElement.scrollWidth") <= width


def test_the_theme_can_be_changed(tab: Tab, report: Path) -> None:
    tab.open(report)
    before = tab.run("getComputedStyle(document.body).backgroundColor")
    tab.click("#theme")
    assert tab.run("document.documentElement.dataset.theme") == "dark"
    assert tab.run("getComputedStyle(document.body).backgroundColor") != before
    tab.click("#theme")


def test_clocks_never_show_sixty_seconds(tab: Tab, report: Path) -> None:
    tab.open(report)
    seconds = [0, 59.94, 59.96, 119.97, 120, 3599.99, 7200, 7384.5]
    shown = ["0:00.0", "0:59.9", "1:00.0", "2:00.0", "2:00.0", "1:00:00.0", "2:00:00.0", "2:03:04.5"]
    assert tab.run(f"{seconds}.map(clock)") == shown


def test_sessions_can_be_searched_filtered_and_linked_to(tab: Tab, report: Path) -> None:
    tab.open(report)
    ids = tab.run("data.sessions.map((row) => row.id)")
    tab.run(f"search.value = {ids[2]!r}; search.dispatchEvent(new Event('input'))")
    assert tab.run("[...document.querySelectorAll('#rows .row')].length") == 1
    assert tab.run("document.querySelector('#count').textContent") == f"1 of {len(ids)}"
    tab.click("#rows .row")
    assert tab.run(TITLE) == ids[2]
    assert f"session={ids[2]}" in tab.run("location.hash")
    tab.run("search.value = ''; search.dispatchEvent(new Event('input'))")
    n_speakers = tab.run("data.sessions.map((row) => row.ref_speakers)")
    choose = "document.querySelector('[data-key=ref_speakers]')"
    tab.run(f"{choose}.value = '{n_speakers[0]}'; {choose}.dispatchEvent(new Event('change'))")
    assert tab.run("shown.length") == n_speakers.count(n_speakers[0])
    tab.run(f"location.hash = '#session={ids[1]}&t=1.5'")
    tab.wait(f"{TITLE} === {ids[1]!r} && {CURSOR} === 1.5")


def save_as(tab: Tab, kind: str) -> None:
    """Choose a kind of file in the menu of a session."""
    tab.run(
        "(() => { const menu = document.querySelector('select.save'); "
        f"menu.value = [...menu.options].find((option) => option.textContent.startsWith('{kind}')).value; "
        "menu.dispatchEvent(new Event('change')); })()"
    )


def test_talk_time_and_exports(tab: Tab, report: Path) -> None:
    tab.open(report)
    tab.run("saved = []; download = (name, type, text) => saved.push([name, text])")
    tab.run("exportSessions()")
    save_as(tab, "RTTM")
    save_as(tab, "CSV")
    (_, sessions), (rttm_name, lines), (csv_name, segments) = tab.run("saved")
    first = tab.run(TITLE)
    assert (rttm_name, csv_name) == (f"{first}.rttm", f"{first}.csv")
    save_as(tab, "PNG")
    tab.wait("saved.length === 4 && saved[3][1].size > 1000")
    assert lines.startswith(f"SPEAKER {first} 1 ") and all(len(line.split()) == 10 for line in lines.splitlines())
    assert segments.startswith("session,system,speaker,start,end\n") and sessions.startswith("id,set,der,")
    assert len(sessions.splitlines()) == 1 + tab.run("data.sessions.length")
    assert tab.run("csv([['a,b', 'say \\x22x\\x22', null]])") == '"a,b","say ""x""",\n'
    tab.run(
        "[...document.querySelectorAll('.tabs button')].find((button) => button.textContent === 'Speakers').click()"
    )
    cells = tab.run("[...document.querySelectorAll('.view th')].map((cell) => cell.textContent)")
    assert cells == ["speaker", "system", "talk time", "share", "turns"]
    # ann 0 to 4, bob 2 to 5, ann 6 to 7: 8 s of turns, 6 s with speech, 2 s with both
    lanes = "[{turns: [[0, 4], [6, 7]]}, {turns: [[2, 5]]}]"
    assert tab.run(f"[overlap({lanes}), union({lanes}.flatMap((lane) => lane.turns))]") == [2, 6]


def test_a_report_without_asr_shows_no_stray_zero(tab: Tab, report: Path, tmp_path: Path) -> None:
    data = re.sub(r'"wer":\[\{.*?\}\],"', '"wer":[],"', report.read_text(encoding="utf-8"), count=1)
    (tmp_path / "page.html").write_text(data, encoding="utf-8")
    tab.open(tmp_path / "page.html")
    assert tab.run("data.wer.length") == 0
    texts = "[...document.querySelectorAll('section, main')].flatMap((part) => [...part.childNodes])"
    assert tab.run(f"{texts}.filter((node) => node.nodeType === 3).map((node) => node.textContent)") == []


def test_a_table_shows_numbers_on_a_phone(tab: Tab, report: Path) -> None:
    tab.open(report, width=400)
    right = "document.querySelector('#results .grid table td.number').getBoundingClientRect().right"
    assert tab.run("document.querySelector('#results .grid table') !== null") and tab.run(right) <= 400


def test_the_page_of_a_recording(tab: Tab, tmp_path: Path) -> None:
    files = [str(FIXTURES / "a_3p3.wav"), "--model", str(FIXTURES / "tiny_sortformer.nemo")]
    result = CliRunner().invoke(main, ["diarize", *files, "--out-dir", str(tmp_path), "--html", "--device", "cpu"])
    assert result.exit_code == 0, result.output
    tab.open(tmp_path / "a_3p3.html", width=400)
    assert tab.run("document.querySelector('h1').textContent") == "a_3p3"
    assert tab.run("document.querySelector('#rows')") is None
    cards = tab.run("[...document.querySelectorAll('.card')].map((card) => card.textContent)")
    assert "made with sortk " in tab.run("document.querySelector('header.top').textContent")
    assert cards[0] == "0:03.3duration" and not any("scored" in card for card in cards)
    assert tab.run("document.documentElement.scrollWidth") <= 400
    tab.press(" ")
    tab.wait(f"{CURSOR} > 0.3")


SENTENCES = [
    ("speaker_1", 0.2, "Good morning everybody and thank you very much for coming to this rather early meeting today"),
    ("speaker_0", 3.0, "Hello. Is the <projector> on?"),
    ("speaker_1", 6.0, "Yes"),
    ("speaker_10", 6.1, "no an-exceptionally-long-compound-of-more-than-forty-two-letters indeed"),
]


def said(offset: float = 0.0) -> list[Segment]:
    """Words of 0.25 s; the second speaker makes a pause that is longer than one in a turn."""
    words = []
    for speaker, start, text in SENTENCES:
        for number, word in enumerate(text.split()):
            begin = offset + start + 0.3 * number + (1.0 if number >= 4 else 0.0)
            words.append(Segment("talk", speaker, round(begin, 3), round(begin + 0.25, 3), word))
    return sorted(words, key=lambda word: word.start)


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    """The page of a part of a recording that was transcribed."""
    audio.write_flac(tmp_path / "talk.flac", np.zeros(16_000 * 14, np.float32))
    words = said(offset=2.0)
    session = Session("talk", tmp_path / "talk.flac", offset=2.0, duration=12.0)
    page = tmp_path / "talk.html"
    page.write_text(format_recording(session, find_utterances(words), words=words), encoding="utf-8")
    return page


def test_subtitles_are_those_of_the_command(tab: Tab, talk: Path) -> None:
    tab.open(talk, width=400)
    assert tab.run("view.formatSrt()") == format_srt(said(offset=2.0))
    turns = tab.run("[...document.querySelectorAll('.turn .who')].map((who) => who.textContent)")
    assert turns[:3] == ["speaker_1 · 0:00.2", "speaker_1 · 0:02.4", "speaker_0 · 0:03.0"]
    assert tab.run("document.documentElement.scrollWidth") <= 400


def test_speakers_can_be_renamed_and_the_page_saved(tab: Tab, talk: Path) -> None:
    tab.open(talk)
    tab.run("saved = []; download = (name, type, text) => saved.push([name, text])")
    tab.run("[...document.querySelectorAll('.tabs button')].at(-1).click()")
    tab.run(
        "(() => { const field = document.querySelector('input[aria-label=\"name of speaker_1\"]'); "
        "field.value = ' Ann </script> Lee '; field.dispatchEvent(new Event('change')); })()"
    )
    for kind in ("RTTM", "CSV", "SRT", "HTML"):
        save_as(tab, kind)
    files = dict(tab.run("saved"))
    assert " <NA> <NA> Ann_</script>_Lee <NA> <NA>\n" in files["talk.rttm"]
    assert "talk,hypothesis,Ann </script> Lee,0.200," in files["talk.csv"]
    assert "\nAnn </script> Lee: Good morning everybody" in files["talk.srt"]
    again = talk.with_name("again.html")
    again.write_text(files["talk.html"], encoding="utf-8")
    tab.open(again)
    assert "Ann </script> Lee" in tab.run("view.lanes().map((lane) => lane.name)")
    assert tab.run("data.sessions[0].view.recognized_words.length") == len(said())


def test_the_initial_model_is_a_row_and_a_card(tab: Tab, report: Path, tmp_path: Path) -> None:
    exp = tmp_path / "exp"
    shutil.copytree(report.parents[1], exp)
    scores = json.loads((exp / "08-score" / "scores.json").read_text(encoding="utf-8"))
    worse = scores["der"][0] | {"system": "initial model: big.nemo"}
    worse["overall"] = worse["overall"] | {"der": 0.987}
    tally = {"n": 8, "right": 6, "accuracy": 0.75}
    none = {"n": 0, "right": 0, "accuracy": None}
    scores["der"][0]["arrival"] = {"pairs": {"up to 0.25 s": none, "more than 1 s": tally}, "sessions": tally}
    (exp / "08-score" / "scores.json").write_text(json.dumps(scores | {"initial": [worse]}), encoding="utf-8")
    assert CliRunner().invoke(main, ["report", "--exp", str(exp)]).exit_code == 0
    tab.open(exp / "08-score" / "report.html")
    first = "[...document.querySelector('#results tbody tr').children].slice(0, 3).map((cell) => cell.textContent)"
    assert tab.run(first) == ["initial model: big.nemo", "none", "98.70"]
    breakdown = "document.querySelector('#results .grid .scroll')"
    assert tab.run(f"{breakdown}.querySelectorAll('th').length") == 4  # it fits beside the bars
    assert tab.run(f"{breakdown}.scrollWidth <= {breakdown}.clientWidth")
    cards = tab.run("[...document.querySelectorAll('.card')].map((card) => card.textContent)")
    assert "98.7 %DER of the initial model" in cards and "tuned postprocessing" in cards[0]
    bars = (
        "[...document.querySelectorAll('.bars.four')].map((bars) => [...bars.children].map((cell) => cell.textContent))"
    )
    assert tab.run(bars) == [["more than 1 s", "", "75 %", "6 of 8", "complete sessions", "", "75 %", "6 of 8"]]
