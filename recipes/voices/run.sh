#!/usr/bin/env bash
# The stages of this recipe in order. Choose some: run.sh --stage train-diar --stop-stage 6 --nj 4 --variant debug
set -euo pipefail
. "$(dirname "$0")/../parse_options.sh"

run 0 prepare     # sources of four corpora, split by speaker
run 1 simulate    # conversations for validation and test; those for training are made in stage 5
run 2 clean       # sessions -> windows for the diarizer
run 3 timestamps  # word times, which only an ASR needs
run 4 sst         # transcripts, likewise
run 5 train-diar  # encoder warm-up, short windows, long windows
run 7 tune        # postprocessing with the lowest DER on the validation voices
run 8 score       # DER of Table 1 -> RESULTS.md, report.html
