#include "tests/examples/sample_input.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <random>

namespace package_index {

namespace {

// The stanzas that apt-cache gives, up to `at_most`, and how many they are.
std::size_t copy_from_apt(std::ofstream& file, std::size_t at_most) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> apt(
      ::popen("apt-cache dumpavail 2>/dev/null", "re"), ::pclose);
  if (apt == nullptr) return 0;
  std::size_t count = 0;
  char* line = nullptr;
  std::size_t line_bytes = 0;
  while (count<at_most&& ::getline(&line, &line_bytes, apt.get())> 0) {
    file << line;
    if (*line == '\n') ++count;
  }
  std::free(line);
  return count;
}

void make_up(std::ofstream& file, std::size_t records) {
  std::mt19937 random(1);
  const auto below = [&](std::size_t limit) { return random() % limit; };
  for (std::size_t i = 0; i < records; ++i) {
    file << fmt::format("Package: package-{}\nVersion: {}:{}.{}-{}\nArchitecture: amd64\n", i,
                        below(3), below(20), below(100), below(9));
    file << "Depends: libc6 (>= 2.34)";
    for (std::size_t n = below(8); n > 0; --n) {
      file << fmt::format(", package-{} (>= {}) | other-{}", below(records), below(9), below(500));
    }
    file << fmt::format("\nDescription: made up, {}\n goes on here\nSection: libs\n\n",
                        std::string(below(120), 'x'));
  }
}

}  // namespace

SampleInput write_sample_input(const std::string& path, std::size_t at_least, std::size_t at_most) {
  {
    std::ofstream file(path, std::ios::binary);
    const std::size_t copied = copy_from_apt(file, at_most);
    if (copied >= at_least) {
      return {copied, fmt::format("the first {} records of apt-cache dumpavail", copied)};
    }
  }
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  make_up(file, at_least);
  return {
      at_least,
      fmt::format("{} records made up in the syntax of apt-cache dumpavail, because that has fewer",
                  at_least)};
}

}  // namespace package_index
