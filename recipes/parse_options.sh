# Sourced by every run.sh, as Kaldi's utils/parse_options.sh is: sets stage and stop_stage, and defines `run`.
# --stage A and --stop-stage B choose stages; all other options go to `sortk stage`.
stage=0
stop_stage=8
options=()
while [ $# -gt 0 ]; do
  case $1 in
    --stage) stage=$2; shift 2 ;;
    --stop-stage | --stop_stage) stop_stage=$2; shift 2 ;;
    -h | --help)
      echo "usage: $0 [--stage A] [--stop-stage B] [options of sortk stage]"
      sed -n 's/^run \([0-9]\) *# /  \1 /p' "$0"
      exit 0 ;;
    *) options+=("$1"); shift ;;
  esac
done

run() {  # run N: stage N of the recipe that this script stands beside, if it was chosen
  if [ "$stage" -le "$1" ] && [ "$1" -le "$stop_stage" ]; then
    sortk stage "$1" --recipe "$(dirname "$0")" ${options[@]+"${options[@]}"}
  fi
}
