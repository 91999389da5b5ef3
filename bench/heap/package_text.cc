#include "bench/heap/package_text.h"

#include <fmt/format.h>

#include <utility>

#include "bench/heap/random.h"

namespace pagetide::bench {

namespace {

class Writer {
 public:
  void record(std::size_t number) {
    ++made_.totals.records;
    kept("Package", fmt::format("package-{}-{}", number, word(4)));
    kept("Version", fmt::format("{}:{}.{}-{}", below(3), below(20), below(100), below(9)));
    kept("Architecture", "amd64");
    kept("Section", word(3));
    left_out("Maintainer", fmt::format("{} {} <{}@example.org>", word(5), word(8), word(6)));
    left_out("Installed-Size", fmt::format("{}", below(100'000)));
    dependencies();
    kept("Description", sentence(12));
    line(" " + sentence(30));
    line("");
  }
  PackageText take() { return std::move(made_); }

 private:
  void dependencies() {
    const std::size_t count = below(9);
    if (count == 0) return;
    std::string value;
    for (std::size_t i = 0; i < count; ++i) {
      if (i > 0) value += ", ";
      value += dependency();
      if (below(6) == 0) value += " | " + dependency();
    }
    line("Depends: " + value);
  }

  std::string dependency() {
    ++made_.totals.dependencies;
    const std::string target = fmt::format("lib{}-{}", word(7), below(500));
    made_.totals.characters += target.size();
    if (below(2) == 0) return target;
    const std::string constraint = fmt::format(">= {}.{}", below(9), below(99));
    made_.totals.characters += constraint.size();
    return fmt::format("{} ({})", target, constraint);
  }

  void kept(const char* field, const std::string& value) {
    made_.totals.characters += value.size();
    left_out(field, value);
  }
  void left_out(const char* field, const std::string& value) {
    line(fmt::format("{}: {}", field, value));
  }
  void line(const std::string& text) {
    made_.text += text;
    made_.text += '\n';
  }

  std::string sentence(std::size_t words) {
    std::string text = word(6);
    for (std::size_t i = 1; i < words; ++i) text += " " + word(1 + below(9));
    return text;
  }
  std::string word(std::size_t letters) {
    std::string text;
    for (std::size_t i = 0; i < letters; ++i) text += static_cast<char>('a' + below(26));
    return text;
  }
  std::size_t below(std::size_t limit) { return random_.below(limit); }

  Random random_{1};
  PackageText made_;
};

}  // namespace

PackageText make_package_text(std::size_t records) {
  Writer writer;
  for (std::size_t i = 0; i < records; ++i) writer.record(i);
  return writer.take();
}

}  // namespace pagetide::bench
