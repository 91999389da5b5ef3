#include "pagetide/snapshot/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "pagetide/allocator/heap_layout.h"
#include "pagetide/base/bytes.h"
#include "pagetide/snapshot/heap_record.h"

namespace pagetide::format {

namespace {

constexpr const char* kDamagedWayOut =
    "Other snapshots of the store may still be whole: `pagetide verify` tells; restore this file "
    "from a "
    "copy.";
// More address space than any supported machine has.
constexpr std::uint64_t kMaxReserveBytes = std::uint64_t{1} << 56;

tl::unexpected<Error> damaged(const std::string& where, std::string_view what) {
  return failure(ErrorCode::damaged,
                 fmt::format("{} is damaged: {}. {}", where, what, kDamagedWayOut));
}

// The one file without which no snapshot can be told from a leftover.
tl::unexpected<Error> damaged_root(const std::string& where, std::string_view what) {
  return failure(ErrorCode::damaged,
                 fmt::format("{} is damaged: {}. It says which snapshots are committed; they "
                             "themselves may be whole. Restore this file from a copy.",
                             where, what));
}

template <typename T>
T read_struct(std::span<const std::byte> bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

template <typename T>
std::uint64_t checksum_of(const T& record) {
  return hash64(&record, sizeof(T) - sizeof(std::uint64_t));
}

// The checks every record shares: magic, version, page size.
template <typename T>
Result<void> check_common(const T& record, const std::array<char, 8>& magic,
                          const std::string& where) {
  if (record.magic != magic) return damaged(where, "it does not begin as it should");
  if (record.version > kVersion) {
    return failure(
        ErrorCode::version_too_new,
        fmt::format("{} has format version {}; this Pagetide reads up to {}. Use a newer "
                    "Pagetide.",
                    where, record.version, kVersion));
  }
  if (record.version < kVersion) {
    return failure(
        ErrorCode::unsupported,
        fmt::format("{} has format version {}, which no release of Pagetide wrote; this one reads "
                    "version {}. Begin a new store, or read this one with the Pagetide that "
                    "wrote it.",
                    where, record.version, kVersion));
  }
  return {};
}

template <typename T>
void append_vector(std::vector<std::byte>& bytes, const std::vector<T>& values) {
  const auto* first = reinterpret_cast<const std::byte*>(values.data());
  bytes.insert(bytes.end(), first, first + values.size() * sizeof(T));
}

std::size_t data_pages(const std::vector<Extent>& extents) {
  std::size_t pages = 0;
  for (const Extent& extent : extents) {
    if (extent.kind == ExtentKind::data) pages += extent.page_count;
  }
  return pages;
}

// Ascending, disjoint, inside the image's data, kinds known, references to committed segments only.
bool are_valid(const std::vector<Extent>& extents, const ManifestHeader& header,
               std::uint64_t first_data_page, bool allow_zero) {
  std::uint64_t next = first_data_page;
  for (const Extent& e : extents) {
    const bool data = e.kind == ExtentKind::data && e.segment >= 1 && e.segment <= header.id;
    const bool zero = allow_zero && e.kind == ExtentKind::zero && e.segment == 0;
    if (!(data || zero) || e.page_count == 0 || e.first_page < next) return false;
    if (e.first_page >= header.image_pages || e.page_count > header.image_pages - e.first_page) {
      return false;
    }
    if (e.segment_page > UINT32_MAX ||
        (e.segment == header.id && e.segment_page + e.page_count > header.segment_pages)) {
      return false;
    }
    next = e.first_page + e.page_count;
  }
  return true;
}

Result<void> check_heap_record(std::span<const std::byte> bytes, HeapRecordKind kind,
                               std::size_t span_count, const std::string& where) {
  switch (read_heap_record(bytes, kind, span_count, nullptr)) {
    case HeapRecordFault::none:
      return {};
    case HeapRecordFault::not_one:
      return damaged(where, "its heap record does not begin as it should");
    case HeapRecordFault::checksum:
      return damaged(where, "the checksum of its heap record does not match");
    case HeapRecordFault::content:
      break;
  }
  return damaged(where, "its heap record contradicts itself");
}

// Takes `count` values off the front of `rest`; false when there are not enough.
template <typename T>
bool take(std::span<const std::byte>& rest, std::uint64_t count, std::vector<T>& values) {
  if (count > rest.size() / sizeof(T)) return false;
  values.resize(count);
  if (count > 0) std::memcpy(values.data(), rest.data(), count * sizeof(T));
  rest = rest.subspan(count * sizeof(T));
  return true;
}

}  // namespace

void seal(RootRecord& record) {
  record.checksum = checksum_of(record);
}

Result<RootRecord> decode_root(std::span<const std::byte> bytes, const std::string& where) {
  if (bytes.empty()) return damaged_root(where, "it is empty");
  const std::size_t compared = std::min(bytes.size(), kRootMagic.size());
  if (std::memcmp(bytes.data(), kRootMagic.data(), compared) != 0) {
    return failure(
        ErrorCode::not_a_store,
        fmt::format("{} is not the root of a Pagetide store. Name the directory that a program "
                    "passed to Store::open().",
                    where));
  }
  if (bytes.size() < sizeof(RootRecord)) return damaged_root(where, "it is cut short");
  const auto record = read_struct<RootRecord>(bytes);
  if (auto r = check_common(record, kRootMagic, where); !r) return propagate(r);
  if (bytes.size() != sizeof(RootRecord)) return damaged_root(where, "it has bytes too many");
  if (record.checksum != checksum_of(record))
    return damaged_root(where, "its checksum does not match");
  if (record.next_id == 0 || record.head >= record.next_id || !is_power_of_two(record.page_size)) {
    return damaged_root(where, "it contradicts itself");
  }
  return record;
}

std::vector<std::byte> encode_segment_header(const Uuid& uuid, std::uint64_t segment,
                                             std::size_t page_bytes) {
  std::vector<std::byte> page(page_bytes);
  const SegmentHeader header{kSegmentMagic, kVersion, static_cast<std::uint32_t>(page_bytes), uuid,
                             segment};
  std::memcpy(page.data(), &header, sizeof(header));
  const std::size_t covered = page_bytes - sizeof(std::uint64_t);
  const std::uint64_t checksum = hash64(page.data(), covered);
  std::memcpy(page.data() + covered, &checksum, sizeof(checksum));
  return page;
}

Result<void> check_segment_header(std::span<const std::byte> page, const Uuid& uuid,
                                  std::uint64_t segment, const std::string& where) {
  if (page.size() < sizeof(SegmentHeader) + sizeof(std::uint64_t)) {
    return damaged(where, "it is cut short");
  }
  const auto header = read_struct<SegmentHeader>(page);
  if (auto r = check_common(header, kSegmentMagic, where); !r) return r;
  const std::size_t covered = page.size() - sizeof(std::uint64_t);
  if (read_struct<std::uint64_t>(page.subspan(covered)) != hash64(page.data(), covered)) {
    return damaged(where, "the checksum of its header does not match");
  }
  if (header.uuid != uuid || header.segment != segment) {
    return damaged(where, "it belongs to another store or snapshot");
  }
  return {};
}

std::size_t manifest_bytes(std::size_t extents, std::size_t pages) {
  return sizeof(ManifestHeader) + extents * sizeof(Extent) + pages * sizeof(Hash128);
}

std::vector<std::byte> encode(Manifest& manifest, std::uint64_t seed) {
  ManifestHeader& header = manifest.header;
  header.delta_extents = manifest.delta.size();
  header.full_extents = manifest.full.size();
  header.full_pages = manifest.full_hashes.size();
  header.heap_delta_bytes = manifest.heap_delta.size();
  header.heap_full_bytes = manifest.heap_full.size();
  std::vector<std::byte> bytes(sizeof(ManifestHeader));
  append_vector(bytes, manifest.delta);
  append_vector(bytes, manifest.delta_hashes);
  append_vector(bytes, manifest.full);
  append_vector(bytes, manifest.full_hashes);
  header.body_hash =
      hash128(bytes.data() + sizeof(ManifestHeader), bytes.size() - sizeof(ManifestHeader), seed);
  append_vector(bytes, manifest.heap_delta);
  append_vector(bytes, manifest.heap_full);
  header.checksum = checksum_of(header);
  std::memcpy(bytes.data(), &header, sizeof(header));
  return bytes;
}

Result<ManifestHeader> decode_header(std::span<const std::byte> bytes, const Uuid& uuid,
                                     std::uint64_t id, const std::string& where) {
  if (bytes.size() < sizeof(ManifestHeader)) return damaged(where, "it is cut short");
  const auto header = read_struct<ManifestHeader>(bytes);
  if (auto r = check_common(header, kManifestMagic, where); !r) return propagate(r);
  if (header.checksum != checksum_of(header)) {
    return damaged(where, "the checksum of its header does not match");
  }
  if (header.uuid != uuid || header.id != id) {
    return damaged(where, "it belongs to another store or snapshot");
  }
  const bool named =
      std::find(header.arena.begin(), header.arena.end(), '\0') != header.arena.end();
  if (header.parent >= header.id || !is_power_of_two(header.page_size) || !named ||
      header.reserve_bytes > kMaxReserveBytes ||
      header.image_pages > header.reserve_bytes / header.page_size) {
    return damaged(where, "its header contradicts itself");
  }
  return header;
}

Result<Manifest> decode_manifest(std::span<const std::byte> bytes, const Uuid& uuid,
                                 std::uint64_t id, std::uint64_t seed, const std::string& where) {
  auto header = decode_header(bytes, uuid, id, where);
  if (!header) return propagate(header);
  std::span<const std::byte> rest = bytes.subspan(sizeof(ManifestHeader));
  const std::uint64_t delta_bytes = header->heap_delta_bytes;
  const std::uint64_t full_bytes = header->heap_full_bytes;
  if (delta_bytes > rest.size() || full_bytes > rest.size() - delta_bytes) {
    return damaged(where, "it is cut short");
  }
  std::span<const std::byte> records = rest.last(delta_bytes + full_bytes);
  rest = rest.first(rest.size() - records.size());
  if (hash128(rest.data(), rest.size(), seed) != header->body_hash) {
    return damaged(where, "the checksum of its body does not match");
  }
  const auto geometry = layout::geometry_for(header->reserve_bytes);
  if (!geometry) return damaged(where, "its header contradicts itself");
  const std::uint64_t first_data_page = geometry->data_offset / header->page_size;
  Manifest manifest;
  manifest.header = *header;
  const bool complete = take(rest, header->delta_extents, manifest.delta) &&
                        take(rest, data_pages(manifest.delta), manifest.delta_hashes) &&
                        take(rest, header->full_extents, manifest.full) &&
                        take(rest, data_pages(manifest.full), manifest.full_hashes) && rest.empty();
  if (!complete || manifest.full_hashes.size() != header->full_pages ||
      !are_valid(manifest.delta, *header, first_data_page, true) ||
      !are_valid(manifest.full, *header, first_data_page, false) ||
      (full_bytes == 0 && header->full_extents != 0)) {
    return damaged(where, "its body contradicts its header");
  }
  take(records, delta_bytes, manifest.heap_delta);
  take(records, full_bytes, manifest.heap_full);
  const std::size_t spans = geometry->span_count;
  auto checked = check_heap_record(manifest.heap_delta, HeapRecordKind::delta, spans, where);
  if (checked && full_bytes != 0) {
    checked = check_heap_record(manifest.heap_full, HeapRecordKind::full, spans, where);
  }
  if (!checked) return propagate(checked);
  return manifest;
}

Result<std::unique_ptr<File>> open_part(FileSystem& files, const std::string& path) {
  auto opened = files.open_read(path);
  if (!opened && (opened.error().code() == ErrorCode::not_found ||
                  opened.error().code() == ErrorCode::not_a_store)) {
    return damaged(path, "the file is missing");
  }
  return opened;
}

std::string manifest_name(std::uint64_t id) {
  return fmt::format("{:012}.manifest", id);
}
std::string segment_name(std::uint64_t id) {
  return fmt::format("{:012}.segment", id);
}

std::uint64_t id_in_name(const std::string& name) {
  std::uint64_t id = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), id);
  if (error != std::errc{} || (name != manifest_name(id) && name != segment_name(id))) return 0;
  (void)end;
  return id;
}

}  // namespace pagetide::format
