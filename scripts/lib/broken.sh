# shellcheck shell=bash
# Routers that are broken on purpose, each by a patch. Needs messages.sh, cache.sh and build.sh.

broken_patches=$root/examples/chaos/broken

broken_names() {
  local patch names=()
  for patch in "$broken_patches"/*.patch; do
    patch=${patch##*/}
    names+=("${patch%.patch}")
  done
  printf '%s' "${names[*]}"
}

is_broken() { [[ $1 =~ ^[a-z-]+$ && -f $broken_patches/$1.patch ]]; }

# broken_faults NAME: the kinds of faults that find it, from the header of the patch.
broken_faults() { sed -n 's/^Faults: //p' "$broken_patches/$1.patch"; }

# broken_options NAME: the options of the campaign that it needs, one per line.
broken_options() { sed -n 's/^Options: //p' "$broken_patches/$1.patch" | tr ' ' '\n'; }

# is_broken_in_the_model NAME: whether the model tests of the loop find it, without servers.
is_broken_in_the_model() { grep -q '^Model: yes$' "$broken_patches/$1.patch"; }

# copy_broken NAME: copies the tree to $broken_copy/tree, and applies the patch there. Holds a lock until file descriptor 5 is
# closed.
broken_copy=$cache/broken
copy_broken() {
  local copy=$broken_copy
  need_git
  need_build
  mkdir -p "$cache"
  exec 5>"$copy.lock"
  flock 5
  rm -rf "$copy/tree"
  mkdir -p "$copy/tree"
  tar -C "$root" -cf - Cargo.toml Cargo.lock outbox-router.example.toml crates src migrations benches examples tests/main.rs | tar -C "$copy/tree" -xf -
  # Without a ceiling, git would find a repository in a parent folder and skip these files.
  if ! (cd "$copy/tree" && GIT_CEILING_DIRECTORIES=$copy git apply --check "$broken_patches/$1.patch"); then
    die "$1.patch no longer applies to src/: rewrite it so that it breaks the same guarantee"
  fi
  (cd "$copy/tree" && GIT_CEILING_DIRECTORIES=$copy git apply "$broken_patches/$1.patch")
}

# find_in_the_model NAME: runs the model tests, and fails if they find nothing.
find_in_the_model() {
  local found
  copy_broken "$1"
  say "running the model tests of the loop with ${bold}$1${plain}, in ${broken_copy/#"$HOME"/\~}"
  (cd "$broken_copy/tree" && CARGO_TARGET_DIR=$broken_copy/target cargo test --locked --quiet --lib --no-run) ||
    die "the broken router does not build; see the lines above, and $1.patch"
  if found=$(cd "$broken_copy/tree" && CARGO_TARGET_DIR=$broken_copy/target RUST_BACKTRACE=0 \
    cargo test --locked --quiet --lib relay::tests 2>&1); then
    die "the model tests found nothing"
  fi
  grep -A 1 '^Test failed' <<<"$found" | head -n 1 | grep . || die "the model tests did not run: $found"
  exec 5>&-
}

# build_broken NAME: builds the broken router in a separate target folder, and sets $broken_router.
build_broken() {
  local copy=$broken_copy
  copy_broken "$1"
  say "building a router with ${bold}$1${plain}, in ${copy/#"$HOME"/\~}"
  (cd "$copy/tree" && CARGO_TARGET_DIR=$copy/target cargo build --locked --quiet --bin outbox-router) ||
    die "the broken router does not build; see the lines above, and $1.patch"
  broken_router=$copy/target/debug/outbox-router-$1
  cp "$copy/target/debug/outbox-router" "$broken_router"
  exec 5>&-
}
