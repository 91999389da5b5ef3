#pragma once

#include <string>
#include <vector>

namespace pagetide::cli {

enum class Align { left, right };

struct Column {
  std::string title;
  Align align = Align::right;
};

// Rows of text in columns as wide as their widest cell, two spaces apart.
class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // One cell for each column.
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  bool empty() const { return rows_.empty(); }
  // Titles and rows, each with a newline and without spaces at its end.
  std::string render(std::string_view indent = {}) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace pagetide::cli
