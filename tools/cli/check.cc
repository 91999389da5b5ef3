#include <algorithm>
#include <limits>
#include <string_view>

#include "tools/cli/free_memory.h"
#include "tools/cli/heap_problems.h"
#include "tools/cli/json.h"
#include "tools/cli/progress_line.h"
#include "tools/cli/table.h"
#include "tools/cli/text.h"
#include "tools/cli/verbs.h"

namespace pagetide::cli {

namespace {

// What a screen has room for beside the rest.
constexpr std::size_t kShownFindings = 20;

struct KindName {
  std::string_view text;
  std::string_view json;
};

KindName name_of(FreeKind kind) {
  switch (kind) {
    case FreeKind::slot:
      return {"free slot", "free_slot"};
    case FreeKind::span:
      return {"free span", "free_span"};
    case FreeKind::span_tail:
      return {"span tail", "span_tail"};
  }
  return {"?", "?"};
}

std::string hex_content(const Finding& finding) {
  std::string text;
  for (std::size_t i = 0; i < finding.content_bytes(); ++i) {
    fmt::format_to(std::back_inserter(text), "{:02x}", static_cast<unsigned>(finding.content[i]));
  }
  return text;
}

void print_table(const std::vector<Finding>& findings, Output& out) {
  Table table({{"where", Align::left},
               {"address"},
               {"bytes"},
               {"span"},
               {"slot"},
               {"not zero"},
               {"first"},
               {"last"},
               {"content from the first", Align::left}});
  for (const Finding& f : findings) {
    table.add({std::string(name_of(f.place.kind).text), hexadecimal(f.address),
               std::to_string(f.place.size_bytes), std::to_string(f.place.span),
               f.place.kind == FreeKind::slot ? std::to_string(f.place.slot) : "-",
               std::to_string(f.nonzero_bytes), std::to_string(f.first_offset),
               std::to_string(f.last_offset), hex_content(f)});
  }
  out.write(table.render("  "));
}

void print_what_to_do(const std::string& path, const SnapshotInfo& info, Output& out) {
  out.write(
      "\nAll free memory was zero until something wrote to it: through a pointer to what was "
      "freed, "
      "or past\nthe end of a block. ");
  if (info.parent.value == 0) {
    out.write("To learn when, take a snapshot earlier: none precedes this one.\n");
  } else {
    out.print(
        "To learn when, find the first snapshot that has it, from the one before back:\n"
        "  pagetide check {} {}\n",
        shell_quoted(path), info.parent.value);
  }
}

void print_as_text(const std::string& path, const SnapshotInfo& info, const FreeMemory& memory,
                   Output& out) {
  out.print("snapshot {} of {}, arena {}: looked at {} and {} ({})\n", info.id.value, path,
            printable(info.arena), counted(memory.free_slots, "free slot", "free slots"),
            counted(memory.free_spans, "free span", "free spans"), human_bytes(memory.free_bytes));
  if (memory.finding_count == 0) {
    out.write(memory.heap.problem_count == 0
                  ? "clean: all of it is zero\n"
                  : "all of it is zero, as far as the heap's damaged metadata tells\n");
    return;
  }
  if (memory.findings.size() == memory.finding_count) {
    out.print("\nfree memory that is not zero: {}\n", memory.finding_count);
  } else {
    out.print("\nfree memory that is not zero: the first {} of {}; --all lists every one\n",
              memory.findings.size(), memory.finding_count);
  }
  print_table(memory.findings, out);
  print_what_to_do(path, info, out);
}

Json finding_json(const Finding& f) {
  Json json = {{"kind", name_of(f.place.kind).json},
               {"address", hexadecimal(f.address)},
               {"size_bytes", f.place.size_bytes},
               {"span", f.place.span},
               {"slot", nullptr},
               {"nonzero_bytes", f.nonzero_bytes},
               {"first_offset", f.first_offset},
               {"last_offset", f.last_offset},
               {"content", hex_content(f)}};
  if (f.place.kind == FreeKind::slot) json["slot"] = f.place.slot;
  return json;
}

Json head_json(const std::string& path, const SnapshotInfo& info) {
  Json json = {{"store", path}, {"id", info.id.value}, {"parent", nullptr}};
  if (info.parent.value != 0) json["parent"] = info.parent.value;
  json["arena"] = info.arena;
  json["checkable"] = info.free_bytes_are_zero;
  return json;
}

void print_as_json(const std::string& path, const SnapshotInfo& info, const FreeMemory& memory,
                   Output& out) {
  Json json = head_json(path, info);
  Json findings = Json::array();
  for (const Finding& finding : memory.findings) findings.push_back(finding_json(finding));
  json["clean"] = memory.finding_count == 0 && memory.heap.problem_count == 0;
  json["free_slots"] = memory.free_slots;
  json["free_spans"] = memory.free_spans;
  json["free_bytes"] = memory.free_bytes;
  json["findings"] = std::move(findings);
  json["problems"] = memory.heap.problems;
  print_json(json, out);
}

ExitCode refuse(const std::string& path, const SnapshotInfo& info, bool as_json, Output& out) {
  if (as_json) print_json(head_json(path, info), out);
  if (auto r = out.flush(); !r) return report_output_failure(r.error());
  if (info.free_bytes_masked) {
    report(
        fmt::format("snapshot {} of {} cannot be checked: its arena clears freed memory later "
                    "(ClearPolicy::deferred), and the snapshot has zeros there whatever the memory "
                    "held. Create "
                    "the arena with ClearPolicy::on_free, and open it with that each time.",
                    info.id.value, path));
    return ExitCode::unreadable;
  }
  report(fmt::format(
      "snapshot {} of {} cannot be checked: its arena has not cleared all that was freed for its "
      "whole life (or an older Pagetide wrote the snapshot), so free memory may hold anything. "
      "Create the arena with ClearPolicy::on_free, and open it with that each time; "
      "Heap::clear_free_memory() makes up for the past.",
      info.id.value, path));
  return ExitCode::unreadable;
}

}  // namespace

ExitCode run_check(const CheckOptions& options, Output& out) {
  auto argument = read_store_and_id(options.positionals);
  if (!argument) {
    report(argument.error().message());
    return exit_code_of(argument.error());
  }
  auto store = open_for_reading(*argument);
  if (!store) {
    report(store.error().message());
    return exit_code_of(store.error());
  }
  auto info = find_snapshot(*store, *argument);
  if (!info) {
    report(info.error().message());
    return exit_code_in_store(info.error());
  }
  if (!info->free_bytes_are_zero) return refuse(argument->path, *info, options.as_json, out);
  const bool keep_all = options.all_findings || options.as_json;
  ProgressLine progress("checking", options.force_progress);
  auto memory = read_free_memory(
      *store, *info, keep_all ? std::numeric_limits<std::size_t>::max() : kShownFindings,
      progress.callback());
  progress.finish();
  if (!memory) {
    report(memory.error().message());
    return exit_code_in_store(memory.error());
  }
  if (options.as_json) {
    print_as_json(argument->path, *info, *memory, out);
  } else {
    print_as_text(argument->path, *info, *memory, out);
  }
  if (auto r = out.flush(); !r) return report_output_failure(r.error());
  const ExitCode damage = report_heap_problems(memory->heap);
  return memory->finding_count == 0 ? damage : ExitCode::problem;
}

}  // namespace pagetide::cli
