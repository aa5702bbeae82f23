# shellcheck shell=bash
# The servers of the tests. Needs $root.

# Brokers of tests live for seconds: what the JVM's second compiler brings comes too late.
export KAFKA_JVM_PERFORMANCE_OPTS=${KAFKA_JVM_PERFORMANCE_OPTS:--XX:TieredStopAtLevel=1 -XX:+UseSerialGC}

# use_test_servers INSTANCE: sets the variables by which tests find the servers of an instance.
use_test_servers() {
  local variables
  # shellcheck disable=SC2154 # the scripts that use this set it
  variables=$("$root/scripts/services" env --instance "$1")
  eval "$variables"
  # the tests must not see what a user has set for a router of their own
  unset OUTBOX_ROUTER_POSTGRES__URL OUTBOX_ROUTER_KAFKA__BOOTSTRAP_SERVERS
}
