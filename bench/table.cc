#include "bench/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

namespace pagetide::bench {
namespace {

using Json = nlohmann::json;

// Numbers that every entry has; all others are counters of the benchmark.
constexpr std::array<std::string_view, 8> kOwnNumbers = {
    "family_index", "per_family_instance_index",
    "repetitions",  "repetition_index",
    "threads",      "iterations",
    "real_time",    "cpu_time"};

std::string text_of(const Json& entry, const char* key) {
  const auto found = entry.find(key);
  return found != entry.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::optional<double> number_of(const Json& entry, const char* key) {
  const auto found = entry.find(key);
  if (found == entry.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

double nanoseconds_of_unit(std::string_view unit) {
  if (unit == "us") return 1e3;
  if (unit == "ms") return 1e6;
  if (unit == "s") return 1e9;
  return 1;
}

double time_ns_of(const Json& entry) {
  return number_of(entry, "real_time").value_or(0) *
         nanoseconds_of_unit(text_of(entry, "time_unit"));
}

// Three significant digits with the largest unit that keeps the number at 1 or more.
template <std::size_t count>
std::string scaled(double value, const std::array<std::pair<double, const char*>, count>& units) {
  auto unit = units.begin();
  while (std::next(unit) != units.end() && std::abs(value) < unit->first) ++unit;
  const double shown = value / unit->first;
  const int decimals = std::abs(shown) < 10 ? 2 : std::abs(shown) < 100 ? 1 : 0;
  return fmt::format("{:.{}f} {}", shown, decimals, unit->second);
}

std::string format_time(double ns) {
  constexpr std::array<std::pair<double, const char*>, 4> kUnits = {
      {{1e9, "s"}, {1e6, "ms"}, {1e3, "us"}, {1, "ns"}}};
  return scaled(ns, kUnits);
}

std::string format_rate(double per_second, std::string_view what) {
  constexpr std::array<std::pair<double, const char*>, 4> kUnits = {
      {{1e9, "G"}, {1e6, "M"}, {1e3, "k"}, {1, ""}}};
  return scaled(per_second, kUnits) + std::string(what);
}

std::string details_of(const Json& entry) {
  std::vector<std::string> parts;
  if (const auto rate = number_of(entry, "bytes_per_second")) {
    parts.push_back(format_rate(*rate, "B/s"));
  }
  if (const auto rate = number_of(entry, "items_per_second")) {
    parts.push_back(format_rate(*rate, "/s"));
  }
  for (const auto& [key, value] : entry.items()) {
    const bool is_counter =
        value.is_number() && key != "bytes_per_second" && key != "items_per_second" &&
        key != "ratio" &&
        std::find(kOwnNumbers.begin(), kOwnNumbers.end(), key) == kOwnNumbers.end();
    if (is_counter) parts.push_back(fmt::format("{}={:.6g}", key, value.get<double>()));
  }
  if (std::string label = text_of(entry, "label"); !label.empty()) {
    parts.push_back(std::move(label));
  }
  return fmt::format("{}", fmt::join(parts, "  "));
}

std::optional<double> variation_of(const std::vector<const Json*>& runs) {
  if (runs.size() < 2) return std::nullopt;
  double sum = 0;
  for (const Json* run : runs) sum += time_ns_of(*run);
  const double mean = sum / static_cast<double>(runs.size());
  double squares = 0;
  for (const Json* run : runs) squares += std::pow(time_ns_of(*run) - mean, 2);
  return mean > 0 ? std::optional(std::sqrt(squares / static_cast<double>(runs.size() - 1)) / mean)
                  : std::nullopt;
}

// All entries of one benchmark: its repetitions, its aggregates, or both.
struct Family {
  std::string name;
  std::vector<const Json*> runs = {};
  const Json* median = nullptr;
  const Json* variation = nullptr;
  std::string problem = {};
};

void add_entry(Family& family, const Json& entry) {
  const std::string aggregate = text_of(entry, "aggregate_name");
  if (const auto error = entry.find("error_occurred"); error != entry.end() && *error == true) {
    family.problem = text_of(entry, "error_message");
    if (family.problem.empty()) family.problem = "failed without a message";
  } else if (aggregate == "median") {
    family.median = &entry;
  } else if (aggregate == "cv") {
    family.variation = &entry;
  } else if (aggregate.empty()) {
    family.runs.push_back(&entry);
  }
}

std::vector<Family> families_of(const Json& benchmarks) {
  std::vector<Family> families;
  for (const Json& entry : benchmarks) {
    std::string name = text_of(entry, "run_name");
    auto family = std::find_if(families.begin(), families.end(),
                               [&](const Family& known) { return known.name == name; });
    if (family == families.end()) {
      families.push_back({.name = std::move(name)});
      family = std::prev(families.end());
    }
    add_entry(*family, entry);
  }
  return families;
}

Row row_of(Family family) {
  Row row{.name = std::move(family.name), .problem = std::move(family.problem)};
  if (!row.problem.empty()) return row;
  if (family.median != nullptr) {
    if (family.variation != nullptr) row.variation = number_of(*family.variation, "real_time");
  } else if (!family.runs.empty()) {
    row.variation = variation_of(family.runs);
    std::sort(family.runs.begin(), family.runs.end(),
              [](const Json* a, const Json* b) { return time_ns_of(*a) < time_ns_of(*b); });
    // The lower one of the two in the middle: a run that happened, counters and all.
    family.median = family.runs[(family.runs.size() - 1) / 2];
  } else {
    row.problem = "the report has neither repetitions nor a median of it";
    return row;
  }
  row.time_ns = time_ns_of(*family.median);
  row.ratio = number_of(*family.median, "ratio");
  row.details = details_of(*family.median);
  return row;
}

std::string machine_of(const Json& report) {
  const auto context = report.find("context");
  if (context == report.end() || !context->is_object()) return {};
  std::string load = "unknown";
  if (const auto found = context->find("load_avg"); found != context->end() && found->is_array() &&
                                                    !found->empty() && found->front().is_number()) {
    load = fmt::format("{:.2f}", found->front().get<double>());
  }
  return fmt::format("{}, {:.0f} CPUs at {:.0f} MHz, load {}", text_of(*context, "date"),
                     number_of(*context, "num_cpus").value_or(0),
                     number_of(*context, "mhz_per_cpu").value_or(0), load);
}

using Cells = std::array<std::string, 5>;

Cells cells_of(const Row& row) {
  const std::string name = "  " + row.name;
  if (!row.problem.empty()) return {name, "-", "", "", "NO RESULT: " + row.problem};
  return {name, format_time(row.time_ns),
          row.variation ? fmt::format("{:.1f} %", *row.variation * 100) : std::string(),
          row.ratio ? fmt::format("{:.2f} x", *row.ratio) : std::string(), row.details};
}

std::string line_of(const Cells& cells, const std::array<std::size_t, 4>& widths) {
  std::string line =
      fmt::format("{:<{}}  {:>{}}  {:>{}}  {:>{}}  {}", cells[0], widths[0], cells[1], widths[1],
                  cells[2], widths[2], cells[3], widths[3], cells[4]);
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

}  // namespace

Result<Report> read_report(std::string_view program, std::string_view json_text) {
  const Json json = Json::parse(json_text, nullptr, /*allow_exceptions=*/false);
  const auto benchmarks = json.is_object() ? json.find("benchmarks") : json.end();
  if (json.is_discarded() || benchmarks == json.end() || !benchmarks->is_array()) {
    return failure(ErrorCode::damaged,
                   fmt::format("the results of {} are not a Google Benchmark report; the program "
                               "probably died while it ran. Run it again.",
                               program));
  }
  Report report{.program = std::string(program), .machine = machine_of(json), .rows = {}};
  for (Family& family : families_of(*benchmarks)) report.rows.push_back(row_of(std::move(family)));
  return report;
}

std::string render(std::span<const Report> reports) {
  const Cells header = {"benchmark", "median", "+-", "ratio", "counters"};
  std::array<std::size_t, 4> widths{};
  const auto widen = [&](const Cells& cells) {
    for (std::size_t i = 0; i < widths.size(); ++i)
      widths[i] = std::max(widths[i], cells[i].size());
  };
  widen(header);
  for (const Report& report : reports) {
    for (const Row& row : report.rows) widen(cells_of(row));
  }
  std::string table = line_of(header, widths);
  for (const Report& report : reports) {
    table += fmt::format("\n{} ({})\n", report.program, report.machine);
    for (const Row& row : report.rows) table += line_of(cells_of(row), widths);
    if (report.rows.empty()) table += "  no benchmark ran\n";
  }
  return table;
}

}  // namespace pagetide::bench
