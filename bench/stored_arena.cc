#include "bench/stored_arena.h"

#include <cerrno>

#include "pagetide/base/bytes.h"

namespace pagetide::bench {

using namespace literals;

Result<std::unique_ptr<StoredArena>> StoredArena::create(Place place, std::size_t data_bytes) {
  auto made = std::unique_ptr<StoredArena>(new StoredArena(place));
  if (made->directory().empty()) return system_failure("make a directory for a store", errno);
  if (auto r = made->fill(data_bytes); !r) return propagate(r);
  if (auto r = made->take_first(); !r) return propagate(r);
  return made;
}

Result<void> StoredArena::fill(std::size_t data_bytes) {
  ArenaOptions options;
  options.name = "bench";
  // Room for the metadata, which is a part of what is reserved.
  options.reserve_bytes = data_bytes + data_bytes / 4 + 64_MiB;
  options.backend = BackendKind::uffd_async;
  auto arena = Arena::create(options);
  if (!arena) return propagate(arena);
  arena_ = std::move(*arena);
  auto block = arena_->allocate(data_bytes, page_size());
  if (!block) return propagate(block);
  data_ = ByteRange::of(*block, data_bytes);
  fill_with_noise(data_);
  return {};
}

Result<void> StoredArena::take_first() {
  auto store = Store::open(directory_.file("store"));
  if (!store) return propagate(store);
  store_ = std::move(*store);
  auto id = Snapshotter(*arena_, *store_).take();
  if (!id) return propagate(id);
  first_ = *id;
  snapshotter_.emplace(*arena_, *store_);
  return {};
}

void StoredArena::close_arena() {
  snapshotter_.reset();
  arena_.reset();
}

}  // namespace pagetide::bench
