#include <algorithm>
#include <optional>

#include "tools/cli/heap_problems.h"
#include "tools/cli/heap_view.h"
#include "tools/cli/json.h"
#include "tools/cli/table.h"
#include "tools/cli/text.h"
#include "tools/cli/verbs.h"

namespace pagetide::cli {

namespace {

// What a screen has room for beside the rest.
constexpr std::size_t kShownRuns = 20;

// What could be read of a snapshot.
struct Findings {
  SnapshotInfo info;
  std::optional<std::vector<ChangedRun>> runs;
  std::optional<HeapView> heap;
  std::vector<Error> errors;
};

Findings read_findings(Store& store, SnapshotInfo info) {
  Findings found;
  found.info = std::move(info);
  auto runs = store.changes(found.info.id);
  if (!runs) {
    found.errors.push_back(std::move(runs).error());
    return found;  // what makes up the image cannot be found without them
  }
  found.runs = std::move(*runs);
  auto heap = read_heap(store, found.info);
  if (heap) {
    found.heap = std::move(*heap);
  } else {
    found.errors.push_back(std::move(heap).error().with_context("cannot show the heap"));
  }
  return found;
}

std::string yes_no(bool value) {
  return value ? "yes" : "no";
}

void print_info(const std::string& path, const SnapshotInfo& s, Output& out) {
  const auto line = [&](std::string_view name, const std::string& value) {
    out.print("  {:<16}{}\n", name, value);
  };
  out.print("snapshot {} of {}\n", s.id.value, path);
  line("parent", s.parent.value == 0 ? "none" : std::to_string(s.parent.value));
  line("created", fmt::format("{} ({})", local_time(s.created_ns), iso_time(s.created_ns)));
  line("arena", printable(s.arena));
  line("region",
       fmt::format("{}, {} reserved", hexadecimal(s.region_base), human_bytes(s.reserve_bytes)));
  line("image", fmt::format("{} of {} bytes, {}", counted(s.image_pages, "page", "pages"),
                            s.page_bytes, human_bytes(s.image_pages * s.page_bytes)));
  line("heap", human_bytes(s.heap_bytes));
  line("reported pages", fmt::format("{} by the tracker", s.reported_pages));
  line("changed pages",
       fmt::format("{}, of these {} zero; {} of the heap", s.changed_pages, s.zero_pages,
                   percent(s.changed_pages * s.page_bytes, s.heap_bytes)));
  line("bytes written", fmt::format("{} ({})", s.bytes_written, human_bytes(s.bytes_written)));
  line("heap record",
       fmt::format("{} ({}) of these", s.heap_state_bytes, human_bytes(s.heap_state_bytes)));
  line("stop", human_duration(s.stop_ns));
  line("full index", yes_no(s.has_full_index));
  line("code addresses", yes_no(s.holds_code_addresses));
  line("cleared on free", yes_no(s.free_bytes_are_zero));
  line("free masked", yes_no(s.free_bytes_masked));
  const bool has_build_id = s.build_id.find_first_not_of('0') != std::string::npos;
  line("written by", fmt::format("build-id {}, loaded at {}", has_build_id ? s.build_id : "none",
                                 hexadecimal(s.load_address)));
}

void print_runs(const std::vector<ChangedRun>& runs, bool all, Output& out) {
  const std::size_t shown = all ? runs.size() : std::min(runs.size(), kShownRuns);
  if (shown == runs.size()) {
    out.print("\nchanged runs: {}\n", runs.size());
  } else {
    out.print("\nchanged runs: the first {} of {}; --all lists every one\n", shown, runs.size());
  }
  if (shown == 0) return;
  Table table({{"first page"}, {"pages"}, {"content", Align::left}});
  for (std::size_t i = 0; i < shown; ++i) {
    table.add({std::to_string(runs[i].first_page), std::to_string(runs[i].page_count),
               runs[i].zero ? "zero" : "data"});
  }
  out.write(table.render("  "));
}

void print_classes(const HeapView& heap, Output& out) {
  Table table({{"slot bytes"}, {"spans"}, {"live blocks"}, {"live bytes"}, {"slots used"}});
  for (const SizeClassView& c : heap.classes) {
    table.add({std::to_string(c.slot_bytes), std::to_string(c.spans), std::to_string(c.live_blocks),
               human_bytes(c.live_bytes()), percent(c.live_blocks, c.slots)});
  }
  if (heap.large_blocks > 0) {
    table.add({"large", std::to_string(heap.large_bytes / layout::kSpanBytes),
               std::to_string(heap.large_blocks), human_bytes(heap.large_bytes), "-"});
  }
  if (!table.empty()) out.write(table.render("  "));
}

void print_heap(const HeapView& heap, Output& out) {
  out.print("\nheap: {}, {}; {} of {} in use, {} ever used, {} fit\n",
            counted(heap.live_blocks(), "live block", "live blocks"),
            human_bytes(heap.live_bytes()), counted(heap.spans_in_use, "span", "spans"),
            human_bytes(layout::kSpanBytes), heap.spans_touched, heap.geometry.span_count);
  print_classes(heap, out);
  out.print("\nnamed roots: {}\n", heap.roots.size());
  if (heap.roots.empty()) return;
  Table table({{"name", Align::left}, {"address"}, {"bytes"}});
  for (const RootView& root : heap.roots) {
    table.add({printable(root.name), hexadecimal(root.address), std::to_string(root.size_bytes)});
  }
  out.write(table.render("  "));
}

Json heap_json(const HeapView& heap) {
  Json roots = Json::array();
  for (const RootView& root : heap.roots) {
    roots.push_back({{"name", root.name},
                     {"address", hexadecimal(root.address)},
                     {"size_bytes", root.size_bytes},
                     {"type_hash", hexadecimal(root.type_hash)}});
  }
  Json classes = Json::array();
  for (const SizeClassView& c : heap.classes) {
    classes.push_back({{"slot_bytes", c.slot_bytes},
                       {"spans", c.spans},
                       {"slots", c.slots},
                       {"live_blocks", c.live_blocks},
                       {"live_bytes", c.live_bytes()}});
  }
  return {{"layout_version", heap.layout_version},
          {"name", heap.name},
          {"data_offset", heap.geometry.data_offset},
          {"span_bytes", layout::kSpanBytes},
          {"span_count", heap.geometry.span_count},
          {"spans_touched", heap.spans_touched},
          {"spans_in_use", heap.spans_in_use},
          {"live_blocks", heap.live_blocks()},
          {"live_bytes", heap.live_bytes()},
          {"size_classes", std::move(classes)},
          {"large", {{"live_blocks", heap.large_blocks}, {"live_bytes", heap.large_bytes}}},
          {"roots", std::move(roots)},
          {"problems", heap.problems}};
}

void print_findings_as_json(const Findings& found, Output& out) {
  Json json = to_json(found.info);
  json["changed_runs"] = nullptr;
  json["heap"] = nullptr;
  if (found.runs) {
    Json runs = Json::array();
    for (const ChangedRun& run : *found.runs) {
      runs.push_back(
          {{"first_page", run.first_page}, {"page_count", run.page_count}, {"zero", run.zero}});
    }
    json["changed_runs"] = std::move(runs);
  }
  if (found.heap) json["heap"] = heap_json(*found.heap);
  print_json(json, out);
}

ExitCode report_problems(const Findings& found) {
  ExitCode code = ExitCode::fine;
  for (const Error& error : found.errors) {
    report(error.message());
    code = std::max(code, exit_code_in_store(error));
  }
  return found.heap ? std::max(code, report_heap_problems(*found.heap)) : code;
}

}  // namespace

ExitCode run_show(const ShowOptions& options, Output& out) {
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
  const Findings found = read_findings(*store, std::move(*info));
  if (options.as_json) {
    print_findings_as_json(found, out);
  } else {
    print_info(argument->path, found.info, out);
    if (found.runs) print_runs(*found.runs, options.all_runs, out);
    if (found.heap) print_heap(*found.heap, out);
  }
  if (auto r = out.flush(); !r) return report_output_failure(r.error());
  return report_problems(found);
}

}  // namespace pagetide::cli
