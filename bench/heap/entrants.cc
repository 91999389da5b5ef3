#include "bench/heap/entrants.h"

#include <utility>

namespace pagetide::bench {

namespace {

// What jemalloc's own TUNING.md suggests to programs with much memory that prefer speed to it.
constexpr const char* kTunedJemalloc =
    "background_thread:true,metadata_thp:auto,dirty_decay_ms:30000,muzzy_decay_ms:30000";

// `library` is where CMake found it; empty: nowhere.
HeapEntrant preloaded(std::string name, std::string library, const std::string& package,
                      std::map<std::string, std::string> environment = {}) {
  std::string missing =
      library.empty() ? "not found when this was configured (Debian: " + package + ")" : "";
  return {std::move(name), "malloc", std::move(library), std::move(environment),
          std::move(missing)};
}

HeapEntrant compiled_in(std::string name, bool is_there, const std::string& package,
                        std::map<std::string, std::string> environment = {}) {
  std::string source = name;
  return {std::move(name),
          std::move(source),
          "",
          std::move(environment),
          is_there ? "" : "built without it (Debian: " + package + ")",
          1};
}

HeapEntrant clearing(HeapEntrant entrant) {
  entrant.source = "malloc_clears";
  return entrant;
}

#if defined(PAGETIDE_HAS_INTERPROCESS)
constexpr bool kHasInterprocess = true;
#else
constexpr bool kHasInterprocess = false;
#endif

#if defined(PAGETIDE_HAS_PMEMOBJ)
constexpr bool kHasPmemobj = true;
#else
constexpr bool kHasPmemobj = false;
#endif

}  // namespace

std::vector<HeapEntrant> slack_entrants() {
  std::vector<HeapEntrant> entrants;
  for (const char* name : {"arena_slack_2", "arena_slack_5", "arena_slack_12", "arena_slack_30"}) {
    entrants.push_back({name, name, "", {}, ""});
  }
  return entrants;
}

std::vector<HeapEntrant> heap_entrants() {
  return {
      {kOurs, kOurs, "", {}, ""},
      {"arena_clears", "arena_clears", "", {}, ""},
      {"arena_keeps", "arena_keeps", "", {}, ""},
      {"glibc", "malloc", "", {}, ""},
      preloaded("jemalloc", PAGETIDE_LIBJEMALLOC, "libjemalloc2"),
      preloaded("jemalloc_tuned", PAGETIDE_LIBJEMALLOC, "libjemalloc2",
                {{"MALLOC_CONF", kTunedJemalloc}}),
      preloaded("mimalloc", PAGETIDE_LIBMIMALLOC, "libmimalloc2.0"),
      clearing(preloaded("mimalloc_clears", PAGETIDE_LIBMIMALLOC, "libmimalloc2.0")),
      preloaded("tcmalloc", PAGETIDE_LIBTCMALLOC, "libtcmalloc-minimal4"),
      compiled_in("interprocess", kHasInterprocess, "libboost-dev"),
      // As on persistent memory: cache lines are flushed, and no msync is called.
      compiled_in("pmemobj", kHasPmemobj, "libpmemobj-dev", {{"PMEM_IS_PMEM_FORCE", "1"}}),
  };
}

}  // namespace pagetide::bench
