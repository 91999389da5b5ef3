#include "tools/cli/table.h"

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace pagetide::cli {

namespace {

// Characters of UTF-8: bytes that do not continue one. Wide characters are not accounted for.
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0U) != 0x80;
  }));
}

}  // namespace

std::string Table::render(std::string_view indent) const {
  std::vector<std::string> titles;
  std::vector<std::size_t> widths;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    titles.push_back(columns_[i].title);
    widths.push_back(width_of(columns_[i].title));
    for (const auto& row : rows_) widths[i] = std::max(widths[i], width_of(row[i]));
  }
  std::string text;
  const auto add_row = [&](const std::vector<std::string>& row) {
    text.append(indent);
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      const std::string padding(widths[i] - width_of(row[i]), ' ');
      if (i > 0) text.append("  ");
      if (columns_[i].align == Align::right) text.append(padding);
      text.append(row[i]);
      if (columns_[i].align == Align::left) text.append(padding);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    text.push_back('\n');
  };
  add_row(titles);
  for (const auto& row : rows_) add_row(row);
  return text;
}

}  // namespace pagetide::cli
