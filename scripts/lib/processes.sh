# shellcheck shell=bash
# Identifies processes by id and start time, so that only the right ones are ended.

# process_started PID: when it started, in clock ticks since boot. Together with the id this identifies one process.
# Fails if it does not exist or is a zombie. A zombie with running threads still holds its ports, and counts as running.
process_started() {
  local stat='' fields
  # Not $(<...), which ends the whole script if the file is gone.
  { read -rd '' stat <"/proc/$1/stat" || true; } 2>/dev/null
  [[ -n $stat ]] || return 1
  # The name, in parentheses, may contain anything. After the last parenthesis follow state, parent, ...
  read -ra fields <<<"${stat##*) }"
  [[ ${fields[0]} != [ZX] ]] || ((fields[17] > 1)) || return 1
  printf '%s' "${fields[19]}"
}

# remember_process PID FILE
remember_process() { printf '%s %s\n' "$1" "$(process_started "$1")" >"$2"; }

# remembered_process FILE: the process id, if that process still runs.
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
