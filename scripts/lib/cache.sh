# shellcheck shell=bash
# Downloads, stored outside the checkout and fetched once, even if several scripts need them at the same time.

cache=${OUTBOX_ROUTER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/outbox-router}

# cached NAME COMMAND ARG...: creates $cache/NAME by running COMMAND ARG... FOLDER with an empty folder, unless it exists.
# The folder gets its name only when the command has succeeded, so a partial download is never used.
cached() {
  local name=$1 folder="$cache/$1" part
  shift
  [[ ! -d $folder ]] || return 0
  mkdir -p "$cache"
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

# maven FOLDER ARG...: runs Maven in this folder, quietly unless it fails.
# Maven caches failed downloads for a day unless it is told to check for updates.
maven() {
  local folder=$1
  shift
  need_maven
  if ! (cd "$folder" && exec mvn --batch-mode --no-transfer-progress --update-snapshots -Dstyle.color=never "$@") >"$folder/log" 2>&1; then
    show_tail "$folder/log"
    die "Maven could not download what is needed. Is its repository reachable? A mirror or proxy goes into ~/.m2/settings.xml"
  fi
}
