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
  claim_target
}

# claim_target: lets cargo build this checkout's crates again if another checkout has built in the target folder since. For cargo they
# are the same crates, and it looks only at the times of the files, so it could take the other's programs for ours.
claim_target() {
  local last='' crate
  { read -r last <"$CARGO_TARGET_DIR/checkout"; } 2>/dev/null || true
  [[ $last != "$root" ]] || return 0
  for crate in outbox-router "$root"/crates/*/; do
    rm -rf "$CARGO_TARGET_DIR"/*/.fingerprint/"$(basename "$crate")"-*
  done
  mkdir -p "$CARGO_TARGET_DIR"
  printf '%s\n' "$root" >"$CARGO_TARGET_DIR/checkout"
}

# rust_version: the version of the cargo on PATH, such as 1.95.0.
rust_version() {
  cargo --version 2>/dev/null | sed 's/^cargo \([0-9.]*\).*/\1/'
}

# rust_is_new_enough: whether there is a cargo on PATH that builds the project.
rust_is_new_enough() {
  command -v cargo >/dev/null && printf '%s\n' "$oldest_rust" "$(rust_version)" | sort --version-sort --check=quiet
}

# with_progress COMMAND ARG...: runs cargo. Without a terminal, one line every 30 s replaces its progress bar and list of crates.
with_progress() {
  if [[ -t 2 ]]; then
    "$@"
  else
    { CARGO_TERM_PROGRESS_WHEN=always CARGO_TERM_PROGRESS_WIDTH=120 "$@" 2>&1 >&3 3>&- | sum_up_progress 30 3>&-; } 3>&1
  fi
}

# sum_up_progress SECONDS: passes on what cargo prints, except for its list of crates and its progress bar. Of that it prints the
# last state at this interval. Each state of the bar ends with a carriage return, and is at the beginning of a line.
sum_up_progress() {
  local started=$SECONDS next=$1 state='' line='' part code color=$'(\e\\[[0-9;]*m)*'
  local status="^$color *(Building|Compiling|Checking|Documenting|Updating|Locking|Adding|Downloading|Downloaded|Finished|Generated|Executable)$color +([^ ]+)"
  while :; do
    part='' code=0
    IFS= read -rt 5 part || code=$?
    line+=$part
    if [[ $line == *$'\r'* ]]; then
      part=${line%$'\r'*}
      part=${part##*$'\r'}
      # cargo clears the bar with spaces
      [[ $part != *[^\ ]* ]] || state=$part
      line=${line##*$'\r'}
    fi
    # above 128 at a timeout, with the beginning of a line
    if ((code <= 128)); then
      [[ $line != *'Blocking waiting for file lock'* ]] || state=$line
      if [[ ! $line =~ $status ]] && { [[ -n $line ]] || ((code == 0)); }; then
        printf '%s\n' "$line" >&2
      fi
      line=''
      ((code == 0)) || break
    fi
    if ((SECONDS - started >= next)); then
      hint "$(duration $((SECONDS - started))): $(progress_of "$state")"
      next=$((SECONDS - started + $1))
    fi
  done
}

# progress_of STATE: a state of cargo's progress bar in words.
progress_of() {
  local counts='Building +\[.*\] ([0-9]+)/([0-9]+)(: (.*[^ ]))?'
  if [[ $1 =~ $counts ]]; then
    printf '%s of %s steps done%s' "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}" "${BASH_REMATCH[4]:+, now ${BASH_REMATCH[4]}}"
    ((BASH_REMATCH[1] * 20 < BASH_REMATCH[2] * 19)) || printf '; the last steps take longest'
  elif [[ $1 == *Blocking* ]]; then
    printf 'waiting until another build has ended'
  else
    printf 'cargo is preparing the build'
  fi
}

# The profile of release builds. Scripts that measure nothing for the documentation set release-fast, which builds faster.
release=release

# build ARG...: cargo build ARG..., with cargo's progress.
build() {
  need_build
  local first='' started=$SECONDS profile=debug
  [[ " $* " != *' --profile '* ]] || profile=$release
  [[ -d $CARGO_TARGET_DIR/$profile ]] || first=', which takes 10 to 20 minutes on two processors the first time'
  say "building in ${CARGO_TARGET_DIR/#"$HOME"/\~}$first"
  (cd "$root" && with_progress cargo build --locked "$@") || die "the build failed; the lines above say why"
  hint "built in $(duration $((SECONDS - started)))"
}

build_release() { build --profile "$release" "$@"; }

# need_router: builds the release router and sets `router`, unless that is set. Built alone, as users do: together with the
# examples it would get the features of the tests' libraries too.
need_router() {
  [[ -z $router ]] || return 0
  build_release --bin outbox-router
  router=$CARGO_TARGET_DIR/$release/outbox-router
}
