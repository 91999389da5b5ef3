#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "examples/kvm_guest/guest_memory.h"
#include "pagetide/base/error.h"
#include "pagetide/tracker/dirty_bitmap.h"

namespace kvm_guest {

constexpr const char* kKvmDevice = "/dev/kvm";

// The privilege level of the guest's code. KVM without hardware virtualization (PVM) runs only
// 64-bit code of ring 3 on the processor; the rest it emulates, hundreds of times slower, and
// writes to the RAM itself on the guest's behalf.
enum class Ring : std::uint8_t { kernel = 0, user = 3 };

// The state in which the processor of a machine begins.
struct Boot {
  std::uint64_t entry = 0;            // address of the first instruction
  std::uint64_t page_table_root = 0;  // guest-physical
  Ring ring = Ring::user;
};

// A virtual machine with one processor, in 64-bit mode from its first instruction, and no device
// but ports. No interrupt reaches it.
//
// Not thread-safe: one thread at a time runs it. take_dirty_log() may be called by another thread
// meanwhile.
class VirtualMachine {
 public:
  // `memory` must outlive the machine. Errors: unsupported and permission_denied where the device
  // cannot be opened or is not KVM; else what the failing call gave.
  static pagetide::Result<VirtualMachine> create(const GuestMemory& memory, const Boot& boot,
                                                 const std::string& device = kKvmDevice);
  VirtualMachine(VirtualMachine&&) noexcept;
  VirtualMachine& operator=(VirtualMachine&&) = delete;
  ~VirtualMachine();

  // Until the guest writes to a port; gives the port's number. Any other stop is an error. The
  // next call goes on after that instruction.
  pagetide::Result<std::uint16_t> run();

  // KVM's own record of the pages that the guest wrote since the last call, page 0 at
  // guest-physical address 0.
  pagetide::Result<pagetide::DirtyBitmap> take_dirty_log();

 private:
  struct Impl;
  explicit VirtualMachine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Whether this machine can run guests: by running one of a single instruction. Fails with cause
// and way out.
pagetide::Result<void> check_kvm(Ring ring, const std::string& device = kKvmDevice);

}  // namespace kvm_guest
