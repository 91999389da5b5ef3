#include "examples/kvm_guest/virtual_machine.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/kvm.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <vector>

#include "examples/kvm_guest/page_tables.h"
#include "pagetide/base/bytes.h"

namespace kvm_guest {

using pagetide::DirtyBitmap;
using pagetide::ErrorCode;
using pagetide::failure;
using pagetide::propagate;
using pagetide::Result;
using pagetide::system_failure;

struct VirtualMachine::Impl {
  int kvm = -1;
  int vm = -1;
  int cpu = -1;
  kvm_run* shared = nullptr;  // how KVM tells why the processor stopped
  std::size_t shared_bytes = 0;
  std::size_t page_count = 0;

  Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    if (shared != nullptr) ::munmap(shared, shared_bytes);
    for (const int fd : {cpu, vm, kvm}) {
      if (fd >= 0) ::close(fd);
    }
  }

  Result<void> open(const std::string& device);
  Result<void> create_machine(const GuestMemory& memory);
  Result<void> create_cpu();
  Result<void> enter_long_mode(const Boot& boot);
  pagetide::Error unexpected_stop() const;
};

namespace {

constexpr const char* kWayOut =
    "Load the module kvm_intel or kvm_amd; inside a virtual machine, its host must offer nested "
    "virtualization.";

// Segments as 64-bit mode wants them: flat, of the ring that the code runs in.
kvm_segment flat_segment(Ring ring) {
  kvm_segment segment{};
  segment.limit = 0xFFFF'FFFF;
  segment.present = 1;
  segment.s = 1;  // code or data
  segment.g = 1;  // the limit counts pages
  segment.dpl = static_cast<std::uint8_t>(ring);
  return segment;
}

// There is no descriptor table behind the selectors: nothing of the guest loads a segment.
kvm_segment code_segment(Ring ring) {
  kvm_segment segment = flat_segment(ring);
  segment.type = 11;  // execute, read, accessed
  segment.l = 1;      // 64-bit
  segment.selector = static_cast<std::uint16_t>(1 << 3 | static_cast<int>(ring));
  return segment;
}

kvm_segment data_segment(Ring ring) {
  kvm_segment segment = flat_segment(ring);
  segment.type = 3;  // read, write, accessed
  segment.db = 1;
  segment.selector = static_cast<std::uint16_t>(2 << 3 | static_cast<int>(ring));
  return segment;
}

// The processor insists on one.
kvm_segment task_segment() {
  kvm_segment segment{};
  segment.type = 11;  // a busy 64-bit task state
  segment.present = 1;
  segment.limit = 0x67;
  return segment;
}

}  // namespace

Result<void> VirtualMachine::Impl::open(const std::string& device) {
  kvm = ::open(device.c_str(), O_RDWR | O_CLOEXEC);
  if (kvm < 0) {
    const int e = errno;
    if (e == EACCES || e == EPERM) {
      return system_failure(fmt::format("open {}", device), e,
                            "Run as root or as a member of the group that owns it, often kvm.");
    }
    return failure(ErrorCode::unsupported,
                   fmt::format("cannot open {}: {}. {}", device, ::strerrordesc_np(e), kWayOut), e);
  }
  const int version = ::ioctl(kvm, KVM_GET_API_VERSION, 0);
  if (version != KVM_API_VERSION) {
    return failure(ErrorCode::unsupported,
                   fmt::format("{} does not speak version {} of KVM's interface. {}", device,
                               KVM_API_VERSION, kWayOut));
  }
  return {};
}

Result<void> VirtualMachine::Impl::create_machine(const GuestMemory& memory) {
  vm = ::ioctl(kvm, KVM_CREATE_VM, 0);
  if (vm < 0) return system_failure("create a virtual machine (KVM_CREATE_VM)", errno, kWayOut);
  kvm_userspace_memory_region slot{};
  slot.flags = KVM_MEM_LOG_DIRTY_PAGES;
  slot.guest_phys_addr = 0;
  slot.memory_size = memory.range().size;
  slot.userspace_addr = memory.range().begin;
  if (::ioctl(vm, KVM_SET_USER_MEMORY_REGION, &slot) < 0) {
    return system_failure("give the virtual machine its RAM (KVM_SET_USER_MEMORY_REGION)", errno);
  }
  page_count = memory.page_count();
  return {};
}

Result<void> VirtualMachine::Impl::create_cpu() {
  cpu = ::ioctl(vm, KVM_CREATE_VCPU, 0);
  if (cpu < 0) return system_failure("create a virtual processor (KVM_CREATE_VCPU)", errno);
  const int size = ::ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0);
  if (size < 0) return system_failure("ask KVM_GET_VCPU_MMAP_SIZE", errno);
  void* mapped =
      ::mmap(nullptr, static_cast<std::size_t>(size), PROT_READ | PROT_WRITE, MAP_SHARED, cpu, 0);
  if (mapped == MAP_FAILED) return system_failure("map the state of a virtual processor", errno);
  shared = static_cast<kvm_run*>(mapped);
  shared_bytes = static_cast<std::size_t>(size);
  return {};
}

Result<void> VirtualMachine::Impl::enter_long_mode(const Boot& boot) {
  kvm_sregs special{};
  if (::ioctl(cpu, KVM_GET_SREGS, &special) < 0) {
    return system_failure("read the processor's state (KVM_GET_SREGS)", errno);
  }
  special.cs = code_segment(boot.ring);
  special.ss = data_segment(boot.ring);
  special.ds = special.es = special.fs = special.gs = special.ss;
  special.tr = task_segment();
  special.cr3 = boot.page_table_root;
  special.cr4 = 1 << 5;                                    // PAE, which 64-bit mode needs
  special.cr0 = 1U << 31 | 1 << 16 | 1 << 5 | 1 << 4 | 1;  // paging, write protect, NE, ET, PE
  special.efer = 1 << 10 | 1 << 8;                         // long mode active and enabled
  if (::ioctl(cpu, KVM_SET_SREGS, &special) < 0) {
    return system_failure("put the processor into 64-bit mode (KVM_SET_SREGS)", errno);
  }
  kvm_regs general{};
  general.rip = boot.entry;
  // I/O privilege for ring 3, so that the guest may write to a port. Bit 1 is always set.
  general.rflags = 3 << 12 | 1 << 1;
  if (::ioctl(cpu, KVM_SET_REGS, &general) < 0) {
    return system_failure("set the processor's registers (KVM_SET_REGS)", errno);
  }
  return {};
}

pagetide::Error VirtualMachine::Impl::unexpected_stop() const {
  std::string why = fmt::format("exit reason {}", shared->exit_reason);
  switch (shared->exit_reason) {
    case KVM_EXIT_SHUTDOWN:
      why = "a triple fault";
      break;
    case KVM_EXIT_HLT:
      why = "HLT";
      break;
    case KVM_EXIT_MMIO:
      why = fmt::format("an access outside its RAM, at {:#x}", shared->mmio.phys_addr);
      break;
    case KVM_EXIT_FAIL_ENTRY:
      why = fmt::format("the hardware refused its state, reason {:#x}",
                        shared->fail_entry.hardware_entry_failure_reason);
      break;
    case KVM_EXIT_INTERNAL_ERROR:
      why = fmt::format("KVM cannot go on, suberror {}", shared->internal.suberror);
      break;
    default:
      break;
  }
  kvm_regs registers{};
  (void)::ioctl(cpu, KVM_GET_REGS, &registers);
  return {ErrorCode::system_failure,
          fmt::format("the guest stopped at {:#x}: {}.", registers.rip, why)};
}

VirtualMachine::VirtualMachine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
VirtualMachine::VirtualMachine(VirtualMachine&&) noexcept = default;
VirtualMachine::~VirtualMachine() = default;

Result<VirtualMachine> VirtualMachine::create(const GuestMemory& memory, const Boot& boot,
                                              const std::string& device) {
  auto impl = std::make_unique<Impl>();
  if (auto r = impl->open(device); !r) return propagate(r);
  if (auto r = impl->create_machine(memory); !r) return propagate(r);
  if (auto r = impl->create_cpu(); !r) return propagate(r);
  if (auto r = impl->enter_long_mode(boot); !r) return propagate(r);
  return VirtualMachine(std::move(impl));
}

Result<std::uint16_t> VirtualMachine::run() {
  while (true) {
    if (::ioctl(impl_->cpu, KVM_RUN, 0) < 0) {
      if (errno == EINTR) continue;
      return system_failure("run the guest (KVM_RUN)", errno);
    }
    const kvm_run& stop = *impl_->shared;
    if (stop.exit_reason == KVM_EXIT_INTR) continue;
    if (stop.exit_reason == KVM_EXIT_IO && stop.io.direction == KVM_EXIT_IO_OUT) {
      return stop.io.port;
    }
    return tl::unexpected(impl_->unexpected_stop());
  }
}

Result<DirtyBitmap> VirtualMachine::take_dirty_log() {
  std::vector<std::uint64_t> words(pagetide::divide_up(impl_->page_count, 64));
  kvm_dirty_log log{};
  log.dirty_bitmap = words.data();
  if (::ioctl(impl_->vm, KVM_GET_DIRTY_LOG, &log) < 0) {
    return system_failure("read KVM's dirty log (KVM_GET_DIRTY_LOG)", errno);
  }
  return DirtyBitmap::from_words(words, impl_->page_count);  // the layouts are the same
}

Result<void> check_kvm(Ring ring, const std::string& device) {
  constexpr std::uint64_t kCode = 1 * kGuestPageBytes;
  constexpr std::uint64_t kTables = 2 * kGuestPageBytes;
  constexpr std::array<std::uint8_t, 2> kOut = {0xE6, 0x10};  // out 0x10, al
  auto memory = GuestMemory::create(16 * kGuestPageBytes);
  if (!memory) return propagate(memory);
  memory->write(kCode, std::as_bytes(std::span(kOut)));
  write_identity_map(*memory, kTables);
  auto machine = VirtualMachine::create(*memory, {kCode, kTables, ring}, device);
  if (!machine) return propagate(machine);
  if (auto port = machine->run(); !port) return propagate(port);
  return {};
}

}  // namespace kvm_guest
