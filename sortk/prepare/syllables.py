"""Word times from segment times (Appendix C of the paper): a segment is divided among its words by their syllables.

    l = t_end - t_start,    lambda = l / N,    tau_i = [delta_i, delta_i + lambda n_i]

n_i is the number of syllables of word i, N their sum over the segment, and delta_i the end of the word before. There
are four rules for n_i:

    hyphenation  the paper's: the places where pyphen may break the word, plus one; some syllables are missed
    syllables    the spoken syllables, from vowel groups and rules of spelling
    letters      the letters and digits of the word: the baseline
    sounds       the default: n_i = fixed part + number of sounds

Syllables are not equally long: "strengths" takes longer than "a", and "the" is short in running speech. So the default
counts vowel groups and consonants, and adds a fixed part for each word: less for words that are usually weak, more for
hesitations, and a pause for each punctuation mark. Its constants are round numbers near the
best fit to three sets at once: read sentences spoken by espeak-ng, digits of AudioMNIST in a row, and 4,000 segments of
AMI's scenario meetings. Median error of word starts in milliseconds (the last column is of other meetings than the fit;
tests/bench/bench_timestamps.py measures again):

                 espeak-ng, conversation   espeak-ng, read   AudioMNIST   AMI
    hyphenation                      105               123          115   352
    syllables                         99               123          115   347
    letters                           85                90          107   354
    sounds                            64                74           73   324

Of running English, `syllables` counts 98 words in 100 as espeak-ng speaks them, `hyphenation` 93. In 17 other languages
spoken by espeak-ng, `sounds` has 0.70 times the error of `hyphenation`, and about that of `letters`.
"""

from __future__ import annotations

import difflib
import itertools
import re
import unicodedata
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Literal, get_args

import pyphen

from sortk.records import Word

WordRule = Literal["sounds", "syllables", "hyphenation", "letters"]

CACHED_WORDS = 2**18  # more distinct words than most corpora have

# Constants of the rule `sounds`, in sounds.
FIXED = 2.0  # of an English word
FIXED_WEAK = 0.5  # of a weak one
FIXED_HESITATION = 5.0  # of "um": the pause that it fills continues after it
FIXED_ELSEWHERE = 0.5  # of a word in another language, for which there is no list of weak words
PAUSE = 2.0  # at a punctuation mark
SYLLABLES_PER_DIGIT = 2  # of numbers in other languages; espeak-ng has 1.5 in French, 2.2 in German, 2.5 in Russian

WEAK_WORDS = frozenset((
    "a", "an", "the", "some", "and", "but", "or", "if", "as", "than", "that", "of", "to", "in", "on", "at",
    "for", "from", "by", "with", "i", "you", "he", "she", "it", "we", "they", "me", "him", "her", "us", "them",
    "my", "your", "his", "its", "our", "their", "there", "is", "am", "are", "was", "were", "be", "been", "do",
    "does", "have", "has", "had", "can", "could", "will", "would", "shall", "should", "must",
))  # fmt: skip
HESITATIONS = frozenset(("um", "uh", "er", "erm", "mm", "hmm"))


def approximate_word_times(
    words: Sequence[str], start: float, end: float, lang: str = "en_US", rule: WordRule = "sounds"
) -> list[Word]:
    """Return the words of a segment [start, end], one after the other without gaps."""
    edges = find_word_edges(words, start, end, lang, rule)
    return [Word(text, *span) for text, span in zip(words, itertools.pairwise(edges), strict=True)]


def find_word_edges(words: Sequence[str], start: float, end: float, lang: str, rule: WordRule) -> list[float]:
    """Return the start of each word, delta_1 = start to delta_n, and then `end`."""
    if not words:
        return [end]
    if " ".join(words).isupper():  # then capitals do not mark words that are spelled letter by letter
        words = [word.lower() for word in words]
    counts = [weigh_word(word, lang, rule) for word in words]
    *before, total = itertools.accumulate(counts)
    seconds_per_count = (end - start) / total  # lambda = l / N
    return [start, *(min(start + seconds_per_count * count, end) for count in before), end]


@lru_cache(CACHED_WORDS)
def weigh_word(word: str, lang: str = "en_US", rule: WordRule = "sounds") -> float:
    """Return n_i, the length of the word by the rule; at least one."""
    language = find_language(lang)
    if rule == "sounds":
        sounds = sum(_weigh_part(part, language) for part in read_aloud(word, language))
        return max(1.0, sounds + PAUSE * word.endswith((",", ".", "?", "!", ";", ":")))
    if rule == "syllables":
        return max(1, sum(_count_part(part, language) for part in read_aloud(word, language)))
    if rule == "hyphenation":
        return len(_hyphenator(language).positions(word.strip(_PUNCTUATION))) + 1
    if rule == "letters":
        return max(1, sum(map(str.isalnum, word)))
    raise ValueError(f"unknown rule {rule!r} for word times; rules: {', '.join(get_args(WordRule))}")


@cache
def find_language(lang: str) -> str:
    """Return pyphen's name of a language: en-us is en_US, de_LU is de. Raise ValueError for an unknown language."""
    language: str | None = pyphen.language_fallback(lang)
    if language is not None:
        return language
    same_start = [name for name in pyphen.LANGUAGES if lang[:2].lower() == name[:2]]
    close = sorted(same_start or difflib.get_close_matches(lang, pyphen.LANGUAGES))
    hint = f"close to it: {', '.join(close)}" if close else f"languages: {', '.join(sorted(pyphen.LANGUAGES))}"
    raise ValueError(f"unknown language {lang!r}; {hint} (Chinese, Japanese and Korean work with any)")


@cache
def _hyphenator(language: str) -> pyphen.Pyphen:
    return pyphen.Pyphen(lang=language)


_PUNCTUATION = ".,;:?!\"'()[]{}<>-–—…“”‘’«»¿¡"


# ---------------------------------------------------------------------------------------------------------------------
# Counting the parts of a word, as `read_aloud` gives them


def _weigh_part(part: str, language: str) -> float:
    if part.isdigit():
        return FIXED_ELSEWHERE + 2 * SYLLABLES_PER_DIGIT * len(part)
    if _is_english(part, language):
        is_weak = part.partition("'")[0] in WEAK_WORDS  # "it's" is as weak as "it"
        fixed = FIXED_HESITATION if part in HESITATIONS else FIXED_WEAK if is_weak else FIXED
        n_consonants = len(_CONSONANT.findall(part)) + part.count("x")  # k and s
        return fixed + _count_english(part) + n_consonants
    n_letters = sum(map(str.isalpha, part))
    return FIXED_ELSEWHERE + n_letters + len(_UNWRITTEN_VOWEL.findall(part))


def _count_part(part: str, language: str) -> int:
    if part.isdigit():
        return SYLLABLES_PER_DIGIT * len(part)
    return _count_english(part) if _is_english(part, language) else _count_elsewhere(part, language)


def _is_english(part: str, language: str) -> bool:
    # A word with an accent is borrowed, and its last e is spoken: café.
    return language.startswith("en") and part.isascii()


# ---------------------------------------------------------------------------------------------------------------------
# English spelling

_CONSONANT_Y = re.compile(r"(?<![^aeiou])y(?=[aeiou])(?!e[sd]?$)")  # yes, beyond; not city, day, played
_VOWEL_GROUP = re.compile(r"[aeiouy]+")

_SILENT = re.compile(  # a vowel group that is not a syllable
    r"""
      (?<=[^aeiouy]) (?<![^aeiouylrw'][lr]) (?<!mayb) e (?= $ | ' )   # time, you're; not table, centre
    | (?<=[^aeiouy]) e (?= (?: ly | ments? | fu?l+y? | less | ness | ty | ties ) $ )   # safely, movement, ninety
    | (?<=[^aeiouycghsxz]) (?<![^aeiouylrw'][lr]) es $   # times; not boxes, pages, tables
    | (?<=[^aeiouydt]) (?<![^aeiouylrw'][lr]) ed $   # walked; not wanted, hundred
    | (?<=[gq]) ues? $   # league, unique
    | (?<=^som) e (?=[^aeiou]) | (?<=^nin) e (?=t) | (?<=^ev) e (?=ry)   # something, nineteen, every
    | (?<=[ae]r) e (?=n't) | (?<=ic) a (?=lly$)   # aren't, basically
    """,
    re.VERBOSE,
)
_APART = re.compile(  # one more syllable than there are vowel groups
    r"""
      (?<![cghlnstx]) i (?=[aou]) | (?<=[ln]) i (?=um|ou)   # radio, titanium; not nation, million
    | i (?= (?:er|est)$ | et | en[ct] )   # easier, quiet, science
    | (?<![aeiougq]) u (?= [ao]. | e[lnr] )   # usual, fluent; not quality
    | [eou] (?=ing) | (?<![aeiou]) y (?=ing)   # being, trying; not playing
    | (?<!p) e (?=o(?!u)) | (?<=cr) e (?=at) | (?<=^r) e (?=act|al(?!ly)) | (?<=[aeiou][^aeiou]) e (?=a$)   # area
    | (?<=s) m $ | (?<=th) m $   # prism, rhythm
    | (?<=[dst]) n't | (?<=[^aeiouyr]) '(?:ll|ve)$ | (?<=[dt]) 'd$   # didn't, it'll, it'd
    | (?<=[sxz]) 's$ | (?<=[cs]h) 's$ | (?<=[cg]e) 's$   # boss's, George's
    """,
    re.VERBOSE,
)
_CONSONANT = re.compile(r"[cgpstw]h|ck|ng|([bcdfghjklmnpqrstvwxz])\1?")  # two letters, one sound: th, ck, tt


def _count_english(part: str) -> int:
    groups = _VOWEL_GROUP.findall(_CONSONANT_Y.sub("j", part))
    return max(1, len(groups) - len(_SILENT.findall(part)) + len(_APART.findall(part)))


# ---------------------------------------------------------------------------------------------------------------------
# Other languages

_WRITTEN_VOWEL = re.compile(
    "[aeiouyæœøıə]+|[íú]"  # Latin: two in a row are mostly one syllable, but not with these: día
    "|[аъеёиоуыэюяіїєөү]"  # Cyrillic: each is one
    "|[αεου][ιί]|[αεηο][υύ]|[αεηιουωάέήίόύώϊϋΐΰ]"  # Greek: some pairs are one
)
_UNWRITTEN_VOWEL = re.compile(
    r"""
      [\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff\uac00-\ud7a3]   # Han, Hangul: each character is a syllable
    | (?=[\u3041-\u30ff]) [^ぁぃぅぇぉゃゅょゎァィゥェォャュョヮ・]   # kana; a small one belongs to the one before
    | (?=[\u0900-\u0dff]) [^\W\d_] (?![\u094d\u09cd\u0a4d\u0acd\u0b4d\u0bcd\u0c4d\u0ccd\u0d4d])   # India: no virama
    | (?=[\u0590-\u08ff\u0e00-\u0e7f]) [^\W\d_]{1,2}   # Hebrew, Arabic, Thai: a syllable has about two letters
    """,
    re.VERBOSE,
)
_SILENT_IN = {
    "fr": re.compile(r"(?<=[bcçdfghjklmnpqrstvwxz])(?:e|es|ent)$"),
    "hu": re.compile(r"(?<=[glnt])y"),
    "ru": re.compile(r"ъ"),  # a vowel in Bulgarian
}
"""By language, vowel letters that are silent."""


def _count_elsewhere(part: str, language: str) -> int:
    silent = _SILENT_IN.get(language.partition("_")[0])
    spoken = silent.sub("", part) if silent else part
    without_accents = "".join(map(_base_letter, spoken))
    return max(1, len(_WRITTEN_VOWEL.findall(without_accents)) + len(_UNWRITTEN_VOWEL.findall(part)))


@cache
def _base_letter(letter: str) -> str:
    """Return the letter without its accent: é -> e. In other scripts it is another letter: й is not и."""
    base = unicodedata.normalize("NFD", letter)[0]
    return base if base.isascii() and letter not in "íú" else letter


# ---------------------------------------------------------------------------------------------------------------------
# Reading aloud: what is said for digits, capitals and compounds

_MARKS = r"\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0900-\u0963\u0971-\u0dff\u0e31-\u0e4e"  # not letters for Python
_LETTERS = rf"(?:[^\W\d_]|[{_MARKS}])+"
_PART = re.compile(rf"(?P<number>\d+(?:[.,:]\d+)*)(?:(?:st|nd|rd|th|s)\b)?|(?P<letters>{_LETTERS}(?:'{_LETTERS})*)")
_SPELLED_START = re.compile("[JLMNRVX][^AEIOUY]")  # English words do not start so: NVIDIA is en-vidia, JPEG jay-peg
_LETTER_NAMES = dict(zip("abcdefghijklmnopqrstuvwxyz", (
    "ay", "bee", "see", "dee", "ee", "eff", "gee", "aitch", "eye", "jay", "kay", "ell", "em", "en", "oh",
    "pee", "cue", "ar", "ess", "tee", "you", "vee", "doubleyou", "ex", "why", "zee",
), strict=True))  # fmt: skip
_UNITS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = ("ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_SCALES = ((10**9, "billion"), (10**6, "million"), (1000, "thousand"), (100, "hundred"))


def read_aloud(word: str, language: str) -> list[str]:
    """Return the lower-case words that are spoken for a word of text; none for punctuation.

    "24-bit" -> twenty four bit, "TV" -> tee vee. In other languages than English, numbers stay digits and spelled
    words become single letters.
    """
    text = unicodedata.normalize("NFKC", word).replace("’", "'")
    english = language.startswith("en")
    parts = []
    for match in _PART.finditer(text):
        if match["letters"]:
            parts += _read_letters(match["letters"], english)
        elif english:
            parts += _read_number(match["number"])
        else:
            parts += re.findall(r"\d+", match["number"])
    return parts


def _read_letters(letters: str, english: bool) -> list[str]:
    n_spelled = _count_spelled(letters)
    spelled = [_LETTER_NAMES.get(letter, letter) if english else letter for letter in letters[:n_spelled].lower()]
    rest = letters[n_spelled:].lower()
    return spelled if rest in ("", "s", "'s") else [*spelled, rest]  # nothing is added by the s of TVs


def _count_spelled(letters: str) -> int:
    """Return how many letters from the start are spoken by their names."""
    if len(letters) == 1:
        return letters not in "aAiI"
    stem = letters.removesuffix("s").removesuffix("'")
    if sum(map(str.isupper, stem)) < 2:
        return 0
    without_vowel = stem.isascii() and not _VOWEL_GROUP.search(stem.lower())
    if without_vowel or (stem.isupper() and len(stem) <= 3):  # TV, PhD; USA
        return len(stem)
    return int(stem.isupper() and _SPELLED_START.match(stem) is not None)


def _read_number(number: str) -> list[str]:
    """Return the words of a number; years in pairs (nineteen ninety nine), decimals by digit (three point one four)."""
    words = []
    for separator, digits in re.findall(r"([.:]?)(\d+)", number.replace(",", "")):
        if separator == ".":
            words += ["point", *_read_digits(digits)]
        elif len(digits) > 12 or (digits[0] == "0" and len(digits) > 1):
            words += _read_digits(digits)
        else:
            value = int(digits)
            if 1100 <= value < 2000 or 2010 <= value < 2100:
                century, year = divmod(value, 100)
                words += [*_read_cardinal(century), *(["hundred"] if year == 0 else ["oh"] if year < 10 else [])]
                words += _read_cardinal(year) if year else []
            else:
                words += _read_cardinal(value)
    return words


def _read_digits(digits: str) -> list[str]:
    return [_UNITS[int(digit)] for digit in digits]


def _read_cardinal(value: int) -> list[str]:
    for size, name in _SCALES:
        if value >= size:
            rest = value % size
            return [*_read_cardinal(value // size), name, *(_read_cardinal(rest) if rest else [])]
    if value < 20:
        return [_UNITS[value]]
    return [_TENS[value // 10 - 1], *([_UNITS[value % 10]] if value % 10 else [])]
