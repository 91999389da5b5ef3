#pragma once

#include <cstddef>
#include <string>

namespace pagetide::bench {

// What a parser of such text must find.
struct PackageTotals {
  std::size_t records = 0;
  std::size_t dependencies = 0;  // alternatives count, too
  std::size_t characters = 0;    // of all values that are kept, see parsing.cc

  friend bool operator==(const PackageTotals&, const PackageTotals&) = default;
};

struct PackageText {
  std::string text;
  PackageTotals totals;
};

// Records in the syntax of Debian's package index, made up, the same ones in each run: a machine's
// own index would make its times incomparable. Half a KiB a record.
PackageText make_package_text(std::size_t records);

}  // namespace pagetide::bench
