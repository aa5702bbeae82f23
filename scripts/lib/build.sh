# shellcheck shell=bash
# Builds with cargo, on a machine that may have no compiler yet. Needs messages.sh, packages.sh and cache.sh.

# Outside the checkout, so that clones on one machine share what they compile.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$cache/target}

# The oldest compiler that builds the project.
# shellcheck disable=SC2154 # the scripts that use this set it
oldest_rust=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' "$root/Cargo.toml")

# need_build: installs everything that the build needs.
need_build() {
  need_build_packages
  # cargo needs the system's certificates for its downloads.
  need_packages ca-certificates
  need_rust
}

# rust_version: the version of the cargo on PATH, such as 1.95.0.
rust_version() {
  cargo --version | sed 's/^cargo \([0-9.]*\).*/\1/'
}

# rust_is_new_enough: whether there is a cargo on PATH that builds the project.
rust_is_new_enough() {
  command -v cargo >/dev/null && printf '%s\n' "$oldest_rust" "$(rust_version)" | sort --version-sort --check=quiet
}

# build ARG...: cargo build ARG..., with cargo's progress on a terminal.
build() {
  need_build
  local quiet=(--quiet) first=''
  [[ ! -t 2 ]] || quiet=()
  [[ -d $CARGO_TARGET_DIR ]] || first=', which takes some minutes the first time'
  say "building in ${CARGO_TARGET_DIR/#"$HOME"/\~}$first"
  (cd "$root" && cargo build --locked "${quiet[@]}" "$@") || die "the build failed; the lines above say why"
}

# need_router: builds the release router and sets `router`, unless that is set. Built alone, as users do: together with the
# examples it would get the features of the tests' libraries too.
need_router() {
  [[ -z $router ]] || return 0
  build --release --bin outbox-router
  router=$CARGO_TARGET_DIR/release/outbox-router
}
