"""Random choices that depend on a name and on nothing else: not on the process, the machine or the order of calls."""

from __future__ import annotations

import hashlib
import random


def stable_random(*parts: object) -> random.Random:
    """A generator seeded by the parts, e.g. `stable_random(seed, speaker, index)`."""
    # The built-in hash() of a string changes from process to process.
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return random.Random(int.from_bytes(digest[:8], "big"))
