"""Tokens of the ASR models: texts <-> numbers, with sentencepiece. A model folder keeps them as tokenizer*.model.

A text here is what stage 4 writes, `<spk0> well i <spk1> yes`. Its words are cut into pieces by sentencepiece; speaker
tokens and <cs> are one token each, whatever the model itself calls them (NVIDIA: <|spk0|>).

There may be several sentencepiece models, whose numbers follow one another: NVIDIA's Canary has one for its special
tokens and one for each language. Tokens that none of them knows are added behind all others.

Characters that the model does not know become <unk>, which is read back as the word <unk>.
"""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import sentencepiece

from sortk.formats.files import FormatError, atomic_path, quote
from sortk.formats.objects import decode
from sortk.formats.sst import SPEAKER_CHANGE, TOKEN, speaker_number, strip_tokens

FILE_NAME = "tokenizer.model"
WORD_MARK = "▁"  # how a piece begins with which a word begins
UNKNOWN = "<unk>"
LONGEST_NAME = 200  # letters that the name of a file has
BYTE_PIECE = re.compile(r"<0x[0-9A-F]{2}>")
MAX_FILE_BYTES = 64 << 20
MAX_JSON_BYTES = 16 << 20  # of tokenizer.json, whose parsed form takes many times its size; 8192 tokens have about 1 MB
OWN_PAD, OWN_START, OWN_END = "<pad>", "<s>", "</s>"


@dataclass(frozen=True)
class TokenizerSettings:
    """What config.json says about the tokenizer."""

    files: tuple[str, ...] = (FILE_NAME,)  # sentencepiece models in the model folder, in the order of their numbers
    text_file: str = FILE_NAME  # the one that cuts words into pieces
    prompt: tuple[str, ...] = (OWN_START,)  # tokens in front of every text
    end: str = OWN_END  # empty, and so the next one: a Parakeet writes none
    pad: str = OWN_PAD
    added: tuple[str, ...] = ()  # tokens that no file knows, numbered
    first_added: int = 0  # from here on

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> TokenizerSettings:
        """Return the inverse of `to_json`; ValueError for what is none."""
        try:
            values: dict[str, Any] = {
                name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()
            }
            settings = cls(**values)
        except TypeError as error:
            raise ValueError(f"not the settings of a tokenizer: {error}") from None
        lists = (settings.files, settings.prompt, settings.added)
        texts = (settings.text_file, settings.end, settings.pad)
        if not all(isinstance(names, tuple) and all(isinstance(name, str) for name in names) for names in lists):
            raise ValueError("not the settings of a tokenizer: files, prompt and added are lists of names")
        if not all(isinstance(text, str) for text in texts) or type(settings.first_added) is not int:
            raise ValueError("not the settings of a tokenizer: text_file, end and pad are names, first_added a number")
        for name in settings.files:
            if name != Path(name).name or name in ("", ".", "..") or len(name) > LONGEST_NAME:
                raise ValueError(f"a tokenizer file is in the model folder, so {quote(name)} cannot be one")
        return settings


class Tokenizer:
    """Texts <-> numbers, and what kind of token each number is."""

    def __init__(self, contents: Mapping[str, bytes], settings: TokenizerSettings) -> None:
        """`contents` are those of the files that the settings name."""
        if settings.text_file not in settings.files:
            raise ValueError(f"the tokenizer has no file {quote(settings.text_file)} for texts")
        self.contents, self.settings = dict(contents), settings
        self._models = [_parse_model(name, contents[name]) for name in settings.files]
        sizes = [model.get_piece_size() for model in self._models]
        self._firsts = [sum(sizes[:n]) for n in range(len(sizes))]
        n_known = sum(sizes)
        if settings.added and settings.first_added < n_known:
            raise ValueError(f"added tokens would begin at {settings.first_added}, but {n_known} are taken")
        self.n_tokens = settings.first_added + len(settings.added) if settings.added else n_known
        self.prompt = tuple(self._require(name) for name in settings.prompt)
        self.end, self.pad = (self._require(name) if name else -1 for name in (settings.end, settings.pad))
        self.speakers: tuple[int, ...] = ()  # the numbers of the speaker tokens, <spk0> first
        while (found := self._find(f"<spk{len(self.speakers)}>")) is not None:
            self.speakers += (found,)
        self.change = self._find(SPEAKER_CHANGE)
        self._names = {number: f"<spk{k}>" for k, number in enumerate(self.speakers)}
        if self.change is not None:
            self._names[self.change] = SPEAKER_CHANGE

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without prompt and end."""
        tokens: list[int] = []
        at = 0
        for match in TOKEN.finditer(text):
            tokens += self._encode_words(text[at : match.start()])
            tokens.append(self._encode_token(match[1]))
            at = match.end()
        return tokens + self._encode_words(text[at:])

    def decode(self, tokens: Iterable[int]) -> str:
        """Return words and speaker tokens with single blanks between them, without prompt, end and the like."""
        parts = []
        for (name, model), run in groupby(tokens, key=self._speller_of):
            if name:
                parts += [name for _ in run]
            elif model is not None:
                first = self._firsts[model]
                parts.append(self._models[model].decode([token - first for token in run]))
        return " ".join(" ".join(parts).split())

    def count_unknown(self, text: str) -> int:
        """Return how many tokens of a text are <unk>."""
        model, first = self._text_model()
        return self.encode(text).count(first + model.unk_id())

    def with_speakers(self, n_speakers: int, n_rows: int) -> Tokenizer:
        """Return the same with tokens for so many speakers, and <cs>: those that it has, and new ones after `n_rows`.

        `n_rows` are the tokens that the model has numbers for, which may be more than there are.
        """
        wanted = [*(f"<spk{k}>" for k in range(n_speakers)), SPEAKER_CHANGE]
        missing = tuple(name for name in wanted if self._find(name) is None)
        if not missing:
            return self
        first = self.settings.first_added if self.settings.added else max(n_rows, self.n_tokens)
        return Tokenizer(self.contents, replace(self.settings, added=self.settings.added + missing, first_added=first))

    def knows(self, name: str) -> bool:
        """Return whether there is a special token of this name."""
        return self._find(name) is not None

    def spell(self, token: int) -> str:
        """Return the piece of a token as it is, special or not; the word mark is kept."""
        if self.settings.added and token >= self.settings.first_added:
            return self.settings.added[token - self.settings.first_added]
        for model, first in reversed([*zip(self._models, self._firsts, strict=True)]):
            if first <= token < first + model.get_piece_size():
                return str(model.id_to_piece(token - first))
        return ""

    def with_prompt(self, *names: str) -> Tokenizer:
        return Tokenizer(self.contents, replace(self.settings, prompt=names))

    @property
    def word_tokens(self) -> list[int]:
        """Return the pieces that begin a word."""
        return [token for token, piece in self._pieces() if piece.startswith(WORD_MARK) and piece != WORD_MARK]

    @property
    def part_tokens(self) -> list[int]:
        """Return the pieces that continue a word."""
        return [token for token, piece in self._pieces() if not piece.startswith(WORD_MARK)]

    @property
    def blank_tokens(self) -> list[int]:
        """Return the pieces that are the word mark alone."""
        return [token for token, piece in self._pieces() if piece == WORD_MARK]

    def _pieces(self) -> Iterator[tuple[int, str]]:
        """Yield number and text of the pieces of words; one with an angle bracket could spell a token."""
        model, first = self._text_model()
        for number in range(model.get_piece_size()):
            piece = model.id_to_piece(number)
            special = model.is_unknown(number) or model.is_control(number) or model.is_unused(number)
            if piece and not special and "<" not in piece and ">" not in piece:
                yield first + number, piece

    def _text_model(self) -> tuple[Any, int]:
        place = self.settings.files.index(self.settings.text_file)
        return self._models[place], self._firsts[place]

    def _encode_words(self, words: str) -> list[int]:
        model, first = self._text_model()
        return [first + number for number in model.encode(words)]

    def _encode_token(self, name: str) -> int:
        if name.lower() == "cs":
            if self.change is None:
                raise ValueError(f"the text holds {SPEAKER_CHANGE}, which this tokenizer does not know")
            return self.change
        speaker = speaker_number(name)
        if speaker is None or speaker >= len(self.speakers):
            token = quote(f"<{name}>")
            raise ValueError(f"the text holds {token}, but this tokenizer knows {len(self.speakers)} speakers")
        return self.speakers[speaker]

    def _speller_of(self, token: int) -> tuple[str, int | None]:
        """Return what spells a token: its own name, or the model whose piece it is; neither: it is not spelled."""
        if token in self._names:
            return self._names[token], None
        for model, first in reversed(list(enumerate(self._firsts))):
            if first <= token < first + self._models[model].get_piece_size():
                pieces, number = self._models[model], token - first
                if pieces.is_unknown(number):
                    return UNKNOWN, None
                piece = pieces.id_to_piece(number)
                is_special = piece.startswith("<") and piece.endswith(">") and len(piece) > 2
                return "", (None if pieces.is_control(number) or is_special else model)
        return "", None

    def _find(self, name: str) -> int | None:
        """Return the number of a special token, ours or, as NVIDIA spells it, with bars inside."""
        for spelled in (name, f"<|{name[1:-1]}|>"):
            if spelled in self.settings.added:
                return self.settings.first_added + self.settings.added.index(spelled)
            for model, first in zip(self._models, self._firsts, strict=True):
                number: int = model.piece_to_id(spelled)
                if number != model.unk_id() or spelled == UNKNOWN:
                    return int(first + number)
        return None

    def _require(self, name: str) -> int:
        found = self._find(name)
        if found is None:
            raise ValueError(f"the tokenizer has no token {quote(name)}")
        return found


def _parse_model(name: str, content: bytes) -> Any:
    model = sentencepiece.SentencePieceProcessor()
    try:
        model.LoadFromSerializedProto(content)
    except (RuntimeError, OSError, ValueError) as error:
        raise ValueError(f"{name}: not a sentencepiece model ({error})") from None
    if not model.get_piece_size():
        raise ValueError(f"{name}: a sentencepiece model without any piece")
    return model


def train_tokenizer(texts: Iterable[str], n_tokens: int, n_speakers: int) -> Tokenizer:
    """Return a tokenizer of about `n_tokens` tokens for texts as stage 4 writes them; few texts give fewer."""
    tokens = [*(f"<spk{k}>" for k in range(n_speakers)), SPEAKER_CHANGE]
    words = [strip_tokens(text) for text in texts]
    if not any(words):
        raise ValueError("there are no words to train a tokenizer on")
    file = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([sentence for sentence in words if sentence]),
            model_writer=file,
            vocab_size=n_tokens,
            hard_vocab_limit=False,
            character_coverage=1.0,
            normalization_rule_name="identity",  # stage 2 and its user decide what a word looks like
            max_sentence_length=1 << 20,  # bytes; longer ones would be left out without a word
            num_threads=1,
            pad_id=0, unk_id=1, bos_id=2, eos_id=3,
            pad_piece=OWN_PAD, unk_piece=UNKNOWN, bos_piece=OWN_START, eos_piece=OWN_END,
            user_defined_symbols=tokens,
            minloglevel=2,
        )  # fmt: skip
    except RuntimeError as error:
        reason = str(error).rpartition("] ")[2] or str(error)
        raise ValueError(f"no tokenizer of {n_tokens} tokens can be made of these texts: {reason}") from None
    return Tokenizer({FILE_NAME: file.getvalue()}, TokenizerSettings())


def save_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    """Write the files of a tokenizer; its settings belong in config.json, as `tokenizer`."""
    for name, content in tokenizer.contents.items():
        with atomic_path(folder / name) as temporary:
            temporary.write_bytes(content)


def load_tokenizer(folder: Path, config: Mapping[str, Any]) -> Tokenizer:
    """Return the tokenizer of a model folder with that config."""
    fields = config.get("tokenizer")
    if not isinstance(fields, dict):
        raise FormatError(folder, None, "not an ASR model: its config.json says nothing about a tokenizer")
    try:
        settings = TokenizerSettings.from_json(fields)
        return Tokenizer({name: _read_file(folder / name) for name in settings.files}, settings)
    except FormatError:
        raise
    except ValueError as error:
        raise FormatError(folder, None, str(error)) from None


def read_huggingface_tokenizer(folder: Path, n_tokens: int) -> Tokenizer:
    """Return the tokenizer of a Parakeet in Hugging Face's form: the first `n_tokens` of tokenizer.json.

    Hugging Face's file lists the pieces of the sentencepiece model that it was made from, in their order.
    """
    path = folder / "tokenizer.json"
    value = decode(_read_file(path, MAX_JSON_BYTES).decode("utf-8", "replace"), path, None)
    try:
        model = value["model"]
        if model["type"] != "BPE":
            raise FormatError(path, None, f"holds a tokenizer of type {quote(model['type'])}; sortk supports BPE")
        special = {token["content"]: bool(token["special"]) for token in value["added_tokens"]}
        numbers = {**model["vocab"], **{token["content"]: token["id"] for token in value["added_tokens"]}}
        unknown = model["unk_token"]
    except (TypeError, LookupError, AttributeError):
        raise FormatError(path, None, "not a tokenizer of Hugging Face: no BPE model with a vocabulary") from None
    pieces = {number: piece for piece, number in numbers.items() if type(number) is int and 0 <= number < n_tokens}
    if len(pieces) != n_tokens or not all(isinstance(piece, str) for piece in pieces.values()):
        raise FormatError(path, None, f"names {len(pieces)} of the model's {n_tokens} tokens")
    content = _write_sentencepiece([pieces[number] for number in range(n_tokens)], unknown, special)
    try:
        return Tokenizer({FILE_NAME: content}, settings_of_parakeet([FILE_NAME]))
    except ValueError as error:
        raise FormatError(path, None, str(error)) from None


# Kinds of pieces, as sentencepiece numbers them.
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6


def _write_sentencepiece(pieces: Sequence[str], unknown: Any, special: Mapping[str, bool]) -> bytes:
    """Return a sentencepiece model: a protocol buffer with the pieces, and that they are merged as BPE does.

    `special` are the pieces that are not parts of words; those marked true are not spelled.
    """
    fields, has_bytes = [], False
    for number, piece in enumerate(pieces):
        kind = _NORMAL if piece not in special else _CONTROL if special[piece] else _USER_DEFINED
        if piece == unknown:
            kind = _UNKNOWN
        elif BYTE_PIECE.fullmatch(piece):
            kind, has_bytes = _BYTE, True
        # A piece has a text (1), a score (2), by which merges are ordered, and a kind (3).
        inner = _field(1, piece.encode()) + b"\x15" + struct.pack("<f", -number) + b"\x18" + bytes([kind])
        fields.append(_field(1, inner))
    trainer = b"\x18\x02" + (b"\x98\x02\x01" if has_bytes else b"")  # model_type (3): BPE; byte_fallback (35)
    return b"".join(fields) + _field(2, trainer)


def _field(number: int, content: bytes) -> bytes:
    """Return a field of a protocol buffer with its length, a base-128 number whose last byte has no high bit."""
    length, encoded = len(content), bytearray()
    while length >= 0x80:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([number << 3 | 2]) + bytes(encoded) + bytes([length]) + content


def _read_file(path: Path, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    if not path.is_file():
        raise FormatError(path, None, "no such tokenizer")
    if path.stat().st_size > max_bytes:
        raise FormatError(path, None, f"too large for a tokenizer: more than {max_bytes} bytes")
    return path.read_bytes()


def prompt_of_canary(
    prompt_format: str, language: str = "en", punctuation: bool = False, timestamps: bool = False
) -> tuple[str, ...]:
    """Return the tokens before a text of NVIDIA's Canary; `prompt_format` is NVIDIA's name of their order."""
    spoken, pnc = f"<|{language}|>", "<|pnc|>" if punctuation else "<|nopnc|>"
    times = "<|timestamp|>" if timestamps else "<|notimestamp|>"
    prompts = {
        "canary": ("<|startoftranscript|>", spoken, "<|transcribe|>", spoken, pnc),
        "canary2": (
            *("<|startofcontext|>", "<|startoftranscript|>", "<|emo:undefined|>", spoken, spoken, pnc, "<|noitn|>"),
            *(times, "<|nodiarize|>"),
        ),
    }
    if prompt_format not in prompts:
        raise ValueError(f"prompt_format is {quote(prompt_format)}; sortk supports {' and '.join(prompts)}")
    if timestamps and prompt_format != "canary2":
        raise ValueError(f"a Canary with the prompt format {prompt_format} writes no times")
    return prompts[prompt_format]


def settings_of_canary(files: Sequence[str], prompt_format: str = "canary", language: str = "en") -> TokenizerSettings:
    """Return the settings of NVIDIA's Canary, given its tokenizers in order: special tokens first, then languages.

    `files` are named tokenizer.<name>.model, after NVIDIA's names of them; a single one holds everything. The prompt
    asks for words in the language that is spoken, without punctuation.
    """
    own = f"tokenizer.{language}.model"
    return TokenizerSettings(
        files=tuple(files),
        text_file=own if own in files else files[-1],
        prompt=prompt_of_canary(prompt_format, language),
        end="<|endoftext|>",
        pad="<pad>",
    )


def settings_of_parakeet(files: Sequence[str]) -> TokenizerSettings:
    """Return the settings of NVIDIA's Parakeet: pieces alone, without any special token."""
    return TokenizerSettings(files=tuple(files), text_file=files[-1], prompt=(), end="", pad="")
