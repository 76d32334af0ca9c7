from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from sortk.corpora import espeak
from sortk.corpora.espeak import ACCENTS, EspeakVoice, open_synthesizer, time_words
from sortk.corpora.sentences import make_sentence

VOICE = EspeakVoice("en-us", "f1", pitch=50, pitch_range=50, words_per_minute=170)


def test_a_word_ends_where_the_next_one_starts() -> None:
    assert time_words([0, 3], {0: 0, 3: 100}, [], 250) == [(0, 100), (100, 250)]


def test_a_pause_is_in_no_word() -> None:
    # "well, i know." with a pause at the comma, written as two pause phonemes, and one at the end
    assert time_words([0, 6, 8], {0: 0, 6: 500, 8: 600}, [400, 450, 900], 1000) == [(0, 400), (500, 600), (600, 900)]


def test_a_pause_event_at_the_start_of_a_word_does_not_end_it() -> None:
    assert time_words([0, 5], {0: 0, 5: 500}, [450, 500], 800) == [(0, 450), (500, 800)]


def test_words_without_an_event_share_the_time_of_the_word_before() -> None:
    # "in the end": one event for "in the"
    assert time_words([0, 3, 7], {0: 10, 7: 210}, [], 400) == [(10, 110), (110, 210), (210, 400)]


def test_an_event_inside_a_word_is_ignored() -> None:
    assert time_words([0, 6], {0: 0, 3: 50, 6: 100}, [], 200) == [(0, 100), (100, 200)]


@pytest.mark.parametrize("accent", ACCENTS)
def test_every_word_has_an_event_of_its_own(accent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[list[int], list[int]]] = []

    def record(positions: Sequence[int], starts: dict[int, int], pauses: Sequence[int], n_samples: int) -> list[object]:
        seen.append((list(positions), list(starts)))
        return []

    monkeypatch.setattr(espeak, "time_words", record)
    with open_synthesizer(EspeakVoice(accent, "f1", 50, 50, 200), seed=0) as voice:
        for index in range(120):
            sentence = make_sentence(1, accent, index)
            voice.speak(sentence.spoken, sentence.word_positions)
    assert len(seen) == 120
    assert all(positions == events for positions, events in seen)


def test_pairs_that_espeak_would_join_keep_their_own_times() -> None:
    with open_synthesizer(VOICE, seed=0) as voice:
        (_, in_end), (the_start, the_end), (morning_start, _) = voice.speak("in the morning.", [0, 3, 7]).word_spans
    assert in_end == the_start < the_end == morning_start


def test_a_pause_at_a_comma_is_silent_and_as_long_as_the_events_say() -> None:
    with open_synthesizer(VOICE, seed=0) as voice:
        speech = voice.speak("well, maria.", [0, 6])
    (_, well_end), (maria_start, maria_end) = speech.word_spans
    assert 0.1 < (maria_start - well_end) / speech.sample_rate < 0.3
    assert not speech.samples[well_end:maria_start].any()
    assert not speech.samples[maria_end:].any()
    loud = np.abs(speech.samples.astype(int))
    assert loud[well_end - 200 : well_end].max() > 0
    assert loud[maria_start : maria_start + 400].max() > 0.05 * loud.max()


def test_what_another_voice_said_before_changes_nothing() -> None:
    def say_it() -> bytes:
        with open_synthesizer(VOICE, seed=5) as voice:
            return voice.speak("how are you today?", [0, 4, 8, 12]).samples.tobytes()

    first = say_it()
    with open_synthesizer(EspeakVoice("en-gb-scotland", "f2", 70, 60, 150), seed=6) as other:
        other.speak("something else, and more of it.", [0, 10, 16, 20, 25, 28])
    assert say_it() == first


def test_a_second_synthesizer_at_the_same_time_is_refused() -> None:
    with open_synthesizer(VOICE, seed=0), pytest.raises(OSError, match="in use"), open_synthesizer(VOICE, seed=0):
        pass
    with open_synthesizer(VOICE, seed=0) as voice:  # and the library is free again
        assert len(voice.speak("yes.", [0]).samples) > 1000


def test_a_voice_that_is_not_there_is_named() -> None:
    with (
        pytest.raises(OSError, match=r"en-us\+nobody"),
        open_synthesizer(EspeakVoice("en-us", "nobody", 50, 50, 170), 0),
    ):
        pass
    with pytest.raises(OSError, match=r"xx\+f1"), open_synthesizer(EspeakVoice("xx", "f1", 50, 50, 170), 0):
        pass


def test_an_exception_in_the_middle_of_speech_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self: object, samples: object, n_samples: int, events: object) -> int:
        raise KeyboardInterrupt  # as Ctrl-C does, wherever Python is just then

    monkeypatch.setattr(espeak.Synthesizer, "_receive", interrupt)
    with open_synthesizer(VOICE, 0) as speaker, pytest.raises(KeyboardInterrupt):
        speaker.speak("so it is", [0, 3, 6])
