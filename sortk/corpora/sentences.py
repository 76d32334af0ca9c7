"""Sentences of everyday conversation from a small grammar: back-channels, questions, answers, statements, stories.

A rule is a list of templates; `<name>` in a template stands for one alternative of the rule `name`. Punctuation is for
the prosody of the synthesizer and is left out of the transcript. Numbers are written as words, so that the words of the
transcript are exactly the words that are spoken.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from sortk.corpora.splits import stable_random

MAX_WORDS = 18

# How often each kind of utterance occurs. Back-channels are frequent in real conversation, and they are what overlaps.
KINDS = {"backchannel": 0.2, "question": 0.2, "answer": 0.2, "statement": 0.22, "story": 0.18}

# Base form and past; then what follows the verb.
VERBS = (
    ("buy", "bought", "<thing>"),
    ("sell", "sold", "the <color> <object>"),
    ("find", "found", "the <object> in the <room>"),
    ("eat", "ate", "<food> for <meal>"),
    ("cook", "cooked", "<food> and <food>"),
    ("order", "ordered", "<food> with <food>"),
    ("bring", "brought", "some <food> to the <event>"),
    ("drink", "drank", "<drink> with <person>"),
    ("make", "made", "<meal> for <person>"),
    ("take", "took", "the <vehicle> to the <place>"),
    ("walk", "walked", "to the <place>"),
    ("fly", "flew", "to <city> with <person>"),
    ("travel", "traveled", "to <city> by <vehicle>"),
    ("visit", "visited", "<person> in <city>"),
    ("call", "called", "<person> about the <event>"),
    ("meet", "met", "<person> at the <place>"),
    ("help", "helped", "<person> with the <task>"),
    ("ask", "asked", "<person> for help"),
    ("tell", "told", "<person> about the <task>"),
    ("learn", "learned", "some <language>"),
    ("play", "played", "<game> at the <place>"),
    ("watch", "watched", "the <event> with <person>"),
    ("clean", "cleaned", "the <room>"),
    ("paint", "painted", "the <room> <color>"),
    ("fix", "fixed", "the <object>"),
    ("finish", "finished", "the <task>"),
    ("send", "sent", "<person> the <task>"),
    ("write", "wrote", "the <task>"),
    ("feed", "fed", "the <animal>"),
    ("pay", "paid", "<number> dollars for the <object>"),
    ("work", "worked", "at the <place>"),
    ("stay", "stayed", "home with the <animal>"),
    ("wait", "waited", "<number> minutes for the <vehicle>"),
)

GRAMMAR: dict[str, tuple[str, ...]] = {
    # --- whole utterances ---
    "backchannel": (
        "yeah.", "yes.", "no.", "right.", "okay.", "uh huh.", "sure.", "exactly.", "really?", "oh, really?",
        "i see.", "of course.", "got it.", "no way!", "makes sense.", "good point.", "wow.", "that's true.", "great.",
        "same here.", "oh no.", "oh, nice.", "me too.", "absolutely.", "fine.", "well, yeah.", "um, okay.",
    ),
    "question": (
        "do you <do> <often>?",
        "did <person> <do> <past_time>?",
        "does <person> still <do>?",
        "will you <do> <future_time>?",
        "can you <do> <future_time>?",
        "why don't we <do> <future_time>?",
        "what time does the <event> start?",
        "how was the <event> <past_time>?",
        "how much is the <color> <object>?",
        "how many <people> are coming to the <event>?",
        "have you ever been to <city>?",
        "where is the <place>?",
        "who told you about the <event>?",
        "are you free on <day> <daypart>?",
        "what do you think about the <event>?",
        "which <object> do you like, the <color> one or the <color> one?",
        "is it <degree> <weather> in <city>?",
        "when did you <do>?",
        "do you want <drink> or <drink>?",
        "could you tell me the way to the <place>, please?",
        "what happened to your <object>?",
    ),
    "answer": (
        "yes, i <did> <past_time>.",
        "no, i don't think so.",
        "no, <person> <did> <past_time>.",
        "maybe around <hour>.",
        "at <hour> in the <daypart>.",
        "about <number> <people>, i guess.",
        "it's on <day>, in the <daypart>.",
        "i think it was in <month>.",
        "it's on the <ordinal> floor.",
        "it was <degree> <quality>.",
        "not yet, but soon.",
        "i have no idea.",
        "it costs about <number> dollars.",
        "we usually <do> <often>.",
        "sorry, i can't, i have to <do>.",
        "only if it isn't too <quality>.",
        "because <person> <did>.",
        "with <person>, next to the <place>.",
        "the <color> one, please.",
        "yes, please, with <food>.",
        "let's ask <person>.",
    ),
    "statement": (
        "<person> <did> <past_time>.",
        "<filler>, <person> <did>.",
        "i want to <do> <future_time>.",
        "we should <do> before the <event>.",
        "the <place> is <degree> <quality>.",
        "it's <degree> <weather> <today>.",
        "<person> has <number> <animals>.",
        "there are <number> <people> at the <place>.",
        "my favorite color is <color>.",
        "i'm <degree> <feeling> <today>.",
        "<name> works as a <job> in <city>.",
        "the <event> is on the <ordinal> of <month>.",
        "<filler>, i need <thing>.",
        "i never <did> in <month>.",
        "the <object> in the <room> doesn't work.",
        "we're going to <do> <future_time>.",
        "they didn't <do> <past_time>.",
        "i'd like some <food>, <food> and <drink>.",
        "<person> said the <event> was <quality>.",
    ),
    "story": (
        "<filler>, <person> <did> <past_time>, <joint> i <did>.",
        "i wanted to <do>, <joint> the <place> was <degree> <quality>.",
        "<filler>, if it's <weather> <future_time>, we can <do> and <do>.",
        "when <person> <did>, i was <degree> <feeling>, <joint> i went home.",
        "<person> <did>, then we <did>, and it was <degree> <quality>.",
        "<filler>, <filler>, the <event> was <quality>, <joint> the <people> were <feeling>.",
        "first we <did>, and after that <person> <did>.",
        "my <job> said that i should <do>, <joint> i'm <degree> <feeling> <today>.",
        "do you remember the <event> in <city>, when <person> <did>?",
    ),
    # --- phrases ---
    "do": tuple(f"{base} {rest}" for base, _, rest in VERBS),
    "did": tuple(f"{past} {rest}" for _, past, rest in VERBS),
    "thing": ("a new <object>", "an old <object>", "a <color> <object>", "the <color> <object>", "another <object>"),
    "person": ("<name>", "<name>", "my <relative>", "our <job>", "the <job>"),
    "past_time": (
        "yesterday", "last <day>", "last week", "last night", "last <season>", "in <month>", "on <day> <daypart>",
        "<small_number> days ago", "this <daypart>",
    ),
    "future_time": (
        "tomorrow", "tonight", "next <day>", "next week", "next <season>", "in <month>", "on <day> <daypart>", "later",
        "in <small_number> days",
    ),
    "often": ("every day", "every <day>", "in the <daypart>", "once a week", "twice a month", "sometimes", "on <day>"),
    "hour": ("<small_number>", "half past <small_number>", "<small_number> thirty", "noon", "midnight"),
    "number": ("<small_number>", "<teen>", "<ten>", "<ten> <digit>", "a hundred"),
    "today": ("today", "now", "this <daypart>", "these days"),
    # --- words ---
    "filler": (
        "um", "uh", "well", "so", "you know", "i mean", "actually", "honestly", "look", "anyway", "oh", "by the way",
        "listen",
    ),
    "joint": ("and", "but", "so", "because", "although", "while", "since"),
    "degree": ("very", "really", "quite", "pretty", "rather", "so", "kind of"),
    "quality": (
        "good", "bad", "great", "nice", "terrible", "expensive", "cheap", "busy", "quiet", "boring", "interesting",
        "funny", "beautiful", "crowded", "small", "big", "strange", "long", "difficult",
    ),
    "feeling": ("tired", "happy", "sad", "hungry", "angry", "nervous", "excited", "worried", "surprised", "sick"),
    "weather": ("cold", "warm", "hot", "sunny", "cloudy", "windy", "dry"),
    "season": ("spring", "summer", "autumn", "winter"),
    "day": ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"),
    "month": (
        "january", "february", "march", "april", "june", "july", "august", "september", "october", "november",
        "december",
    ),
    "daypart": ("morning", "afternoon", "evening"),
    "digit": ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    "small_number": ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    "teen": ("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
    "ten": ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"),
    "ordinal": ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"),
    "name": (
        "anna", "david", "maria", "peter", "emma", "tom", "sarah", "james", "lucy", "robert", "julia", "daniel",
        "laura", "oliver",
    ),
    "relative": (
        "brother", "sister", "mother", "father", "uncle", "cousin", "grandmother", "daughter", "son", "wife",
        "husband", "neighbor",
    ),
    "job": (
        "doctor", "teacher", "boss", "nurse", "lawyer", "driver", "manager", "dentist", "farmer", "waiter", "pilot",
    ),
    "people": ("people", "children", "students", "guests", "players", "friends"),
    "place": (
        "market", "station", "airport", "office", "school", "library", "hospital", "bank", "museum", "beach", "park",
        "hotel", "restaurant", "theater", "river", "lake", "garden", "village", "church",
    ),
    "city": (
        "london", "paris", "boston", "chicago", "madrid", "berlin", "tokyo", "rome", "dublin", "toronto", "sydney",
        "vienna",
    ),
    "room": ("kitchen", "bathroom", "bedroom", "garage", "basement", "living room"),
    "object": (
        "phone", "car", "lamp", "table", "chair", "camera", "computer", "clock", "mirror", "guitar", "piano", "radio",
        "window", "key", "ticket", "umbrella", "bag",
    ),
    "animal": ("dog", "cat", "horse", "rabbit", "bird"),
    "animals": ("dogs", "cats", "horses", "rabbits", "birds"),
    "food": (
        "rice", "bread", "cheese", "eggs", "soup", "salad", "pasta", "pizza", "fish", "potatoes", "tomatoes", "apples",
        "bananas", "oranges", "cake", "chocolate", "butter", "mushrooms", "pancakes", "beans", "sugar", "ice cream",
    ),
    "drink": ("coffee", "tea", "water", "milk", "juice", "wine", "beer"),
    "meal": ("breakfast", "lunch", "dinner"),
    "vehicle": ("bus", "train", "taxi", "boat", "bike", "subway", "plane"),
    "event": (
        "party", "meeting", "wedding", "concert", "game", "movie", "class", "festival", "trip", "race", "interview",
        "lecture",
    ),
    "task": ("report", "letter", "homework", "project", "article", "speech", "exam", "schedule"),
    "game": ("tennis", "football", "basketball", "chess", "golf", "hockey", "cards"),
    "language": ("english", "spanish", "french", "german", "italian", "music", "history"),
    "color": ("red", "blue", "green", "yellow", "black", "white", "brown", "purple", "gray"),
}  # fmt: skip

# Words that a sentence may well use twice.
FUNCTION_WORDS = frozenset((
    "a", "about", "and", "at", "for", "i", "i'm", "in", "is", "it", "it's", "my", "of", "on", "one", "our", "so",
    "some", "that", "the", "to", "was", "we", "with", "you",
))  # fmt: skip

_SLOT = re.compile(r"<(\w+)>")
_WORD = re.compile(r"[a-z']+")


@dataclass(frozen=True, slots=True)
class Sentence:
    """The text for the synthesizer, and the places of its words."""

    spoken: str

    @property
    def words(self) -> list[str]:
        """Lower-case words without punctuation, in order."""
        return _WORD.findall(self.spoken)

    @property
    def word_positions(self) -> list[int]:
        """Index of each word's first character in `spoken`."""
        return [match.start() for match in _WORD.finditer(self.spoken)]

    @property
    def text(self) -> str:
        return " ".join(self.words)


def make_sentence(seed: int, speaker: str, index: int, alternatives: int | None = None) -> Sentence:
    """Return the `index`-th sentence of a speaker: the same on every machine and in any order of calls.

    `alternatives` limits each rule to its first alternatives: fewer words, for models that train in minutes.
    """
    rng = stable_random(seed, speaker, index)
    kind = rng.choices(list(KINDS), weights=list(KINDS.values()))[0]
    while True:
        sentence = Sentence(_expand(kind, rng, alternatives))
        content = [word for word in sentence.words if word not in FUNCTION_WORDS]
        # One breath is enough for it, and no content word is repeated, as in "rice and rice".
        if len(sentence.words) <= MAX_WORDS and len(set(content)) == len(content):
            return sentence


def vocabulary(alternatives: int | None = None) -> set[str]:
    """Return every word that a sentence can contain."""
    templates = [template for rule in GRAMMAR.values() for template in rule[:alternatives]]
    return {word for template in templates for word in _WORD.findall(_SLOT.sub(" ", template))}


def _expand(rule: str, rng: random.Random, alternatives: int | None) -> str:
    """Return one alternative of the rule, with its slots filled from left to right."""
    return _SLOT.sub(lambda slot: _expand(slot[1], rng, alternatives), rng.choice(GRAMMAR[rule][:alternatives]))
