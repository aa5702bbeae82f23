# shellcheck shell=bash
# The servers of the tests. Needs $root.

# Brokers of tests run only for seconds, in which the JVM's second compiler (C2) does not pay off.
export KAFKA_JVM_PERFORMANCE_OPTS=${KAFKA_JVM_PERFORMANCE_OPTS:--XX:TieredStopAtLevel=1 -XX:+UseSerialGC}

# use_test_servers INSTANCE MORE...: sets the variables with the addresses of an instance's servers for the tests, and
# TEST_POSTGRES_URLS for the Postgres servers of all.
use_test_servers() {
  local variables psql more urls=()
  for more in "${@:2}" "$1"; do
    # shellcheck disable=SC2154 # the scripts that use this set it
    variables=$("$root/scripts/services" env --instance "$more")
    eval "$variables"
    urls+=("$TEST_POSTGRES_URL")
  done
  export TEST_POSTGRES_URLS=${urls[*]}
  # Debian's psql is a wrapper, which takes longer than the query.
  psql=$(compgen -G '/usr/lib/postgresql/*/bin/psql' | sort -V | tail -n 1)
  [[ -z $psql ]] || export PATH=${psql%/*}:$PATH
  # the tests must not see a user's settings for their own router
  unset OUTBOX_ROUTER_POSTGRES__URL OUTBOX_ROUTER_KAFKA__BOOTSTRAP_SERVERS
}
