# Installs the archives of a release. scripts/release puts in the version and the checksums.
class OutboxRouter < Formula
  desc "Transactional outbox: from the Postgres write-ahead log to Kafka"
  homepage "https://github.com/outbox-router/outbox-router"
  version "@VERSION@"
  license "Apache-2.0"

  depends_on :linux

  on_intel do
    url "https://github.com/outbox-router/outbox-router/releases/download/v@VERSION@/outbox-router-@VERSION@-x86_64-linux.tar.gz"
    sha256 "@x86_64@"
  end
  on_arm do
    url "https://github.com/outbox-router/outbox-router/releases/download/v@VERSION@/outbox-router-@VERSION@-aarch64-linux.tar.gz"
    sha256 "@aarch64@"
  end

  def install
    bin.install "outbox-router"
    man1.install Dir["man/*.1"]
    bash_completion.install "completions/outbox-router.bash" => "outbox-router"
    zsh_completion.install "completions/_outbox-router"
    fish_completion.install "completions/outbox-router.fish"
    pkgshare.install "outbox-router.example.toml", "third-party"
  end

  test do
    assert_match "outbox-router #{version} ", shell_output("#{bin}/outbox-router --version")
  end
end
