#pragma once

namespace pagetide {

// Slack: how much of the slots of a size class may stay free in spans that are clean in this epoch
// and less than half empty, before the heap takes slots from such spans too instead of from fresh
// memory. More slack dirties fewer pages, because the spans that are taken from are emptier, and
// costs memory. docs/performance.md shows pages and memory for several values.
inline constexpr unsigned kDefaultSlackPercent = 20;
inline constexpr unsigned kMaxSlackPercent = 50;

}  // namespace pagetide
