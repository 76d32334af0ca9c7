#!/usr/bin/env bash
# The stages of this recipe in order. Choose some: run.sh --stage train-diar --stop-stage 6 --nj 4 --variant debug
set -euo pipefail
. "$(dirname "$0")/../parse_options.sh"

run 0 prepare     # AudioMNIST -> sources.jsonl, split by speaker
run 1 simulate    # conversations with overlap -> audio, RTTM, SegLST
run 2 clean       # sessions -> windows for the diarizer, samples for the ASR
run 3 timestamps  # approximate word times from syllables
run 4 sst         # sorted serialized transcripts
run 5 train-diar  # the diarizer
run 6 train-asr   # the multi-speaker ASR, supervised by the diarizer
run 7 tune        # postprocessing with the lowest DER on the development set
run 8 score       # DER and cpWER of the test sets -> RESULTS.md, report.html
