#pragma once

// The questions of bench_tracker, one file each. They register their benchmarks in the order in
// which main() asks them.

namespace pagetide::bench {

void register_backend_contest();
void register_prefill_contests();
void register_harvest_contests();
void register_thread_2023_contests();
void register_hot_page_benchmarks();

}  // namespace pagetide::bench
