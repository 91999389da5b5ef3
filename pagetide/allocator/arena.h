#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <memory_resource>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "pagetide/allocator/heap.h"
#include "pagetide/allocator/program_identity.h"
#include "pagetide/allocator/region.h"
#include "pagetide/allocator/root_table.h"
#include "pagetide/allocator/slack.h"
#include "pagetide/allocator/type_name.h"
#include "pagetide/base/bytes.h"
#include "pagetide/base/error.h"

namespace pagetide {

struct ArenaOptions {
  std::string name = "arena";  // up to 63 bytes; for people
  // Address space, not memory: the most the arena can ever hold. Fixed for its life.
  std::size_t reserve_bytes = std::size_t{16} << 30;
  std::uintptr_t base = 0;  // 0: chosen by the rule of Region; else a multiple of 64 KiB
  ClearPolicy clear = ClearPolicy::deferred;
  Prefill prefill = Prefill::zero_page;
  BackendKind backend = BackendKind::automatic;
  HotPageOptions hot_pages = {};    // adaptive arming: for arenas that keep writing the same pages
  OnCorruption on_corruption = {};  // of a free of what is not allocated. Default: abort
  // How much memory may stay free so that fewer pages get dirty; 0 to 50. See slack.h.
  unsigned slack_percent = kDefaultSlackPercent;
};

// Where an arena's bytes come from, so that the next snapshot knows its parent.
struct ArenaOrigin {
  std::array<std::uint8_t, 16> store_uuid{};
  std::uint64_t snapshot = 0;  // 0: none
};

// A heap that lives wholly inside one tracked region and can be put back: by rollback in this
// process, or by opening a snapshot in a new one, at the same address, with every raw pointer
// inside still valid.
//
// What may be stored: plain data, pointers into the same arena, containers over resource(): those
// of std::pmr, or with pagetide::allocator.
// What may not: pointers out of the arena (they dangle in the next process), mutexes that are
// held, file descriptors. Objects with virtual functions, std::function and function pointers
// are code addresses: they survive only into the same build of the program loaded at the same
// address. Noticed is only a T with virtual functions given to construct() or find_or_construct()
// itself; members, elements of containers, shared_ptr and std::function are not: call
// set_holds_code_addresses(). The check covers the main program. Code in shared libraries is
// loaded elsewhere each time and is never safe in an arena that is opened again.
//
// Thread-safe like a malloc, except moving and destruction. Destruction unmaps everything.
class PAGETIDE_API Arena {
 public:
  // Errors: address_taken, out_of_memory, invalid_argument, unsupported (forced back end).
  static Result<Arena> create(const ArenaOptions& options = {});

  Arena(Arena&&) noexcept;
  Arena& operator=(Arena&&) noexcept;
  ~Arena();

  // Uninitialised memory. `alignment` is a power of two up to 1 GiB. out_of_memory when the
  // reservation or the machine is exhausted.
  Result<void*> allocate(std::size_t bytes, std::size_t alignment = alignof(std::max_align_t)) {
    void* block = alignment == alignof(std::max_align_t) ? heap_->allocate(bytes)
                                                         : heap_->allocate(bytes, alignment);
    if (block == nullptr) [[unlikely]]
      return refused(bytes, alignment);
    return block;
  }
  // The same, all zero: fresh and cleared memory is not cleared again, and not dirtied.
  Result<void*> allocate_zeroed(std::size_t bytes,
                                std::size_t alignment = alignof(std::max_align_t));
  // Changes the size of a block, where it is if it can; nullptr block: as allocate(). On failure
  // the block stays as it is. Its content up to the smaller size is kept: for plain data only.
  Result<void*> reallocate(void* block, std::size_t bytes,
                           std::size_t alignment = alignof(std::max_align_t)) {
    void* moved = heap_->reallocate(block, bytes, alignment);
    if (moved == nullptr) return refused_for(block, bytes, alignment);
    return moved;
  }
  // Memory from allocate(), allocate_zeroed(), reallocate() or the resource. Aborts the process
  // when it is not allocated, unless the options say otherwise (OnCorruption).
  void deallocate(void* block) noexcept { heap_->deallocate(block); }
  // Blocks of `bytes` each into `out`, from its front; how many: fewer than it has room for only
  // where the reservation or the machine is exhausted. Cost: that of as many calls of allocate().
  std::size_t allocate_batch(std::size_t bytes, std::span<void*> out) noexcept;
  // As many calls of deallocate().
  void deallocate_batch(std::span<void* const> blocks) noexcept;
  // Gives the memory of free spans back to the system: those that are kept for reuse, and the empty
  // ones of the calling thread. How many bytes.
  std::size_t trim() noexcept { return heap_->trim(); }

  // For pmr containers. The pointer is the same in every process that opens this arena, so
  // containers inside the arena may keep it. Throws std::bad_alloc when exhausted.
  std::pmr::memory_resource* resource() const;

  // Allocates and constructs. What T's constructor throws is rethrown after the memory was freed,
  // except std::bad_alloc, which becomes out_of_memory.
  template <typename T, typename... Args>
  Result<T*> construct(Args&&... args) {
    Result<void*> block = allocate(sizeof(T), alignof(T));
    if (!block) return propagate(block);
    try {
      T* object = ::new (*block) T(std::forward<Args>(args)...);
      if constexpr (std::is_polymorphic_v<T>) set_holds_code_addresses();
      return object;
    } catch (const std::bad_alloc&) {
      deallocate(*block);
      return failure(ErrorCode::out_of_memory, exhausted_message());
    } catch (...) {
      deallocate(*block);
      throw;
    }
  }
  template <typename T>
  void destroy(T* object) noexcept {
    if (object == nullptr) return;
    object->~T();
    deallocate(object);
  }

  // The named object, constructed from `args` when there is none yet. Errors: identity_mismatch
  // (the name belongs to another type), out_of_memory (also: all 256 names in use),
  // invalid_argument (a name has 1 to 39 bytes). When several
  // threads race, one object wins and all get it.
  template <typename T, typename... Args>
  Result<T*> find_or_construct(std::string_view name, Args&&... args) {
    Result<T*> found = find<T>(name);
    if (found || found.error().code() != ErrorCode::not_found) return found;
    Result<T*> made = construct<T>(std::forward<Args>(args)...);
    if (!made) return made;
    auto inserted = roots().insert({std::string(name), *made, type_hash<T>(), sizeof(T)});
    if (inserted) return made;
    destroy(*made);
    if (inserted.error().code() == ErrorCode::already_exists) return find<T>(name);
    return propagate(inserted);
  }
  // not_found, identity_mismatch when the name belongs to another type, or damaged when the object
  // would lie outside the arena.
  template <typename T>
  Result<T*> find(std::string_view name) const {
    Result<Root> root = roots().find(name);
    if (!root) return propagate(root);
    if (root->type_hash != type_hash<T>() || root->size_bytes != sizeof(T)) {
      const std::string sizes = root->size_bytes == sizeof(T)
                                    ? std::string()
                                    : " (" + std::to_string(root->size_bytes) + " bytes, not " +
                                          std::to_string(sizeof(T)) + ")";
      return failure(ErrorCode::identity_mismatch,
                     "the root '" + std::string(name) + "' is of another type than asked for" +
                         sizes + "; use the type that constructed it.");
    }
    if (!heap().owns(root->address)) {
      return failure(ErrorCode::damaged,
                     "the root '" + std::string(name) +
                         "' does not lie in the arena; its snapshot is damaged.");
    }
    return static_cast<T*>(root->address);
  }
  // Destroys the object and frees its name.
  template <typename T>
  Result<void> destroy_root(std::string_view name) {
    Result<T*> object = find<T>(name);
    if (!object) return propagate(object);
    if (auto r = roots().erase(name); !r) return r;
    destroy(*object);
    return {};
  }

  std::string_view name() const;
  ByteRange range() const;
  RootTable& roots() const;
  // Statistics, the walk over live blocks, the consistency check.
  Heap& heap() const { return *heap_; }
  Tracker& tracker() const;
  // Says that the arena holds addresses of code that Pagetide cannot notice by itself.
  void set_holds_code_addresses();

  // --- for the snapshot layer ---
  // An arena whose bytes are filled in by `load` (first `image_bytes` of the region writable).
  static Result<Arena> from_image(const ArenaOptions& options, std::size_t image_bytes,
                                  const std::function<Result<void>(ByteRange region)>& load);
  Region& region() const;
  const ArenaOrigin& origin() const;
  void set_origin(const ArenaOrigin& origin);
  // Marks the one consumer of the tracker's epochs; false when there is one already.
  bool acquire_consumer();
  void release_consumer();

 private:
  struct Impl;
  explicit Arena(std::unique_ptr<Impl> impl);
  std::string exhausted_message() const;
  tl::unexpected<Error> refused(std::size_t bytes, std::size_t alignment) const;
  tl::unexpected<Error> refused_for(const void* block, std::size_t bytes,
                                    std::size_t alignment) const;
  std::unique_ptr<Impl> impl_;
  Heap* heap_;  // of impl_; here, so that the way to it is short
};

}  // namespace pagetide
