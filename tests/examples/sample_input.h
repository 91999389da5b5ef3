#pragma once

#include <cstddef>
#include <string>

namespace package_index {

// A package index for tests, in a file: the first records of `apt-cache dumpavail` where that
// has as many, else made up in the same syntax.
struct SampleInput {
  std::size_t records = 0;
  std::string origin;  // which of the two, for people
};
SampleInput write_sample_input(const std::string& path, std::size_t records);

}  // namespace package_index
