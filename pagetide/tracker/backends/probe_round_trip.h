#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string_view>

#include "pagetide/base/unique_fd.h"
#include "pagetide/base/virtual_array.h"
#include "pagetide/tracker/dirty_backend.h"

namespace pagetide {

enum class KernelWrites : std::uint8_t { seen, fail };

// A few pages of memory that a back end watches.
template <DirtyBackend B>
class ProbedPages {
 public:
  static constexpr std::size_t kPages = 8;

  static Result<ProbedPages> create(B& backend) {
    auto memory = VirtualArray<char>::create(kPages * page_size());
    if (!memory) return propagate(memory);
    ProbedPages pages(backend, std::move(*memory));
    if (auto r = backend.watch(pages.range()); !r) return propagate(r);
    pages.watched_ = true;
    return pages;
  }
  ProbedPages(ProbedPages&& other) noexcept
      : backend_(other.backend_),
        memory_(std::move(other.memory_)),
        watched_(std::exchange(other.watched_, false)) {}
  ProbedPages(const ProbedPages&) = delete;
  ProbedPages& operator=(const ProbedPages&) = delete;
  ProbedPages& operator=(ProbedPages&&) = delete;
  ~ProbedPages() {
    if (watched_) backend_.unwatch(range());
  }

  ByteRange range() const { return ByteRange::of(memory_.span().data(), memory_.size()); }
  volatile char& operator[](std::size_t page) { return memory_[page * page_size()]; }
  char* at(std::size_t page) { return &memory_[page * page_size()]; }

  // That a take reports these pages, as a bit mask, and no others.
  Result<void> expect(std::string_view what, std::uint64_t pages) {
    DirtyBitmap written(kPages);
    if (auto r = backend_.collect(range(), range(), CollectMode::take, written); !r) return r;
    const std::uint64_t got = written.words()[0];
    if (got == pages) return {};
    return failure(
        ErrorCode::unsupported,
        fmt::format("{}: pages {:#x} were reported instead of {:#x}. This kernel's write "
                    "tracking cannot be trusted; the compare back end works.",
                    what, got, pages));
  }

 private:
  ProbedPages(B& backend, VirtualArray<char> memory)
      : backend_(backend), memory_(std::move(memory)) {}

  B& backend_;
  VirtualArray<char> memory_;
  bool watched_ = false;
};

// What a read(2) into an armed page does.
template <DirtyBackend B>
Result<void> probe_kernel_writes(ProbedPages<B>& pages, std::size_t page, KernelWrites expected) {
  const UniqueFd zero(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
  if (!zero.valid()) return {};  // a sandbox without it; nothing to be learnt
  const ssize_t n = ::read(zero.get(), pages.at(page), 1);
  if (n == 1) return pages.expect("read(2) into an armed page", std::uint64_t{1} << page);
  if (expected == KernelWrites::fail && errno == EFAULT) return {};
  return system_failure("read(2) into a tracked page", errno, "The compare back end works.");
}

// write, reported, armed, silent, write, reported; the same over prefilled pages.
template <DirtyBackend B>
Result<void> probe_round_trip(B& backend, KernelWrites kernel_writes) {
  auto created = ProbedPages<B>::create(backend);
  if (!created) return propagate(created);
  ProbedPages<B>& pages = *created;
  for (std::size_t page = 0; page < 4; ++page) pages[page] = 1;
  if (auto r = pages.expect("first writes", 0xf); !r) return r;
  if (auto r = pages.expect("after arming", 0); !r) return r;
  pages[1] = 2;
  if (auto r = pages.expect("a write to an armed page", 0x2); !r) return r;
  if (auto r = probe_kernel_writes(pages, 3, kernel_writes); !r) return r;
  if (auto r = backend.prefill(pages.range(), Prefill::automatic); !r) return r;
  if (auto r = pages.expect("after prefill", 0); !r) return r;
  pages[2] = 3;
  pages[5] = 3;
  return pages.expect("writes after prefill", 0x24);
}

}  // namespace pagetide
