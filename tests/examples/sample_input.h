#pragma once

#include <cstddef>
#include <string>

namespace package_index {

// A package index for tests, in a file: the first `at_most` records of `apt-cache dumpavail`
// where that has `at_least` as many, else `at_least` records made up in the same syntax.
struct SampleInput {
  std::size_t records = 0;
  std::string origin;  // which of the two, for people
};
SampleInput write_sample_input(const std::string& path, std::size_t at_least, std::size_t at_most);

}  // namespace package_index
