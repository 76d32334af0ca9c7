#!/usr/bin/env bash
# The stages of this recipe in order. Choose some: run.sh --stage train-diar --stop-stage 6 --nj 4 --variant debug
set -euo pipefail
. "$(dirname "$0")/../parse_options.sh"

run 0 prepare     # LibriSpeech and the official lists of mixtures
run 1 simulate    # validation and test mixtures
run 2 clean       # every mixture is one sample
run 3 timestamps  # approximate word times from syllables
run 4 sst         # sorted serialized transcripts
run 5 train-diar  # Sortformer, fine-tuned on mixtures
run 6 train-asr   # Canary, fine-tuned with the frozen Sortformer
run 7 tune        # postprocessing with the lowest DER on the development set
run 8 score       # WER of Table 3 -> RESULTS.md, report.html
