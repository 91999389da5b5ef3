#include "bench/heap/source.h"

#include <fmt/format.h>

#include <cstdlib>
#include <string>

namespace pagetide::bench {

Result<std::unique_ptr<OpenSource>> open_source(std::string_view name) {
  if (name == "malloc") return open_malloc_source(false);
  if (name == "malloc_clears") return open_malloc_source(true);
  if (name == "arena") return open_arena_source(ClearPolicy::deferred);
  if (constexpr std::string_view slack = "arena_slack_"; name.starts_with(slack)) {
    const std::string percent(name.substr(slack.size()));
    return open_arena_source(ClearPolicy::deferred,
                             static_cast<unsigned>(std::strtoul(percent.c_str(), nullptr, 10)));
  }
  if (name == "arena_clears") return open_arena_source(ClearPolicy::on_free);
  if (name == "arena_keeps") return open_arena_source(ClearPolicy::never);
  if (name == "interprocess") return open_interprocess_source();
  if (name == "pmemobj") return open_pmemobj_source();
  return failure(ErrorCode::invalid_argument, fmt::format("there is no source '{}'", name));
}

// What the build has no library for; the others are in files of their own.

#if !defined(PAGETIDE_HAS_INTERPROCESS)
Result<std::unique_ptr<OpenSource>> open_interprocess_source() {
  return failure(ErrorCode::unsupported, "built without Boost.Interprocess");
}
#endif

#if !defined(PAGETIDE_HAS_PMEMOBJ)
Result<std::unique_ptr<OpenSource>> open_pmemobj_source() {
  return failure(ErrorCode::unsupported, "built without libpmemobj");
}
#endif

}  // namespace pagetide::bench
