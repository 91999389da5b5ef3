#include "examples/lua_vm/commands.h"

#include <fmt/format.h>

#include <cerrno>
#include <iostream>
#include <sstream>
#include <utility>

namespace lua_vm {

using pagetide::ErrorCode;
using pagetide::failure;
using pagetide::Result;

namespace {

Result<std::ifstream> open_file(const std::string& path, const char* what, const char* way_out) {
  std::ifstream file(path);
  // A directory opens, and cannot be read.
  if (file) file.peek();
  if (file || file.eof()) return file;
  return pagetide::system_failure(fmt::format("open {} {}", what, path), errno, way_out);
}

}  // namespace

Result<Commands> Commands::open(const std::string& path) {
  Commands commands(path);
  if (commands.is_standard_input()) return commands;
  auto file = open_file(path, "the commands", "Name a file with one command a line.");
  if (!file) return pagetide::propagate(file);
  commands.file_ = std::move(*file);
  return commands;
}

Result<void> Commands::skip_played(const VmState& played) {
  std::uint64_t hash = 0;
  for (std::uint64_t turn = 0; turn < played.turns; ++turn) {
    const auto command = next();
    if (!command) {
      return failure(
          ErrorCode::invalid_argument,
          fmt::format("{} has {} commands, but the game is at turn {}. Give the file that "
                      "was played, with more commands behind those.",
                      path_, turn, played.turns));
    }
    hash = hash_text(hash, *command);
  }
  if (hash == played.commands_hash) return {};
  return failure(ErrorCode::invalid_argument,
                 fmt::format("the first {} commands of {} are not those that were played. Give the "
                             "file that was, or - for standard input.",
                             played.turns, path_));
}

std::optional<std::string> Commands::next() {
  std::istream& input = is_standard_input() ? std::cin : file_;
  for (std::string line; std::getline(input, line);) {
    if (!line.empty()) return line;
  }
  return std::nullopt;
}

Result<std::string> read_file(const std::string& path, const char* what, const char* way_out) {
  auto file = open_file(path, what, way_out);
  if (!file) return pagetide::propagate(file);
  std::ostringstream text;
  text << file->rdbuf();
  return text.str();
}

}  // namespace lua_vm
