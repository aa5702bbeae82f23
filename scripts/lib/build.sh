# shellcheck shell=bash
# Builds with cargo, on a machine that may have no compiler yet. Needs messages.sh, packages.sh and cache.sh.

# Outside the checkout, so that a fresh clone on the same machine finds what another one compiled.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$cache/target}

# need_build: everything that cargo needs here.
need_build() {
  need_build_packages
  # cargo's downloads are checked against the system's certificates.
  need_packages ca-certificates
  need_rust
}

# build ARG...: cargo build ARG..., with cargo's own progress where somebody may be looking.
build() {
  need_build
  local quiet=(--quiet) first=''
  [[ ! -t 2 ]] || quiet=()
  [[ -d $CARGO_TARGET_DIR ]] || first=', which takes some minutes the first time'
  say "building in ${CARGO_TARGET_DIR/#"$HOME"/\~}$first"
  (cd "$root" && cargo build --locked "${quiet[@]}" "$@") || die "the build failed; the lines above say why"
}

# need_router: the release build of the router in `router`, if none is named there. By itself, as users build it: what is built
# beside examples has the features of the tests' libraries too.
need_router() {
  [[ -z $router ]] || return 0
  build --release --bin outbox-router
  router=$CARGO_TARGET_DIR/release/outbox-router
}
