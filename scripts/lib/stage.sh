# shellcheck shell=bash
# Runs a program on throwaway servers, which are removed at the end of the script. Needs messages.sh and processes.sh.
# The script may set keep and service_options, and redefine save_logs, what_next and end_others.

# shellcheck disable=SC2154
: "${root:?}"
program='' up='' keep='' service_options=()

# save_logs: copies the logs of a failed run before its files are removed.
save_logs() { :; }

# what_next: prints the last message of a successful run.
what_next() { :; }

# end_others: stops servers of other instances.
end_others() { :; }

# begin_stage INSTANCE: allows one run per checkout, since a second run would remove the first one's servers.
begin_stage() {
  instance=$1 folder=.services/$1
  # The lock is on the script's own file, and is released when the script ends.
  exec 6<"$root/scripts/${BASH_SOURCE[-1]##*/}"
  flock --nonblock 6 || die "another scripts/${BASH_SOURCE[-1]##*/} runs in this checkout; wait until it has ended"
  trap end_stage EXIT
  trap 'exit 129' HUP
  trap 'exit 130' INT
  trap 'exit 141' PIPE
  trap 'exit 143' TERM
}

services() { "$root/scripts/services" "$@" --instance "$instance" 6>&-; }

# clear_stage: removes servers left by a run that was killed or had --keep. From now on end_stage has something to remove.
clear_stage() {
  end_others
  [[ ! -d $root/$folder ]] || services down
  up=1
}

# bring_up: starts the servers, and sets the environment variables with their addresses.
bring_up() {
  local environment started
  [[ -n $up ]] || clear_stage
  say "starting Postgres and Kafka"
  started=$SECONDS
  services up "${service_options[@]}"
  hint "started in $(duration $((SECONDS - started)))"
  environment=$(services env)
  eval "$environment"
}

# perform PROGRAM ARG...: runs the program in its own session, so that its whole process group can be killed, and in the
# background, so that the script handles Ctrl-C immediately. Ends the script if the program fails.
perform() {
  setsid "$@" 6>&- &
  program=$!
  wait "$program" || exit
}

# end_program: ends the program with SIGTERM, and then its process group with SIGKILL.
end_program() {
  [[ -n $program ]] || return 0
  kill -TERM "$program" 2>/dev/null || true
  wait_for_end "$program" 15 || true
  kill -KILL -- "-$program" 2>/dev/null || true
}

end_stage() {
  local code=$?
  # The clean-up must not be interrupted by a signal or a closed terminal.
  trap '' HUP INT PIPE TERM
  set +e
  # Commands that were interrupted earlier have printed their own message.
  [[ -z $program ]] || ((code < 129)) || say "interrupted: stopping what was started"
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

# kafka_version: the version of the broker that scripts/services starts.
kafka_version() { sed -n 's:.*<kafka.version>\(.*\)</kafka.version>.*:\1:p' "$root/scripts/lib/kafka/pom.xml"; }
