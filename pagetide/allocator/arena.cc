#include "pagetide/allocator/arena.h"

#include <fmt/format.h>

#include <atomic>

#include "pagetide/allocator/arena_resource.h"

namespace pagetide {

struct Arena::Impl {
  Impl(std::unique_ptr<Region> r, std::unique_ptr<Heap> h)
      : region(std::move(r)),
        heap(std::move(h)),
        roots(reinterpret_cast<layout::RootEntry*>(region->base() + heap->geometry().roots_offset),
              &heap->changes()),
        resource(::new (region->base() + heap->geometry().runtime_offset) ArenaResource(*heap)) {}

  // The heap keeps a reference to the region, so it must not move with the arena.
  std::unique_ptr<Region> region;
  std::unique_ptr<Heap> heap;
  RootTable roots;
  ArenaResource* resource;  // in the region's run-time page; trivially gone with it
  ArenaOrigin origin;
  std::atomic<bool> has_consumer{false};
};

Arena::Arena(std::unique_ptr<Impl> impl) : impl_(std::move(impl)), heap_(impl_->heap.get()) {}
Arena::Arena(Arena&&) noexcept = default;
Arena& Arena::operator=(Arena&&) noexcept = default;
Arena::~Arena() = default;

namespace {

Result<std::unique_ptr<Region>> reserve_region(const ArenaOptions& options) {
  if (options.slack_percent > kMaxSlackPercent) {
    return failure(ErrorCode::invalid_argument,
                   fmt::format("a slack of {} % is more than an arena can have; give 0 to {}.",
                               options.slack_percent, kMaxSlackPercent));
  }
  RegionOptions region_options{options.reserve_bytes, options.base, options.prefill,
                               options.backend, options.hot_pages};
  // Where the reservation is too small, who asks for the geometry next says so.
  if (auto geometry = layout::geometry_for(round_up(options.reserve_bytes, page_size()))) {
    region_options.tracked_from = geometry->data_offset;
  }
  auto region = Region::reserve(region_options);
  if (!region) return propagate(region);
  return std::make_unique<Region>(std::move(*region));
}

}  // namespace

Result<Arena> Arena::create(const ArenaOptions& options) {
  auto region = reserve_region(options);
  if (!region) return propagate(region);
  auto heap = Heap::format(**region, options.name, options.clear);
  if (!heap) return propagate(heap);
  (*heap)->set_on_corruption(options.on_corruption);
  (*heap)->set_slack_percent(options.slack_percent);
  return Arena(std::make_unique<Impl>(std::move(*region), std::move(*heap)));
}

Result<Arena> Arena::from_image(const ArenaOptions& options, std::size_t image_bytes,
                                const std::function<Result<void>(ByteRange)>& load) {
  auto region = reserve_region(options);
  if (!region) return propagate(region);
  if (image_bytes > (*region)->range().size) {
    return failure(ErrorCode::damaged, "the image is larger than the arena's reservation.");
  }
  if (auto r = Heap::commit_image(**region, image_bytes); !r) return propagate(r);
  if (auto r = load((*region)->range()); !r) return propagate(r);
  auto heap = Heap::attach(**region, options.clear);
  if (!heap) return propagate(heap);
  (*heap)->set_on_corruption(options.on_corruption);
  (*heap)->set_slack_percent(options.slack_percent);
  return Arena(std::make_unique<Impl>(std::move(*region), std::move(*heap)));
}

std::string Arena::exhausted_message() const {
  return fmt::format(
      "the arena '{}' is exhausted: its reservation of {} bytes or the machine's memory is "
      "used up. Reserve more when creating it, or free something.",
      name(), range().size);
}

Result<void*> Arena::allocate_zeroed(std::size_t bytes, std::size_t alignment) {
  void* block = impl_->heap->allocate_zeroed(bytes, alignment);
  if (block == nullptr) return refused(bytes, alignment);
  return block;
}

// Why the heap gave nothing.
tl::unexpected<Error> Arena::refused(std::size_t bytes, std::size_t alignment) const {
  if (!is_power_of_two(alignment) || alignment > Heap::kMaxAlignment) {
    return failure(ErrorCode::invalid_argument,
                   fmt::format("an alignment of {} is not a power of two up to {}.", alignment,
                               Heap::kMaxAlignment));
  }
  if (bytes > range().size) {
    return failure(ErrorCode::out_of_memory,
                   fmt::format("a block of {} bytes is more than the arena '{}' can ever hold: its "
                               "reservation is {} bytes. Reserve more when creating it.",
                               bytes, name(), range().size));
  }
  return failure(ErrorCode::out_of_memory, exhausted_message());
}

// The same for reallocate().
tl::unexpected<Error> Arena::refused_for(const void* block, std::size_t bytes,
                                         std::size_t alignment) const {
  if (block == nullptr || heap_->is_allocated(block)) return refused(bytes, alignment);
  return failure(ErrorCode::invalid_argument,
                 fmt::format("{} is not the start of a block of the arena '{}'; it cannot be "
                             "reallocated.",
                             fmt::ptr(block), name()));
}

std::size_t Arena::allocate_batch(std::size_t bytes, std::span<void*> out) noexcept {
  return impl_->heap->allocate_batch(bytes, out);
}
void Arena::deallocate_batch(std::span<void* const> blocks) noexcept {
  impl_->heap->deallocate_batch(blocks);
}
std::pmr::memory_resource* Arena::resource() const {
  return impl_->resource;
}
std::string_view Arena::name() const {
  return impl_->heap->name();
}
ByteRange Arena::range() const {
  return impl_->region->range();
}
RootTable& Arena::roots() const {
  return impl_->roots;
}
Tracker& Arena::tracker() const {
  return impl_->region->tracker();
}
void Arena::set_holds_code_addresses() {
  impl_->heap->set_holds_code_addresses();
}
Region& Arena::region() const {
  return *impl_->region;
}
const ArenaOrigin& Arena::origin() const {
  return impl_->origin;
}
void Arena::set_origin(const ArenaOrigin& origin) {
  impl_->origin = origin;
}
bool Arena::acquire_consumer() {
  return !impl_->has_consumer.exchange(true);
}
void Arena::release_consumer() {
  impl_->has_consumer.store(false);
}

}  // namespace pagetide
