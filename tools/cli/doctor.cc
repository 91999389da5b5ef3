#include "pagetide/allocator/clear/clear.h"
#include "pagetide/allocator/heap_layout.h"
#include "pagetide/allocator/program_identity.h"
#include "pagetide/base/page_range.h"
#include "pagetide/snapshot/format.h"
#include "pagetide/tracker/capabilities.h"
#include "pagetide/tracker/disabled_features.h"
#include "pagetide/tracker/kernel_bugs.h"
#include "tools/cli/json.h"
#include "tools/cli/table.h"
#include "tools/cli/text.h"
#include "tools/cli/verbs.h"

namespace pagetide::cli {

namespace {

#if defined(__clang__)
constexpr const char* kCompiler = "clang " __clang_version__;
#else
constexpr const char* kCompiler = "GCC " __VERSION__;
#endif
constexpr const char* kBuildType = PAGETIDE_CLI_BUILD_TYPE;

bool is_fallback(const Capabilities& found) {
  return found.chosen != BackendKind::uffd_async;
}

Json rows_json(const std::vector<ClearDispatchRow>& rows) {
  Json all = Json::array();
  for (const ClearDispatchRow& row : rows) {
    Json json = {{"first_bytes", row.first_bytes}, {"last_bytes", nullptr}};
    if (row.last_bytes != SIZE_MAX) json["last_bytes"] = row.last_bytes;
    json["kernel"] = row.kernel_name;
    all.push_back(std::move(json));
  }
  return all;
}

// What decides how memory is cleared, named as in /proc/cpuinfo.
std::vector<std::string> features_of(const CpuFeatures& cpu) {
  std::vector<std::string> names;
  const auto add = [&names](bool has, const char* name) {
    if (has) names.emplace_back(name);
  };
  add(cpu.rep_good, "rep_good");
  add(cpu.erms, "erms");
  add(cpu.fsrm, "fsrm");
  add(cpu.fzrm, "fzrm");
  add(cpu.fsrs, "fsrs");
  add(cpu.avx2, "avx2");
  add(cpu.avx512, "avx512");
  add(cpu.avx_vnni, "avx_vnni");
  add(cpu.clzero, "clzero");
  add(cpu.hypervisor, "hypervisor");
  return names;
}

Json cpu_json(const CpuFeatures& cpu) {
  return {
      {"vendor", to_string(cpu.vendor)}, {"family", cpu.family},       {"model", cpu.model},
      {"features", features_of(cpu)},    {"l1d_bytes", cpu.l1d_bytes}, {"l2_bytes", cpu.l2_bytes},
      {"l3_bytes", cpu.l3_bytes}};
}

void print_as_json(const Capabilities& found, const ClearDispatch& clear, Output& out) {
  Json capabilities = Json::array();
  for (const Capability& item : found.items) {
    capabilities.push_back({{"name", item.name},
                            {"available", item.available},
                            {"detail", item.detail},
                            {"without", item.without}});
  }
  Json bugs = Json::array();
  for (const KernelBug& bug : found.kernel_bugs) {
    bugs.push_back({{"id", bug.id},
                    {"state", to_string(bug.state)},
                    {"what", bug.what},
                    {"consequence", bug.consequence}});
  }
  print_json({{"version", PAGETIDE_CLI_VERSION},
              {"build",
               {{"compiler", kCompiler},
                {"type", kBuildType},
                {"build_id", current_program().build_id_hex()}}},
              {"store_format", format::kVersion},
              {"heap_layout", layout::kVersion},
              {"page_bytes", page_size()},
              {"capabilities", std::move(capabilities)},
              {"kernel_bugs", std::move(bugs)},
              {"backend",
               {{"chosen", to_string(found.chosen)},
                {"fallback", is_fallback(found)},
                {"reason", found.reason}}},
              {"clear",
               {{"kernel", clear_kernel_name(clear.kernel)},
                {"rows", rows_json(clear.cached_rows)},
                {"uncached_rows", rows_json(clear.uncached_rows)},
                {"cpu", cpu_json(cpu_features())},
                {"reason", clear.reason}}}},
             out);
}

std::string last_bytes(const ClearDispatchRow& row) {
  return row.last_bytes == SIZE_MAX ? "-" : std::to_string(row.last_bytes);
}

// Those that this kernel is free of are left out.
void print_kernel_bugs(const Capabilities& found, Output& out) {
  Table bugs({{"kernel bug", Align::left}, {"here", Align::left}, {"detail", Align::left}});
  bool any = false;
  for (const KernelBug& bug : found.kernel_bugs) {
    if (bug.state == KernelBug::State::not_affected) continue;
    any = true;
    bugs.add({std::string(bug.id), std::string(to_string(bug.state)),
              fmt::format("{}; {}", bug.what, bug.consequence)});
  }
  out.write("\n");
  if (any) {
    out.write(bugs.render());
  } else {
    out.write("kernel bugs: none of those known is in this version\n");
  }
}

void print_as_text(const Capabilities& found, const ClearDispatch& clear, Output& out) {
  out.print("pagetide {}, {}{}{}, store format {}, heap layout {}, pages of {} bytes\n",
            PAGETIDE_CLI_VERSION, kCompiler, *kBuildType == '\0' ? "" : ", ", kBuildType,
            format::kVersion, layout::kVersion, page_size());
  Table items({{"capability", Align::left}, {"here", Align::left}, {"detail", Align::left}});
  for (const Capability& item : found.items) {
    items.add({item.name, item.available ? "yes" : "no", item.detail});
    if (!item.available && !item.without.empty()) items.add({"", "", "Without: " + item.without});
  }
  out.write("\n");
  out.write(items.render());
  print_kernel_bugs(found, out);
  out.print("\nwrite tracking: {}\n  {}\n", to_string(found.chosen), found.reason);
  out.print("\nclearing memory: {}\n  {}\n", clear_kernel_name(clear.kernel), clear.reason);
  const CpuFeatures& cpu = cpu_features();
  out.print("  CPU: {}; caches {}, {}, {}\n", fmt::join(features_of(cpu), " "),
            human_bytes(cpu.l1d_bytes), human_bytes(cpu.l2_bytes), human_bytes(cpu.l3_bytes));
  Table rows({{"blocks", Align::left}, {"from bytes"}, {"to bytes"}, {"kernel", Align::left}});
  const auto add = [&rows](std::string_view where, const std::vector<ClearDispatchRow>& added) {
    for (const ClearDispatchRow& row : added) {
      rows.add({std::string(&row == added.data() ? where : ""), std::to_string(row.first_bytes),
                last_bytes(row), std::string(row.kernel_name)});
    }
  };
  add("in cache", clear.cached_rows);
  add("not in cache", clear.uncached_rows);
  out.write(rows.render("  "));
}

// Of an automatic choice other than the best.
std::string_view cost_of(BackendKind fallback) {
  return fallback == BackendKind::compare
             ? "each one reads the whole heap"
             : "first writes to a page cost ten times as much and more";
}

// Whether what was chosen was found to work.
bool is_usable(const Capabilities& found) {
  if (!is_fallback(found)) return true;
  const Capability* compare = found.find("compare");
  return compare != nullptr && compare->available;
}

}  // namespace

ExitCode run_doctor(const DoctorOptions& options, Output& out) {
  const Capabilities found = probe_capabilities();
  const ClearDispatch clear = describe_clear_dispatch();
  if (options.as_json) {
    print_as_json(found, clear, out);
  } else {
    print_as_text(found, clear, out);
  }
  if (auto r = out.flush(); !r) return report_output_failure(r.error());
  if (const std::string unknown = unknown_disabled_features(); !unknown.empty()) {
    warn(
        fmt::format("PAGETIDE_DISABLE names '{}', which is nothing that can be switched off; "
                    "these are: {}.",
                    unknown, disabled_feature_names()));
  }
  if (!is_usable(found)) {
    report("no way of tracking writes works here: " + found.reason);
    return ExitCode::problem;
  }
  if (is_fallback(found)) {
    warn(fmt::format("the fallback '{}' is in use: snapshots are right, but {}. {}.",
                     to_string(found.chosen), cost_of(found.chosen), found.reason));
  }
  return ExitCode::fine;
}

}  // namespace pagetide::cli
