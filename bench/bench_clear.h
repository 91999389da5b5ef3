#pragma once

// The parts of bench_clear, each in a file of its own: they register what they compare.

namespace pagetide::bench {

void register_clear_cells();    // all kernels by size, alignment and cache
void register_clear_2022();     // four ways at 16 KiB, beside what was published in 2022
void register_clear_tracked();  // stores and purges, on armed and unarmed pages
void register_clear_policy();   // what clearing on free costs an arena and its snapshots

}  // namespace pagetide::bench
