from __future__ import annotations

from xml.etree import ElementTree

from sortk.report.study import draw_study

SVG = "{http://www.w3.org/2000/svg}"


def test_a_dot_for_each_trial_and_the_lowest_so_far() -> None:
    picture = draw_study([(0, 0.20), (1, 0.15), (2, 0.9), (3, 0.10)], {"onset": 0.25, "offset": 0.75}, "<mini>")
    root = ElementTree.fromstring(picture)
    dots = [(float(dot.get("cx", 0)), float(dot.get("cy", 0))) for dot in root.iter(SVG + "circle")]
    assert len(dots) == 3  # 90 % is off the picture
    assert dots[0][0] == 70 and dots[-1][0] == 620 and dots[0][1] < dots[1][1] < dots[2][1]
    [line] = root.iter(SVG + "polyline")
    points = [float(point.split(",")[1]) for point in line.get("points", "").split()]
    assert points == [dots[0][1], dots[1][1], dots[1][1], dots[2][1]]
    texts = [text.text for text in root.iter(SVG + "text")]
    assert texts[0] == "<mini>" and texts.index("offset") < texts.index("onset") and "75 %" in texts


def test_one_trial_is_a_picture_too() -> None:
    ElementTree.fromstring(draw_study([(0, 0.0)], {}))
