#pragma once

#include "tools/cli/exit_code.h"
#include "tools/cli/heap_view.h"

namespace pagetide::cli {

// Reports on standard error what is wrong with a heap's metadata. fine: nothing.
ExitCode report_heap_problems(const HeapView& heap);

}  // namespace pagetide::cli
