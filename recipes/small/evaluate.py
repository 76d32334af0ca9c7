"""Makes the test sets of the recipe small, and scores diarizers on them: DER, number of speakers, speed.

    python recipes/small/evaluate.py --exp exp/small --corpora /data --model exp/small/05-train-diar/model
    python recipes/small/evaluate.py --exp exp/small --corpora /data --split valid --model MODEL --no-postprocess

Sessions of 90 s with 2, 3 and 4 speakers who say sentences, clean and noisy, of the voices that stage 0 has put into a
split; with --like, also sessions like meetings; and the excerpts of /data/conversation. DER is pooled over sessions,
with a collar of 0.25 s and overlap scored.
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sortk.formats import audio, manifest, rttm, sources, uem
from sortk.inference.diarize import DiarizeOptions, Diarizer, load, name_session
from sortk.prepare.simulate import SENTENCE_MS, SimulateOptions, index_sources, simulate_set
from sortk.records import SAMPLE_RATE, Region, Segment, Session
from sortk.scoring.der import DerReport, score_der
from sortk.scoring.intervals import DerOptions
from sortk.training.targets import frame_targets

SESSIONS = 8  # of each set, unless more are asked for
SECONDS = 90.0
SEED = 1
STRETCH = 19  # model frames in 1.5 s
NOISY = {"min_snr_db": 5.0, "max_snr_db": 20.0}


def make_sets(
    exp: Path, corpora: Path, split: str, n_sessions: int = SESSIONS, seed: int = SEED, like: Path | None = None
) -> dict[str, list[Session]]:
    """Return the simulated sets of a split by name, written below `exp`/sets if they are not there.

    With `like`, RTTM files of meetings, there is a further set: 2 to 4 speakers who take turns as there, in noise, half
    of them in a room.
    """
    utterances = [s for s in sources.read(exp / "00-prepare" / "sources.jsonl") if s.split == split]
    found = index_sources(utterances, exp / "sets" / split, SAMPLE_RATE, map)
    speakers = [s for s in found if s.utterance_ms >= SENTENCE_MS]
    noisy = NOISY | {"noise_dir": str(corpora / "noise")}
    kinds: dict[str, dict[str, Any]] = {
        f"{n_speakers}-{kind}": settings | {"min_speakers": n_speakers, "max_speakers": n_speakers}
        for kind, settings in (("clean", {}), ("noisy", noisy))
        for n_speakers in (2, 3, 4)
    }
    if like:
        room = {"rir_dir": str(corpora / "rir"), "dry_share": 0.5, "room_tone": 0.75}
        kinds["meetings"] = noisy | room | {"like": str(like), "cut_long": True}
    sets = {}
    for kind, settings in kinds.items():
        name = f"{split}-{kind}" + (f"-seed{seed}" if seed != SEED else "")
        path = exp / "sets" / name / f"{name}.jsonl"
        if not path.exists():
            options = SimulateOptions(seconds=SECONDS, same_collection=0.5, **settings)
            simulate_set(speakers, options, seed, name, n_sessions * SECONDS / 3600, path, map)
        sets[name] = manifest.read(path)
    return sets


def read_excerpts(folder: Path) -> tuple[list[Session], dict[str, list[Segment]], dict[str, list[Region]]]:
    """Return the real excerpts, their reference and the regions to score."""
    references: dict[str, list[Segment]] = {}
    for name in ("ref_only_words.rttm", "ref_pyannote.rttm"):  # the second has what the first has not: a telephone call
        by_session: dict[str, list[Segment]] = {}
        for segment in rttm.read(folder / name):
            by_session.setdefault(segment.session_id, []).append(segment)
        references = by_session | references
    regions: dict[str, list[Region]] = {}
    for region in uem.read(folder / "all.uem"):
        regions.setdefault(region.session_id, []).append(region)
    names = sorted(set(references) & set(regions))
    sessions = [name_session(folder / "flac" / f"{name}.flac") for name in names]
    return sessions, {n: references[n] for n in names}, {n: regions[n] for n in names}


def describe(name: str, report: DerReport) -> str:
    """Return a row of the table."""
    errors = report.overall.errors
    parts = (errors.wrong, errors.miss, errors.false_alarm, errors.confusion)
    rates = " ".join(f"{100 * errors.rate(part):6.2f}" for part in parts)
    return f"{name:24s} {rates}   {report.overall.n_right_counts}/{report.overall.n_sessions}"


@torch.inference_mode()
def equal_error_rate(diarizer: Diarizer, sessions: list[Session]) -> float:
    """Return how well the lower half of the encoder distinguishes voices that it has not learned.

    Stretches of 1.5 s in which one person speaks are embedded (the mean of their frames), and compared with all others
    of their session by the cosine. At the threshold where as many pairs of one voice are rejected as pairs of two are
    accepted, that share is the equal error rate.
    """
    same, different = [], []
    for session in sessions:
        assert session.rttm_path is not None
        samples = torch.from_numpy(audio.read(session.audio_path, sample_rate=SAMPLE_RATE))[None]
        frames = diarizer.model.embed(samples)[0]
        targets, _ = frame_targets(rttm.read(session.rttm_path), 0.0, len(frames), 4)
        stretches, voices = [], []
        for start in range(0, len(frames) - STRETCH, STRETCH // 2):
            spoken = targets[start : start + STRETCH]
            if spoken.sum() == STRETCH and spoken.any(axis=0).sum() == 1:
                stretches.append(torch.nn.functional.normalize(frames[start : start + STRETCH], dim=1).mean(dim=0))
                voices.append(int(spoken[0].argmax()))
        embeddings = torch.nn.functional.normalize(torch.stack(stretches), dim=1)
        cosines = (embeddings @ embeddings.T).numpy()
        for i, j in itertools.combinations(range(len(voices)), 2):
            if j - i > 1:  # neighbours share frames
                (same if voices[i] == voices[j] else different).append(float(cosines[i, j]))
    thresholds = np.sort(np.concatenate([same, different]))
    rejected = np.searchsorted(np.sort(same), thresholds) / len(same)
    accepted = 1 - np.searchsorted(np.sort(different), thresholds) / len(different)
    return float(np.maximum(rejected, accepted).min())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exp", type=Path, required=True)
    parser.add_argument("--corpora", type=Path, required=True)
    parser.add_argument("--split", default="test", choices=["train", "valid", "test"])
    parser.add_argument("--sessions", type=int, default=SESSIONS, help="of each simulated set  [%(default)s]")
    parser.add_argument("--seed", type=int, default=SEED, help="another one makes other sessions  [%(default)s]")
    parser.add_argument("--like", type=Path, help="RTTM files of meetings: also a set of sessions like them")
    parser.add_argument("--model", type=Path, help="a model folder  [the one that comes with sortk]")
    parser.add_argument("--no-postprocess", action="store_true", help="threshold 0.5 alone")
    parser.add_argument("--peer", choices=["segmentation", "resemblyzer"], help="a cascade of peers.py instead")
    parser.add_argument("--peers", type=Path, help="the folder with its unpacked packages")
    parser.add_argument("--threshold", type=float, default=0.5, help="cosine distance of the cascade `segmentation`")
    parser.add_argument("--voices", action="store_true", help="only the equal error rate of its embeddings")
    parser.add_argument("--excerpts", action="store_true", help="also the real excerpts of corpora/conversation")
    parser.add_argument("--manifest", type=Path, help="list all simulated sessions here, for tuning; score nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sets = make_sets(options.exp, options.corpora, options.split, options.sessions, options.seed, options.like)
    if options.manifest:
        manifest.write(options.manifest, [session for sessions in sets.values() for session in sessions])
        return
    if options.peer:
        import peers  # noqa: PLC0415 - its packages are rarely there

        load_peer = peers.load_resemblyzer if options.peer == "resemblyzer" else peers.load_segmentation
        find_segments = load_peer(options.peers, *([options.threshold] if options.peer == "segmentation" else []))
    else:
        diarizer = load(options.model, DiarizeOptions() if options.no_postprocess else None)
        find_segments = lambda session: diarizer.find_segments(*next(iter(diarizer.posteriors_of([session]))))  # noqa: E731
        if options.voices:
            for name, sessions in sets.items():
                print(f"{name:24s} {100 * equal_error_rate(diarizer, sessions):6.2f} % equal error rate", flush=True)
            return
    collar = DerOptions(collar=0.25)
    print(f"{'set':24s} {'DER':>6s} {'missed':>6s} {'false':>6s} {'conf.':>6s}   speakers right")
    started, seconds = time.process_time(), 0.0
    for name, sessions in sets.items():
        references = {s.session_id: rttm.read(s.rttm_path) for s in sessions if s.rttm_path}
        found = {s.session_id: find_segments(s) for s in sessions}
        seconds += sum(s.duration or 0.0 for s in sessions)
        print(describe(name, score_der(references, found, options=collar)), flush=True)
    print(f"{seconds / (time.process_time() - started):.0f} times real time")
    if options.excerpts:
        sessions, references, regions = read_excerpts(options.corpora / "conversation")
        found = {s.session_id: find_segments(s) for s in sessions}
        print(describe("excerpts", score_der(references, found, regions, collar)))


if __name__ == "__main__":
    main()
