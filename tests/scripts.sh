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
    for part in messages packages cache build contents; do
      # shellcheck source=/dev/null
      source "$root/scripts/lib/$part.sh"
    done
    "$@"
  ) 2>&1 || code=$?
  printf 'exit code %s' "$code"
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

for test in unknown_options_are_named; do
  "$test"
done
((failures == 0))
