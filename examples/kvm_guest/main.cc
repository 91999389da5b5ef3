// Guest RAM watched by a tracker, checked against KVM's dirty log. See --help.

#include <fmt/format.h>

#include <cstdio>
#include <random>
#include <string>

#include "examples/kvm_guest/options.h"
#include "examples/kvm_guest/watched_guest.h"
#include "pagetide/tracker/capabilities.h"

namespace kvm_guest {
namespace {

using pagetide::propagate;
using pagetide::Result;

// Why this machine cannot run the example at all.
Result<void> check_machine(const Options& options) {
  if (auto r = pagetide::check_backend(pagetide::BackendKind::uffd_async); !r) return r;
  return check_kvm(options.guest.ring, options.guest.device);
}

Result<Round> random_round(WatchedGuest& guest, const Options& options, std::mt19937_64& random) {
  auto guest_pages = guest.choose_pages(options.pages, random);
  if (!guest_pages) return propagate(guest_pages);
  auto device_pages = guest.choose_pages(options.device_pages, random);
  if (!device_pages) return propagate(device_pages);
  return guest.run_round(*guest_pages, *device_pages);
}

// How many rounds had differences.
Result<std::uint32_t> run(const Options& options) {
  auto guest = WatchedGuest::create(options.guest);
  if (!guest) return propagate(guest);
  std::mt19937_64 random(options.seed);
  std::uint32_t different = 0;
  std::size_t pages_found = 0;
  std::size_t pages_logged = 0;
  for (std::uint32_t number = 1; number <= options.rounds; ++number) {
    auto round = random_round(*guest, options, random);
    if (!round) return propagate(round);
    fmt::print(
        "round {:>4}: pages written by the guest {:>4}, by this process {:>4}; found by the "
        "tracker {:>4}, by KVM {:>4}\n",
        number, round->guest.count(), round->monitor.count(), round->tracker.count(),
        round->kvm.count());
    const Differences differences = compare(*round);
    if (differences.any()) {
      ++different;
      fmt::print("round {:>4}: {}\n", number, describe(differences));
    }
    pages_found += round->tracker.count();
    pages_logged += round->kvm.count();
  }
  if (different > 0) {
    fmt::print("differences in {} of {} rounds\n", different, options.rounds);
  } else {
    fmt::print(
        "agreement in all {} rounds: the tracker found the {} pages of KVM's log and those "
        "that this process wrote, {} in all, and no other\n",
        options.rounds, pages_logged, pages_found);
  }
  return different;
}

}  // namespace
}  // namespace kvm_guest

int main(int argc, char** argv) {
  int status = 0;
  const auto options = kvm_guest::parse_options(argc, argv, &status);
  if (!options) return status;
  if (const auto usable = kvm_guest::check_machine(*options); !usable) {
    fmt::print(stderr, "kvm_guest: {}\n", usable.error().message());
    return kvm_guest::kExitUnsupported;
  }
  const auto different = kvm_guest::run(*options);
  if (different) return *different == 0 ? 0 : kvm_guest::kExitDifference;
  fmt::print(stderr, "kvm_guest: {}\n", different.error().message());
  return different.error().code() == pagetide::ErrorCode::invalid_argument
             ? kvm_guest::kExitUsage
             : kvm_guest::kExitDifference;
}
