#include "tools/cli/text.h"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <ctime>
#include <iterator>

namespace pagetide::cli {

std::string human_bytes(std::uint64_t bytes) {
  static constexpr std::array<const char*, 7> kUnits = {"B",   "KiB", "MiB", "GiB",
                                                        "TiB", "PiB", "EiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  // 1023.95 would print as 1024.0.
  while (value >= 1023.95 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  const bool is_whole = bytes % (std::uint64_t{1} << (10 * unit)) == 0;
  return fmt::format("{:.{}f} {}", value, is_whole ? 0 : 1, kUnits[unit]);
}

std::string human_duration(std::uint64_t nanoseconds) {
  const auto value = static_cast<double>(nanoseconds);
  if (value < 1e3) return fmt::format("{} ns", nanoseconds);
  if (value < 1e6) return fmt::format("{:.1f} us", value / 1e3);
  if (value < 1e9) return fmt::format("{:.2f} ms", value / 1e6);
  return fmt::format("{:.2f} s", value / 1e9);
}

std::string percent(std::uint64_t part, std::uint64_t whole) {
  if (whole == 0) return "-";
  return fmt::format("{:.1f} %", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string counted(std::uint64_t count, std::string_view singular, std::string_view plural) {
  return fmt::format("{} {}", count, count == 1 ? singular : plural);
}

namespace {

constexpr std::uint64_t kNsPerSecond = 1'000'000'000;

std::string broken_down(const std::tm& time, const char* format) {
  std::array<char, 64> text{};
  return {text.data(), std::strftime(text.data(), text.size(), format, &time)};
}

}  // namespace

std::string iso_time(std::uint64_t ns_since_1970) {
  const auto seconds = static_cast<std::time_t>(ns_since_1970 / kNsPerSecond);
  std::tm time{};
  ::gmtime_r(&seconds, &time);
  return fmt::format("{}.{:09}Z", broken_down(time, "%Y-%m-%dT%H:%M:%S"),
                     ns_since_1970 % kNsPerSecond);
}

std::string local_time(std::uint64_t ns_since_1970) {
  const auto seconds = static_cast<std::time_t>(ns_since_1970 / kNsPerSecond);
  std::tm time{};
  ::localtime_r(&seconds, &time);
  return broken_down(time, "%Y-%m-%d %H:%M:%S %z");
}

std::string hexadecimal(std::uint64_t value) {
  return fmt::format("{:#x}", value);
}

namespace {

// The bytes of the printable UTF-8 character at the front; 0 when there is none.
std::size_t printable_character(std::string_view text) {
  const auto byte = [&](std::size_t i) {
    return static_cast<std::uint32_t>(static_cast<unsigned char>(text[i]));
  };
  if (byte(0) < 0x80) return byte(0) >= 0x20 && byte(0) != 0x7f ? 1 : 0;
  // Lead byte, bits of the first byte, smallest code point. 0x80 to 0x9f are control characters.
  struct Form {
    std::uint32_t mask, lead, smallest;
  };
  static constexpr std::array<Form, 3> kForms = {
      {{0xe0, 0xc0, 0xa0}, {0xf0, 0xe0, 0x800}, {0xf8, 0xf0, 0x10000}}};
  for (std::size_t extra = 1; extra <= kForms.size(); ++extra) {
    const Form& form = kForms[extra - 1];
    if ((byte(0) & form.mask) != form.lead) continue;
    if (text.size() <= extra) return 0;
    std::uint32_t code = byte(0) & ~form.mask;
    for (std::size_t i = 1; i <= extra; ++i) {
      if ((byte(i) & 0xc0U) != 0x80) return 0;
      code = code << 6U | (byte(i) & 0x3fU);
    }
    const bool surrogate = code >= 0xd800 && code < 0xe000;
    // Line and paragraph separators, and what turns the direction of text around.
    const bool layout = (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
    return code < form.smallest || code > 0x10ffff || surrogate || layout ? 0 : extra + 1;
  }
  return 0;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string safe;
  while (!text.empty()) {
    const std::size_t size = printable_character(text);
    if (size == 0) {
      fmt::format_to(std::back_inserter(safe), "\\x{:02x}", static_cast<unsigned char>(text[0]));
    } else {
      safe.append(text.substr(0, size));
    }
    text.remove_prefix(size == 0 ? 1 : size);
  }
  return safe;
}

std::string shell_quoted(std::string_view text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=:,./@%";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string_view::npos) {
    return std::string(text);
  }
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

}  // namespace pagetide::cli
