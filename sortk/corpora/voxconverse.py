"""VoxConverse 0.3: clips of debates and news with RTTM. A checkout of its repository, with the two zip files in it:

    dev/<clip>.rttm                    test/<clip>.rttm
    audio/<clip>.wav                   voxconverse_test_wav/<clip>.wav

The audio may also be beside the RTTM files, or in dev/audio/ and test/audio/. There are no transcripts.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from sortk.corpora.sessions import Parts, Published, RecordedSession, find_parts, name_speakers, read_sessions
from sortk.formats import audio, rttm
from sortk.formats.files import FormatError
from sortk.records import RunJobs

AUDIO_FOLDERS = {
    "dev": ("audio", "dev/audio", "dev", "voxconverse_dev_wav", "voxconverse_dev_wav/audio"),
    "test": ("voxconverse_test_wav", "test/audio", "test", "test/voxconverse_test_wav", "audio"),
}

PUBLISHED = {"dev": Published(216, 20.3), "test": Published(232, 43.5)}


def read(corpus_dir: Path, run_jobs: RunJobs) -> Parts:
    """Return the clips of the parts that are on disk."""
    audio_of = {part: _find_clips(corpus_dir, part) for part in AUDIO_FOLDERS}
    if not any(audio_of.values()):
        raise FileNotFoundError(f"{corpus_dir / 'dev'}: no .rttm file here; --corpus-dir must be a git checkout")
    return read_sessions(partial(read_clip, corpus_dir), find_parts(audio_of), run_jobs)


def read_clip(corpus_dir: Path, clip: str, audio_path: Path) -> RecordedSession:
    """Read one clip. spk00 is another person in each clip, so the name of the clip is put before it."""
    path = next(path for part in AUDIO_FOLDERS if (path := corpus_dir / part / f"{clip}.rttm").is_file())
    segments = rttm.read(path)
    for segment in segments:
        if segment.session_id != clip:
            raise FormatError(path, None, f"has a segment of another clip, {segment.session_id}")
    return RecordedSession(clip, audio_path, audio.info(audio_path).seconds, name_speakers(segments))


def _find_clips(corpus_dir: Path, part: str) -> dict[str, Path]:
    """Return the clips with an RTTM file, and where their audio is or should be."""
    folders = [corpus_dir / folder for folder in AUDIO_FOLDERS[part]]
    clips = sorted(path.stem for path in (corpus_dir / part).glob("*.rttm"))
    return {
        clip: next(
            (path for folder in folders if (path := folder / f"{clip}.wav").is_file()), folders[0] / f"{clip}.wav"
        )
        for clip in clips
    }
