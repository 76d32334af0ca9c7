from __future__ import annotations

from sortk.records import Segment
from sortk.scoring.arrival import DISTANCES, map_outputs, measure_arrival
from sortk.scoring.results import format_arrival


def talk(*parts: tuple[str, float, float]) -> list[Segment]:
    return [Segment("s", speaker, start, end) for speaker, start, end in parts]


REFERENCE = talk(("b", 0.0, 2.0), ("a", 0.2, 4.0), ("c", 3.0, 6.0), ("b", 8.0, 9.0))


def test_outputs_are_mapped_by_common_time() -> None:
    # Output 2 shares 2 s with a and 1 s with c; output 0 shares 2 s with c: b has output 10, which is more than 9.
    found = talk(("speaker_2", 2.0, 4.0), ("speaker_0", 4.0, 6.0), ("speaker_10", 0.0, 1.0), ("speaker_1", 20.0, 21.0))
    assert map_outputs(REFERENCE, found) == {"a": 2, "c": 0, "b": 10}
    assert map_outputs(REFERENCE, []) == {}


def test_arrival_by_hand() -> None:
    """b, a (0.2 s later), c (2.8 s later); in the second session, d and e arrive exactly half a second apart."""
    references = {"s": REFERENCE, "t": talk(("d", 1.0, 2.0), ("e", 1.5, 3.0)), "alone": talk(("x", 0.0, 1.0))}
    right = {
        "s": talk(("speaker_0", 0.0, 2.0), ("speaker_1", 2.0, 4.0), ("speaker_3", 4.0, 6.0)),
        "t": talk(("speaker_0", 1.0, 1.5), ("speaker_1", 2.0, 3.0)),
    }
    swapped = {
        "s": talk(("speaker_1", 0.0, 2.0), ("speaker_0", 2.0, 4.0), ("speaker_3", 4.0, 6.0)),
        "t": right["t"][:1],
    }
    first, second = (measure_arrival(references, found).to_json() for found in (right, swapped))
    assert [tally["right"] for tally in first["pairs"].values()] == [1, 1, 0, 1]
    assert [tally["n"] for tally in second["pairs"].values()] == [1, 1, 0, 1]
    # b and a are swapped; c is still behind a; e has no output.
    assert [tally["right"] for tally in second["pairs"].values()] == [0, 0, 0, 1]
    assert first["sessions"] == {"n": 2, "right": 2, "accuracy": 1.0} and second["sessions"]["right"] == 0
    assert second["by_speakers"]["3"]["pairs"]["more than 1 s"] == {"n": 1, "right": 1, "accuracy": 1.0}
    assert second["by_speakers"]["2"]["pairs"]["up to 0.5 s"]["accuracy"] == 0.0
    none = measure_arrival({}, {}).to_json()
    _note, table = format_arrival(["system"], {("both",): [first, second], ("none",): [none]})
    header, _line, both, nothing = (row.strip("| ").split(" | ") for row in table.splitlines())
    assert header[1:6] == [f"{name} apart" for name in DISTANCES] + ["all pairs"]
    assert header[6:] == ["complete sessions, 2 spk", "complete sessions, 3 spk", "all sessions"]
    assert both[1:6] == ["50.00 (2)", "50.00 (2)", "-", "100.00 (2)", "66.67 (6)"]
    assert both[6:] == ["50.00 (2)", "50.00 (2)", "50.00 (4)"] and nothing[1:] == ["-"] * 8
