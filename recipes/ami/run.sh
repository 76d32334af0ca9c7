#!/usr/bin/env bash
# The stages of this recipe in order. Choose some: run.sh --stage train-diar --stop-stage 6 --nj 4 --variant debug
set -euo pipefail
. "$(dirname "$0")/../parse_options.sh"

run 0 prepare     # AMI, ICSI, DipCo, Fisher and CH109 -> train, valid, test and ch109 sessions
run 1 simulate    # nothing; recorded speech only
run 2 clean       # sessions -> windows for the diarizer, samples for the ASR
run 3 timestamps  # approximate word times from syllables
run 4 sst         # sorted serialized transcripts
run 5 train-diar  # takes NVIDIA's Sortformer as it is
run 6 train-asr   # Canary, fine-tuned with speaker supervision (system 2)
run 7 tune        # postprocessing with the lowest DER on the development set
run 8 score       # WER and cpWER of Table 2 -> RESULTS.md, report.html
