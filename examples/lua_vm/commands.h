#pragma once

#include <cstdint>
#include <fstream>
#include <iosfwd>
#include <optional>
#include <string>

#include "examples/lua_vm/vm.h"
#include "pagetide/pagetide.hpp"

namespace lua_vm {

// Commands, one a line; empty lines count for nothing.
class Commands {
 public:
  // A file, or "-" for standard input.
  static pagetide::Result<Commands> open(const std::string& path);

  // Passes over those that a machine has played already. invalid_argument where they are others.
  pagetide::Result<void> skip_played(const VmState& played);
  // Nothing at the end.
  std::optional<std::string> next();
  bool is_standard_input() const { return path_ == "-"; }

 private:
  explicit Commands(std::string path) : path_(std::move(path)) {}

  std::string path_;
  std::ifstream file_;
};

// The whole of a file.
pagetide::Result<std::string> read_file(const std::string& path, const char* what,
                                        const char* way_out);

}  // namespace lua_vm
