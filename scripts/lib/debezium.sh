# shellcheck shell=bash
# Debezium in Kafka Connect, for scripts/parity. Needs messages.sh, packages.sh and cache.sh.

debezium_pom=$root/scripts/lib/debezium/pom.xml

# fetch_debezium VERSION FOLDER: downloads Connect's jars, Debezium's plugin, and the same plugin with OpenTelemetry.
fetch_debezium() {
  local plugin=io.debezium:debezium-connector-postgres:$1:tar.gz:plugin
  say "fetching Debezium $1 and Kafka Connect"
  cp "$debezium_pom" "$2/pom.xml"
  maven "$2" copy-dependencies -DincludeScope=runtime -DoutputDirectory="$2/jars"
  maven "$2" unpack -Dartifact="$plugin" -DoutputDirectory="$2/plugins"
  maven "$2" copy-dependencies -Popentelemetry -DincludeGroupIds=io.opentelemetry \
    -DoutputDirectory="$2/plugins-with-tracing/debezium-connector-postgres"
  cp "$2"/plugins/debezium-connector-postgres/*.jar "$2/plugins-with-tracing/debezium-connector-postgres"
}

# debezium_programs: sets $java and $debezium, the folder. Each version of the pom has its own folder.
debezium_programs() {
  local version name
  version=$(sed -n 's:.*<debezium.version>\(.*\)</debezium.version>.*:\1:p' "$debezium_pom")
  name=debezium-$version-$(cksum <"$debezium_pom" | cut -d' ' -f1)
  need_java
  cached "$name" fetch_debezium "$version"
  # shellcheck disable=SC2034
  debezium=$cache/$name
}
