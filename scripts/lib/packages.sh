# shellcheck shell=bash
# Installs system packages and the Rust toolchain. Needs messages.sh.

# as_root COMMAND ARG...
as_root() {
  if ((EUID == 0)); then "$@"; else sudo "$@"; fi
}

package_installed() {
  [[ $(dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null) == installed ]]
}

# package_known NAME: whether apt can install a package of this name.
package_known() {
  [[ $(apt-cache policy "$1" 2>/dev/null) == *Candidate:\ [0-9]* ]]
}

# quietly COMMAND ARG...: runs a command, and prints the end of its output only if it fails.
quietly() {
  local log code=0
  log=$(mktemp)
  ("$@") </dev/null >"$log" 2>&1 || code=$?
  ((code == 0)) || tail -n 20 "$log" >&2
  rm -f "$log"
  return "$code"
}

apt_lists_updated=''

apt_quietly() {
  quietly as_root env DEBIAN_FRONTEND=noninteractive apt-get --quiet --yes --no-install-recommends \
    -o DPkg::Lock::Timeout=300 -o Dpkg::Options::=--force-confold -o Dpkg::Use-Pty=0 "$@"
}

# apt_update: updates the package lists once per script, and fails if there is no apt-get or no way to become root.
apt_update() {
  [[ -z $apt_lists_updated ]] || return 0
  command -v apt-get >/dev/null || die "install by hand: $* (this system has no apt-get)"
  if ((EUID != 0)) && ! command -v sudo >/dev/null; then
    die "install by hand: $* (apt-get needs root, and there is no sudo)"
  fi
  # An unreachable source does not matter if the packages can be installed.
  apt_quietly update || warn "apt-get update failed; going on with the package lists that are there"
  apt_lists_updated=1
}

# need_packages NAME...: installs the missing packages. 'a|b' takes the first one that apt knows.
need_packages() {
  local wanted alternative name missing=()
  for wanted in "$@"; do
    for name in ${wanted//|/ }; do
      ! package_installed "$name" || continue 2
    done
    missing+=("$wanted")
  done
  ((${#missing[@]})) || return 0

  apt_update "${missing[@]}"
  local names=()
  for wanted in "${missing[@]}"; do
    name=${wanted%%|*}
    for alternative in ${wanted//|/ }; do
      if package_known "$alternative"; then
        name=$alternative
        break
      fi
    done
    names+=("$name")
  done
  say "installing ${names[*]}"
  apt_quietly install "${names[@]}" || die "apt-get could not install ${names[*]}; the lines above say why"
}

need_git() { command -v git >/dev/null || need_packages git; }

# Packages to build librdkafka from source with TLS, OAuth over OpenID Connect (libcurl), zlib and zstd.
need_build_packages() {
  need_packages gcc g++ make pkg-config libc6-dev libcurl4-openssl-dev libssl-dev zlib1g-dev
}

# Kafka needs Java 17 or later, which is not the default of every release.
need_java() {
  java=${JAVA_HOME:+$JAVA_HOME/bin/}java
  if ! command -v "$java" >/dev/null; then
    need_packages 'openjdk-17-jre-headless|openjdk-21-jre-headless|default-jre-headless'
    java=java
  fi
  local version
  version=$("$java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p;q')
  ((${version:-0} >= 17)) || die "Kafka needs Java 17 or later and '$java' is ${version:-unknown}; set JAVA_HOME to a newer one"
}

need_maven() {
  command -v mvn >/dev/null && return
  # Before Maven, which would install the release's default Java.
  need_java
  need_packages maven ca-certificates
}

# Debian's Postgres server, without the cluster on port 5432 that its installation would create and start.
need_postgres_packages() {
  local settings=/etc/postgresql-common/createcluster.conf
  if ! package_installed postgresql-common && [[ ! -e $settings ]]; then
    apt_update postgresql
    as_root mkdir -p "${settings%/*}"
    as_root tee "$settings" <<<'create_main_cluster = false' >/dev/null
  fi
  need_packages postgresql
}

# need_rust: puts a cargo that builds the project on PATH, with rustup if there is none. Debian's package may be too old.
# $cargo_added is then the folder that was put on PATH.
cargo_added=''
need_rust() {
  local installed_here="${CARGO_HOME:-$HOME/.cargo}/bin" version
  ! rust_is_new_enough || return 0
  if PATH="$installed_here:$PATH" rust_is_new_enough; then
    add_cargo "$installed_here"
    return
  fi
  if command -v rustup >/dev/null || [[ -x $installed_here/rustup ]]; then
    version=$(PATH="$PATH:$installed_here" rust_version) || true
    [[ -n $version ]] || die "rustup has no toolchain for cargo: run 'rustup default stable', and unset RUSTUP_TOOLCHAIN if it is set"
    die "cargo is version $version and the project needs $oldest_rust or later: run 'rustup update'"
  fi
  ! command -v cargo >/dev/null || say "$(command -v cargo) is version $(rust_version) and the project needs $oldest_rust or later"
  command -v curl >/dev/null || need_packages curl ca-certificates
  say "installing Rust with rustup, into ${CARGO_HOME:-$HOME/.cargo}"
  # quietly, because it ends with advice about PATH, which the scripts do not need
  quietly install_rustup || die "rustup could not be installed; the lines above say why. See https://rustup.rs, then try again"
  add_cargo "$installed_here"
}

install_rustup() {
  curl --proto '=https' --tlsv1.2 --silent --show-error --fail https://static.rust-lang.org/rustup/rustup-init.sh |
    sh -s -- -y --quiet --profile minimal --no-modify-path
}

# shellcheck disable=SC2034 # scripts/demo shows it
add_cargo() { cargo_added=$1 PATH="$1:$PATH"; }

# need_lints: installs cargo fmt and cargo clippy, which rustup's minimal profile lacks.
need_lints() {
  cargo fmt --version &>/dev/null && cargo clippy --version &>/dev/null && return
  command -v rustup >/dev/null || die "install by hand: rustfmt and clippy for $(command -v cargo)"
  say "installing rustfmt and clippy with rustup"
  rustup --quiet component add rustfmt clippy || die "rustup could not install them; the lines above say why"
}
