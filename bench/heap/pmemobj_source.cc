#include <fcntl.h>
#include <libpmemobj.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "bench/heap/heap_file.h"
#include "bench/heap/source.h"
#include "pagetide/base/unique_fd.h"

namespace pagetide::bench {

namespace {

// Functions of the table take no object.
PMEMobjpool* the_pool = nullptr;
std::uint64_t the_pool_id = 0;

// A program would keep the object's name and not look it up; so it is computed here.
PMEMoid name_of(const void* block) {
  const auto distance = static_cast<const char*>(block) - reinterpret_cast<const char*>(the_pool);
  return {the_pool_id, static_cast<std::uint64_t>(distance)};
}

void* address_of(const PMEMoid& object) {
  return reinterpret_cast<char*>(the_pool) + object.off;
}

void* allocate(std::size_t bytes) {
  PMEMoid object{};
  if (pmemobj_alloc(the_pool, &object, bytes, 0, nullptr, nullptr) != 0) return nullptr;
  return address_of(object);
}

void deallocate(void* block) {
  PMEMoid object = name_of(block);
  pmemobj_free(&object);
}

void* reallocate(void* block, std::size_t /*old_bytes*/, std::size_t new_bytes) {
  PMEMoid object = name_of(block);
  if (pmemobj_realloc(the_pool, &object, new_bytes, 0) != 0) return nullptr;
  return address_of(object);
}

class PmemobjSource final : public OpenSource {
 public:
  explicit PmemobjSource(PMEMobjpool* pool) : pool_(pool) {
    the_pool = pool;
    PMEMoid object{};
    if (pmemobj_alloc(pool, &object, 16, 0, nullptr, nullptr) == 0) {
      the_pool_id = object.pool_uuid_lo;
      pmemobj_free(&object);
    }
  }
  ~PmemobjSource() override {
    pmemobj_close(pool_);
    the_pool = nullptr;
  }

  Source table() const override { return {&allocate, &deallocate, &reallocate}; }
  ByteRange shared_memory() const override { return ByteRange::of(pool_, kHeapFileBytes); }

 private:
  PMEMobjpool* pool_;
};

// Made here and not by the library, which would give every page of it memory at once.
Result<void> make_sparse_file(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file.valid() || ::ftruncate(file.get(), static_cast<off_t>(kHeapFileBytes)) != 0) {
    return system_failure("make the file of the pool", errno);
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<OpenSource>> open_pmemobj_source() {
  HeapDirectory directory;
  if (auto r = make_sparse_file(directory.file()); !r) return propagate(r);
  PMEMobjpool* pool = pmemobj_create(directory.file().c_str(), "bench_heap", 0, 0600);
  if (pool == nullptr) {
    return failure(ErrorCode::system_failure,
                   std::string("libpmemobj cannot make its pool: ") + pmemobj_errormsg());
  }
  return std::make_unique<PmemobjSource>(pool);
}

}  // namespace pagetide::bench
