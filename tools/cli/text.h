#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace pagetide::cli {

// "17 B", "4 KiB", "1.5 GiB": binary units; without a decimal the number is exact.
std::string human_bytes(std::uint64_t bytes);
// "950 ns", "12.3 us", "1.24 ms", "2.00 s".
std::string human_duration(std::uint64_t nanoseconds);
// "12.3 %"; "-" when the whole is 0.
std::string percent(std::uint64_t part, std::uint64_t whole);
// "1 page", "2 pages".
std::string counted(std::uint64_t count, std::string_view singular, std::string_view plural);

// Nanoseconds since 1970 as "2025-11-30T11:45:09.123456789Z".
std::string iso_time(std::uint64_t ns_since_1970);
// In the time zone of the process: "2025-11-30 12:45:09 +0100".
std::string local_time(std::uint64_t ns_since_1970);

// "0x550000000000"
std::string hexadecimal(std::uint64_t value);

// Text out of a store, safe for a terminal: control characters and what is no UTF-8 become \xNN.
std::string printable(std::string_view text);

// As one word of a command line of a POSIX shell.
std::string shell_quoted(std::string_view text);

}  // namespace pagetide::cli
