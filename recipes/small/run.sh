#!/usr/bin/env bash
# The stages of this recipe in order. Choose some: run.sh --stage train-diar --set prepare.corpora_dir=/data
set -euo pipefail
. "$(dirname "$0")/../parse_options.sh"

run 0 prepare     # six sets of voices -> sources.jsonl, split by speaker
run 1 simulate    # the speech of every voice; some conversations to validate on
run 2 clean       # sessions -> windows for the diarizer
run 5 train-diar  # the diarizer that sortk ships
