#include "examples/kvm_guest/round.h"

#include <fmt/format.h>

#include <string_view>

namespace kvm_guest {

using pagetide::DirtyBitmap;
using pagetide::PageRange;

namespace {

DirtyBitmap united(DirtyBitmap a, const DirtyBitmap& b) {
  return a |= b;
}
DirtyBitmap without(DirtyBitmap a, const DirtyBitmap& b) {
  return a -= b;
}

void append(std::string& text, std::string_view what, const DirtyBitmap& pages) {
  if (!pages.any()) return;
  text += fmt::format("{}{}: ", text.empty() ? "" : "; ", what);
  std::string_view separator;
  pages.for_each_run([&](PageRange run) {
    text += run.count == 1 ? fmt::format("{}{}", separator, run.first)
                           : fmt::format("{}{}-{}", separator, run.first, run.end() - 1);
    separator = ", ";
  });
}

}  // namespace

bool Differences::any() const {
  return missed.any() || over_reported.any() || missed_by_kvm.any() || undone.any();
}

Differences compare(const Round& round) {
  const DirtyBitmap written = united(round.kvm, round.monitor);
  return {without(written, round.tracker), without(round.tracker, written),
          without(round.guest, round.kvm), round.undone};
}

std::string describe(const Differences& differences) {
  std::string text;
  append(text, "missed by the tracker", differences.missed);
  append(text, "reported by the tracker and written by nobody", differences.over_reported);
  append(text, "written by the guest and missing in KVM's log", differences.missed_by_kvm);
  append(text, "not written by the guest", differences.undone);
  return text;
}

}  // namespace kvm_guest
