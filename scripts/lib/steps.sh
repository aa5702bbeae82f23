# shellcheck shell=bash
# The steps of scripts/test: functions named step_NAME. Needs messages.sh and $root.

# shellcheck disable=SC2154 # the script that uses this sets it
results=$root/target/test-steps

# How many steps have failed. The functions below do not fail if a step does: bash ignores errexit in whatever is called as part of a
# condition, so a step would continue after a command of its own that fails.
failed=0

# run_step NAME: runs a step, and records its result and time.
run_step() {
  local name=$1 started=$SECONDS code=0
  say "${bold}$name${plain}"
  set +e
  (
    # a server that outlives the script must not hold its lock
    exec 6<&-
    set -e
    "step_${name//-/_}"
  )
  code=$?
  set -e
  case $code in
    0) hint "$name: $(duration $((SECONDS - started)))" ;;
    129 | 130 | 143) exit "$code" ;;
    *)
      say "${red}$name failed${plain} after $(duration $((SECONDS - started)))"
      failed=$((failed + 1))
      ;;
  esac
  printf '%s\t%s\t%s\n' "$name" "$code" "$((SECONDS - started))" >>"$results"
}

# run_steps NAME...: stops at the first step that fails.
run_steps() {
  local name
  mkdir -p "${results%/*}"
  : >"$results"
  for name in "$@"; do
    run_step "$name"
    ((failed == 0)) || break
  done
}

# run_all_steps FROM NAME...: continues after a failure. Starts at the step FROM, with the results that an earlier run recorded for
# the steps before it; those that failed then count. Prints a table.
run_all_steps() {
  local from=$1 name code seconds earlier=''
  shift
  mkdir -p "${results%/*}"
  for name in "$@"; do
    [[ $name != "$from" ]] || break
    earlier+=$(grep "^$name"$'\t' "$results" 2>/dev/null || printf '%s\t-\t0' "$name")$'\n'
  done
  printf '%s' "$earlier" >"$results"
  for name in "$@"; do
    if [[ $name == "$from" ]]; then from=''; fi
    if [[ -z $from ]]; then run_step "$name"; fi
  done
  failed=0
  printf '\n%-20s %-8s %s\n' step result time
  while IFS=$'\t' read -r name code seconds; do
    case $code in
      0) printf '%-20s %-8s %s\n' "$name" ok "$(duration "$seconds")" ;;
      -) printf '%-20s %-8s\n' "$name" 'not run' ;;
      *)
        printf '%-20s %-8s %s\n' "$name" FAILED "$(duration "$seconds")"
        failed=$((failed + 1))
        ;;
    esac
  done <"$results"
  printf '\n'
}
