#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string_view>
#include <vector>

namespace pagetide::bench {

// Which pages a program writes to.
enum class Pattern : std::uint8_t {
  uniform,           // any page
  zipf,              // Zipf with exponent 0.99 over a scattered twentieth of the pages
  hot_scattered,     // uniform over a scattered twentieth
  hot_contiguous,    // uniform over a twentieth in one piece
  mixed_scattered,   // 90 % hot_scattered, 10 % uniform
  mixed_contiguous,  // 90 % hot_contiguous, 10 % uniform
  sequential,        // page after page, 16 writes each; at the end from the start
};
inline constexpr std::array<Pattern, 7> kPatterns = {
    Pattern::uniform,         Pattern::zipf,
    Pattern::hot_scattered,   Pattern::hot_contiguous,
    Pattern::mixed_scattered, Pattern::mixed_contiguous,
    Pattern::sequential};

std::string_view to_string(Pattern pattern);

// Makes such a sequence of pages; the same one in each run of the program. Not thread-safe.
class WriteSequence {
 public:
  WriteSequence(Pattern pattern, std::size_t page_count);

  // The pages of the next `count` writes. Valid until the next call.
  std::span<const std::uint32_t> next(std::size_t count);

 private:
  std::uint32_t next_page();
  std::uint32_t uniform_page();
  std::uint32_t hot_page();
  std::uint32_t zipf_page();

  Pattern pattern_;
  std::size_t page_count_;
  std::mt19937_64 random_{20230328};
  std::vector<std::uint32_t> hot_;         // the twentieth
  std::vector<double> cumulated_weights_;  // of zipf, by place in hot_
  std::size_t written_ = 0;                // of sequential
  std::vector<std::uint32_t> pages_;
};

}  // namespace pagetide::bench
