# shellcheck shell=bash
# Free ports on 127.0.0.1. A port belongs to its instance until 'down', even while its server is stopped.

port_answers() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# reserve_port FIRST OWNER: prints the first free port from FIRST on, and reserves it for the folder OWNER.
reserve_port() {
  local port owner
  mkdir -p "$cache/ports"
  (
    exec 7>"$cache/ports/lock"
    flock 7
    # Below the range that Linux uses for outgoing connections.
    for ((port = $1; port < 32768; port++)); do
      # where a server could not be started a moment ago
      [[ " ${OUTBOX_ROUTER_TAKEN_PORTS:-} " != *" $port "* ]] || continue
      owner=''
      { read -r owner <"$cache/ports/$port" || true; } 2>/dev/null
      [[ -z $owner || ! -d $owner ]] || continue
      ! port_answers "$port" || continue
      printf '%s\n' "$2" >"$cache/ports/$port"
      printf '%s' "$port"
      exit 0
    done
    die "there is no free port from $1 on"
  )
}

# release_ports OWNER
release_ports() {
  local file owner
  for file in "$cache"/ports/[0-9]*; do
    owner=''
    { read -r owner <"$file" || true; } 2>/dev/null
    [[ $owner != "$1" ]] || rm -f "$file"
  done
}
