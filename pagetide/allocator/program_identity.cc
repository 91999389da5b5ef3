#include "pagetide/allocator/program_identity.h"

#include <elf.h>
#include <link.h>

#include <algorithm>
#include <cstring>

#include "pagetide/base/bytes.h"

namespace pagetide {

namespace {

void read_build_id(const std::byte* notes, std::size_t size, ProgramIdentity& identity) {
  while (size >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) header;
    std::memcpy(&header, notes, sizeof(header));
    const std::size_t name = sizeof(header);
    const std::size_t description = name + round_up(header.n_namesz, 4);
    const std::size_t next = description + round_up(header.n_descsz, 4);
    if (next > size) return;
    if (header.n_type == NT_GNU_BUILD_ID && header.n_namesz == 4 &&
        std::memcmp(notes + name, "GNU", 4) == 0) {
      std::memcpy(identity.build_id.data(), notes + description,
                  std::min<std::size_t>(identity.build_id.size(), header.n_descsz));
      return;
    }
    notes += next;
    size -= next;
  }
}

// The first object that dl_iterate_phdr visits is the main program.
int visit_program(dl_phdr_info* info, std::size_t, void* out) {
  auto& identity = *static_cast<ProgramIdentity*>(out);
  identity.load_address = info->dlpi_addr;
  for (std::size_t i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = info->dlpi_phdr[i];
    if (segment.p_type != PT_NOTE) continue;
    read_build_id(reinterpret_cast<const std::byte*>(info->dlpi_addr + segment.p_vaddr),  // NOLINT
                  segment.p_memsz, identity);
  }
  return 1;
}

}  // namespace

std::string ProgramIdentity::build_id_hex() const {
  std::string hex;
  for (const std::uint8_t byte : build_id) {
    hex.push_back("0123456789abcdef"[byte >> 4U]);
    hex.push_back("0123456789abcdef"[byte & 15U]);
  }
  return hex;
}

const ProgramIdentity& current_program() {
  static const ProgramIdentity identity = [] {
    ProgramIdentity found;
    ::dl_iterate_phdr(visit_program, &found);
    return found;
  }();
  return identity;
}

}  // namespace pagetide
