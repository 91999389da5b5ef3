#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "bench/table.h"

// bench_table FILE...: prints the JSON results of benchmark programs as one table. Exits with 1
// when a file cannot be read. A benchmark without a result is a row that says why: what a machine
// does not support is no failure of the run.

int main(int argc, char** argv) {
  const std::vector<std::filesystem::path> paths(argv + 1, argv + argc);
  if (paths.empty()) {
    fmt::print(stderr, "usage: bench_table FILE...\n");
    return 2;
  }
  bool complete = true;
  std::vector<pagetide::bench::Report> reports;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    if (!file) {
      fmt::print(stderr, "bench_table: cannot open {}; run ./dev bench\n", path.string());
      complete = false;
      continue;
    }
    std::ostringstream text;
    text << file.rdbuf();
    auto report = pagetide::bench::read_report(path.stem().string(), text.str());
    if (!report) {
      fmt::print(stderr, "bench_table: {}\n", report.error().message());
      complete = false;
      continue;
    }
    reports.push_back(*std::move(report));
  }
  fmt::print("{}", pagetide::bench::render(reports));
  return complete ? 0 : 1;
}
