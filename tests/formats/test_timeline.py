from __future__ import annotations

from xml.etree import ElementTree

from sortk.formats.timeline import draw_timeline
from sortk.records import Segment

SVG = "{http://www.w3.org/2000/svg}"
SEGMENTS = [Segment("x", "bob", 4.0, 9.0), Segment("x", "<ann>", 1.0, 5.0), Segment("x", "bob", 9.5, 10.0)]


def shapes(picture: str, tag: str, **attributes: str) -> list[ElementTree.Element]:
    found = ElementTree.fromstring(picture).iter(SVG + tag)
    return [shape for shape in found if all(shape.get(key) == value for key, value in attributes.items())]


def test_a_row_per_speaker_in_the_order_of_arrival() -> None:
    names = [text.text for text in shapes(draw_timeline(SEGMENTS), "text", **{"text-anchor": "end"})]
    assert names == ["<ann>", "bob"]
    assert len(shapes(draw_timeline(SEGMENTS), "rect", rx="3")) == 3


def test_overlap_is_shaded_where_two_speak() -> None:
    shaded = shapes(draw_timeline(SEGMENTS, duration=10.36), "rect", fill="#f3c94a", **{"fill-opacity": "0.35"})
    assert [(box.get("x"), box.get("width")) for box in shaded] == [("540.0", "100.0")]  # 4 to 5 s, 100 pixels a second


def test_words_are_written_into_short_sessions_only() -> None:
    words = [Segment("x", "bob", 4.0, 6.0, "hello"), Segment("x", "bob", 6.0, 6.1, "incomprehensible")]
    texts = {
        text.text: text.get("textLength") for text in shapes(draw_timeline(SEGMENTS, words, title="a & b"), "text")
    }
    assert texts["hello"] is None and texts["incomprehensible"] == "13.0" and "a & b" in texts
    assert "hello" not in draw_timeline(SEGMENTS, words, duration=60.0)


def test_nothing_to_draw_is_still_a_picture() -> None:
    assert shapes(draw_timeline([], duration=None), "rect")


def test_control_characters_leave_the_picture_well_formed() -> None:
    word = Segment("x", "b\x1b", 1.0, 2.0, "hello\x07\ufffe")
    texts = {text.text for text in shapes(draw_timeline([word], [word], title="a\x9b\0b"), "text")}
    assert {"b�", "hello��", "a��b"} <= texts
