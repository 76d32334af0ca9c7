# Sourced by every run.sh, as Kaldi's utils/parse_options.sh is: sets stage and stop_stage, and defines `run`.
# --stage A and --stop-stage B choose stages by number or name; all other options go to `sortk stage`.
stage=0
stop_stage=8
options=()

find_number() {  # of a stage: 5, or train-diar as the script calls it
  local number
  number=$(awk -v stage="$1" '$1 == "run" && $3 == stage { print $2 }' "$0")
  [[ $1 =~ ^[0-9]$ ]] && number=$1  # also that of a stage which this recipe does without
  [ -n "$number" ] || { echo "$0: there is no stage '$1'; see $0 --help" >&2; exit 2; }
  echo "$number"
}

while [ $# -gt 0 ]; do
  case $1 in
    --stage | --stop-stage | --stop_stage)
      [ $# -gt 1 ] || { echo "$0: $1 needs a stage" >&2; exit 2; }
      number=$(find_number "$2")
      if [ "$1" = --stage ]; then stage=$number; else stop_stage=$number; fi
      shift 2 ;;
    -h | --help)
      echo "usage: $0 [--stage A] [--stop-stage B] [options of sortk stage]"
      sed -n -E 's/^run ([0-9] [a-z-]+ *)# /  \1/p' "$0"
      exit 0 ;;
    *) options+=("$1"); shift ;;
  esac
done

run() {  # run N NAME: stage N of the recipe that this script stands beside, if it was chosen
  if [ "$stage" -le "$1" ] && [ "$1" -le "$stop_stage" ]; then
    sortk stage "$2" --recipe "$(dirname "$0")" ${options[@]+"${options[@]}"}
  fi
}
