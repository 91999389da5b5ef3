#include "examples/kvm_guest/page_tables.h"

namespace kvm_guest {

namespace {

constexpr std::uint64_t kPresent = 1 << 0;
constexpr std::uint64_t kWritable = 1 << 1;
constexpr std::uint64_t kUser = 1 << 2;
constexpr std::uint64_t kEntryFlags = kPresent | kWritable | kUser;
constexpr std::uint64_t kEntryBytes = 8;

}  // namespace

void write_identity_map(GuestMemory& memory, std::uint64_t root) {
  const std::uint64_t directory_pointers = root + kGuestPageBytes;
  const std::uint64_t directory = directory_pointers + kGuestPageBytes;
  const std::uint64_t tables = directory + kGuestPageBytes;
  memory.store(root, directory_pointers | kEntryFlags);
  memory.store(directory_pointers, directory | kEntryFlags);
  // The tables follow each other, so that the entry of a page is found by its number alone.
  for (std::uint64_t page = 0; page < memory.page_count(); ++page) {
    if (page % 512 == 0) {
      const std::uint64_t table = tables + page / 512 * kGuestPageBytes;
      memory.store(directory + page / 512 * kEntryBytes, table | kEntryFlags);
    }
    memory.store(tables + page * kEntryBytes, page * kGuestPageBytes | kEntryFlags);
  }
}

}  // namespace kvm_guest
