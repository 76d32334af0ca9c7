from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from sortk.cli import main
from sortk.formats import audio, manifest, seglst
from sortk.formats.files import FormatError
from sortk.formats.model_folder import read_sst_level, save_model
from sortk.formats.sst import Level, parse_sst
from sortk.formats.tokens import Tokenizer, save_tokenizer, train_tokenizer
from sortk.inference.diarize import Diarizer
from sortk.inference.load import LoadedDiarizer
from sortk.inference.pieces import Piece, TranscribeOptions, approximate_times, order_by_arrival
from sortk.inference.results import STYLES, find_utterances, format_dialogue
from sortk.inference.transcribe import MsAsrTranscriber, load_transcriber
from sortk.models.canary import CanaryOptions
from sortk.models.decoding import Decoding
from sortk.models.fastconformer import FastConformerOptions
from sortk.models.features import FeatureOptions
from sortk.models.msasr import MsAsr, MsAsrOptions
from sortk.models.sortformer import Sortformer, SortformerOptions
from sortk.models.transformer import TransformerOptions
from sortk.records import Segment, Session
from sortk.training.asr import save_asr

TOKENIZER = train_tokenizer(["one two three four five six"], 40, n_speakers=2)
ENCODER = FastConformerOptions(d_model=32, n_layers=1, n_heads=2, subsampling_channels=8, scale_input=False)
ASR = CanaryOptions(
    n_tokens=TOKENIZER.n_tokens,
    max_tokens=400,
    features=FeatureOptions(n_mels=16),
    encoder=ENCODER,
    decoder=TransformerOptions(d_model=32, n_layers=1, n_heads=2, d_inner=64, pre_norm=True),
)
DIARIZER = SortformerOptions(
    n_speakers=2,
    features=FeatureOptions(n_mels=16),
    encoder=ENCODER,
    transformer=TransformerOptions(d_model=16, n_layers=1, n_heads=2, d_inner=32),
)
SUPERVISED = MsAsrOptions(ASR, "frozen", 2, DIARIZER)
SECONDS = 45.0


class KnownDiarizer(Diarizer):
    """Says what the test wants."""

    def __init__(self, probs: npt.NDArray[np.float32]) -> None:
        super().__init__(LoadedDiarizer(Sortformer(DIARIZER).eval()))
        self.probs = probs

    def posteriors_of(self, sessions, on_error=None, on_progress=float):  # type: ignore[no-untyped-def]
        return iter([(session, self.probs) for session in sessions])


class Scribe(MsAsrTranscriber):
    """Writes the same text for every piece."""

    text = "<spk0> one two <spk1> three"

    def write(self, pieces):  # type: ignore[no-untyped-def]
        return [self.text] * len(pieces)


def build(options: MsAsrOptions = SUPERVISED) -> MsAsr:
    torch.manual_seed(0)
    return MsAsr(options).eval()


def activity(*turns: tuple[int, float, float], seconds: float = SECONDS) -> npt.NDArray[np.float32]:
    """Posteriors of two speakers: 0.9 from start to end of each turn, else 0.1."""
    probs = np.full((round(seconds / 0.08), 2), 0.1, np.float32)
    for speaker, start, end in turns:
        probs[round(start / 0.08) : round(end / 0.08), speaker] = 0.9
    return probs


@pytest.fixture
def session(tmp_path: Path) -> Session:
    rng = np.random.default_rng(0)
    audio.write_flac(tmp_path / "meeting.flac", (0.1 * rng.standard_normal(round(16000 * SECONDS))).astype(np.float32))
    return Session("meeting", tmp_path / "meeting.flac")


TURNS = ((0, 0.8, 8.0), (1, 8.8, 16.0), (1, 18.4, 30.4), (0, 31.2, 36.0), (1, 37.6, 44.0))


def test_a_word_of_any_piece_has_a_speaker_of_the_whole_recording(session: Session) -> None:
    scribe = Scribe(build(), TOKENIZER, "word", diarizer=KnownDiarizer(activity(*TURNS)))
    [(_, pieces)] = scribe.cut([session])
    spans = [(start / 1e6, end / 1e6) for start, end in (piece.span for piece in pieces)]
    # Cut in the middle of the longest silence in the last ten seconds of 20 s: 16.0 to 18.4, and 36.0 to 37.2;
    # there between two frames.
    assert spans == [(0.0, 17.2), (17.2, 36.56), (36.56, 45.0)]
    assert [piece.speakers for piece in pieces] == [
        ("speaker_0", "speaker_1"),
        ("speaker_1", "speaker_0"),
        ("speaker_1", "speaker_0"),
    ]
    words = scribe(session)
    assert [(word.speaker, word.text) for word in words[:6]] == [
        ("speaker_0", "one"),
        ("speaker_0", "two"),
        ("speaker_1", "three"),
        ("speaker_1", "one"),
        ("speaker_1", "two"),
        ("speaker_0", "three"),
    ]
    # Each word lies where its speaker is heard.
    for word in words[:6]:
        turns = [(s, e) for k, s, e in TURNS if f"speaker_{k}" == word.speaker]
        assert any(s - 1e-6 <= word.start < word.end <= e + 1e-6 for s, e in turns), word
    assert words[0].start == pytest.approx(0.8) and words[2].end == pytest.approx(16.0)


def test_posteriors_of_a_piece_are_sorted_by_arrival_in_it(session: Session) -> None:
    scribe = Scribe(build(), TOKENIZER, "word", diarizer=KnownDiarizer(activity(*TURNS)))
    [(_, (_, second, _))] = scribe.cut([session])
    assert second.probs is not None and second.probs.shape == (242, 2)
    first_active = (second.probs > 0.5).argmax(axis=0)
    assert first_active.tolist() == [15, 175]  # 18.4 s and 31.2 s, from 17.2 s on


def test_offset_and_duration_of_a_session_count(session: Session) -> None:
    part = replace(session, offset=20.0, duration=10.0)
    scribe = Scribe(build(), TOKENIZER, "word", diarizer=KnownDiarizer(activity((0, 2.0, 9.6), seconds=10.0)))
    [(_, (piece,))] = scribe.cut([part])
    assert piece.span == (0, 10_000_000)
    words = scribe(part)
    assert {word.text: word.speaker for word in words} == {"one": "speaker_0", "two": "speaker_0", "three": "speaker_1"}
    assert min(word.start for word in words) == 22.0 and max(word.end for word in words) == 29.6


def test_pieces_are_written_with_valid_sst_alone_and_in_batches(session: Session) -> None:
    transcriber = MsAsrTranscriber(build(), TOKENIZER, "word", diarizer=KnownDiarizer(activity(*TURNS)))
    [(_, pieces)] = transcriber.cut([session])
    together = transcriber.write(pieces)
    assert [transcriber.write([piece])[0] for piece in pieces] == together
    for text in together:
        assert text == "" or parse_sst(text, "word")


@pytest.mark.parametrize("beam", [1, 3])
def test_the_diarizer_inside_is_asked(session: Session, beam: int) -> None:
    search = replace(TranscribeOptions().search, beam=beam, tokens_per_second=1.0, tokens_more=5)
    short = replace(session, duration=3.0)
    transcriber = MsAsrTranscriber(build(), TOKENIZER, "word", TranscribeOptions(search=search))
    assert transcriber.diarizer is not None
    for word in transcriber(short):
        assert word.speaker in ("speaker_0", "speaker_1") and 0 <= word.start < word.end <= 3.0


def test_without_a_diarizer_speakers_are_those_of_a_piece(session: Session, caplog: pytest.LogCaptureFixture) -> None:
    scribe = Scribe(build(MsAsrOptions(ASR, "none", 2)), TOKENIZER, "word")
    short = scribe(replace(session, duration=5.0))
    assert {word.speaker for word in short} == {"speaker_0", "speaker_1"} and not caplog.records
    long = scribe(session)
    assert "without a diarizer, speakers of one piece" in caplog.text
    assert {word.speaker for word in long} >= {"piece_0_speaker_0", "piece_1_speaker_0"}


def test_turns_without_names_stay_apart(session: Session) -> None:
    scribe = Scribe(build(MsAsrOptions(ASR, "none", 2)), TOKENIZER, "sot")
    scribe.text = "one <cs> two <cs> three"
    assert [w.speaker for w in scribe(replace(session, duration=5.0))].count("turn_1") == 1


def test_silence_and_nothing_are_no_words(tmp_path: Path) -> None:
    audio.write_flac(tmp_path / "short.flac", np.zeros(100, np.float32))
    scribe = Scribe(build(), TOKENIZER, "word")
    assert scribe(tmp_path / "short.flac") == []
    scribe.text = ""
    audio.write_flac(tmp_path / "silence.flac", np.zeros(32000, np.float32))
    assert scribe(tmp_path / "silence.flac") == []


def test_a_bad_file_is_told_of_and_the_others_go_on(session: Session, tmp_path: Path) -> None:
    (tmp_path / "bad.wav").write_text("no audio")
    bad, short = Session("bad", tmp_path / "bad.wav"), replace(session, duration=2.0)
    told: list[str] = []
    scribe = Scribe(build(), TOKENIZER, "word")
    done = list(scribe.transcribe([bad, short], lambda session, error: told.append(session.session_id)))
    assert told == ["bad"] and [one.session_id for one, _ in done] == ["meeting"]
    with pytest.raises(FormatError, match=r"bad.wav"):
        list(scribe.transcribe([bad]))


def test_what_does_not_fit_is_a_sentence() -> None:
    truth = MsAsrOptions(ASR, "truth", 2)
    with pytest.raises(ValueError, match="has none inside: give one"):
        MsAsrTranscriber(build(truth), TOKENIZER, "word")
    other = Diarizer(LoadedDiarizer(Sortformer(replace(DIARIZER, n_speakers=4)).eval()))
    with pytest.raises(ValueError, match="the diarizer has 4 outputs, but the ASR is for 2 speakers"):
        MsAsrTranscriber(build(truth), TOKENIZER, "word", diarizer=other)
    with pytest.raises(ValueError, match=r"piece_seconds must be 1 or more, got 0\.5"):
        TranscribeOptions(piece_seconds=0.5)


# ---------------------------------------------------------------------------------------------------------------------
# Parts


def test_columns_by_arrival() -> None:
    probs = np.array([[0.1, 0.4, 0.1, 0.9], [0.1, 0.9, 0.2, 0.9], [0.9, 0.1, 0.3, 0.1]], np.float32)
    assert order_by_arrival(probs, 0.5) == [3, 1, 0, 2]
    assert order_by_arrival(probs[:0], 0.5) == [0, 1, 2, 3]


def test_words_share_the_time_of_speech_and_not_the_pauses() -> None:
    spans = [(1_000_000, 2_000_000), (5_000_000, 6_000_000)]
    assert approximate_times(["one", "one"], spans) == spans
    three = approximate_times(["one", "one", "one"], spans)
    assert three[0] == (1_000_000, 1_666_667) and three[2] == (5_333_333, 6_000_000)
    assert three[1][0] >= 1_666_666 and three[1][1] <= 5_333_334  # on one side of the pause


@given(
    st.lists(st.sampled_from(["one", "seven", "a", "international"]), max_size=30),
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=1, max_size=6),
)
def test_words_stay_in_order_and_inside_speech(words: list[str], lengths: list[tuple[int, int]]) -> None:
    spans, at = [], 0
    for gap, length in lengths:
        spans.append((at + gap * 80_000, at + (gap + length) * 80_000))
        at = spans[-1][1]
    times = approximate_times(words, spans)
    assert len(times) == len(words)
    assert [start for start, _ in times] == sorted(start for start, _ in times)
    for start, end in times:
        assert start < end and any(first <= start and end <= last for first, last in spans)


def word(text: str, speaker: str, start: float) -> Segment:
    return Segment("m", speaker, start, start + 0.4, text)


WORDS = [word("so", "speaker_1", 0.0), word("yes", "speaker_0", 0.5), word("shall", "speaker_1", 0.6),
         word("we", "speaker_1", 1.0), word("fine", "speaker_1", 9.0)]  # fmt: skip


def test_a_dialogue_by_hand() -> None:
    assert [u.text for u in find_utterances(WORDS)] == ["so shall we", "yes", "fine"]
    assert format_dialogue(WORDS) == (
        "[00:00:00.00 - 00:00:01.40] Speaker 2: so shall we\n"
        "[00:00:00.50 - 00:00:00.90] Speaker 1: yes\n"
        "[00:00:09.00 - 00:00:09.40] Speaker 2: fine\n"
    )
    renamed = [replace(one, speaker=f"piece_0_{one.speaker}") for one in WORDS]
    assert format_dialogue(renamed).startswith("[00:00:00.00 - 00:00:01.40] Speaker 2: so shall we\n")
    named = [replace(one, speaker="alice") for one in WORDS]
    assert " alice: so" in format_dialogue(named)
    assert format_dialogue([]) == ""


# ---------------------------------------------------------------------------------------------------------------------
# Folders


def save(folder: Path, options: MsAsrOptions, tokenizer: Tokenizer = TOKENIZER, **changed: object) -> Path:
    save_tokenizer(folder, tokenizer)
    config = {"model": "msasr", "options": options.to_json(), "tokenizer": tokenizer.settings.to_json()}
    save_model(folder, build(options).state_dict(), config | {"sst_level": "word"} | changed)
    return folder


def test_a_model_folder_comes_back(tmp_path: Path, session: Session) -> None:
    transcriber = load_transcriber(save(tmp_path / "model", SUPERVISED), device="cpu")
    known = MsAsrTranscriber(build(), TOKENIZER, "word")
    short = replace(session, duration=2.0)
    assert transcriber(short) == known(short)


def test_a_canary_alone_decodes_freely(tmp_path: Path, session: Session) -> None:
    """It has no trained speaker tokens, or none at all: what it writes is one speaker's, in all pieces."""
    for n_speakers in (0, 2):
        folder = tmp_path / str(n_speakers)
        tokenizer = train_tokenizer(["one two three four five six"], 40, n_speakers)
        asr = replace(ASR, n_tokens=tokenizer.n_tokens)
        save_tokenizer(folder, tokenizer)
        config = {"model": "canary", "options": asr.to_json(), "tokenizer": tokenizer.settings.to_json()}
        model = build(MsAsrOptions(asr, "none", 2))
        piece = tokenizer.word_tokens[0]
        text = tokenizer.decode([piece])
        with torch.no_grad():  # a word that it prefers to everything else
            model.asr.decoder.bias[piece] += 100.0
        save_model(folder, model.asr.state_dict(), config)
        transcriber = load_transcriber(folder, device="cpu")
        assert transcriber.diarizer is None and not transcriber.has_speakers
        [(_, pieces)] = transcriber.cut([session])
        assert len(pieces) == 2  # of at most 40 s
        assert [transcriber.to_text(own) for own in transcriber.write(pieces)] == [
            text,
            text,
        ]  # and again and again, which is cut
        assert {(word.speaker, word.text) for word in transcriber(session)} == {("speaker_0", text)}


def prefers_a_word() -> tuple[MsAsr, str]:
    """A model that prefers a word to every other token, its end last; and the word."""
    model, piece = build(MsAsrOptions(ASR, "none", 2)), TOKENIZER.word_tokens[0]
    with torch.no_grad():
        model.asr.decoder.bias[piece] += 100.0
        model.asr.decoder.bias[TOKENIZER.end] -= 100.0
    return model, TOKENIZER.decode([piece])


def test_free_decoding_is_what_the_decoder_prefers(session: Session) -> None:
    """Valid decoding begins with <spk0> all the same."""
    model, text = prefers_a_word()

    def write(decoding: Decoding) -> str:
        transcriber = MsAsrTranscriber(model, TOKENIZER, "word", TranscribeOptions(decoding=decoding))
        [(_, pieces)] = transcriber.cut([replace(session, duration=2.0)])
        return transcriber.write(pieces)[0]

    assert write("free") == text and write("valid").startswith(f"<spk0> {text}")
    with pytest.raises(ValueError, match="decoding must be free or valid, got 'best'"):
        TranscribeOptions(decoding="best")  # type: ignore[arg-type]


def test_a_free_text_that_is_no_sst_is_laid_out(session: Session) -> None:
    scribe = Scribe(build(), TOKENIZER, "word", diarizer=KnownDiarizer(activity((0, 1.0, 2.0), seconds=5.0)))
    scribe.text = "one <spk1> two two <cs> three <spk7> four"
    spoken = [(word.speaker, word.text) for word in scribe(replace(session, duration=5.0))]
    assert sorted(spoken) == [
        ("speaker_0", "one"),
        ("speaker_1", "two"),
        ("speaker_1", "two"),
        ("speaker_7", "four"),
        ("turn2", "three"),
    ]


@pytest.mark.parametrize(
    ("config", "level"),
    [
        ({"level": "word"}, "change"),  # before there was a token before every word
        ({"level": "segment"}, "change"),
        ({"level": "dom-sot"}, "dom-sot"),
        ({"sst_level": "word"}, "word"),
        ({"sst_level": None}, None),
        ({}, None),
    ],
)
def test_folders_tell_what_their_model_has_learned(config: dict[str, object], level: Level | None) -> None:
    assert read_sst_level(config) == level


def test_a_fine_tuned_diarizer_is_not_replaced(tmp_path: Path) -> None:
    """System 3 works with its own Sortformer; systems 2 and 4 with another one, if it is asked for."""
    other = KnownDiarizer(activity(*TURNS))
    for supervision in ("frozen", "truth"):
        model = build(replace(SUPERVISED, supervision=supervision))
        assert MsAsrTranscriber(model, TOKENIZER, "word", diarizer=other).diarizer is other
    with pytest.raises(ValueError, match="has its own fine-tuned Sortformer inside"):
        MsAsrTranscriber(build(replace(SUPERVISED, supervision="finetuned")), TOKENIZER, "word", diarizer=other)


def test_broken_folders_are_sentences(tmp_path: Path) -> None:
    folder = save(tmp_path / "model", SUPERVISED)
    config = json.loads((folder / "config.json").read_text())

    def refuse(sentence: str, **changed: object) -> None:
        (folder / "config.json").write_text(json.dumps(config | changed))
        with pytest.raises(FormatError, match=sentence):
            load_transcriber(folder, device="cpu")

    refuse("holds the model 'sortformer', which is not an ASR", model="sortformer")
    refuse("says nothing about a tokenizer", tokenizer=None)
    refuse("its transcripts are of an unknown level, 'letter'", sst_level="letter")
    refuse("tensor 'adapters", options=replace(SUPERVISED, adapters=4).to_json())
    fewer = replace(SUPERVISED, asr=replace(ASR, n_tokens=20)).to_json()
    refuse("tensor 'asr.decoder.bias' is|tensor 'asr.decoder.embedding.weight' is", options=fewer)


def test_nvidias_canary_flash_prints_what_it_prints_at_nvidia() -> None:
    """Its vocabulary has <|spltoken0|> and so on, and no speaker tokens."""
    shared = Path(__file__).parents[3] / "shared" / "fixtures"
    if not (shared / "nemo2").exists():
        pytest.skip("needs ../shared/fixtures/nemo2")
    known = json.loads((shared / "nemo2" / "tiny_canary_flash.json").read_text())["results"]
    names = ("a_3p3", "b_10", "c_31p7")
    clips = [shared / "nemo" / f"{name}.wav" for name in names]
    model = shared / "nemo2" / "tiny_canary_flash.nemo"
    for option, key in (("--no-pnc", "pnc_no"), ("--pnc", "pnc_yes")):
        result = sortk("transcribe", *clips, "--model", model, "--format", "json", option, "--device", "cpu")
        assert result.exit_code == 0, result.output
        for name, own in zip(names, json.loads(result.stdout), strict=True):
            assert own["session_id"] == name
            words = [(w["word"], w["start"], w["end"]) for segment in own["segments"] for w in segment["words"]]
            expected = known[f"{name}_ts_yes_{key}"]["word"]
            assert words == [(w["word"], round(w["start"], 3), round(w["end"], 3)) for w in expected]


def test_nvidias_canary_writes_what_it_writes_at_nvidia() -> None:
    shared = Path(__file__).parents[3] / "shared" / "fixtures" / "nemo"
    if not shared.exists():
        pytest.skip("needs ../shared/fixtures/nemo")
    texts = json.loads((shared / "tiny_canary_decode.json").read_text())["beam1_text"]
    options = TranscribeOptions(punctuation=False)
    transcriber = load_transcriber(shared / "tiny_canary.nemo", options=options, device="cpu")
    for name, text in zip(("a_3p3", "b_10"), texts, strict=False):
        [(_, (piece,))] = transcriber.cut([Session(name, shared / f"{name}.wav")])
        [written] = transcriber.write([piece])
        assert [transcriber.to_text(written)] == [" ".join(text.replace("<|", " <").replace("|>", "> ").split())]


# ---------------------------------------------------------------------------------------------------------------------
# The command


def sortk(*command: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in command])


def test_the_command_writes_every_format(tmp_path: Path, session: Session) -> None:
    model = save(tmp_path / "model", SUPERVISED)
    listed = [replace(session, session_id=f"part{n}", offset=5.0 * n, duration=2.0) for n in range(2)]
    manifest.write(tmp_path / "parts.jsonl", listed)
    common = ("transcribe", tmp_path / "parts.jsonl", "--model", model, "--device", "cpu")
    suffixes = {"seglst": "json"}
    for style in STYLES:
        suffix = suffixes.get(style, style)
        result = sortk(*common, "--format", style, "--out-dir", tmp_path / style, "--beam", 2)
        assert result.exit_code == 0 and result.stdout == "", result.output
        assert sorted(file.name for file in (tmp_path / style).glob("[!.]*")) == [f"part0.{suffix}", f"part1.{suffix}"]
    in_files = [word for n in range(2) for word in seglst.read(tmp_path / "seglst" / f"part{n}.json")]
    result = sortk(*common, "--beam", 2)
    (tmp_path / "printed.json").write_text(result.stdout, encoding="utf-8")
    assert seglst.read(tmp_path / "printed.json") == in_files
    for number, one in enumerate(listed):
        own = [word for word in in_files if word.session_id == one.session_id]
        assert all(5.0 * number <= word.start < word.end <= 5.0 * number + 2.0 for word in own)
    assert sortk(*common, "--format", "txt").stdout.startswith("# part0\n")


def test_the_command_decodes_freely_if_asked(tmp_path: Path, session: Session) -> None:
    model, text = prefers_a_word()
    save_asr(tmp_path / "model", model, TOKENIZER, "word", 20.0)
    manifest.write(tmp_path / "part.jsonl", [replace(session, duration=2.0)])
    common = (
        "transcribe",
        tmp_path / "part.jsonl",
        "--model",
        tmp_path / "model",
        "--device",
        "cpu",
        "--format",
        "txt",
    )
    assert sortk(*common, "--decoding", "free").stdout.endswith(f"] Speaker 1: {text}\n")
    valid = sortk(*common, "--decoding", "valid").stdout
    assert valid == sortk(*common).stdout and not valid.endswith(f"] Speaker 1: {text}\n")


def test_the_command_names_what_is_wrong(tmp_path: Path, session: Session) -> None:
    model = save(tmp_path / "model", SUPERVISED)
    (tmp_path / "bad.wav").write_text("no audio")
    result = sortk(
        "transcribe", tmp_path / "bad.wav", session.audio_path, "--model", model, "--out-dir", tmp_path / "o"
    )
    assert result.exit_code == 1 and "bad.wav" in result.stderr and (tmp_path / "o" / "meeting.json").is_file()
    no_model = sortk("transcribe", session.audio_path, "--model", tmp_path)
    assert no_model.exit_code == 1 and "not a model folder" in no_model.stderr


def test_a_piece_knows_its_length() -> None:
    assert Piece(Session("a", Path("a")), (1_500_000, 4_000_000), None, ()).seconds == 2.5
