from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortk.formats.files import FormatError
from sortk.formats.model_folder import save_model
from sortk.formats.tokens import (
    FILE_NAME,
    Tokenizer,
    TokenizerSettings,
    load_tokenizer,
    save_tokenizer,
    settings_of_canary,
    train_tokenizer,
)

FIXTURES = Path(__file__).parents[1] / "fixtures" / "nemo"
DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TEXTS = [f"<spk0> {' '.join(DIGITS)} <spk1> {' '.join(DIGITS[::-1])}" for _ in range(5)]
TOKENIZER = train_tokenizer(TEXTS, 64, n_speakers=3)


@pytest.fixture(scope="module")
def canary() -> Tokenizer:
    with tarfile.open(FIXTURES / "tiny_canary_tokenizers.tar.xz") as tar:
        contents = {}
        for name in ("tokenizer.spl_tokens.model", "tokenizer.en.model"):
            file = tar.extractfile(f"./{name}")
            assert file is not None
            contents[name] = file.read()
    return Tokenizer(contents, settings_of_canary(list(contents)))


def test_speakers_are_single_tokens_of_their_own() -> None:
    tokens = TOKENIZER.encode("<spk0> one <spk2> two <cs> nine")
    first, second, third = TOKENIZER.speakers
    assert tokens[0] == first and tokens.count(third) == 1 and tokens.count(TOKENIZER.change) == 1
    assert TOKENIZER.encode("<spk1>") == [second]
    assert not set(TOKENIZER.encode("one two nine")) & {first, second, third, TOKENIZER.change}
    special = {TOKENIZER.pad, TOKENIZER.end, *TOKENIZER.prompt, *TOKENIZER.speakers, TOKENIZER.change}
    assert len(special) == 7 and max(special) < TOKENIZER.n_tokens


@given(st.lists(st.sampled_from([*DIGITS, "<spk0>", "<spk1>", "<spk2>", "<cs>", "xenon", "snow"])))
def test_texts_come_back(words: list[str]) -> None:
    text = " ".join(words)
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text
    assert TOKENIZER.count_unknown(text) == 0
    around = [*TOKENIZER.prompt, *TOKENIZER.encode(text), TOKENIZER.end, TOKENIZER.pad]
    assert TOKENIZER.decode(around) == text


def test_spelling_of_tokens_does_not_matter() -> None:
    assert TOKENIZER.encode("<|spk1|>one") == TOKENIZER.encode("<spk1> one")


def test_unknown_characters_become_a_word_of_their_own() -> None:
    assert TOKENIZER.decode(TOKENIZER.encode("one Ж two")) == "one <unk> two"
    assert TOKENIZER.count_unknown("one Ж two") == 1


def test_unknown_speakers_are_errors() -> None:
    with pytest.raises(ValueError, match="the text holds '<spk3>', but this tokenizer knows 3 speakers"):
        TOKENIZER.encode("<spk3> one")


def test_numbers_that_mean_nothing_are_not_spelled() -> None:
    assert TOKENIZER.decode([TOKENIZER.n_tokens + 5, *TOKENIZER.encode("one")]) == "one"


def test_kinds_of_tokens_do_not_overlap_and_make_up_all_words() -> None:
    kinds = [TOKENIZER.word_tokens, TOKENIZER.part_tokens, TOKENIZER.blank_tokens]
    together = [token for kind in kinds for token in kind]
    assert len(together) == len(set(together)) and len(TOKENIZER.blank_tokens) == 1
    assert set(TOKENIZER.encode(" ".join(DIGITS))) <= set(together)
    special = {TOKENIZER.pad, TOKENIZER.end, *TOKENIZER.prompt, *TOKENIZER.speakers, TOKENIZER.change}
    assert not special & set(together)


def test_training_gives_the_same_tokens_again() -> None:
    assert train_tokenizer(TEXTS, 64, n_speakers=3).contents == TOKENIZER.contents


def test_texts_that_make_no_tokenizer_are_errors() -> None:
    with pytest.raises(ValueError, match="no words to train a tokenizer on"):
        train_tokenizer(["<spk0>", ""], 64, 2)
    with pytest.raises(ValueError, match=r"no tokenizer of 8 tokens .*smaller than required_chars"):
        train_tokenizer(["abcdefgh"], 8, 4)


# ---------------------------------------------------------------------------------------------------------------------
# NVIDIA's


def test_canarys_tokens_are_nvidias(canary: Tokenizer) -> None:
    expected = json.loads((FIXTURES / "tiny_canary_decode.json").read_text())
    assert list(canary.prompt) == expected["prompt_ids"] and canary.n_tokens == expected["vocab_size"]
    assert (canary.end, canary.pad) == (expected["eos"], expected["pad"])
    assert canary.encode(expected["prefix_text"]) == expected["prefix_text_ids"]
    for tokens, text in zip(expected["beam1_ids"], expected["beam1_text"], strict=True):
        assert canary.encode(text) == tokens
        spelled = " ".join(text.replace("<|", " <").replace("|>", "> ").split())
        assert canary.decode(tokens) == spelled


def test_speakers_that_canary_has_are_used_and_others_added(canary: Tokenizer) -> None:
    more = canary.with_speakers(6, n_rows=152)
    assert more.speakers == (13, 14, 15, 16, 152, 153) and more.change == 154 and more.n_tokens == 155
    assert more.decode(more.encode("<spk5> time <cs> people")) == "<spk5> time <cs> people"
    assert more.with_speakers(6, 155) is more
    assert more.with_speakers(7, 155).speakers[-1] == 155


def test_an_unknown_prompt_format_is_an_error() -> None:
    with pytest.raises(ValueError, match="prompt_format is 'llm'; sortk supports canary and canary2"):
        settings_of_canary(["tokenizer.model"], "llm")


# ---------------------------------------------------------------------------------------------------------------------
# Folders


def test_a_model_folder_keeps_it(tmp_path: Path) -> None:
    more = TOKENIZER.with_speakers(5, TOKENIZER.n_tokens)
    save_tokenizer(tmp_path, more)
    save_model(tmp_path, {}, {"model": "msasr", "options": {}, "tokenizer": more.settings.to_json()})
    config = json.loads((tmp_path / "config.json").read_text())
    again = load_tokenizer(tmp_path, config)
    assert again.settings == more.settings and again.speakers == more.speakers
    assert again.encode("<spk4> one") == more.encode("<spk4> one")


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"files": ["../secret"]}, "a tokenizer file is in the model folder, so '../secret' cannot be one"),
        ({"files": ["other.model"], "text_file": "other.model"}, "no such tokenizer"),
        ({"text_file": "other.model"}, "has no file 'other.model' for texts"),
        ({"end": "</end>"}, "the tokenizer has no token '</end>'"),
        ({"ends": "</s>"}, "not the settings of a tokenizer"),
        ({"files": 3}, "files, prompt and added are lists of names"),
        ({"end": 3}, "text_file, end and pad are names"),
        ({"added": ["<spk3>"]}, r"added tokens would begin at 0, but \d+ are taken"),
    ],
)
def test_broken_folders_are_sentences(tmp_path: Path, fields: dict[str, object], sentence: str) -> None:
    save_tokenizer(tmp_path, TOKENIZER)
    with pytest.raises(FormatError, match=sentence):
        load_tokenizer(tmp_path, {"tokenizer": fields})


def test_other_files_are_no_tokenizers(tmp_path: Path) -> None:
    for content in (b"", b"no sentencepiece", bytes(range(256))):
        (tmp_path / FILE_NAME).write_bytes(content)
        with pytest.raises(FormatError, match="sentencepiece model"):
            load_tokenizer(tmp_path, {"tokenizer": {}})
    with pytest.raises(FormatError, match="says nothing about a tokenizer"):
        load_tokenizer(tmp_path, {})
    with pytest.raises(ValueError, match="not a sentencepiece model"):
        Tokenizer({FILE_NAME: b"junk"}, TokenizerSettings())
