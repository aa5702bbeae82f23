# shellcheck shell=bash
# What a script says to people, on stderr, so that stdout stays for what other programs read.

if [[ -t 2 && -z ${NO_COLOR:-} && ${TERM:-dumb} != dumb ]]; then
  bold=$'\e[1m' dim=$'\e[2m' red=$'\e[31m' yellow=$'\e[33m' green=$'\e[32m' plain=$'\e[0m'
else
  bold='' dim='' red='' yellow='' green='' plain=''
fi

# say TEXT...: one line of progress.
say() { printf '%s\n' "$*" >&2; }

# done_with NAME [TEXT]: something that is up and running now.
done_with() { printf '%s%s%s%s\n' "$bold$green" "$1" "$plain" "${2:+ $2}" >&2; }

# hint TEXT...: an aside, such as what to type next.
hint() { printf '%s%s%s\n' "$dim" "$*" "$plain" >&2; }

warn() { printf '%swarning:%s %s\n' "$yellow" "$plain" "$*" >&2; }

# die TEXT...: what went wrong and what to do about it; ends the script.
die() {
  printf '%serror:%s %s\n' "$red" "$plain" "$*" >&2
  exit 1
}

# usage_error TEXT...: the command line makes no sense.
usage_error() {
  printf "%serror:%s %s\ntry '%s --help'\n" "$red" "$plain" "$*" "$0" >&2
  exit 2
}

# show_tail FILE: the end of a server's log, indented.
show_tail() {
  [[ -s $1 ]] || return 0
  say "the last lines of its log:"
  tail -n 25 "$1" | sed 's/^/    /' >&2
}
