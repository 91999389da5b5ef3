#include "examples/package_index/report.h"

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <vector>

namespace package_index {

namespace {

constexpr std::size_t kNamesShown = 6;

std::string shortened(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size() && i < kNamesShown; ++i) {
    text += (i == 0 ? "" : ", ") + names[i];
  }
  if (names.size() > kNamesShown) text += ", ...";
  return names.empty() ? "none" : text;
}

}  // namespace

std::string grouped(std::uint64_t number) {
  std::string grouped;
  const std::string digits = std::to_string(number);
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) grouped += ',';
    grouped += digits[i];
  }
  return grouped;
}

std::string human_bytes(std::uint64_t bytes) {
  constexpr std::array kUnits = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

void Report::line(std::string_view text) const {
  if (is_quiet_) return;
  fmt::print("{}\n", text);
  std::fflush(stdout);
}

void Report::answers(const Answers& answers) const {
  line(fmt::format("  packages                    {}", grouped(answers.packages)));
  line(fmt::format("  dependencies                {}, of them to {} names without a record",
                   grouped(answers.edges), grouped(answers.only_named)));
  line(fmt::format("  packages that name libc6    {}", grouped(answers.libc6_dependents)));
  if (answers.most_needed_count > 0) {
    line(fmt::format("  most named                  {}, {} times", answers.most_needed,
                     grouped(answers.most_needed_count)));
  }
  if (!answers.longest_chain.empty()) {
    line(fmt::format("  longest chain of needs      {} packages: {}", answers.longest_chain.size(),
                     shortened(answers.longest_chain)));
  }
}

void Report::package(const PackageGraph& graph, std::string_view name) const {
  const auto found = answer(graph, name);
  if (!found) return line(fmt::format("  {}: the index has no such package", name));
  line(fmt::format("  {} {} ({}): {}", name, found->version, found->section, found->summary));
  line(fmt::format("    names {}: {}", found->dependencies.size(), shortened(found->dependencies)));
  line(fmt::format("    needs {} packages in all", grouped(found->needed)));
  line(fmt::format("    is named by {}: {}", grouped(found->dependents.size()),
                   shortened(found->dependents)));
}

void Report::snapshot(const pagetide::SnapshotInfo& info, std::string_view after,
                      Milliseconds commit) {
  if (!has_head_) {
    line(fmt::format("\n  {:>8}  {:<20}  {:>13}  {:>11}  {:>9}  {:>8}  {:>8}", "snapshot", "after",
                     "changed pages", "of the heap", "written", "stop", "in all"));
    has_head_ = true;
  }
  const double changed_bytes = static_cast<double>(info.changed_pages * info.page_bytes);
  const double heap_bytes = static_cast<double>(info.heap_bytes);
  line(fmt::format(
      "  {:>8}  {:<20}  {:>13}  {:>9.1f} %  {:>9}  {:>5.1f} ms  {:>5.0f} ms", info.id.value, after,
      grouped(info.changed_pages), heap_bytes > 0 ? 100 * changed_bytes / heap_bytes : 0,
      human_bytes(info.bytes_written), static_cast<double>(info.stop_ns) / 1e6, commit.count()));
}

}  // namespace package_index
