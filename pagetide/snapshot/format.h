#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "pagetide/base/error.h"
#include "pagetide/base/hash.h"
#include "pagetide/snapshot/file_system.h"

// What a store looks like on disk, as docs/format.md describes it to the byte. All integers are
// little-endian, all structures are written as they stand in memory.
//
//   root                    RootRecord; replaced atomically by each commit
//   NNNNNNNNNNNN.manifest   one per snapshot: ManifestHeader and its body
//   NNNNNNNNNNNN.segment    the pages that the snapshot brought; absent when it brought none
//   lock                    flock()ed by the writer; its content is informational
//
// A snapshot is committed when its id is below root's next_id.

namespace pagetide::format {

static_assert(std::endian::native == std::endian::little, "the store's format is little-endian");

inline constexpr std::uint32_t kVersion = 2;

inline constexpr std::array<char, 8> kRootMagic = {'P', 'G', 'T', 'D', 'R', 'O', 'O', 'T'};
inline constexpr std::array<char, 8> kManifestMagic = {'P', 'G', 'T', 'D', 'M', 'A', 'N', 'I'};
inline constexpr std::array<char, 8> kSegmentMagic = {'P', 'G', 'T', 'D', 'S', 'E', 'G', 'M'};

using Uuid = std::array<std::uint8_t, 16>;

struct RootRecord {
  std::array<char, 8> magic;
  std::uint32_t version;
  std::uint32_t page_size;
  Uuid uuid;
  std::uint64_t seed;        // of every page hash in this store
  std::uint64_t created_ns;  // since 1970, UTC
  std::uint64_t head;        // the newest committed snapshot; 0: none
  std::uint64_t next_id;     // ids from here on are free; ids start at 1
  std::array<std::uint64_t, 7> reserved;
  std::uint64_t checksum;  // XXH3-64, seed 0, of all bytes before
};
static_assert(sizeof(RootRecord) == 128);

// Followed by zeros up to the page size less 8, then XXH3-64 (seed 0) of everything before it.
// Payload pages follow, numbered from 0.
struct SegmentHeader {
  std::array<char, 8> magic;
  std::uint32_t version;
  std::uint32_t page_size;
  Uuid uuid;
  std::uint64_t segment;  // = the id of the snapshot it belongs to
};
static_assert(sizeof(SegmentHeader) == 40);

// ManifestHeader::flags
inline constexpr std::uint32_t kHoldsCodeAddresses = 1U << 0;
// All bytes that are free in the heap were zero when they were freed.
inline constexpr std::uint32_t kFreeBytesAreZero = 1U << 1;
// Bytes that are free in the heap are zero in this snapshot, whatever the stored pages hold there:
// a page that was stored while a block was live keeps its bytes. Who reads a page clears them.
inline constexpr std::uint32_t kFreeBytesMasked = 1U << 2;

struct ManifestHeader {
  std::array<char, 8> magic;
  std::uint32_t version;
  std::uint32_t page_size;
  Uuid uuid;  // of the store
  std::uint64_t id;
  std::uint64_t parent;       // 0: none
  std::uint64_t created_ns;   // since 1970, UTC
  std::uint64_t region_base;  // address of page 0
  std::uint64_t reserve_bytes;
  std::uint64_t image_pages;  // pages from here on are zero
  std::uint32_t flags;
  std::uint32_t
      chain_depth;  // manifests to read below this one; 0: none (no parent, or full index)
  std::uint64_t load_address;  // of the program that wrote it
  std::array<std::uint8_t, 20> build_id;
  std::uint32_t reserved0;
  std::uint64_t reported_pages;  // by the tracker
  std::uint64_t changed_pages;   // of these and of what was freed: differ from the parent's
  std::uint64_t zero_pages;      // of these, all zero
  std::uint64_t bytes_written;   // to all files, for this snapshot
  std::uint64_t stop_ns;         // how long writers were held
  std::uint64_t heap_bytes;
  std::uint64_t segment_pages;  // payload pages of this snapshot's own segment; 0: no segment
  std::uint64_t delta_extents;
  std::uint64_t full_extents;
  std::uint64_t full_pages;        // data pages of the full index
  std::uint64_t chain_bytes;       // of deltas and heap records since the last full index
  Hash128 body_hash;               // hash128 (the store's seed) of the body up to the heap records
  std::array<char, 64> arena;      // zero-terminated
  std::uint64_t heap_delta_bytes;  // of the heap record: what changed of the heap's metadata
  std::uint64_t heap_full_bytes;   // of the one with all of it; 0: no full index
  std::array<std::uint64_t, 25> reserved1;
  std::uint64_t checksum;  // XXH3-64, seed 0, of all bytes before
};
static_assert(sizeof(ManifestHeader) == 512);

enum class ExtentKind : std::uint32_t {
  data = 1,
  zero = 2,  // all zero, or purged
};

// The body: delta extents, the hashes of their data pages in order, then the same for the full
// index; then the heap record of the delta, and that of the full index (heap_record.h). A full
// index lists every page that is not zero; it has no zero extents. Extents name pages of the heap's
// data.
struct Extent {
  std::uint64_t first_page;
  std::uint32_t page_count;
  ExtentKind kind;
  std::uint64_t segment;       // data: which segment; zero: 0
  std::uint64_t segment_page;  // data: its first payload page there; zero: 0
  friend bool operator==(const Extent&, const Extent&) = default;
};
static_assert(sizeof(Extent) == 32);

struct Manifest {
  ManifestHeader header{};
  std::vector<Extent> delta;
  std::vector<Hash128> delta_hashes;
  std::vector<Extent> full;
  std::vector<Hash128> full_hashes;
  std::vector<std::byte> heap_delta;
  std::vector<std::byte> heap_full;

  bool has_full_index() const { return !heap_full.empty(); }
};

// Fills the record's checksum.
void seal(RootRecord& record);
// Decoding checks every bound and checksum; the bytes may be anything. `where` names the file.
Result<RootRecord> decode_root(std::span<const std::byte> bytes, const std::string& where);

std::vector<std::byte> encode_segment_header(const Uuid& uuid, std::uint64_t segment,
                                             std::size_t page_bytes);
Result<void> check_segment_header(std::span<const std::byte> page, const Uuid& uuid,
                                  std::uint64_t segment, const std::string& where);

// Size of the encoded manifest in bytes, without its heap records.
std::size_t manifest_bytes(std::size_t extents, std::size_t data_pages);
// Fills the header's counts and sizes of what is in the body, body_hash and checksum.
std::vector<std::byte> encode(Manifest& manifest, std::uint64_t seed);
// The header alone, for listings.
Result<ManifestHeader> decode_header(std::span<const std::byte> bytes, const Uuid& uuid,
                                     std::uint64_t id, const std::string& where);
Result<Manifest> decode_manifest(std::span<const std::byte> bytes, const Uuid& uuid,
                                 std::uint64_t id, std::uint64_t seed, const std::string& where);

// Opens a file that a committed snapshot needs: that it is missing, or no file, is damage.
Result<std::unique_ptr<File>> open_part(FileSystem& files, const std::string& path);

// File names inside the store's directory.
inline constexpr const char* kRootName = "root";
inline constexpr const char* kRootTemporaryName = "root.new";
inline constexpr const char* kLockName = "lock";
std::string manifest_name(std::uint64_t id);
std::string segment_name(std::uint64_t id);
// The id in a manifest's or segment's name; 0 for any other name.
std::uint64_t id_in_name(const std::string& name);

}  // namespace pagetide::format
