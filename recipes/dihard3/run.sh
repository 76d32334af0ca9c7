#!/usr/bin/env bash
# The stages of this recipe in order. Choose some: run.sh --stage train-diar --stop-stage 6 --nj 4 --variant debug
set -euo pipefail
. "$(dirname "$0")/../parse_options.sh"

run 0 prepare     # DIHARD III -> dev and test sessions of up to four speakers
run 1 simulate    # nothing
run 2 clean       # sessions -> windows for the diarizer, samples for the ASR
run 3 timestamps  # word times; these corpora have no transcripts
run 4 sst         # transcripts; likewise none
run 5 train-diar  # takes the model of the recipe callhome as it is
run 7 tune        # postprocessing on the development set (Set-A)
run 8 score       # DER of Table 1 -> RESULTS.md, report.html
