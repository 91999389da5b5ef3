#include "pagetide/base/fatal.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "pagetide/base/standard_error.h"

namespace pagetide {

void fatal(std::string_view message) {
  write_standard_error({message});
  std::abort();
}

namespace {

// An address as 0x7f...
class AddressText {
 public:
  explicit AddressText(const void* address) {
    auto value = reinterpret_cast<std::uintptr_t>(address);
    do {
      *--begin_ = "0123456789abcdef"[value & 15U];
      value >>= 4U;
    } while (value != 0);
    *--begin_ = 'x';
    *--begin_ = '0';
  }
  AddressText(const AddressText&) = delete;
  AddressText& operator=(const AddressText&) = delete;
  std::string_view view() const { return {begin_, end()}; }

 private:
  const char* end() const { return text_.data() + text_.size(); }

  std::array<char, 2 + 2 * sizeof(std::uintptr_t)> text_;
  char* begin_ = text_.data() + text_.size();
};

}  // namespace

void fatal_at(std::string_view before, const void* address, std::string_view after) {
  write_standard_error({before, AddressText(address).view(), after});
  std::abort();
}

void print_at(std::span<char> text, std::string_view before, const void* address,
              std::string_view after) {
  if (text.empty()) return;
  const AddressText middle(address);
  std::span<char> room = text.first(text.size() - 1);
  for (const std::string_view part : {before, middle.view(), after}) {
    room = room.subspan(part.copy(room.data(), room.size()));
  }
  text[text.size() - 1 - room.size()] = '\0';
}

}  // namespace pagetide
