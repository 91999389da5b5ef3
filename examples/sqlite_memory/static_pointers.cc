#include "examples/sqlite_memory/static_pointers.h"

#include <fmt/format.h>
#include <link.h>
#include <sqlite3.h>

namespace sqlite_memory {

namespace {

struct Search {
  std::uintptr_t in_sqlite;  // any address in what is to be searched
  pagetide::ByteRange heap;
  std::vector<StaticPointer> found;
};

// A sanitizer knows of bytes between variables that nobody should read.
[[gnu::no_sanitize_address, gnu::no_sanitize_thread]] std::uintptr_t word_at(
    std::uintptr_t address) {
  return *reinterpret_cast<const std::uintptr_t*>(address);  // NOLINT: an address from the loader
}

bool contains(const dl_phdr_info& object, std::uintptr_t address) {
  for (std::size_t i = 0; i < object.dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object.dlpi_phdr[i];
    const std::uintptr_t begin = object.dlpi_addr + segment.p_vaddr;
    if (segment.p_type == PT_LOAD && address >= begin && address - begin < segment.p_memsz) {
      return true;
    }
  }
  return false;
}

void search_segment(const dl_phdr_info& object, const ElfW(Phdr) & segment, Search& search) {
  constexpr std::uintptr_t kWord = sizeof(std::uintptr_t);
  const std::uintptr_t begin = pagetide::round_up(object.dlpi_addr + segment.p_vaddr, kWord);
  const std::uintptr_t end = object.dlpi_addr + segment.p_vaddr + segment.p_memsz;
  for (std::uintptr_t address = begin; address + kWord <= end; address += kWord) {
    const std::uintptr_t value = word_at(address);
    if (!search.heap.contains(value)) continue;
    search.found.push_back({object.dlpi_name, address - object.dlpi_addr, value});
  }
}

int visit(dl_phdr_info* object, std::size_t /*size*/, void* context) {
  Search& search = *static_cast<Search*>(context);
  if (!contains(*object, search.in_sqlite)) return 0;
  for (std::size_t i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD || (segment.p_flags & PF_W) == 0) continue;
    search_segment(*object, segment, search);
  }
  return 1;
}

}  // namespace

std::vector<StaticPointer> pointers_from_statics(pagetide::ByteRange heap) {
  // The default VFS is one of its variables. A function's address may be that of a stub elsewhere.
  Search search{reinterpret_cast<std::uintptr_t>(sqlite3_vfs_find(nullptr)), heap, {}};
  ::dl_iterate_phdr(visit, &search);
  return std::move(search.found);
}

std::string describe(const std::vector<StaticPointer>& found) {
  std::string text;
  for (const StaticPointer& pointer : found) {
    text += fmt::format("{}the word at {:#x} of {} points to {:#x} in the heap",
                        text.empty() ? "" : ", ", pointer.offset,
                        pointer.object.empty() ? "the program" : pointer.object, pointer.value);
  }
  return text;
}

}  // namespace sqlite_memory
