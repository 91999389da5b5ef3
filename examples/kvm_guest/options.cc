#include "examples/kvm_guest/options.h"

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>

#include "examples/kvm_guest/guest_program.h"
#include "examples/kvm_guest/page_tables.h"

namespace kvm_guest {

namespace {

constexpr const char* kDescription =
    "Runs a small virtual machine on KVM whose RAM is watched by Pagetide. In each round the "
    "guest\n"
    "writes to random pages and this process, as a device would, to a few others. What the "
    "tracker\n"
    "found is compared with KVM's own dirty log, which does not see the writes of this process.";

constexpr const char* kFooter =
    "Exit status: 0 both agree, 1 they differ or a failure, 2 wrong usage, 3 this machine cannot\n"
    "run virtual machines (/dev/kvm) or has no asynchronous write protection (Linux 6.7).";

}  // namespace

std::optional<Options> parse_options(int argc, char** argv, int* exit_status) {
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  Options options;
  std::size_t memory_mib = options.guest.memory_bytes / kMiB;
  int ring = static_cast<int>(options.guest.ring);
  CLI::App app(kDescription, "kvm_guest");
  app.footer(kFooter);
  app.add_option("--rounds", options.rounds, "Rounds of work")
      ->check(CLI::Range(std::uint32_t{1}, std::numeric_limits<std::uint32_t>::max()))
      ->capture_default_str();
  app.add_option("--memory-mib", memory_mib, "RAM of the guest")
      ->check(CLI::Range(std::size_t{1}, kMaxMemoryBytes / kMiB))
      ->capture_default_str();
  app.add_option("--pages", options.pages, "Pages that the guest writes in a round")
      ->check(CLI::Range(std::size_t{0}, kMaxWork))
      ->capture_default_str();
  app.add_option("--device-pages", options.device_pages,
                 "Pages that this process writes in a round")
      ->check(CLI::Range(std::size_t{0}, kMaxWork))
      ->capture_default_str();
  app.add_option("--seed", options.seed, "Of the random choice of pages")->capture_default_str();
  app.add_option("--ring", ring, "Privilege level of the guest's code")
      ->check(CLI::IsMember({0, 3}))
      ->capture_default_str();
  app.add_option("--device", options.guest.device, "KVM's device")->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    *exit_status = app.exit(error) == 0 ? 0 : kExitUsage;
    return std::nullopt;
  }
  options.guest.memory_bytes = memory_mib * kMiB;
  options.guest.ring = ring == 0 ? Ring::kernel : Ring::user;
  return options;
}

}  // namespace kvm_guest
