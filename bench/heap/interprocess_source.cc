#include <boost/interprocess/managed_mapped_file.hpp>
#include <cstring>
#include <new>
#include <string>

#include "bench/heap/heap_file.h"
#include "bench/heap/source.h"

namespace pagetide::bench {

namespace {

namespace bip = boost::interprocess;

// Functions of the table take no object.
bip::managed_mapped_file* the_segment = nullptr;

void* allocate(std::size_t bytes) {
  return the_segment->allocate(bytes, std::nothrow);
}

void deallocate(void* block) {
  the_segment->deallocate(block);
}

// In place where the memory behind the block is free, as the library's own containers grow.
void* reallocate(void* block, std::size_t old_bytes, std::size_t new_bytes) {
  auto received = bip::managed_mapped_file::size_type{new_bytes};
  char* reused = static_cast<char*>(block);
  char* larger = the_segment->allocation_command<char>(
      bip::allocate_new | bip::expand_fwd | bip::nothrow_allocation, new_bytes, received, reused);
  if (larger != nullptr && reused == nullptr) {
    std::memcpy(larger, block, old_bytes);
    the_segment->deallocate(block);
  }
  return larger;
}

class InterprocessSource final : public OpenSource {
 public:
  // Throws what the library throws.
  explicit InterprocessSource(const std::string& path)
      : segment_(bip::create_only, path.c_str(), kHeapFileBytes) {
    the_segment = &segment_;
  }
  ~InterprocessSource() override { the_segment = nullptr; }

  Source table() const override { return {&allocate, &deallocate, &reallocate}; }
  // The segment begins behind a header in the file's first page.
  ByteRange shared_memory() const override {
    return ByteRange::of(segment_.get_address(), segment_.get_size()).page_cover();
  }

 private:
  bip::managed_mapped_file segment_;
};

}  // namespace

Result<std::unique_ptr<OpenSource>> open_interprocess_source() {
  HeapDirectory directory;
  if (directory.path().empty()) {
    return failure(ErrorCode::system_failure, "cannot make a directory for the heap's file");
  }
  try {
    return std::make_unique<InterprocessSource>(directory.file());
  } catch (const bip::interprocess_exception& problem) {
    return failure(ErrorCode::system_failure,
                   std::string("Boost.Interprocess cannot make its file: ") + problem.what());
  }
}

}  // namespace pagetide::bench
