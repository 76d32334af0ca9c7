"""The paper's own numbers (Park et al., Sortformer, ICML 2025), in per cent. None of them was measured here.

Of each table the rows that a recipe can have; None where the paper gives no number.
"""

from __future__ import annotations

from collections.abc import Mapping

Numbers = tuple[float | None, ...]

# Table 1: DER, overlap scored; collar 0 for DIHARD III and 0.25 s for the others.
TABLE_1_COLUMNS = (
    "DIHARD III, up to 4 spk",
    "CALLHOME part 2, 2 spk",
    "CALLHOME part 2, 3 spk",
    "CALLHOME part 2, 4 spk",
    "CH109",
)
TABLE_1: Mapping[tuple[str, str], Numbers] = {
    ("EEND-EDA", "none"): (15.55, 7.83, 12.29, 17.59, None),
    ("Sortformer-PIL", "none"): (18.33, 7.28, 11.57, 18.80, 5.66),
    ("Sortformer-PIL", "tuned"): (17.04, 6.94, 10.30, 17.52, 6.89),
    ("Sortformer-Sort-Loss", "none"): (17.88, 7.42, 12.68, 19.42, 9.08),
    ("Sortformer-Sort-Loss", "tuned"): (17.10, 6.52, 10.36, 17.40, 10.85),
    ("Sortformer-Hybrid-Loss", "none"): (16.28, 6.49, 10.01, 14.14, 6.27),
    ("Sortformer-Hybrid-Loss", "tuned"): (14.76, 5.87, 8.46, 12.59, 6.86),
}

# Table 2: short segments of AMI test with up to four speakers, and of CH109.
TABLE_2_COLUMNS = ("AMI test WER", "AMI test cpWER", "CH109 WER", "CH109 cpWER")
TABLE_2: Mapping[str, Numbers] = {
    "baseline": (26.93, None, 21.81, None),
    "1": (19.67, 32.94, 18.57, 24.80),
    "2": (20.08, 28.17, 18.65, 22.22),
    "3": (19.47, 32.74, 19.53, 26.97),
    "4": (19.48, 26.83, 18.74, 24.39),
    "5": (18.58, 28.59, 17.74, 22.19),
    "6": (18.04, 26.71, 16.46, 21.45),
}

# Table 3: WER on LibriSpeechMix. DOM-SOT was tested on mixtures with fixed delays, except for one speaker.
TABLE_3_COLUMNS = ("1mix WER", "2mix WER", "3mix WER")
TABLE_3: Mapping[str, Numbers] = {
    "Canary-170M": (2.19, 21.37, 48.71),
    "Canary-1B": (1.65, 20.49, 47.32),
    "SOT-ASR": (4.6, 11.2, 24.0),
    "SOT-ASR-SQR": (4.2, 8.7, 20.2),
    "DOM-SOT": (5.17, 5.56, 9.96),
    "MT-LLM": (2.3, 5.2, 10.2),
    "MS-Canary": (2.74, 6.55, 12.14),
    "Sortformer-MS-Canary": (2.26, 4.61, 9.05),
}
