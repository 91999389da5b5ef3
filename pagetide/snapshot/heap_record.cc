#include "pagetide/snapshot/heap_record.h"

#include <cstring>
#include <optional>

#include "pagetide/base/hash.h"

namespace pagetide::format {

namespace {

// LEB128: seven bits a byte, lowest first; the last byte has its highest bit clear.
constexpr unsigned kGroupBits = 7;
constexpr unsigned kMoreBit = 0x80;
constexpr std::size_t kNumberBits = 63;

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}

  bool is_at_end() const { return rest_.empty(); }

  template <typename T>
  bool take(T& value) {
    if (rest_.size() < sizeof(T)) return false;
    std::memcpy(&value, rest_.data(), sizeof(T));
    rest_ = rest_.subspan(sizeof(T));
    return true;
  }

  // A gap behind `next`: the number it leads to, below `limit`.
  bool take_number(std::uint64_t& next, std::uint64_t limit, std::uint64_t& number) {
    std::uint64_t gap = 0;
    for (unsigned shift = 0; shift < kNumberBits; shift += kGroupBits) {
      std::uint8_t byte = 0;
      if (!take(byte)) return false;
      gap |= std::uint64_t{byte & (kMoreBit - 1U)} << shift;
      if ((byte & kMoreBit) != 0) continue;
      if (next >= limit || gap >= limit - next) return false;
      number = next + gap;
      next = number + 1;
      return true;
    }
    return false;
  }

 private:
  std::span<const std::byte> rest_;
};

bool read_roots(Reader& reader, std::uint64_t count, HeapRecordSink* sink) {
  std::uint64_t next = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint64_t root = 0;
    layout::RootEntry entry{};
    if (!reader.take_number(next, layout::kRootCapacity, root) || !reader.take(entry)) return false;
    if (sink != nullptr) sink->root(root, entry);
  }
  return true;
}

bool read_entries(Reader& reader, std::uint64_t count, std::size_t spans, HeapRecordSink* sink) {
  std::uint64_t next = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint64_t span = 0;
    layout::SpanEntry entry{};
    if (!reader.take_number(next, spans, span) || !reader.take(entry)) return false;
    if (sink != nullptr) sink->entry(span, entry);
  }
  return true;
}

bool read_lines(Reader& reader, std::uint64_t count, std::size_t spans, HeapRecordSink* sink) {
  std::uint64_t next = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint64_t line = 0;
    std::uint8_t mask = 0;
    BitmapLine words{};
    if (!reader.take_number(next, spans * layout::kBitmapGroups, line) || !reader.take(mask) ||
        mask == 0) {
      return false;
    }
    for (std::size_t word = 0; word < words.size(); ++word) {
      if ((unsigned{mask} >> word & 1U) != 0 && !reader.take(words.at(word))) return false;
    }
    if (sink != nullptr) sink->line(line, mask, words);
  }
  return true;
}

}  // namespace

void HeapRecordWriter::Section::add_number(std::uint64_t number) {
  std::uint64_t gap = number - next;
  next = number + 1;
  ++count;
  for (; gap >= kMoreBit; gap >>= kGroupBits) {
    bytes.push_back(static_cast<std::byte>(gap | kMoreBit));
  }
  bytes.push_back(static_cast<std::byte>(gap));
}

void HeapRecordWriter::Section::add_bytes(const void* data, std::size_t size) {
  const auto* first = static_cast<const std::byte*>(data);
  bytes.insert(bytes.end(), first, first + size);
}

HeapRecordWriter::HeapRecordWriter(HeapRecordKind kind, const layout::Superblock& superblock)
    : header_{kHeapRecordMagic, kind, 0, 0, 0, 0, superblock} {}

void HeapRecordWriter::add_root(std::size_t root, const layout::RootEntry& entry) {
  roots_.add_number(root);
  roots_.add_bytes(&entry, sizeof(entry));
}

void HeapRecordWriter::add_entry(std::size_t span, const layout::SpanEntry& entry) {
  entries_.add_number(span);
  entries_.add_bytes(&entry, sizeof(entry));
}

void HeapRecordWriter::add_line(std::size_t line, const BitmapLine& words,
                                const BitmapLine& parent) {
  unsigned mask = 0;
  for (std::size_t word = 0; word < words.size(); ++word) {
    if (words.at(word) != parent.at(word)) mask |= 1U << word;
  }
  if (mask == 0) return;
  lines_.add_number(line);
  lines_.bytes.push_back(static_cast<std::byte>(mask));
  for (std::size_t word = 0; word < words.size(); ++word) {
    if ((unsigned{mask} >> word & 1U) != 0)
      lines_.add_bytes(&words.at(word), sizeof(std::uint64_t));
  }
}

std::vector<std::byte> HeapRecordWriter::finish() {
  header_.roots = static_cast<std::uint32_t>(roots_.count);
  header_.entries = entries_.count;
  header_.lines = lines_.count;
  header_.bytes = sizeof(header_) + roots_.bytes.size() + entries_.bytes.size() +
                  lines_.bytes.size() + sizeof(std::uint64_t);
  std::vector<std::byte> record;
  record.reserve(header_.bytes);
  const auto* head = reinterpret_cast<const std::byte*>(&header_);
  record.insert(record.end(), head, head + sizeof(header_));
  for (const Section* section : {&roots_, &entries_, &lines_}) {
    record.insert(record.end(), section->bytes.begin(), section->bytes.end());
  }
  const std::uint64_t checksum = hash64(record.data(), record.size());
  const auto* sum = reinterpret_cast<const std::byte*>(&checksum);
  record.insert(record.end(), sum, sum + sizeof(checksum));
  return record;
}

HeapRecordFault read_heap_record(std::span<const std::byte> bytes, HeapRecordKind kind,
                                 std::size_t span_count, HeapRecordSink* sink) {
  Reader head(bytes);
  HeapRecordHeader header{};
  if (!head.take(header) || bytes.size() < sizeof(header) + sizeof(std::uint64_t) ||
      header.magic != kHeapRecordMagic) {
    return HeapRecordFault::not_one;
  }
  const std::size_t covered = bytes.size() - sizeof(std::uint64_t);
  std::uint64_t checksum = 0;
  std::memcpy(&checksum, bytes.data() + covered, sizeof(checksum));
  if (checksum != hash64(bytes.data(), covered)) return HeapRecordFault::checksum;
  if (header.kind != kind || header.bytes != bytes.size()) return HeapRecordFault::content;
  if (sink != nullptr) sink->superblock(header.superblock);
  Reader reader(bytes.first(covered).subspan(sizeof(header)));
  const bool sound = read_roots(reader, header.roots, sink) &&
                     read_entries(reader, header.entries, span_count, sink) &&
                     read_lines(reader, header.lines, span_count, sink) && reader.is_at_end();
  return sound ? HeapRecordFault::none : HeapRecordFault::content;
}

}  // namespace pagetide::format
