# shellcheck shell=bash
# Runs the tests with cargo-nextest, as .config/nextest.toml says, and sums up their reports. Needs messages.sh, prebuilt.sh and $root.

# All that have tests.
# shellcheck disable=SC2034 # scripts/test uses it
targets=(--workspace --tests --examples)

# shellcheck disable=SC2154 # the script that uses this sets it
reports=$root/target/junit flaky_log=$root/target/flaky.txt

# run_tests NAME ARG...: runs tests, and moves their JUnit report to target/junit/NAME.xml.
run_tests() {
  local name=$1 code=0
  shift
  mkdir -p "$reports"
  rm -f "$root"/target/nextest/*/junit.xml "$reports/$name.xml"
  # The backtrace of an async test is long and shows only the test's name, which its message does too.
  # A session of its own keeps Ctrl-C and a closed terminal from the tests: killed that way, they would leave routers behind.
  # Steps ignore SIGINT, which the tests would inherit.
  RUST_BACKTRACE=0 setsid --wait env --default-signal=INT "$nextest" nextest run --locked "${targets[@]}" "$@" || code=$?
  ((code != 4)) || die "no test has such a name"
  mv "$root"/target/nextest/*/junit.xml "$reports/$name.xml" || warn "cargo-nextest has left no report"
  return "$code"
}

# outcomes REPORT...: prints a line for each test: its outcome (passed, flaky or failed), seconds, name, and why the first try of a flaky
# one failed.
outcomes() {
  # shellcheck disable=SC2016 # the program is awk's
  awk '
    function attribute(name) {
      return match($0, " " name "=\"[^\"]*\"") ? substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 4) : ""
    }
    /<testcase / {
      test = attribute("classname") " " attribute("name")
      seconds = attribute("time")
      outcome = "passed"
      why = ""
      if (/\/>$/) print outcome "\t" seconds "\t" test
    }
    /<failure|<error/ { outcome = "failed" }
    /<flakyFailure|<flakyError/ {
      outcome = "flaky"
      if (why == "") {
        why = attribute("type")
        if (sub(/.* panicked at /, "")) {
          why = $0
          getline
          why = why " " substr($0, 1, 300)
          gsub(/&quot;/, "\"", why); gsub(/&apos;/, "\047", why); gsub(/&lt;/, "<", why); gsub(/&gt;/, ">", why); gsub(/&amp;/, "\\&", why)
        }
      }
    }
    /<\/testcase>/ { print outcome "\t" seconds "\t" test "\t" why }' "$@"
}

# skipped REPORT...: prints why tests were skipped, and how many for each reason. Such a test counts as passed.
skipped() { { grep -hE '^skipped: ' "$@" || true; } | sort | uniq -c; }

# quarantined: prints the tests that are quarantined, with their reasons.
quarantined() {
  { grep -rhE --include='*.rs' --after-context 8 '#\[ignore = "quarantined' tests crates src examples || true; } | awk '
    /#\[ignore = "quarantined/ { reason = $0; sub(/.*#\[ignore = "/, "", reason); sub(/"\].*/, "", reason) }
    reason != "" && match($0, / fn [a-z0-9_]+/) { print substr($0, RSTART + 4, RLENGTH - 4) ": " reason; reason = "" }'
}

# sum_up_tests: prints the quarantined, the slowest and the flaky tests of this run, and how many passed and failed. Flaky ones are
# appended to target/flaky.txt.
sum_up_tests() {
  local all line flaky
  compgen -G "$reports/*.xml" >/dev/null || return 0
  all=$(outcomes "$reports"/*.xml)
  line=$(quarantined)
  if [[ -n $line ]]; then
    say $'quarantined (they run with --full):\n'"$line"
    (($(wc -l <<<"$line") <= 10)) || die "more than ten tests are quarantined: mend one before the next"
  fi
  line=$(skipped "$reports"/*.xml)
  [[ -z $line ]] || warn $'not everything could be tested on this machine:\n'"$line"
  say "the slowest tests:"
  sort -t $'\t' -k 2,2nr <<<"$all" | sed -n '1,10p' | awk -F '\t' '{ printf "%7.1f s  %s\n", $2, $3 }' >&2
  flaky=$(awk -F '\t' '$1 == "flaky" { print $3 " (" $4 ")" }' <<<"$all")
  while IFS= read -r line; do
    [[ -n $line ]] || continue
    say "${yellow}FLAKY${plain} $line"
    printf '%s %s %s\n' "$(date -u +%FT%TZ)" "$(git rev-parse --short HEAD 2>/dev/null || true)" "$line" >>"$flaky_log"
  done <<<"$flaky"
  awk -F '\t' '{ if ($1 == "failed") failed++; else passed++ } END { printf "%d passed, %d failed\n", passed, failed }' <<<"$all"
}
