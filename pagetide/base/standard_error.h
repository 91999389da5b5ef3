#pragma once

#include <initializer_list>
#include <string_view>

namespace pagetide {

// Writes "pagetide: <parts>\n" to standard error in one call, cut off after a few hundred bytes.
// Allocates nothing, takes no lock, keeps errno: for code that runs inside a malloc or on the way
// to abort().
void write_standard_error(std::initializer_list<std::string_view> parts);

}  // namespace pagetide
