"""Text normalisation by name, for both sides of a word error rate.

    none      the words as they are written
    lower     lower case
    whisper   OpenAI's rules for English: lower case, no punctuation and no fillers, contractions written out ("can't"
              -> "can not"), numbers in digits, American spelling
    chime8    the rules of the CHiME-8 challenge: like whisper's, but numbers up to a thousand in words, more fillers
              ("mhm", "ah"), and some words in one spelling ("okay" -> "ok")

`whisper` is the package whisper-normalizer, less four rules that OpenAI's own code does not have. CHiME's code is in no
package index; `chime8` is written here after the challenge's rules, on the tables that it shares with whisper.

Both remove what is in brackets, [noise] or (laughs). That must happen entry by entry: in the joined words of
several people a bracket would reach into another speaker's words. All other rules may look at neighbouring words
("twenty one" -> "21"), so they are for all the words that are aligned as one.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args

from sortk.formats.files import quote

NormalizerName = Literal["none", "lower", "whisper", "chime8"]

IN_BRACKETS = re.compile(r"[<\[][^>\]]*[>\]]")
IN_PARENTHESES = re.compile(r"\([^)]+\)")
LONELY_BRACKETS = re.compile(r"[<>\[\]()]")
MAX_DIGITS = 300  # of a number in a text; a float has no more

NOT_OPENAI = (r"\bkinda\b", r"\bsorta\b", r"\bdunno\b", r"\bcause\b")  # what the package adds to whisper's rules

# In this order, and before the contractions of whisper.
CHIME8_WORDS = {"shan't": "shall not", "han't": "has not", "ain't": "ain not"}
CHIME8_PATTERNS = {
    r"\s+'": "'",
    "\u2019": "'",
    r"\b(?:hm+|mhm|mm+|m+h|uh?m+)\b": "hmm",
    r"\b(?:a+h+|ha+)\b": "ah",
    r"[!?.]+(?=$|\s)": "",
    r"\b(?:o+h+|h+o+)\b": "oh",
    r"\b(?:u+h+|h+u+h*)\b": "uh",
    r"\bwi[\s-]fi\b": "wifi",
    r"\bgoin\b": "going",
    r"\bokay\b": "ok",
    r"\bsetup\b": "set up",
    r"\beveryday\b": "every day",
}
CHIME8_FILLERS = re.compile(r"\b(?:hmm|uh|ah|eh)\b")


@dataclass(frozen=True, slots=True)
class Normalizer:
    """First each entry of a transcript by itself, then all the words that are aligned as one."""

    clean_entry: Callable[[str], str]
    normalize: Callable[[str], str]

    def __call__(self, text: str) -> str:
        return self.normalize(self.clean_entry(text))


@cache
def find_normalizer(name: str) -> Normalizer:
    """Return the normaliser of that name; ValueError if there is none, or if its package is not installed."""
    if name == "none":
        return Normalizer(str, str)
    if name == "lower":
        return Normalizer(str, str.lower)
    if name == "whisper":
        whisper = _whisper()
        return Normalizer(remove_brackets, lambda text: str(whisper(_check_digits(text))))
    if name == "chime8":
        return Normalizer(remove_brackets, _Chime8(_whisper()))
    raise ValueError(f"unknown normalizer {name!r}; normalizers: {', '.join(get_args(NormalizerName))}")


def remove_brackets(text: str) -> str:
    """Remove what is in <>, [] or (); a bracket without its other half is dropped, the words around it are not."""
    # Behind the last closing bracket nothing matches, but each opening one would be followed to the end of the text.
    n_closed = max(text.rfind(">"), text.rfind("]")) + 1
    text = IN_BRACKETS.sub("", text[:n_closed]) + text[n_closed:]
    n_closed = text.rfind(")") + 1
    text = IN_PARENTHESES.sub("", text[:n_closed]) + text[n_closed:]
    # One space between words: whisper's patterns take time that is quadratic in the length of a gap.
    return " ".join(LONELY_BRACKETS.sub(" ", text).split())


def _check_digits(text: str) -> str:
    """Return the text; ValueError for a number with which whisper's rules cannot compute."""
    for word in text.split():
        if len(word) > MAX_DIGITS and sum(map(str.isdigit, word)) > MAX_DIGITS:
            raise ValueError(f"the normalizer whisper cannot read a number of {len(word)} digits: {quote(word)}")
    return text


def _whisper() -> Any:
    try:
        # Python warns about an escape in its source where the installer has not compiled it, as uv does not.
        with warnings.catch_warnings(action="ignore"):
            from whisper_normalizer.english import EnglishTextNormalizer  # noqa: PLC0415 (an extra)
    except ImportError:
        raise ValueError(
            'normalizers whisper and chime8 need the package whisper-normalizer: pip install "sortk[wer]"'
        ) from None
    whisper = EnglishTextNormalizer()
    for pattern in NOT_OPENAI:
        whisper.replacers.pop(pattern, None)
    return whisper


class _Chime8:
    """The rules of CHiME-8, with the contractions, the spellings and the names of numbers that whisper has."""

    def __init__(self, whisper: Any) -> None:
        numbers = whisper.standardize_numbers
        self.patterns = {re.compile(old): new for old, new in (CHIME8_PATTERNS | whisper.replacers).items()}
        self.spellings: Callable[[str], str] = whisper.standardize_spellings
        self.ones: dict[int, str] = {value: name for name, value in numbers.ones.items()}
        self.tens: dict[int, str] = {value: name for name, value in numbers.tens.items()}
        suffixed = numbers.ones_suffixed | numbers.tens_suffixed
        self.suffixed: dict[str, str] = {f"{value}{suffix}": name for name, (value, suffix) in suffixed.items()}

    def __call__(self, text: str) -> str:
        from whisper_normalizer.basic import remove_symbols_and_diacritics  # noqa: PLC0415 (an extra)

        text = " ".join(CHIME8_WORDS.get(word, word) for word in text.lower().split())
        for pattern, replacement in self.patterns.items():
            text = pattern.sub(replacement, text)
        text = re.sub(r"(\d),(\d)", r"\1\2", text)
        text = re.sub(r"\.(?=\D|$)", " ", text)
        text = str(remove_symbols_and_diacritics(text, keep=".%$¢€£"))
        text = re.sub(r"\$(\d+(?:\.\d+)?)|(\d+(?:\.\d+)?)\$", r"\1\2 dollars", text)
        text = re.sub(r"(\d)%", r"\1 percent", text)
        text = self.spellings(" ".join(map(self.spell_number, text.split())))
        text = text.replace("</span>", "")  # a slip in whisper's table: archaeology
        text = re.sub(r"[.$¢€£](?=\D)|(?<=\D)%", " ", text)
        return " ".join(CHIME8_FILLERS.sub("", text).split())

    def spell_number(self, word: str) -> str:
        """Spell out a whole number up to a thousand, or an ordinal or plural that whisper has a name for."""
        if not word.isdecimal() or len(word) > 9:  # Python reads no integers of thousands of digits
            return self.suffixed.get(word, word)
        value = int(word)
        if word == "000" or value == 1000:
            return "thousand"  # 70 000
        if value in (0, 100) or value > 1000:
            return {0: "zero", 100: "hundred"}.get(value, word)
        hundreds, rest = divmod(value, 100)
        names = [self.ones[hundreds], "hundred"] if hundreds else []
        if rest in self.ones:
            names.append(self.ones[rest])
        elif rest:
            names += [self.tens[rest - rest % 10], *filter(None, [self.ones.get(rest % 10)])]
        return " ".join(names)
