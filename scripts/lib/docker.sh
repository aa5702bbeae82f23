# shellcheck shell=bash
# scripts/services with the containers of docker-compose.yml: only the default instance, without the options for tests.

docker_folder=$instance/docker

compose() {
  local program=docker
  command -v docker >/dev/null || program=podman
  "$program" compose --env-file "$docker_folder/ports" --file "$root/docker-compose.yml" --project-name outbox-router "$@"
}

docker_answers() { docker info &>/dev/null || podman info &>/dev/null; }

docker_up() {
  [[ $name == main ]] || usage_error "containers are for the default instance only"
  [[ ! -d $postgres && ! -d $kafka ]] || die "instance $name is up without containers; end it first: scripts/services down"
  docker_answers || die "neither docker nor podman answers; is its service running, and may you use it?"
  lock_instance
  mkdir -p "$docker_folder"
  if [[ ! -s $docker_folder/ports ]]; then
    printf '%s=%s\n' POSTGRES_MAJOR "${major:-17}" POSTGRES_PORT "$(reserve_port 15432 "$instance")" \
      KAFKA_PORT "$(reserve_port 19092 "$instance")" >"$docker_folder/ports"
  fi
  # shellcheck disable=SC2086
  compose up --detach --wait $only 9>&- || die "the containers did not start; 'docker compose logs' may say why"
  docker_env >"$instance/env"
  docker_status >&2
}

docker_down() {
  [[ -d $docker_folder ]] || die "instance $name has no containers"
  compose down --volumes
  release_ports "$instance"
  rm -rf "$instance"
}

docker_status() {
  [[ -d $docker_folder ]] || die "instance $name has no containers"
  compose ps
}

docker_env() {
  [[ -d $docker_folder ]] || die "instance $name has no containers; first: scripts/services up --engine docker"
  local POSTGRES_PORT KAFKA_PORT
  # shellcheck disable=SC1091
  source "$docker_folder/ports"
  local url="postgres://postgres@127.0.0.1:$POSTGRES_PORT/postgres"
  export_lines TEST_POSTGRES_URL "$url" TEST_POSTGRES_PORT "$POSTGRES_PORT" OUTBOX_ROUTER_POSTGRES__URL "$url" \
    TEST_KAFKA "127.0.0.1:$KAFKA_PORT" OUTBOX_ROUTER_KAFKA__BOOTSTRAP_SERVERS "127.0.0.1:$KAFKA_PORT"
  # shellcheck disable=SC2154 # scripts/services sets it
  printf '# %s\n' "$override"
}
