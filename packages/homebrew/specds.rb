# Formula for a tap; `scripts/set_release.py` writes version and checksum, and
# `brew update-python-resources` the packages that specds needs.
class Specds < Formula
  include Language::Python::Virtualenv

  desc "Speculative decoding from datastores: faster language models, the same text"
  homepage "https://github.com/specds/specds"
  url "https://github.com/specds/specds/releases/download/v0.1.0/specds-0.1.0.tar.gz"
  sha256 "0000000000000000000000000000000000000000000000000000000000000000"
  license "Apache-2.0"
  head "https://github.com/specds/specds.git", branch: "main"

  depends_on "maturin" => :build
  depends_on "rust" => :build
  depends_on "numpy"
  depends_on "python@3.13"

  def install
    virtualenv_install_with_resources
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/specds --version")
    (testpath/"a.txt").write "def add(a, b):\n"
    assert_match "no tokenizer", shell_output("#{bin}/specds build --corpus a.txt --tokenizer none --out a 2>&1", 1)
  end
end
