# shellcheck shell=bash
# The steps of scripts/test: functions named step_NAME. Needs messages.sh, processes.sh and $root.

# shellcheck disable=SC2154 # the script that uses this sets it
results=$root/target/test-steps

# How many steps have failed. The functions below do not fail if a step does: bash ignores errexit in whatever is called as part of a
# condition, so a step would continue after a command of its own that fails.
failed=0

# The process of the step that runs.
step=''

# run_step NAME: runs a step, and records its result and time. In the background, so that the script handles a signal immediately.
run_step() {
  local name=$1 started=$SECONDS code=0
  say "${bold}$name${plain}"
  set +e
  (
    # With a trap, bash ends only after its present command. So after a signal to the whole process group the step is still the parent
    # of its processes, and end_step finds them.
    trap 'exit 143' HUP TERM
    # a server that outlives the script must not hold its locks
    exec 5<&- 6<&-
    set -e
    "step_${name//-/_}"
  ) &
  step=$!
  remember_process "$step" "$results.running"
  wait "$step"
  code=$?
  step=''
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

# end_step: ends the step that runs, with all its processes.
end_step() {
  local all=("$step") i pid
  [[ -n $step ]] || return 0
  for ((i = 0; i < ${#all[@]}; i++)); do mapfile -t -O "${#all[@]}" all < <(children_of "${all[i]}"); done
  kill -TERM "${all[@]}" 2>/dev/null || true
  for pid in "${all[@]}"; do wait_for_end "$pid" 30 || kill -KILL "$pid" 2>/dev/null || true; done
}

# end_former_step: ends the step of a run that was killed with SIGKILL.
end_former_step() {
  step=$(remembered_process "$results.running") || return 0
  end_step
  step=''
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
# the steps before it; those that failed then, or were never run, count. Prints a table.
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
      -)
        printf '%-20s %-8s\n' "$name" 'not run'
        failed=$((failed + 1))
        ;;
      *)
        printf '%-20s %-8s %s\n' "$name" FAILED "$(duration "$seconds")"
        failed=$((failed + 1))
        ;;
    esac
  done <"$results"
  printf '\n'
}
