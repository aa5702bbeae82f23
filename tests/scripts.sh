#!/usr/bin/env bash
# Tests of what the scripts print, without servers and downloads: programs of the same names on PATH take their places.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
work=$(mktemp -d)
instance=scripts-sh-$$
trap 'rm -rf "$work" "$root/.services/$instance"; rmdir "$root/.services" 2>/dev/null || true' EXIT

failures=0

# expect WHAT PATTERN TEXT: the text matches this pattern of bash.
expect() {
  # shellcheck disable=SC2053
  [[ $3 != $2 ]] || return 0
  printf 'FAILED %s: expected\n%s\ngot\n%s\n' "$1" "$2" "$3" >&2
  failures=$((failures + 1))
}

# stand_in NAME: a program in $work/bin, from the script on stdin.
mkdir "$work/bin"
stand_in() {
  { printf '#!/bin/bash\n' && cat; } >"$work/bin/$1"
  chmod +x "$work/bin/$1"
}

# a PATH with programs that every Debian has, and no others
few=$work/few
mkdir "$few"
for name in bash cat chmod dirname fold mkdir mktemp rm sed sh sort tail tr; do ln -s "$(command -v "$name")" "$few"; done

# with_parts COMMAND ARG...: in a shell with the scripts' parts; prints its output and, after it, its exit code.
with_parts() {
  local code=0
  (
    export HOME=$work OUTBOX_ROUTER_CACHE=$work/cache CARGO_HOME=$work/cargo PATH=$work/bin:$PATH NO_COLOR=1
    unset SOURCE_DATE_EPOCH CARGO_TARGET_DIR
    for part in messages packages cache build contents processes steps; do
      # shellcheck source=/dev/null
      source "$root/scripts/lib/$part.sh"
    done
    "$@"
  ) 2>&1 || code=$?
  printf 'exit code %s' "$code"
}

help_needs_no_program() {
  local script text code
  for script in "$root"/scripts/*; do
    [[ -f $script ]] || continue
    code=0
    text=$(PATH=$few bash "$script" --help 2>&1) || code=$?
    expect "${script##*/} --help" '0 *usage: scripts/'"${script##*/}"'*' "$code $text"
    expect "${script##*/} --help finds its commands" '' "$(grep 'command not found' <<<"$text" || true)"
  done
}

unknown_options_are_named() {
  local script text code
  for script in "$root"/scripts/*; do
    [[ -f $script ]] || continue
    code=0
    text=$(NO_COLOR=1 bash "$script" --nonsense 2>&1 </dev/null) || code=$?
    expect "${script##*/} --nonsense" "2 error: unknown option --nonsense; see scripts/${script##*/} --help" "$code $text"
  done
}

# The time of the files comes from git, which a folder without a repository lacks.
# shellcheck disable=SC2016 # the variable is that of with_parts
time_of_files() {
  local text
  expect "time of a given release" $'1764374400\nexit code 0' "$(with_parts eval 'SOURCE_DATE_EPOCH=1764374400; need_time_of_files; echo $SOURCE_DATE_EPOCH')"
  mkdir "$work/tree"
  text=$(GIT_CEILING_DIRECTORIES=$work with_parts eval "root=$work/tree; need_time_of_files")
  expect "time without a repository" $'*\nerror: git cannot tell the time of this commit; *set SOURCE_DATE_EPOCH*\nexit code 1' "$text"
}

# shellcheck disable=SC2016 # cargo prints backquotes
progress() {
  local printed text
  printed='   Compiling serde v1.0.228
    Building [=====>    ] 310/558: serde, libc(build)          '$'\r''   Compiling outbox-router v0.1.0 (/src)
    Building [=========>] 556/558: outbox-router(bin)          '$'\r''warning: unused variable

    Finished `release` profile [optimized] target(s) in 9m 01s
error: could not compile `outbox-router`'
  # once it is unset, bash no longer counts it up
  text=$(with_parts eval 'unset SECONDS; SECONDS=0; sum_up_progress 0' <<<"$printed")
  expect 'progress: the last step' $'*\n0 s: 556 of 558 steps done, now outbox-router(bin); the last steps take longest\n*' "$text"
  expect 'progress: a step in the middle' $'*\n0 s: 310 of 558 steps done, now serde, libc(build)\n*' "$text"
  text=$(with_parts sum_up_progress 1000 <<<"$printed")
  expect 'progress: messages' $'warning: unused variable\n\nerror: could not compile `outbox-router`\nexit code 0' "$text"
}

# An instance whose broker seems to run, with a Java that shows its arguments.
consume() {
  local folder=$root/.services/$instance text
  stand_in java <<'END'
case "$*" in
  *TopicCommand*) printf '%s\n' outbox.event.customer outbox.event.order ;;
  *) printf '%s ' "${@:7}" ;;
esac
END
  mkdir -p "$folder/kafka"
  printf 'kafka_brokers=1\n' >"$folder/kafka/cluster"
  printf '%s=%q\n' kafka_port 19999 kafka_extra_port 29999 kafka_classpath jars kafka_version 4.1.1 java "$work/bin/java" >"$folder/kafka/server"
  # shellcheck source=scripts/lib/processes.sh
  source "$root/scripts/lib/processes.sh"
  remember_process $$ "$folder/kafka/pid"
  text=$("$root/scripts/services" consume outbox.event.order --max 2 --instance "$instance" 2>&1 || true)
  expect 'consume' 'org.apache.kafka.tools.consumer.ConsoleConsumer --bootstrap-server 127.0.0.1:19999 --topic outbox.event.order --from-beginning *--property print.key=true --property print.headers=true --max-messages 2 ' "$text"
  text=$("$root/scripts/services" consume outbox.event.orders --instance "$instance" 2>&1 || true)
  expect 'consume: no topic' "*error: there is no topic 'outbox.event.orders'; there are: outbox.event.customer, outbox.event.order" "$text"
  rm "$folder/kafka/pid"
  text=$("$root/scripts/services" consume outbox.event.order --instance "$instance" 2>&1 || true)
  expect 'consume: no broker' "*error: no broker of instance $instance runs; first: scripts/services up --instance $instance" "$text"
}

# The variables win over a file, which the last line of 'env' says. It must not hide one of them from an eval without quotes.
environment() {
  local text folder=$root/.services/$instance
  rm -rf "$folder/kafka"
  mkdir -p "$folder/postgres"
  printf '%s=x\n' postgres_{bin,data,socket,log,port} >"$folder/postgres/server"
  printf 'postgres_version=15.1\n' >>"$folder/postgres/server"
  text=$("$root/scripts/services" env --instance "$instance" 2>&1 || true)
  expect 'env' $'*\n# OUTBOX_ROUTER_POSTGRES__URL and * override outbox-router.toml until you unset them' "$text"
  # shellcheck disable=SC2046,SC2086
  text=$(unset OUTBOX_ROUTER_POSTGRES__URL && eval $text && printf '%s' "${OUTBOX_ROUTER_POSTGRES__URL:-}")
  expect 'env without quotes' 'postgres://postgres@127.0.0.1:x/postgres' "$text"
}

# What the demo says at its end, for a target folder in the cache and for another.
demo_names_what_stays() {
  local text demo
  demo=$(sed -n '/^left_behind() {$/,/^}$/p' "$root/scripts/demo")
  mkdir -p "$work/cache/target" "$work/elsewhere"
  text=$(with_parts eval "$demo; left_behind")
  expect 'demo: the cache' $'*\n  rm -rf '"$work/cache   # "$'[0-9]*\nDebian packages *exit code 0' "$text"
  text=$(with_parts eval "$demo; CARGO_TARGET_DIR=$work/elsewhere; left_behind")
  expect 'demo: a target folder elsewhere' $'*\n  rm -rf '"$work/cache   # "$'*\n  rm -rf '"$work/elsewhere   # "$'*\nDebian *' "$text"
}

maven_says_why() {
  local text
  mkdir -p "$work/cache" "$work/pom"
  stand_in mvn <<'END'
esc=$'\e'
printf '%s[0mScanning\n[WARNING] Failed to retrieve plugin descriptor\n' "$esc"
printf '[%s[1;31mERROR%s[m] Plugin p could not be resolved: Could not transfer artifact p from/to mirror (https://user:secret@maven.example/x): %s -> [Help 1]\n' "$esc" "$esc" "$REASON"
printf '[ERROR] \n[ERROR] Re-run Maven using the -X switch to enable full debug logging.\n'
exit 1
END
  text=$(REASON='PKIX path building failed' with_parts maven "$work/pom" copy-dependencies)
  expect 'Maven: certificate' $'Maven: Could not transfer artifact p from/to mirror (https://maven.example/x): PKIX path building failed
error: Maven could not download from its repository; make Java trust its certificate authority: *update-ca-certificates*\nexit code 1' "$text"
  text=$(REASON='Connection refused' with_parts maven "$work/pom" copy-dependencies)
  expect 'Maven: connection' $'Maven: Could not transfer*: Connection refused\nerror: *mirror or a proxy*settings.xml*\nexit code 1' "$text"
}

# The installer of rustup, which curl would fetch, gives advice about PATH at its end.
rustup_is_quiet() {
  local text
  stand_in curl <<'END'
printf '%s\n' 'mkdir -p "$CARGO_HOME/bin"' 'printf "#!/bin/sh\necho cargo 9.0.0\n" >"$CARGO_HOME/bin/cargo"' 'chmod +x "$CARGO_HOME/bin/cargo"' \
  'echo "you may need to source the corresponding env file"' "exit ${RUSTUP_FAILS:-0}"
END
  text=$(PATH=$few with_parts need_rust)
  expect 'rustup' $'*installing Rust with rustup, into '"$work"$'/cargo\nexit code 0' "$text"
  rm -rf "$work/cargo"
  text=$(PATH=$few RUSTUP_FAILS=1 with_parts need_rust)
  expect 'rustup fails' $'*\nyou may need to source*\nerror: rustup could not be installed; the lines above say why.*\nexit code 1' "$text"
}

# Debian 13 has cargo 1.85, which is too old.
an_old_cargo_is_named() {
  local text
  rm -rf "$work/cargo"
  stand_in cargo <<<'echo "cargo 1.85.0 (d73d2caf9 2024-12-31)"'
  text=$(PATH=$few with_parts need_rust)
  rm "$work/bin/cargo"
  expect 'cargo of Debian 13' $'*'"$work/bin/cargo is version 1.85.0 and the project needs "$'1.*\n*installing Rust with rustup*\nexit code 0' "$text"
}

# rustup's cargo fails if rustup may not install the toolchain that is asked for.
a_cargo_without_toolchain_is_named() {
  local text
  rm -rf "$work/cargo"
  stand_in rustup <<<''
  stand_in cargo <<<'echo "error: toolchain is not installed" >&2; exit 1'
  text=$(PATH=$few with_parts need_rust)
  rm "$work/bin/"{cargo,rustup}
  expect 'cargo without a toolchain' $'error: rustup has no toolchain for cargo: run \'rustup default stable\', *\nexit code 1' "$text"
}

programs_of_another_checkout_are_built_again() {
  local text crate=$work/cache/target/debug/.fingerprint/outbox-router-1234
  mkdir -p "$crate"
  text=$(with_parts eval "claim_target; mkdir $crate && claim_target && [[ -d $crate ]] && root=$work && claim_target && [[ ! -d $crate ]]")
  expect 'the target folder of several checkouts' 'exit code 0' "$text"
}

a_full_disk_is_named() {
  local text
  stand_in df <<<'printf "Avail\n  12\n"'
  text=$(with_parts cached something false)
  expect 'a full disk' "error: the disk of $work/cache has only 12 MB left: free some, at least 500 MB are needed"$'\nexit code 1' "$text"
  rm "$work/bin/df"
}

# SIGTERM instead of Ctrl-C, which a shell in the background ignores. Both have the same trap. The step's program is in a session of
# its own, as cargo-nextest is.
# shellcheck disable=SC2016 # the variables are those of with_parts
interrupted_tests_stop_what_they_started() {
  local tree=$work/interrupted text traps
  mkdir -p "$tree/scripts" "$tree/.services/test-1-2"
  printf '#!/bin/bash\necho "services $*"\n' >"$tree/scripts/services"
  chmod +x "$tree/scripts/services"
  traps=$(sed -n "/^end_servers_of_tests() {$/,/^trap 'exit 143' TERM$/p" "$root/scripts/test")
  text=$(with_parts eval "root=$tree; results=$work/results; instance=test-1-2; $traps"'
    script=$BASHPID
    step_long() { setsid --wait sh -c '\''echo $$ >"$0/pid"; kill -TERM "$1"; sleep 20; echo the end'\'' "$root" "$script"; }
    run_step long')
  expect 'interrupted tests' $'long\ninterrupted: stopping what was started\n?(Terminated\n)services down --instance test-1-2\nexit code 143' "$text"
  expect 'the program of an interrupted step' gone "$(kill -0 "$(<"$tree/pid")" 2>/dev/null || echo gone)"
}

for test in help_needs_no_program unknown_options_are_named time_of_files progress consume environment demo_names_what_stays maven_says_why rustup_is_quiet \
  an_old_cargo_is_named a_cargo_without_toolchain_is_named programs_of_another_checkout_are_built_again a_full_disk_is_named interrupted_tests_stop_what_they_started; do
  "$test"
done
((failures == 0))
