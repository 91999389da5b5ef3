#include <cstdio>
#include <map>
#include <string>

#include "pagetide/pagetide.hpp"

using namespace pagetide::literals;
using Visits = std::pmr::map<std::pmr::string, int, std::less<>>;

int main(int argc, char** argv) {
  auto store = pagetide::Store::open("visits.pagetide").value();
  auto arena =
      (store.latest() ? store.open_arena(*store.latest())
                      : pagetide::Arena::create({.name = "visits", .reserve_bytes = 1_GiB}))
          .value();
  Visits& visits = **arena.find_or_construct<Visits>("visits", arena.resource());

  for (int i = 1; i < argc; ++i) ++visits[argv[i]];
  for (const auto& [name, count] : visits) std::printf("%s %d\n", name.c_str(), count);

  pagetide::Snapshotter snapshotter(arena, store);
  std::printf("snapshot %lu\n", snapshotter.take().value().value);
}
