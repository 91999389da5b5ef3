#include <sys/mman.h>

#include <cstdio>

#include "pagetide/pagetide.hpp"

int fail(const pagetide::Error& error) {
  std::fprintf(stderr, "%s\n", error.message().c_str());
  return 1;
}

int main() {
  const std::size_t page = pagetide::page_size();
  void* mapped =
      ::mmap(nullptr, 16 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return 1;

  auto tracker = pagetide::Tracker::create();
  if (!tracker) return fail(tracker.error());
  auto watch = tracker->watch(pagetide::ByteRange::of(mapped, 16 * page));
  if (!watch) return fail(watch.error());

  char* memory = static_cast<char*>(mapped);
  memory[2 * page] = 'a';
  memory[3 * page] = 'b';
  memory[9 * page] = 'c';

  auto taken = tracker->collect(*watch, pagetide::CollectMode::take);
  if (!taken) return fail(taken.error());
  taken->written.for_each_run([](pagetide::PageRange run) {
    std::printf("%zu pages from page %zu\n", run.count, run.first);
  });
}
