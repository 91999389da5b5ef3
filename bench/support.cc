#include "bench/support.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/vfs.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <utility>

#include "pagetide/base/bytes.h"

namespace pagetide::bench {

using namespace literals;

std::size_t bench_bytes() {
  static const std::size_t bytes = [] {
    const char* asked = std::getenv("PAGETIDE_BENCH_MIB");
    const std::size_t mib = asked == nullptr ? 0 : std::strtoull(asked, nullptr, 10);
    return (mib == 0 ? 256 : std::max<std::size_t>(mib, 16)) * 1_MiB;
  }();
  return bytes;
}

double median(std::vector<double> samples) {
  const auto middle = samples.begin() + static_cast<std::ptrdiff_t>((samples.size() - 1) / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  return *middle;
}

void skip(benchmark::State& state, const Error& error) {
  state.SkipWithError(error.message().c_str());
}

void set_time_counter(benchmark::State& state, const std::string& name, double seconds, Unit unit) {
  switch (unit) {
    case Unit::ns:
      state.counters[name + "_ns"] = seconds * 1e9;
      break;
    case Unit::us:
      state.counters[name + "_us"] = seconds * 1e6;
      break;
    case Unit::ms:
      state.counters[name + "_ms"] = seconds * 1e3;
      break;
  }
}

void set_counter(benchmark::State& state, const std::string& name, double value) {
  if (value != 0) state.counters[name] = value;
}

Pages::Pages(std::size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return;
  range_ = ByteRange::of(memory, bytes);
  ::madvise(memory, bytes, MADV_NOHUGEPAGE);
}

Pages::~Pages() {
  if (!range_.empty()) ::munmap(range_.data(), range_.size);
}

void fill_with_noise(ByteRange range) {
  std::mt19937_64 random(range.size);
  auto* words = reinterpret_cast<std::uint64_t*>(range.data());
  for (std::size_t i = 0; i < range.size / sizeof(std::uint64_t); ++i) words[i] = random() | 1;
}

namespace {

void write_page(ByteRange range, std::size_t page) {
  static std::uint64_t value = 0;
  value += 2;  // never odd, as noise is
  *reinterpret_cast<volatile std::uint64_t*>(range.data() + page * page_size()) = value;
}

}  // namespace

void write_pages(ByteRange range, std::span<const std::uint32_t> pages) {
  for (const std::uint32_t page : pages) write_page(range, page);
}

void write_all_pages(ByteRange range) {
  for (std::size_t page = 0; page < range.size / page_size(); ++page) write_page(range, page);
}

PagePicker::PagePicker(std::size_t page_count) : pages_(page_count) {
  std::iota(pages_.begin(), pages_.end(), 0U);
}

std::span<const std::uint32_t> PagePicker::pick(std::size_t count) {
  const std::size_t picked = std::min(count, pages_.size());
  for (std::size_t i = 0; i < picked; ++i) {
    std::uniform_int_distribution<std::size_t> rest(i, pages_.size() - 1);
    std::swap(pages_[i], pages_[rest(random_)]);
  }
  return std::span(pages_).first(picked);
}

ScratchDirectory::ScratchDirectory(const std::string& parent) {
  std::string pattern = parent + "/pagetide-bench-XXXXXX";
  if (::mkdtemp(pattern.data()) != nullptr) path_ = pattern;
}

ScratchDirectory::~ScratchDirectory() {
  if (path_.empty()) return;
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string directory_of(Place place) {
  return place == Place::shared_memory ? "/dev/shm"
                                       : std::filesystem::temp_directory_path().string();
}

bool exists(Place place) {
  std::error_code ignored;
  return std::filesystem::is_directory(directory_of(place), ignored);
}

std::string file_system_of(const std::string& path) {
  // From linux/magic.h and the file systems' own headers.
  constexpr std::array<std::pair<std::uint32_t, const char*>, 5> kNames = {
      {{0xef53, "ext4"},
       {0x01021994, "tmpfs"},
       {0x58465342, "xfs"},
       {0x9123683e, "btrfs"},
       {0x794c7630, "overlay"}}};
  struct statfs facts {};
  if (::statfs(path.c_str(), &facts) != 0) return "unknown";
  const auto type = static_cast<std::uint32_t>(facts.f_type);
  for (const auto& [number, name] : kNames) {
    if (number == type) return name;
  }
  return fmt::format("file system {:#x}", type);
}

}  // namespace pagetide::bench
