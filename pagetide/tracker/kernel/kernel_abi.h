#pragma once

#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

#include <cstdint>

// Kernel interfaces newer than the system headers (Debian 12 ships those of 6.1). Values are the
// kernel's own: include/uapi/linux/{userfaultfd,fs,mman}.h.
namespace pagetide::kernel {

// userfaultfd features. Linux 6.4 and 6.7.
inline constexpr std::uint64_t kUffdFeatureWpUnpopulated = 1ULL << 13;
inline constexpr std::uint64_t kUffdFeatureWpAsync = 1ULL << 15;

// flags of userfaultfd(2): faults from user mode only, allowed without privilege (5.11).
inline constexpr int kUffdUserModeOnly = 1;

// madvise: populate page tables for reading (5.14).
inline constexpr int kMadvPopulateRead = 22;

// PAGEMAP_SCAN on /proc/PID/pagemap (6.7).
struct PageRegion {
  std::uint64_t start;
  std::uint64_t end;  // exclusive
  std::uint64_t categories;
};
struct PmScanArg {
  std::uint64_t size;
  std::uint64_t flags;
  std::uint64_t start;
  std::uint64_t end;
  std::uint64_t walk_end;
  std::uint64_t vec;
  std::uint64_t vec_len;
  std::uint64_t max_pages;
  std::uint64_t category_inverted;
  std::uint64_t category_mask;
  std::uint64_t category_anyof_mask;
  std::uint64_t return_mask;
};
static_assert(sizeof(PageRegion) == 24 && sizeof(PmScanArg) == 96);

inline constexpr unsigned long kPagemapScan = _IOWR('f', 16, PmScanArg);

inline constexpr std::uint64_t kScanWpMatching = 1 << 0;
inline constexpr std::uint64_t kScanCheckWpAsync = 1 << 1;

inline constexpr std::uint64_t kPageWpAllowed = 1 << 0;
inline constexpr std::uint64_t kPageWritten = 1 << 1;
inline constexpr std::uint64_t kPageFile = 1 << 2;
inline constexpr std::uint64_t kPagePresent = 1 << 3;
inline constexpr std::uint64_t kPageSwapped = 1 << 4;
inline constexpr std::uint64_t kPagePfnZero = 1 << 5;
inline constexpr std::uint64_t kPageHuge = 1 << 6;

// PROCMAP_QUERY on /proc/PID/maps (6.11): the mapping at an address.
struct ProcmapQuery {
  std::uint64_t size;
  std::uint64_t query_flags;
  std::uint64_t query_addr;
  std::uint64_t vma_start;
  std::uint64_t vma_end;
  std::uint64_t vma_flags;
  std::uint64_t vma_page_size;
  std::uint64_t vma_offset;
  std::uint64_t inode;
  std::uint32_t dev_major;
  std::uint32_t dev_minor;
  std::uint32_t vma_name_size;
  std::uint32_t build_id_size;
  std::uint64_t vma_name_addr;
  std::uint64_t build_id_addr;
};
static_assert(sizeof(ProcmapQuery) == 104);

inline constexpr unsigned long kProcmapQuery = _IOWR('f', 17, ProcmapQuery);
inline constexpr std::uint64_t kProcmapVmaReadable = 1 << 0;
inline constexpr std::uint64_t kProcmapVmaWritable = 1 << 1;
inline constexpr std::uint64_t kProcmapVmaExecutable = 1 << 2;
inline constexpr std::uint64_t kProcmapVmaShared = 1 << 3;

}  // namespace pagetide::kernel
