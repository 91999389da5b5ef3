#include "pagetide/allocator/program_identity.h"

#include <elf.h>
#include <gtest/gtest.h>
#include <link.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pagetide/base/bytes.h"

// The linker's symbol for the first byte of the program.
extern "C" const char __ehdr_start;  // NOLINT: a reserved name

namespace pagetide {
namespace {

std::vector<char> own_file() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

template <typename T>
T at(const std::vector<char>& file, std::size_t offset) {
  T value;
  std::memcpy(&value, file.data() + offset, sizeof(value));
  return value;
}

// By section name in the file, where the library goes by program headers in memory.
std::optional<std::string> build_id_of(const std::vector<char>& file) {
  const auto header = at<ElfW(Ehdr)>(file, 0);
  const auto section = [&](std::size_t i) {
    return at<ElfW(Shdr)>(file, header.e_shoff + i * header.e_shentsize);
  };
  const std::size_t names = section(header.e_shstrndx).sh_offset;
  for (std::size_t i = 0; i < header.e_shnum; ++i) {
    const auto found = section(i);
    if (std::string(file.data() + names + found.sh_name) != ".note.gnu.build-id") continue;
    const auto note = at<ElfW(Nhdr)>(file, found.sh_offset);
    const std::size_t id = found.sh_offset + sizeof(note) + round_up(note.n_namesz, 4);
    std::string hex;
    for (std::size_t byte = 0; byte < note.n_descsz; ++byte) {
      std::array<char, 3> text{};
      std::snprintf(text.data(), text.size(), "%02x", static_cast<unsigned char>(file[id + byte]));
      hex += text.data();
    }
    return hex;
  }
  return std::nullopt;
}

TEST(ProgramIdentityTest, the_build_id_is_that_of_the_file) {
  const std::optional<std::string> expected = build_id_of(own_file());
  EXPECT_EQ(current_program().has_build_id(), expected.has_value());
  EXPECT_EQ(current_program().build_id_hex(), expected.value_or(std::string(40, '0')));
}

TEST(ProgramIdentityTest, the_load_address_is_where_the_program_lies) {
  const auto header = at<ElfW(Ehdr)>(own_file(), 0);
  // A program that is not position independent lies where it was linked: moved by nothing.
  const auto expected =
      header.e_type == ET_DYN ? reinterpret_cast<std::uintptr_t>(&__ehdr_start) : std::uintptr_t{0};
  EXPECT_EQ(current_program().load_address, expected);
}

TEST(ProgramIdentityTest, is_found_once) {
  EXPECT_EQ(&current_program(), &current_program());
}

TEST(ProgramIdentityTest, differs_by_build_and_by_address) {
  ProgramIdentity other = current_program();
  EXPECT_EQ(other, current_program());
  other.load_address ^= 0x1000;  // any other address
  EXPECT_NE(other, current_program());
  other = current_program();
  other.build_id[19] ^= 1;
  EXPECT_NE(other, current_program());
}

TEST(ProgramIdentityTest, without_a_build_id_says_so) {
  EXPECT_FALSE(ProgramIdentity{}.has_build_id());
  ProgramIdentity one;
  one.build_id[19] = 0xa5;
  EXPECT_TRUE(one.has_build_id());
  EXPECT_EQ(one.build_id_hex(), std::string(38, '0') + "a5");
}

}  // namespace
}  // namespace pagetide
