#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pagetide/base/error.h"

// The readable table of ./dev bench, made from Google Benchmark's JSON files. Thread-safe: no
// state.

namespace pagetide::bench {

// One benchmark: the median of its repetitions.
struct Row {
  std::string name;
  std::string problem = {};  // why it has no result; the rest is empty then
  double time_ns = 0;        // wall-clock time of one iteration
  // Standard deviation over mean of the repetitions, where there were at least two.
  std::optional<double> variation = {};
  std::optional<double> ratio = {};  // the counter "ratio"
  std::string details = {};          // throughput, other counters, label
};

struct Report {
  std::string program;
  std::string machine;  // when and on what it ran
  std::vector<Row> rows;
};

// Reads what a program wrote for --benchmark_out. Takes reports with and without aggregates.
// Fails with damaged when the text is no such report.
Result<Report> read_report(std::string_view program, std::string_view json_text);

// One table of all reports, columns aligned, with a line for each program. Every line ends with
// a newline.
std::string render(std::span<const Report> reports);

}  // namespace pagetide::bench
