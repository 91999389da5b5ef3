#include "examples/package_index/package_source.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <cctype>
#include <cerrno>
#include <string_view>
#include <utility>

namespace package_index {

using pagetide::ErrorCode;
using pagetide::failure;
using pagetide::propagate;
using pagetide::Result;

namespace {

constexpr int kShellCommandNotFound = 127;

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())) != 0) {
    text.remove_prefix(1);
  }
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) {
    text.remove_suffix(1);
  }
  return text;
}

// Cuts off and returns what stands before the separator.
std::string_view take_until(std::string_view& text, char separator) {
  const std::size_t end = text.find(separator);
  const std::string_view part = text.substr(0, end);
  text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  return part;
}

// "libc6:any (>= 2.34)"
Dependency parse_dependency(std::string_view text) {
  Dependency dependency;
  const std::size_t open = text.find('(');
  if (open != std::string_view::npos) {
    std::string_view constraint = text.substr(open + 1);
    dependency.constraint = trimmed(take_until(constraint, ')'));
  }
  std::string_view target = trimmed(text.substr(0, open));
  dependency.target = take_until(target, ':');
  return dependency;
}

// "a (>= 1) | b, c": two groups, the first with two alternatives.
void add_dependencies(std::string_view text, DependencyKind kind, PackageRecord& record) {
  auto& all = record.dependencies;
  std::uint32_t group = all.empty() ? 0 : all.back().group + 1;
  while (!text.empty()) {
    std::string_view alternatives = take_until(text, ',');
    const std::size_t before = all.size();
    while (!alternatives.empty()) {
      Dependency dependency = parse_dependency(trimmed(take_until(alternatives, '|')));
      if (dependency.target.empty()) continue;
      dependency.kind = kind;
      dependency.group = group;
      all.push_back(std::move(dependency));
    }
    if (all.size() > before) ++group;
  }
}

void set_field(std::string_view field, std::string_view value, PackageRecord& record) {
  if (field == "Package") {
    record.name = value;
  } else if (field == "Version") {
    record.version = value;
  } else if (field == "Architecture") {
    record.architecture = value;
  } else if (field == "Section") {
    record.section = value;
  } else if (field == "Description") {
    record.summary = value;
  } else if (field == "Pre-Depends") {
    add_dependencies(value, DependencyKind::pre_depends, record);
  } else if (field == "Depends") {
    add_dependencies(value, DependencyKind::depends, record);
  } else if (field == "Recommends") {
    add_dependencies(value, DependencyKind::recommends, record);
  }
}

}  // namespace

PackageSource::PackageSource(Stream stream, std::string name, bool is_apt_cache)
    : stream_(std::move(stream)), name_(std::move(name)), is_apt_cache_(is_apt_cache) {}

Result<PackageSource> PackageSource::open(const std::string& path) {
  const bool is_apt_cache = path.empty();
  std::string name = is_apt_cache ? "apt-cache dumpavail" : path;
  Stream stream(is_apt_cache ? ::popen(name.c_str(), "re") : std::fopen(path.c_str(), "re"),
                is_apt_cache ? ::pclose : std::fclose);
  if (stream == nullptr) {
    return pagetide::system_failure(fmt::format("open the package index {}", name), errno,
                                    "Save one with: apt-cache dumpavail >FILE");
  }
  return PackageSource(std::move(stream), std::move(name), is_apt_cache);
}

// The next line, without its end, in line_; false at the end of the input.
Result<bool> PackageSource::read_line() {
  if (stream_ == nullptr) return false;
  char* buffer = buffer_.release();
  const ssize_t length = ::getline(&buffer, &buffer_bytes_, stream_.get());
  const int saved_errno = errno;
  buffer_.reset(buffer);
  if (length < 0) {
    if (std::ferror(stream_.get()) != 0) {
      return pagetide::system_failure(fmt::format("read {}", name_), saved_errno);
    }
    if (auto r = finish(); !r) return propagate(r);
    return false;
  }
  line_.assign(buffer, static_cast<std::size_t>(length));
  if (!line_.empty() && line_.back() == '\n') line_.pop_back();
  ++line_number_;
  return true;
}

// Called at the end of the input: what apt-cache itself has to say.
Result<void> PackageSource::finish() {
  std::FILE* stream = stream_.release();
  if (!is_apt_cache_) {
    std::fclose(stream);
    return {};
  }
  const int status = ::pclose(stream);
  if (status == 0) return {};
  if (WIFEXITED(status) && WEXITSTATUS(status) == kShellCommandNotFound) {
    return failure(ErrorCode::system_failure,
                   "cannot run apt-cache: this is no Debian system, or the package apt is not "
                   "installed. Give a saved index with --input FILE (apt-cache dumpavail >FILE).");
  }
  return failure(
      ErrorCode::system_failure,
      fmt::format("apt-cache dumpavail failed (wait status {:#x}); its own message stands "
                  "above. Refresh the package lists as root with `apt-get update`, or give "
                  "a saved index with --input FILE.",
                  status));
}

Result<void> PackageSource::take_field(PackageRecord& record) {
  if (line_.front() == ' ' || line_.front() == '\t') return {};  // continues a field; none we keep
  std::string_view value = line_;
  const std::string_view field = take_until(value, ':');
  if (field.size() == line_.size() || field.find(' ') != std::string_view::npos) {
    return failure(ErrorCode::invalid_argument,
                   fmt::format("{}, line {}: '{:.40}' is no line of a package index, which is made "
                               "of lines 'Field: value'. Save one with: apt-cache dumpavail >FILE",
                               name_, line_number_, line_));
  }
  set_field(field, trimmed(value), record);
  return {};
}

Result<bool> PackageSource::next(PackageRecord& record) {
  record = PackageRecord();
  while (true) {
    auto more = read_line();
    if (!more) return propagate(more);
    const bool is_end_of_record = !*more || line_.empty();
    if (is_end_of_record && !record.name.empty()) return true;
    if (!*more) return false;
    if (is_end_of_record) {
      record = PackageRecord();
      continue;
    }
    if (auto r = take_field(record); !r) return propagate(r);
  }
}

}  // namespace package_index
