#include "tools/cli/heap_problems.h"

#include <fmt/format.h>

namespace pagetide::cli {

ExitCode report_heap_problems(const HeapView& heap) {
  if (heap.problem_count == 0) return ExitCode::fine;
  for (const std::string& problem : heap.problems) report("the heap is damaged: " + problem);
  if (heap.problem_count > heap.problems.size()) {
    report(fmt::format("the heap is damaged: {} more of these",
                       heap.problem_count - heap.problems.size()));
  }
  report(
      "the snapshot is stored as it was taken: the program had overwritten its own heap. Look at "
      "an earlier snapshot.");
  return ExitCode::problem;
}

}  // namespace pagetide::cli
