#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "bench/heap/source.h"
#include "bench/heap/stop_worker.h"

namespace pagetide::bench {

// A block of the source with a pattern at both ends, which is checked before the block is given
// back: an allocator that hands memory out twice, or changes it, ends the worker instead of
// winning. Plain, so that tables of blocks are small. Whoever holds one makes sure that it is
// released once.
struct TaggedBlock {
  static constexpr std::size_t kMinBytes = 16;

  void* at = nullptr;
  std::uint32_t bytes = 0;
  std::uint32_t tag = 0;  // another one for each block, so that two at one address differ

  char* data() const { return static_cast<char*>(at); }
};

namespace detail {

inline std::uint64_t pattern_of(std::uint32_t tag, std::uint32_t bytes) {
  return (std::uint64_t{tag} << 32 | bytes) * 0x9e3779b97f4a7c15ULL;
}

inline void write_word(char* at, std::uint64_t word) {
  std::memcpy(at, &word, sizeof(word));
}

inline std::uint64_t read_word(const char* at) {
  std::uint64_t word = 0;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

}  // namespace detail

// Writes the pattern of the block's tag and size.
inline void stamp(const TaggedBlock& block) {
  const std::uint64_t pattern = detail::pattern_of(block.tag, block.bytes);
  detail::write_word(block.data(), pattern);
  detail::write_word(block.data() + block.bytes - sizeof(pattern), ~pattern);
}

inline void verify(const TaggedBlock& block) {
  const std::uint64_t pattern = detail::pattern_of(block.tag, block.bytes);
  const bool intact = detail::read_word(block.data()) == pattern &&
                      detail::read_word(block.data() + block.bytes - sizeof(pattern)) == ~pattern;
  if (!intact) stop_worker("a block was changed while it was in use");
}

// At least kMinBytes.
inline TaggedBlock make_block(std::size_t bytes, std::uint32_t tag) {
  const TaggedBlock block{source().allocate(bytes), static_cast<std::uint32_t>(bytes), tag};
  if (block.at == nullptr) stop_worker("the allocator is exhausted");
  stamp(block);
  return block;
}

// Leaves an empty one behind; does nothing with an empty one.
inline void release(TaggedBlock& block) {
  if (block.at == nullptr) return;
  verify(block);
  source().deallocate(block.at);
  block = {};
}

// To a larger size. The new bytes are filled, as whoever lets a block grow does.
inline void grow(TaggedBlock& block, std::size_t bytes) {
  block.at = source().reallocate(block.at, block.bytes, bytes);
  if (block.at == nullptr) stop_worker("the allocator is exhausted");
  verify(block);  // what it held must have come along
  std::memset(block.data() + block.bytes, 0x5a, bytes - block.bytes);
  block.bytes = static_cast<std::uint32_t>(bytes);
  stamp(block);
}

}  // namespace pagetide::bench
