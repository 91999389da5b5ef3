#include "bench/heap/epoch_taker.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>

#include "pagetide/base/bytes.h"
#include "tests/support/must.h"

namespace pagetide::bench {
namespace {

using namespace literals;
using namespace std::chrono_literals;

constexpr std::size_t kPages = 500;

Arena new_arena() {
  ArenaOptions options;
  options.reserve_bytes = 64_MiB;
  options.backend = BackendKind::uffd_async;
  return must(Arena::create(options));
}

void write_pages(void* block, std::size_t pages) {
  for (std::size_t page = 0; page < pages; ++page) {
    std::memset(static_cast<char*>(block) + page * page_size(), 1, 1);
  }
}

TEST(EpochTaker, reports_what_was_written_after_its_start) {
  Arena arena = new_arena();
  void* const block = must(arena.allocate(kPages * page_size()));
  write_pages(block, kPages);
  // Long enough for a busy machine.
  const auto taker = must(EpochTaker::start(arena, {200ms, 1}));
  write_pages(block, 7);
  EXPECT_EQ(must(taker->finish()), 7U);
}

TEST(EpochTaker, takes_at_its_start_and_then_as_planned) {
  Arena arena = new_arena();
  const auto taker = must(EpochTaker::start(arena, {5ms, 4}));
  (void)must(taker->finish());
  EXPECT_EQ(arena.tracker().stats().takes, 5U);
}

}  // namespace
}  // namespace pagetide::bench
