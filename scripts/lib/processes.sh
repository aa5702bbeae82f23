# shellcheck shell=bash
# Processes by number: who one is, and how to end it and nothing else.

# process_started PID: when it started, in clock ticks since boot; with the number this names one process for good.
# Fails if there is none or only its exit status is left; one with other threads still to end has not released its ports.
process_started() {
  local stat='' fields
  # Not $(<...), which ends the whole script where the file has gone.
  { read -rd '' stat <"/proc/$1/stat" || true; } 2>/dev/null
  [[ -n $stat ]] || return 1
  # The name, in brackets, may hold anything: what follows the last bracket is state, parent, ...
  read -ra fields <<<"${stat##*) }"
  [[ ${fields[0]} != [ZX] ]] || ((fields[17] > 1)) || return 1
  printf '%s' "${fields[19]}"
}

# remember_process PID FILE
remember_process() { printf '%s %s\n' "$1" "$(process_started "$1")" >"$2"; }

# remembered_process FILE: the number, if that very process still runs.
remembered_process() {
  local pid started
  [[ -s $1 ]] && read -r pid started <"$1" || return 1
  [[ $(process_started "$pid") == "$started" ]] || return 1
  printf '%s' "$pid"
}

# children_of PID
children_of() {
  local folder stat fields
  for folder in /proc/[0-9]*; do
    stat=''
    { read -rd '' stat <"$folder/stat" || true; } 2>/dev/null
    read -ra fields <<<"${stat##*) }"
    [[ ${fields[1]:-} != "$1" ]] || printf '%s\n' "${folder#/proc/}"
  done
}

# wait_for_end PID SECONDS
wait_for_end() {
  local tries
  for ((tries = $2 * 20; tries > 0; tries--)); do
    process_started "$1" >/dev/null || return 0
    sleep 0.05
  done
  return 1
}
