from __future__ import annotations

from collections import Counter

import pytest

from sortk.corpora.splits import share, split_speakers


def test_each_split_has_its_share_of_each_gender() -> None:
    genders = {f"s{number:02d}": "f" if number % 5 == 0 else "m" for number in range(60)}  # 12 women, 48 men
    splits = split_speakers(genders, n_valid=10, n_test=10)
    counts = Counter((splits[speaker], gender) for speaker, gender in genders.items())
    assert counts == {
        ("test", "f"): 2,
        ("test", "m"): 8,
        ("valid", "f"): 2,
        ("valid", "m"): 8,
        ("train", "f"): 8,
        ("train", "m"): 32,
    }


def test_the_order_of_the_speakers_does_not_matter_but_the_seed_does() -> None:
    genders = {f"s{number}": "" for number in range(30)}
    backwards = dict(reversed(genders.items()))
    assert split_speakers(genders, 3, 3, seed=4) == split_speakers(backwards, 3, 3, seed=4)
    assert split_speakers(genders, 3, 3, seed=4) != split_speakers(genders, 3, 3, seed=5)


@pytest.mark.parametrize(("n_valid", "n_test"), [(0, 0), (0, 1), (1, 0), (3, 5), (1, 8)])
def test_splits_have_the_size_asked_for(n_valid: int, n_test: int) -> None:
    splits = split_speakers({f"s{number}": "fm"[number % 2] for number in range(10)}, n_valid, n_test)
    counts = Counter(splits.values())
    assert (counts["valid"], counts["test"], counts["train"]) == (n_valid, n_test, 10 - n_valid - n_test)


def test_training_must_keep_a_speaker() -> None:
    with pytest.raises(ValueError, match="leave none of the 4 for training"):
        split_speakers(dict.fromkeys("abcd", ""), 2, 2)


@pytest.mark.parametrize(
    ("fraction", "n_speakers", "count"), [(0.1, 60, 6), (0.1, 3, 1), (0.1, 2, 0), (0, 60, 0), (0.26, 10, 3)]
)
def test_a_fraction_becomes_a_number_of_speakers(fraction: float, n_speakers: int, count: int) -> None:
    assert share(fraction, n_speakers) == count
