#include <cstdio>
#include <map>
#include <string>

#include "pagetide/pagetide.hpp"

using namespace pagetide::literals;
using Visits = std::pmr::map<std::pmr::string, int, std::less<>>;

// The arena of the newest snapshot, or a new one for a store that has none yet.
pagetide::Result<pagetide::Arena> open_visits(pagetide::Store& store) {
  auto latest = store.latest();
  if (latest) return store.open_arena(*latest);
  if (latest.error().code() != pagetide::ErrorCode::not_found) return propagate(latest);
  return pagetide::Arena::create({.name = "visits", .reserve_bytes = 1_GiB});
}

int main(int argc, char** argv) try {
  auto store = pagetide::Store::open("visits.pagetide").value();
  auto arena = open_visits(store).value();
  Visits& visits = *arena.find_or_construct<Visits>("visits", arena.resource()).value();

  for (int i = 1; i < argc; ++i) ++visits[argv[i]];
  for (const auto& [name, count] : visits) std::printf("%s %d\n", name.c_str(), count);

  pagetide::Snapshotter snapshotter(arena, store);
  std::printf("snapshot %lu\n", snapshotter.take().value().value);
} catch (const tl::bad_expected_access<pagetide::Error>& failed) {
  std::fprintf(stderr, "%s\n", failed.error().message().c_str());
  return 1;
}
