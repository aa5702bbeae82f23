# shellcheck shell=bash
# shellcheck disable=SC2030,SC2031 # an instance of its own for the archive, in a subshell
# Throwaway Kafka brokers, which are also controllers: the first in $instance/kafka, others in $instance/kafka-2 and so on.
# The functions act on the selected broker. 'down' deletes everything here.

kafka_pom=$root/scripts/lib/kafka/pom.xml
# older versions; the pom has the default
declare -A kafka_versions=([3.9]=3.9.1 [4.0]=4.0.0)

# kafka_select SERVER: kafka, kafka-2, kafka-3
kafka_select() {
  kafka=$instance/$1
  kafka_node=${1#kafka}
  kafka_node=${kafka_node#-}
  kafka_node=${kafka_node:-1}
}
kafka_select kafka

# kafka_cluster BROKERS: loads the settings common to all brokers, or creates them for this many brokers.
kafka_cluster() {
  kafka_brokers=1
  if [[ -s $instance/kafka/cluster ]]; then
    # shellcheck disable=SC1091
    source "$instance/kafka/cluster"
  elif [[ -n ${1:-} ]]; then
    local node voters=''
    kafka_brokers=$1
    kafka_controller_ports=(-)
    for ((node = 1; node <= kafka_brokers; node++)); do
      kafka_controller_ports+=("$(reserve_port 20092 "$instance")")
      voters+=,$node@127.0.0.1:${kafka_controller_ports[node]}
    done
    mkdir -p "$instance/kafka"
    {
      printf 'kafka_brokers=%s\n' "$kafka_brokers"
      printf 'kafka_voters=%s\n' "${voters#,}"
      printf 'kafka_controller_ports=(%s)\n' "${kafka_controller_ports[*]}"
      printf 'kafka_cluster_id=%s\n' "$(kafka_id)"
    } >"$instance/kafka/cluster.new"
    mv "$instance/kafka/cluster.new" "$instance/kafka/cluster"
    # shellcheck disable=SC1091
    source "$instance/kafka/cluster"
  fi
}

# kafka_servers BROKERS: sets $kafka_all to the names of this instance's brokers, or of this many if there are none yet.
kafka_servers() {
  local node
  kafka_cluster
  [[ -s $instance/kafka/cluster ]] || kafka_brokers=$1
  kafka_all=(kafka)
  for ((node = 2; node <= kafka_brokers; node++)); do kafka_all+=("kafka-$node"); done
}

# fetch_kafka FOLDER
fetch_kafka() {
  say "fetching Kafka $kafka_version"
  cp "$kafka_pom" "$1/pom.xml"
  # Kafka 3.9 brings a second implementation of slf4j along
  maven "$1" copy-dependencies "-Dkafka.version=$kafka_version" -DincludeScope=runtime \
    -DexcludeArtifactIds=slf4j-reload4j -DoutputDirectory="$1/jars"
}

# Sets $java and $kafka_classpath. Each version of the pom has its own folder, so a changed one is not taken from the cache.
kafka_programs() {
  kafka_version=$(sed -n 's:.*<kafka.version>\(.*\)</kafka.version>.*:\1:p' "$kafka_pom")
  kafka_version=${kafka_versions[$kafka_minor]:-$kafka_version}
  local name
  name=kafka-$kafka_version-$(cksum <"$kafka_pom" | cut -d' ' -f1)
  need_java
  cached "$name" fetch_kafka
  kafka_classpath="$cache/$name/jars/*"
}

# kafka_archive: sets $kafka_start to a folder with a class data archive (CDS) for the broker, which halves the CPU time of its
# start, and with what formats its storage. They depend on the JVM and the jars.
kafka_archive() {
  local name
  name=kafka-start-$( (printf '%s\n' "$kafka_classpath" && stat -L -c '%n %s %Y' "$(command -v "$java")") | cksum | cut -d' ' -f1)
  cached "$name" make_kafka_archive
  kafka_start=$cache/$name
}

# make_kafka_archive FOLDER: runs a broker that writes the archive when it shuts down.
make_kafka_archive() (
  say "creating an archive of Kafka's classes, once"
  local instance=$1/instance
  mkdir "$instance"
  kafka_select kafka
  trap 'kafka_kill; release_ports "$instance"; rm -rf "$instance"' EXIT
  kafka_create 1
  kafka_launch "-XX:ArchiveClassesAtExit=$1/classes.jsa"
  kafka_wait
  kafka_stop
  [[ -s $1/classes.jsa ]] || die "Kafka wrote no archive of its classes"
  cp "$kafka/data/bootstrap.checkpoint" "$1"
)

# kafka_create BROKERS: writes the configuration, and the file 'server' with the paths and ports.
kafka_create() {
  kafka_programs
  kafka_cluster "$1"
  mkdir -p "$kafka"
  kafka_port=$(reserve_port 19092 "$instance")
  kafka_controller_port=${kafka_controller_ports[kafka_node]}
  kafka_extra_port=$(reserve_port 21092 "$instance")
  # One replica of everything, few partitions and small buffers, for many small topics on a small machine. The session is short,
  # because a killed broker can restart only after its previous session has expired.
  kafka_settings process.roles=broker,controller "node.id=$kafka_node" \
    'listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}' \
    controller.listener.names=CONTROLLER "controller.quorum.voters=$kafka_voters" \
    listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL \
    "log.dirs=$kafka/data" auto.create.topics.enable=false num.partitions=3 \
    offsets.topic.replication.factor=1 offsets.topic.num.partitions=3 \
    transaction.state.log.replication.factor=1 transaction.state.log.min.isr=1 transaction.state.log.num.partitions=3 \
    share.coordinator.state.topic.replication.factor=1 share.coordinator.state.topic.min.isr=1 \
    group.initial.rebalance.delay.ms=0 log.cleaner.dedupe.buffer.size=16777216 \
    broker.session.timeout.ms=3000 broker.heartbeat.interval.ms=500 num.network.threads=2 num.io.threads=4 background.threads=2
  # Several brokers as in production: one may fail, and nothing is lost or stops.
  if ((kafka_brokers > 1)); then
    kafka_settings default.replication.factor=3 min.insync.replicas=2 offsets.topic.replication.factor=3 \
      transaction.state.log.replication.factor=3 transaction.state.log.min.isr=2 \
      share.coordinator.state.topic.replication.factor=3 share.coordinator.state.topic.min.isr=2
  fi
  {
    printf '%s=%q\n' kafka_port "$kafka_port" kafka_controller_port "$kafka_controller_port" \
      kafka_extra_port "$kafka_extra_port" kafka_classpath "$kafka_classpath" kafka_version "$kafka_version" java "$java"
  } >"$kafka/server.new"
  mv "$kafka/server.new" "$kafka/server"
}

# kafka_settings NAME=VALUE...: a later one wins. {port}, {controller_port} and {extra_port} are replaced by this broker's.
kafka_settings() {
  local setting
  for setting in "$@"; do
    setting=${setting//'{port}'/$kafka_port}
    setting=${setting//'{controller_port}'/$kafka_controller_port}
    setting=${setting//'{extra_port}'/$kafka_extra_port}
    printf '%s\n' "$setting"
  done >>"$kafka/server.properties"
}

# kafka_id: a random UUID as Kafka writes it.
kafka_id() { head -c 16 /dev/urandom | base64 | tr '+/' 'AB' | tr -d =; }

# kafka_format: does what Kafka's StorageTool would, which takes as long as half of the broker's start.
kafka_format() {
  kafka_cluster
  mkdir "$kafka/data.new"
  cp "$kafka_start/bootstrap.checkpoint" "$kafka/data.new"
  printf '%s\n' version=1 "cluster.id=$kafka_cluster_id" "node.id=$kafka_node" "directory.id=$(kafka_id)" >"$kafka/data.new/meta.properties"
  mv "$kafka/data.new" "$kafka/data"
}

kafka_load() {
  [[ -s $kafka/server ]] || return 1
  # shellcheck disable=SC1091
  source "$kafka/server"
}

kafka_ports() { printf %s "$kafka_port $kafka_controller_port $kafka_extra_port"; }

kafka_log_file() { printf %s "$kafka/log"; }

kafka_pid() { remembered_process "$kafka/pid"; }

kafka_running() { kafka_load && kafka_pid >/dev/null; }

# kafka_launch JVM_OPTION...: starts the broker without waiting; kafka_wait waits until it serves requests.
kafka_launch() {
  if port_answers "$kafka_port"; then
    die "another program took port $kafka_port while Kafka was stopped; end it, or start over with 'down' and 'up'"
  fi
  mkdir -p "$kafka/tmp"
  # UsePerfData and the default tmpdir would leave files of a killed JVM in /tmp.
  local jvm=("$java" -XX:-UsePerfData "-Djava.io.tmpdir=$kafka/tmp" -cp "$kafka_classpath" -Dlog4j2.configurationFile="file://$root/scripts/lib/kafka/log4j2.properties")
  local compiler
  # as Kafka's own scripts start it
  read -ra compiler <<<"${KAFKA_JVM_PERFORMANCE_OPTS:-}"
  jvm+=("${compiler[@]}")
  if (($#)); then
    jvm+=("$@")
  else
    kafka_archive
    jvm+=("-XX:SharedArchiveFile=$kafka_start/classes.jsa" -Xlog:cds=off)
    [[ -e $kafka/data ]] || kafka_format
  fi
  local memory='-Xms256m -Xmx512m'
  kafka_cluster
  ((kafka_brokers == 1)) || memory='-Xms128m -Xmx320m'
  # In its own session, so that Ctrl-C does not reach the broker, and its whole process group can be killed.
  # shellcheck disable=SC2016
  heap=${KAFKA_HEAP_OPTS:-$memory} cluster=$kafka_cluster_id setsid bash -c '
    if [[ ! -e $1/data ]]; then
      "${@:2}" -XX:TieredStopAtLevel=1 kafka.tools.StorageTool format --cluster-id "$cluster" --config "$1/server.properties" || exit
    fi
    exec "${@:2}" $heap -XX:+ExitOnOutOfMemoryError kafka.Kafka "$1/server.properties"
  ' kafka "$kafka" "${jvm[@]}" </dev/null >"$kafka/log" 2>&1 7>&- 8>&- 9>&- &
  remember_process $! "$kafka/pid"
  # Otherwise the shell would report its end.
  disown
}

kafka_wait() {
  local tries
  for ((tries = 300 * 5; tries > 0; tries--)); do
    # The broker logs this when it is registered and serves requests, which is later than when its port is open.
    if grep -qs 'Kafka Server started' "$kafka/log"; then
      return
    elif ! kafka_pid >/dev/null; then
      break
    fi
    sleep 0.2
  done
  show_tail "$kafka/log"
  die "Kafka did not start"
}

kafka_stop() {
  local pid
  pid=$(kafka_pid) || return 0
  kill -TERM "$pid"
  wait_for_end "$pid" 120 || kafka_kill
}

kafka_kill() {
  local pid
  pid=$(kafka_pid) || return 0
  # The whole process group: during creation the process is a shell.
  kill -KILL -- "-$pid"
  wait_for_end "$pid" 60 || die "process $pid of Kafka does not end"
}

kafka_delete() {
  kafka_kill
  # Twice, because a child of the ended process may still be writing.
  rm -rf "$kafka" 2>/dev/null || { sleep 0.5 && rm -rf "$kafka"; }
}

kafka_address() { printf '%s %s on 127.0.0.1:%s' "${kafka##*/}" "$kafka_version" "$kafka_port"; }

# kafka_addresses: sets $addresses and $extra to the listeners of all brokers, and selects the first broker.
kafka_addresses() {
  local server
  addresses='' extra=''
  kafka_servers 1
  for server in "${kafka_all[@]}"; do
    kafka_select "$server"
    kafka_load || continue
    addresses+=,127.0.0.1:$kafka_port
    extra+=,127.0.0.1:$kafka_extra_port
  done
  addresses=${addresses#,} extra=${extra#,}
  kafka_select kafka
}

# kafka_tool CLASS ARG...: turns into one of Kafka's tools.
kafka_tool() {
  kafka_addresses
  exec "$java" -XX:-UsePerfData -XX:TieredStopAtLevel=1 -Xmx256m -cp "$kafka_classpath" \
    -Dlog4j2.configurationFile="file://$root/scripts/lib/kafka/log4j2.properties" "org.apache.kafka.tools.$1" --bootstrap-server "$addresses" "${@:2}"
}

# kafka_env: the variables for all brokers; the log is the first broker's.
kafka_env() {
  kafka_addresses
  kafka_archive
  export_lines TEST_KAFKA "$addresses" TEST_KAFKA_EXTRA "$extra" TEST_KAFKA_LOG "$kafka/log" \
    TEST_KAFKA_CLASSPATH "$kafka_classpath" TEST_KAFKA_CLASSES "$kafka_start/classes.jsa" \
    OUTBOX_ROUTER_KAFKA__BOOTSTRAP_SERVERS "$addresses"
}
