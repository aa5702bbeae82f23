# shellcheck shell=bash
# What packages and archives contain besides the program. Needs messages.sh, packages.sh and $root.

# shellcheck disable=SC2034 # scripts/package and scripts/release use it
version=$(sed -n '/^\[package\]$/,/^\[/s/^version = "\(.*\)"$/\1/p' "$root/Cargo.toml")

# need_time_of_files: sets the time of all files to that of the commit, for the same bytes each time.
need_time_of_files() {
  if [[ -z ${SOURCE_DATE_EPOCH:-} ]]; then
    need_git
    SOURCE_DATE_EPOCH=$(git -C "$root" log -1 --format=%ct) ||
      die "git cannot tell the time of this commit; the line above says why. Without a clone, set SOURCE_DATE_EPOCH to the release's time, in seconds since 1970"
  fi
  export SOURCE_DATE_EPOCH
}

# write_manual FOLDER COMMAND...: the manual pages and completions of a router, which is run by this command.
write_manual() {
  local folder=$1
  shift
  mkdir -p "$folder/man" "$folder/completions"
  [[ $("$@" --version) == "outbox-router $version "* ]] || die "the router says that it is '$("$@" --version)', not $version"
  # not with the lock of the script
  "$@" man --output "$folder/man" 6>&- || die "this router cannot write its manual pages; it has to be a build of this commit"
  "$@" completions bash >"$folder/completions/outbox-router.bash"
  "$@" completions zsh >"$folder/completions/_outbox-router"
  "$@" completions fish >"$folder/completions/outbox-router.fish"
}

# write_third_party LICENCES BILL OPTION...: two files about the libraries of a build with these options of cargo.
write_third_party() {
  local licences=$1 bill=$2
  shift 2
  libraries "$@" | third_party >"$licences"
  [[ $(grep -c '^==== ' "$licences") -gt 100 ]] || die "the licences of the libraries are not in ${CARGO_HOME:-$HOME/.cargo}/registry/src"
  libraries "$@" | bill_of_materials >"$bill"
}

# libraries OPTION...: name, version and licence of everything that is linked into the binary; librdkafka, libcurl and zstd are
# in the crates that contain them. So is OpenSSL, whose crate is a dependency of a build script.
libraries() {
  {
    (cd "$root" && cargo tree --locked --edges normal --prefix none --format '{p} {l}' "$@") | grep -v "($root"
    (cd "$root" && cargo tree --locked --edges normal,build --prefix none --format '{p} {l}' "$@") | grep '^openssl-src ' || true
  } | sed -E 's/ \((proc-macro|\*)\)//g; s/ v/ /' | LC_ALL=C sort --unique
}

# third_party: the licences of the libraries on stdin.
third_party() {
  local name version licence crate file
  while read -r name version licence; do
    for crate in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/"$name-$version"; do
      [[ -d $crate ]] || continue
      printf '==== %s %s, %s\n\n' "$name" "$version" "$licence"
      while IFS= read -r file; do
        printf -- '---- %s\n\n' "${file#"$crate"/}"
        cat "$file"
        printf '\n'
      done < <(find "$crate" -maxdepth 2 -type f \( -iname 'licen[cs]e*' -o -iname 'copying*' -o -iname 'notice*' \) \
        ! -name '*.rs' | LC_ALL=C sort)
      break
    done
  done
}

# bill_of_materials: the libraries on stdin as a CycloneDX document.
bill_of_materials() {
  jq --raw-input --slurp --arg version "$version" '
    def component($type; $licence): {type: $type, name, version, purl: "pkg:cargo/\(.name)@\(.version | @uri)",
      licenses: [{expression: ($licence | gsub("/"; " OR "))}]};
    {
      bomFormat: "CycloneDX", specVersion: "1.5", version: 1,
      metadata: {component: ({name: "outbox-router", version: $version} | component("application"; "Apache-2.0"))},
      components: [splits("\n") | select(. != "") | capture("^(?<name>[^ ]+) (?<version>[^ ]+) (?<licence>.+)$")
        | component("library"; .licence)],
    }'
}
