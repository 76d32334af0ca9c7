#!/usr/bin/env bash
# The stages of this recipe in order. Choose some: run.sh --stage train-diar --stop-stage 6 --nj 4 --variant debug
set -euo pipefail
. "$(dirname "$0")/../parse_options.sh"

run 0 prepare     # ten corpora -> sources, train, part1, part2 and ch109 sessions
run 1 simulate    # 5 h for validation; training mixtures are made in stage 5
run 2 clean       # sessions -> windows for the diarizer, samples for the ASR
run 3 timestamps  # word times; these corpora have no transcripts
run 4 sst         # transcripts; likewise none
run 5 train-diar  # pretraining on all data, fine-tuning on recorded data
run 7 tune        # postprocessing on CALLHOME part 1 (Set-B)
run 8 score       # DER of Table 1 -> RESULTS.md, report.html
