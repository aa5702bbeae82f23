# shellcheck shell=bash
# Messages for people, on stderr; stdout is for output that other programs read.

if [[ -t 2 && -z ${NO_COLOR:-} && ${TERM:-dumb} != dumb ]]; then
  bold=$'\e[1m' dim=$'\e[2m' red=$'\e[31m' yellow=$'\e[33m' green=$'\e[32m' plain=$'\e[0m'
else
  bold='' dim='' red='' yellow='' green='' plain=''
fi

# say TEXT...: prints a line of progress.
say() { printf '%s\n' "$*" >&2; }

# done_with NAME [TEXT]: reports something that is running now.
done_with() { printf '%s%s%s%s\n' "$bold$green" "$1" "$plain" "${2:+ $2}" >&2; }

# hint TEXT...: prints additional information, such as what to type next.
hint() { printf '%s%s%s\n' "$dim" "$*" "$plain" >&2; }

# duration SECONDS: such as "3 min 12 s".
duration() {
  if (($1 < 60)); then printf '%s s' "$1"; else printf '%s min %s s' "$(($1 / 60))" "$(($1 % 60))"; fi
}

warn() { printf '%swarning:%s %s\n' "$yellow" "$plain" "$*" >&2; }

# die TEXT...: prints what went wrong and what to do about it, and ends the script.
die() {
  printf '%serror:%s %s\n' "$red" "$plain" "$*" >&2
  exit 1
}

# usage_error TEXT...: reports an invalid command line, and ends the script with exit code 2.
usage_error() {
  printf '%serror:%s %s; see scripts/%s --help\n' "$red" "$plain" "$*" "${0##*/}" >&2
  exit 2
}

# unknown_argument ARGUMENT: the usage error for an argument that the script does not have.
unknown_argument() {
  if [[ $1 == -* ]]; then usage_error "unknown option $1"; else usage_error "unknown argument $1"; fi
}

# show_tail FILE: prints the end of a server's log, indented.
show_tail() {
  [[ -s $1 ]] || return 0
  say "the last lines of its log:"
  tail -n 25 "$1" | sed 's/^/    /' >&2
}
