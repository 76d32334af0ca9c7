"""Tunes postprocessing on simulated sessions and on real excerpts at once, and writes postprocess.toml.

    python recipes/small/tune.py --exp exp/small --corpora /data --model small --like dev.rttm --out postprocess.toml

`sortk tune` pools the sessions of one manifest. On simulated ones alone, it finds values that drop the short words of
meetings. Here each set of `evaluate.py` (of the split valid, with --like) has a weight, and the excerpts have both of
their references.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean

import optuna
import torch
from evaluate import make_sets, read_excerpts

from sortk.formats import rttm
from sortk.formats.postprocess import POSTPROCESS_NAME, Postprocess, read_postprocess, write_postprocess
from sortk.inference.diarize import load
from sortk.inference.postprocess import find_segments, name_segments
from sortk.records import Segment
from sortk.scoring.der import score_der
from sortk.scoring.intervals import DerOptions

RANGES = {
    "onset": (0.35, 0.65),
    "offset": (0.3, 0.6),
    "pad_onset": (0.0, 0.15),
    "pad_offset": (0.0, 0.15),
    "min_duration_on": (0.1, 0.8),
    "min_duration_off": (0.2, 1.2),
}
MEETINGS_WEIGHT, EXCERPTS_WEIGHT = 0.15, 0.5  # the mean of the other sets has weight 1
COLLAR = DerOptions(collar=0.25)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exp", type=Path, required=True)
    parser.add_argument("--corpora", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--like", type=Path, required=True, help="RTTM files of meetings, as for evaluate.py")
    parser.add_argument("--sessions", type=int, default=40, help="of each simulated set  [%(default)s]")
    parser.add_argument("--trials", type=int, default=70)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    diarizer = load(options.model)
    sets = make_sets(options.exp, options.corpora, "valid", options.sessions, like=options.like)
    excerpts, words, regions = read_excerpts(options.corpora / "conversation")
    sounds: dict[str, list[Segment]] = {session.session_id: [] for session in excerpts}
    for segment in rttm.read(options.corpora / "conversation" / "ref_pyannote.rttm"):
        sounds[segment.session_id].append(segment)
    everything = [*excerpts, *(session for sessions in sets.values() for session in sessions)]
    posteriors = {session.session_id: probs for session, probs in diarizer.posteriors_of(everything)}
    references = {s.session_id: rttm.read(s.rttm_path) for s in everything if s.rttm_path}

    def measure(postprocess: Postprocess) -> dict[str, float]:
        """Return the DER of each set in percent."""
        found = {name: name_segments(name, find_segments(probs, postprocess)) for name, probs in posteriors.items()}
        rates = {}
        for name, sessions in sets.items():
            names = [session.session_id for session in sessions]
            report = score_der({n: references[n] for n in names}, {n: found[n] for n in names}, options=COLLAR)
            rates[name] = 100 * report.overall.errors.rate(report.overall.errors.wrong)
        for name, reference in (("excerpts, words", words), ("excerpts, sounds", sounds)):
            report = score_der(reference, {n: found[n] for n in reference}, regions, COLLAR)
            rates[name] = 100 * report.overall.errors.rate(report.overall.errors.wrong)
        return rates

    def objective(trial: optuna.Trial) -> float:
        rates = measure(Postprocess(**{name: trial.suggest_float(name, *limits) for name, limits in RANGES.items()}))
        trial.set_user_attr("rates", rates)
        real = fmean(rate for name, rate in rates.items() if name.startswith("excerpts"))
        like = fmean(rate for name, rate in rates.items() if "meetings" in name)
        others = fmean(rate for name, rate in rates.items() if "clean" in name or "noisy" in name)
        return others + MEETINGS_WEIGHT * like + EXCERPTS_WEIGHT * real

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0, multivariate=True))
    if (options.model / POSTPROCESS_NAME).exists():
        before = read_postprocess(options.model / POSTPROCESS_NAME)
        study.enqueue_trial({name: getattr(before, name) for name in RANGES})
    study.optimize(objective, n_trials=options.trials, show_progress_bar=True)
    for name, rate in study.best_trial.user_attrs["rates"].items():
        print(f"{name:24s} {rate:6.2f}")
    best = Postprocess(**{name: round(value, 3) for name, value in study.best_params.items()})
    write_postprocess(options.out, best, {"trials": options.trials, "objective": study.best_value, "seed": 0})


if __name__ == "__main__":
    main()
