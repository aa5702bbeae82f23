# shellcheck shell=bash
# The steps of scripts/test that need no server. Needs packages.sh, build.sh, prebuilt.sh and $root.

# New compilers have new lints, so warnings are errors only with this version of the compiler. Others only show them.
lint_rust=1.95

# deny_warnings: prints the option that makes warnings errors.
deny_warnings() {
  if [[ $(rust_version) == "$lint_rust".* ]]; then
    printf -- '-Dwarnings'
  else
    warn "this is Rust $(rust_version): its warnings are shown; only those of $lint_rust are errors"
  fi
}

step_format() {
  need_lints
  cargo fmt --all --check
  # the fuzz targets have a lock file of their own, which a new dependency changes
  cargo metadata --locked --format-version 1 --manifest-path fuzz/Cargo.toml >/dev/null
}

step_scripts() {
  need_packages shellcheck
  local scripts=()
  mapfile -t scripts < <(find scripts -maxdepth 1 -type f)
  shellcheck --external-sources "${scripts[@]}" scripts/lib/*.sh tests/scripts.sh packaging/debian/postinst packaging/debian/postrm .ci/run
  tests/scripts.sh
}

# A patch that no longer applies shows nothing.
step_patches() {
  local patch
  need_git
  for patch in examples/chaos/broken/*.patch; do
    git apply --check "$patch" || die "$patch no longer applies to src/: rewrite it so that it breaks the same guarantee"
  done
}

step_clippy() {
  need_lints
  local deny
  deny=$(deny_warnings)
  # shellcheck disable=SC2086 # nothing, or one word
  with_progress cargo clippy --locked --workspace --all-targets -- $deny
}

# Without its optional features.
step_features() {
  need_lints
  local deny
  deny=$(deny_warnings)
  # shellcheck disable=SC2086 # nothing, or one word
  with_progress cargo clippy --locked -p outbox-consumer -- $deny
}

# The oldest compiler uses a separate target folder, so that neither compiler discards the other's work.
step_oldest_rust() {
  if ! command -v rustup >/dev/null ||
    ! rustup toolchain install "$oldest_rust" --profile minimal --no-self-update &>/dev/null; then
    warn "Rust $oldest_rust cannot be installed: whether it builds the project is not checked"
    return 0
  fi
  local -x CARGO_TARGET_DIR=$cache/target-$oldest_rust
  claim_target
  with_progress rustup run "$oldest_rust" cargo check --locked --workspace --all-targets
}

step_rustdoc() {
  with_progress env RUSTDOCFLAGS="$(deny_warnings)" cargo doc --locked --no-deps --workspace \
    --features outbox-consumer/kafka,outbox-consumer/tower
  # cargo-nextest does not run them
  with_progress cargo test --locked --doc --workspace --features outbox-consumer/kafka,outbox-consumer/tower
}

step_site() { "$root/scripts/docs"; }

step_fuzz() { with_progress cargo check --locked --manifest-path fuzz/Cargo.toml; }

# Builds each crate from its package, as users get it, and uploads nothing.
step_publish() {
  if ! printf '%s\n' 1.90 "$(rust_version)" | sort --version-sort --check=quiet; then
    warn "cargo $(rust_version) cannot publish a workspace, 1.90 can: whether the crates can be published is not checked"
    return 0
  fi
  local crate folder=$CARGO_TARGET_DIR/publish
  # cargo assumes that a package of the same version has not changed
  for crate in "$root"/crates/*/; do
    rm -rf "$folder/debug/.fingerprint/$(basename "$crate")"-*
  done
  with_progress cargo publish --workspace --dry-run --locked --allow-dirty --target-dir "$folder"
}

step_licences() {
  need_tool cargo-deny "$deny_version"
  "$deny" check --hide-inclusion-graph bans licenses sources
}

# Advisories come from a database on the internet; without it they cannot be checked.
step_advisories() {
  need_tool cargo-deny "$deny_version"
  if timeout 60 "$deny" fetch db >/dev/null 2>&1; then
    "$deny" check --hide-inclusion-graph advisories
  else
    warn "the advisory database cannot be reached: advisories are not checked"
  fi
}
