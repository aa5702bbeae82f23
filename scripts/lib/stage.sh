# shellcheck shell=bash
# One program on throwaway servers, which are gone with the script whatever ends it. Needs messages.sh and processes.sh.
# The script may set keep and service_options, and define save_logs, what_next and end_others anew.

# shellcheck disable=SC2154
: "${root:?}"
program='' up='' keep='' service_options=()

# save_logs: what a failed run leaves behind, while its files are still there.
save_logs() { :; }

# what_next: the last words after a good end.
what_next() { :; }

# end_others: servers besides the instance's own.
end_others() { :; }

# begin_stage INSTANCE: nobody else's in this checkout; a second one would end this one's servers.
begin_stage() {
  instance=$1 folder=.services/$1
  # The lock is the script's own file, and gone with the script.
  exec 6<"$root/scripts/${BASH_SOURCE[-1]##*/}"
  flock --nonblock 6 || die "another scripts/${BASH_SOURCE[-1]##*/} runs in this checkout; let it end first"
  trap end_stage EXIT
  trap 'exit 129' HUP
  trap 'exit 130' INT
  trap 'exit 141' PIPE
  trap 'exit 143' TERM
}

services() { "$root/scripts/services" "$@" --instance "$instance" 6>&-; }

# clear_stage: of the servers that one left which was killed, or told to keep them. From now on there is something to end.
clear_stage() {
  end_others
  [[ ! -d $root/$folder ]] || services down
  up=1
}

# bring_up: the servers, and how to reach them as variables of the environment.
bring_up() {
  local environment
  [[ -n $up ]] || clear_stage
  say "bringing up Postgres and Kafka"
  services up "${service_options[@]}"
  environment=$(services env)
  eval "$environment"
}

# perform PROGRAM ARG...: in a session of its own, so that it and what it starts can be ended by one number; in the
# background, so that the script hears of Ctrl-C at once. Ends the script if the program fails.
perform() {
  setsid "$@" 6>&- &
  program=$!
  wait "$program" || exit
}

# end_program: in good order; by force, with the processes that it started, if it does not follow.
end_program() {
  [[ -n $program ]] || return 0
  kill -TERM "$program" 2>/dev/null || true
  wait_for_end "$program" 15 || true
  kill -KILL -- "-$program" 2>/dev/null || true
}

end_stage() {
  local code=$?
  # Nothing may keep it from getting through: no signal, and no terminal that is gone.
  trap '' HUP INT PIPE TERM
  set +e
  # Before that, whatever was interrupted says so itself.
  [[ -z $program ]] || ((code < 129)) || say "interrupted: ending what was started"
  end_program
  if [[ -n $up ]]; then
    ((code == 0)) || save_logs
    if [[ -z $keep ]] || ((code >= 129)); then
      end_others
      services down
    else
      hint "the servers stay up until: scripts/services down --instance $instance"
    fi
  fi
  ((code != 0)) || what_next
  exit "$code"
}

# kafka_version: of the broker that scripts/services starts.
kafka_version() { sed -n 's:.*<kafka.version>\(.*\)</kafka.version>.*:\1:p' "$root/scripts/lib/kafka/pom.xml"; }
