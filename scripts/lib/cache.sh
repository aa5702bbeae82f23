# shellcheck shell=bash
# Downloads, stored outside the checkout and fetched once, even if several scripts need them at the same time. Needs messages.sh.

cache=${OUTBOX_ROUTER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/outbox-router}

# need_room MEGABYTES FOLDER...: creates these folders. Ends the script if one cannot be written to or its disk has less room.
need_room() {
  local folder free
  for folder in "${@:2}"; do
    if ! mkdir -p "$folder" 2>/dev/null || [[ ! -w $folder ]]; then
      die "$(id -un) cannot write to $folder: change its owner, or choose another folder"
    fi
    free=$(df --output=avail --block-size=1M "$folder" | tail -n 1)
    ((free >= $1)) || die "the disk of $folder has only $((free)) MB left: free some, at least $1 MB are needed"
  done
}

# cached NAME COMMAND ARG...: creates $cache/NAME by running COMMAND ARG... FOLDER with an empty folder, unless it exists.
# The folder gets its name only when the command has succeeded, so a partial download is never used.
cached() {
  local name=$1 folder="$cache/$1" part
  shift
  [[ ! -d $folder ]] || return 0
  need_room 500 "$cache"
  (
    exec 8>"$cache/$name.lock"
    if ! flock --nonblock 8; then
      say "waiting for another script that fetches $name"
      flock 8
    fi
    [[ ! -d $folder ]] || exit 0
    rm -rf "$folder".part.*
    part=$(mktemp -d "$folder.part.XXXXXX")
    trap 'rm -rf "$part"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    # Not mktemp's 0700, because a server that runs as another user reads from here.
    chmod 755 "$part"
    "$@" "$part" 8>&-
    mv -T "$part" "$folder"
  )
}

# maven FOLDER GOAL ARG...: runs a goal of Maven's dependency plugin in this folder, quietly unless it fails.
# With the plugin's full name Maven says why it cannot download the plugin. It caches failed downloads for a day unless it is told
# to check for updates.
maven() {
  local folder=$1 goal=$2
  shift 2
  need_maven
  (cd "$folder" && exec mvn --batch-mode --no-transfer-progress --update-snapshots -Dstyle.color=never \
    "org.apache.maven.plugins:maven-dependency-plugin:$goal" "$@") >"$folder/log" 2>&1 && return
  cp "$folder/log" "$cache/maven.log"
  maven_failed "$cache/maven.log"
}

# maven_failed LOG: ends the script with the first error in Maven's log, without colours and passwords, and with what to do.
maven_failed() {
  local reason advice='if it needs a mirror or a proxy, name that in ~/.m2/settings.xml'
  reason=$(sed -nE 's/\x1b\[[0-9;]*m//g; s#://[^/@ ]*@#://#g; /^\[ERROR\] +[^ ]/ { s/^\[ERROR\] +//; s/ -> \[Help 1\].*//; s/.*: (Could not (transfer|find) )/\1/; p; q }' "$1")
  if grep -qE 'PKIX|SSLHandshakeException|certificat' "$1"; then
    advice='make Java trust its certificate authority: copy that as a .crt file into /usr/local/share/ca-certificates, and run update-ca-certificates as root'
  fi
  say "Maven: ${reason:-no reason in its log}"
  die "Maven could not download from its repository; $advice. The whole log is $1"
}
