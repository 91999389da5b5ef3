#pragma once

#include <span>
#include <string_view>

#include "pagetide/base/export.h"

namespace pagetide {

// Writes "pagetide: <message>\n" to standard error and aborts. Only for proven heap corruption
// and broken lock order: going on would write a corrupt heap into a snapshot. Allocates nothing,
// takes no lock.
[[noreturn]] PAGETIDE_API void fatal(std::string_view message);

// The same, with an address between two parts: "<before>0x7f...<after>".
[[noreturn]] PAGETIDE_API void fatal_at(std::string_view before, const void* address,
                                        std::string_view after);

// The text of that into `text`, which ends with a zero byte: what does not fit is cut. Allocates
// nothing.
PAGETIDE_API void print_at(std::span<char> text, std::string_view before, const void* address,
                           std::string_view after);

}  // namespace pagetide
