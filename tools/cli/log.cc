#include "tools/cli/json.h"
#include "tools/cli/table.h"
#include "tools/cli/text.h"
#include "tools/cli/verbs.h"

namespace pagetide::cli {

namespace {

void print_table(const std::vector<SnapshotInfo>& snapshots, Output& out) {
  Table table({{"id"},
               {"parent"},
               {"created", Align::left},
               {"changed pages"},
               {"zero"},
               {"written"},
               {"of heap"},
               {"stop"}});
  for (const SnapshotInfo& s : snapshots) {
    table.add({std::to_string(s.id.value),
               s.parent.value == 0 ? "-" : std::to_string(s.parent.value), local_time(s.created_ns),
               std::to_string(s.changed_pages), std::to_string(s.zero_pages),
               human_bytes(s.bytes_written), percent(s.changed_pages * s.page_bytes, s.heap_bytes),
               human_duration(s.stop_ns)});
  }
  out.write(table.render());
}

}  // namespace

ExitCode run_log(const LogOptions& options, Output& out) {
  auto argument = read_store(options.store);
  if (!argument) {
    report(argument.error().message());
    return exit_code_of(argument.error());
  }
  auto store = open_for_reading(*argument);
  if (!store) {
    report(store.error().message());
    return exit_code_of(store.error());
  }
  const SnapshotList list = store->snapshots();
  if (options.as_json) {
    Json snapshots = Json::array();
    for (const SnapshotInfo& info : list.snapshots) snapshots.push_back(to_json(info));
    print_json(snapshots, out);
  } else if (!list.snapshots.empty()) {
    print_table(list.snapshots, out);
  } else if (list.problems.empty()) {
    out.print("{} holds no snapshot yet\n", argument->path);
  }
  // On a terminal the table comes first.
  if (auto r = out.flush(); !r) return report_output_failure(r.error());
  for (const Error& problem : list.problems) report(problem.message());
  return list.problems.empty() ? ExitCode::fine : ExitCode::problem;
}

}  // namespace pagetide::cli
