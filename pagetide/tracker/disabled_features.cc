#include "pagetide/tracker/disabled_features.h"

#include <algorithm>
#include <array>
#include <cstdlib>

namespace pagetide {

namespace {

// Back ends as to_string() names them, then their parts. compare cannot be switched off.
constexpr std::array<std::string_view, 9> kNames = {"uffd_async", "uffd_sigbus",  "uffd_sync",
                                                    "soft_dirty", "mprotect",     "userfaultfd",
                                                    "pagemap",    "pagemap_scan", "procmap_query"};

// Calls visit for each name in PAGETIDE_DISABLE, without the spaces around it.
template <typename Visit>
void for_each_disabled(Visit&& visit) {
  const char* list = ::secure_getenv("PAGETIDE_DISABLE");
  std::string_view rest = list == nullptr ? std::string_view() : std::string_view(list);
  while (!rest.empty()) {
    std::string_view name = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), name.size() + 1));
    while (name.starts_with(' ')) name.remove_prefix(1);
    while (name.ends_with(' ')) name.remove_suffix(1);
    if (!name.empty()) visit(name);
  }
}

void append(std::string& list, std::string_view name) {
  if (!list.empty()) list += ", ";
  list += name;
}

}  // namespace

bool is_disabled(std::string_view feature) {
  bool found = false;
  for_each_disabled([&](std::string_view name) { found = found || name == feature; });
  return found;
}

std::string disabled_feature_names() {
  std::string all;
  for (const std::string_view name : kNames) append(all, name);
  return all;
}

std::string unknown_disabled_features() {
  std::string unknown;
  for_each_disabled([&](std::string_view name) {
    if (std::find(kNames.begin(), kNames.end(), name) == kNames.end()) append(unknown, name);
  });
  return unknown;
}

}  // namespace pagetide
