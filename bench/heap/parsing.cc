#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/heap/package_text.h"
#include "bench/heap/source_allocator.h"
#include "bench/heap/stop_worker.h"
#include "bench/heap/workload.h"

namespace pagetide::bench {

namespace {

using String = std::basic_string<char, std::char_traits<char>, SourceAllocator<char>>;

struct Dependency {
  String target;
  String constraint;
};

struct Package {
  String name;
  String version;
  String architecture;
  String section;
  String summary;
  std::vector<Dependency, SourceAllocator<Dependency>> dependencies;
};

using Index =
    std::map<String, Package, std::less<>, SourceAllocator<std::pair<const String, Package>>>;

// Cuts off and returns what stands before the separator.
std::string_view take_until(std::string_view& text, std::string_view separator) {
  const std::size_t end = text.find(separator);
  const std::string_view part = text.substr(0, end);
  text = end == std::string_view::npos ? std::string_view() : text.substr(end + separator.size());
  return part;
}

// "libc6 (>= 2.34) | musl, zlib1g"
void add_dependencies(std::string_view text, Package& package) {
  while (!text.empty()) {
    std::string_view alternatives = take_until(text, ", ");
    while (!alternatives.empty()) {
      std::string_view alternative = take_until(alternatives, " | ");
      Dependency dependency;
      dependency.target = take_until(alternative, " (");
      dependency.constraint = take_until(alternative, ")");
      package.dependencies.push_back(std::move(dependency));
    }
  }
}

void set_field(std::string_view field, std::string_view value, Package& package) {
  if (field == "Package") {
    package.name = value;
  } else if (field == "Version") {
    package.version = value;
  } else if (field == "Architecture") {
    package.architecture = value;
  } else if (field == "Section") {
    package.section = value;
  } else if (field == "Description") {
    package.summary = value;
  } else if (field == "Depends") {
    add_dependencies(value, package);
  }
}

Index parse(std::string_view text) {
  Index index;
  Package package;
  while (!text.empty()) {
    std::string_view line = take_until(text, "\n");
    if (line.empty()) {
      String name = package.name;
      index.insert_or_assign(std::move(name), std::exchange(package, {}));
    } else if (line.front() != ' ') {
      const std::string_view field = take_until(line, ": ");
      set_field(field, line, package);
    }
  }
  return index;
}

PackageTotals totals_of(const Index& index) {
  PackageTotals totals;
  for (const auto& [name, package] : index) {
    ++totals.records;
    totals.dependencies += package.dependencies.size();
    for (const String* value : {&package.name, &package.version, &package.architecture,
                                &package.section, &package.summary}) {
      totals.characters += value->size();
    }
    for (const Dependency& dependency : package.dependencies) {
      totals.characters += dependency.target.size() + dependency.constraint.size();
    }
  }
  return totals;
}

// In a portion, for one takes a few milliseconds.
constexpr int kTimes = 5;

class Parsing final : public Workload {
 public:
  explicit Parsing(Scale scale) : input_(make_package_text(scale.of(5'000))) {}

  std::uint64_t run() override {
    for (int i = 0; i < kTimes; ++i) {
      const Index index = parse(input_.text);
      if (totals_of(index) != input_.totals) stop_worker("the parsed records are not those read");
    }
    return kTimes * input_.totals.records;
  }

 private:
  PackageText input_;
};

}  // namespace

std::unique_ptr<Workload> make_parsing(Scale scale) {
  return std::make_unique<Parsing>(scale);
}

}  // namespace pagetide::bench
