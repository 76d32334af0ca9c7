#!/usr/bin/env bash
# All stages of this recipe; give any option of `sortk run`, e.g. --stop-stage 1 --nj 4.
set -euo pipefail
exec sortk run --recipe "$(dirname "$0")" "$@"
