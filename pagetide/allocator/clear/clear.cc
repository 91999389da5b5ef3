#include "pagetide/allocator/clear/clear.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <optional>

#include "pagetide/base/bytes.h"

namespace pagetide {

namespace {

using namespace literals;

// Where the kernels change. Below kSmallClearBytes all CPUs use the inline stores.
//
// Intel with FSRS: microcode starts fast, so only blocks of up to two lines are left to vectors.
[[maybe_unused]] constexpr std::size_t kIntelFastShortBytes = 128;
// Intel with ERMS alone: starting up costs some 35 cycles, amortised at about this size; also the
// limit glibc uses.
[[maybe_unused]] constexpr std::size_t kIntelErmsBytes = 2_KiB;
// Zen 5, measured with bench_clear: in L2 the vector loop wins at every size; in L3 and out of
// cache rep stosb wins from 8 KiB on, by more the larger the block. From 16 KiB on it gains more
// out of L2 than it loses in it.
[[maybe_unused]] constexpr std::size_t kZen5RepBytes = 16_KiB;
// Zen 3 and 4: vectors are at least as fast as rep stosb (glibc 2.40 came to the same rule)
// until the extent exceeds the L3 of a core complex; then the string operation stops allocating
// cache lines for it.
[[maybe_unused]] constexpr std::size_t kZen3RepBytes = 32_MiB;
// CPUs without AVX2: where rep stos overtakes a loop of 8-byte stores.
[[maybe_unused]] constexpr std::size_t kStoresToRepBytes = 1_KiB;

constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

struct Band {
  std::size_t last_bytes;
  ClearKernelFunction function;
  ClearKernel kernel;
};

// What is done above kSmallClearBytes. Plans are constants; choosing is pointing at one.
struct Plan {
  std::array<Band, 2> bands;  // the last without limit
  ClearKernel forced;         // automatic: chosen by CPU
  std::string_view reason;
};

constexpr Plan one_kernel(ClearKernelFunction function, ClearKernel kernel, ClearKernel forced,
                          std::string_view reason) {
  return {{{{kNoLimit, function, kernel}, {kNoLimit, function, kernel}}}, forced, reason};
}

constexpr Plan forced_plan(ClearKernelFunction function, ClearKernel kernel) {
  return one_kernel(function, kernel, kernel, {});
}

constexpr Plan kForcedStores = forced_plan(clear_with_stores, ClearKernel::stores);
constexpr Plan kForcedMemset = forced_plan(clear_with_memset, ClearKernel::memset);
constexpr Plan kUnknownCpu =
    one_kernel(clear_with_memset, ClearKernel::memset, ClearKernel::automatic,
               "nothing better is known for this CPU than the memset of the C library");

#if defined(__x86_64__)

constexpr Plan kForcedRepStosq = forced_plan(clear_with_rep_stosq, ClearKernel::rep_stosq);
constexpr Plan kForcedRepStosb = forced_plan(clear_with_rep_stosb, ClearKernel::rep_stosb);
constexpr Plan kForcedAvx2 = forced_plan(clear_with_avx2, ClearKernel::avx2);

constexpr Band below(std::size_t bytes, ClearKernelFunction function, ClearKernel kernel) {
  return {bytes - 1, function, kernel};
}

constexpr Band kRepStosbAbove = {kNoLimit, clear_with_rep_stosb, ClearKernel::rep_stosb};
constexpr Band kRepStosqAbove = {kNoLimit, clear_with_rep_stosq, ClearKernel::rep_stosq};

constexpr Plan kIntelFastShort = {
    {{below(kIntelFastShortBytes, clear_with_avx2, ClearKernel::avx2), kRepStosbAbove}},
    ClearKernel::automatic,
    "it has fast short rep stosb (FSRS)"};
constexpr Plan kIntelErms = {
    {{below(kIntelErmsBytes, clear_with_avx2, ClearKernel::avx2), kRepStosbAbove}},
    ClearKernel::automatic,
    "it has fast rep stosb (ERMS) that is slow to start (no FSRS)"};
constexpr Plan kErmsWithoutAvx2 = {
    {{below(kStoresToRepBytes, clear_with_stores, ClearKernel::stores), kRepStosbAbove}},
    ClearKernel::automatic,
    "it has fast rep stosb (ERMS) and no usable AVX2"};
constexpr Plan kZen5 = {
    {{below(kZen5RepBytes, clear_with_avx2, ClearKernel::avx2), kRepStosbAbove}},
    ClearKernel::automatic,
    "its rep stosb (FSRM) beats vector stores on large blocks outside the L2 cache"};
constexpr Plan kZen3 = {
    {{below(kZen3RepBytes, clear_with_avx2, ClearKernel::avx2), kRepStosbAbove}},
    ClearKernel::automatic,
    "vector stores are as fast as its rep stosb (FSRM) until a block exceeds the L3 cache"};
constexpr Plan kAvx2Alone = one_kernel(clear_with_avx2, ClearKernel::avx2, ClearKernel::automatic,
                                       "it has AVX2 and does not promise a fast rep stosb");
constexpr Plan kRepGoodWithoutAvx2 = {
    {{below(kStoresToRepBytes, clear_with_stores, ClearKernel::stores), kRepStosqAbove}},
    ClearKernel::automatic,
    "it has a good rep stosq, no ERMS and no usable AVX2"};

const Plan& automatic_plan(const CpuFeatures& cpu) {
  const bool intel = cpu.vendor == CpuVendor::intel;
  const bool amd = cpu.vendor == CpuVendor::amd;
  // Other vendors: nobody has measured, and the C library may know.
  if (!intel && !amd && cpu.vendor != CpuVendor::hygon) return kUnknownCpu;
  if (cpu.avx2) {
    if (intel && cpu.fast_short_stosb) return kIntelFastShort;
    if (intel && cpu.erms) return kIntelErms;
    if (amd && cpu.fast_short_stosb) return cpu.family >= 26 ? kZen5 : kZen3;
    return kAvx2Alone;
  }
  if (intel && cpu.erms) return kErmsWithoutAvx2;
  return cpu.rep_good ? kRepGoodWithoutAvx2 : kUnknownCpu;
}

#else

const Plan& automatic_plan(const CpuFeatures&) {
  return kUnknownCpu;
}

#endif

constexpr std::array kAllKernels = {ClearKernel::automatic, ClearKernel::stores,
                                    ClearKernel::rep_stosq, ClearKernel::rep_stosb,
                                    ClearKernel::avx2,      ClearKernel::memset};

bool can_run(ClearKernel kernel, const CpuFeatures& cpu) {
  if (kernel == ClearKernel::automatic) return true;
  if (kernel == ClearKernel::avx2 && !cpu.avx2) return false;
  return clear_kernel_function(kernel) != nullptr;
}

// The kernel must be one that can_run().
const Plan& plan_for(ClearKernel kernel, const CpuFeatures& cpu) {
  switch (kernel) {
    case ClearKernel::automatic:
      break;
    case ClearKernel::stores:
      return kForcedStores;
    case ClearKernel::memset:
      return kForcedMemset;
#if defined(__x86_64__)
    case ClearKernel::rep_stosq:
      return kForcedRepStosq;
    case ClearKernel::rep_stosb:
      return kForcedRepStosb;
    case ClearKernel::avx2:
      return kForcedAvx2;
#else
    case ClearKernel::rep_stosq:
    case ClearKernel::rep_stosb:
    case ClearKernel::avx2:
      break;
#endif
  }
  return automatic_plan(cpu);
}

std::optional<ClearKernel> kernel_named(std::string_view name) {
  for (const ClearKernel kernel : kAllKernels) {
    if (clear_kernel_name(kernel) == name) return kernel;
  }
  return std::nullopt;
}

// An empty value counts as not set.
const Plan& plan_for(const CpuFeatures& cpu, std::string_view environment) {
  const std::optional<ClearKernel> wanted = kernel_named(environment);
  return wanted && can_run(*wanted, cpu) ? plan_for(*wanted, cpu) : automatic_plan(cpu);
}

// The value PAGETIDE_CLEAR_KERNEL had when the choice was made, cut off at a length no kernel
// name has. Atomic characters, because threads that make the choice at the same time all write
// it, and all write the same.
class EnvironmentText {
 public:
  void set(const char* value) {
    std::size_t i = 0;
    for (; value != nullptr && value[i] != '\0' && i + 1 < text_.size(); ++i) {
      text_[i].store(value[i], std::memory_order_relaxed);
    }
    text_[i].store('\0', std::memory_order_relaxed);
  }

  using Copy = std::array<char, 32>;
  Copy get() const {
    Copy copy{};
    for (std::size_t i = 0; i < copy.size(); ++i) {
      copy[i] = text_[i].load(std::memory_order_relaxed);
    }
    return copy;
  }

 private:
  std::array<std::atomic<char>, std::tuple_size_v<Copy>> text_{};
};

constinit EnvironmentText environment_text;

void choose_and_clear(void* block, std::size_t bytes) noexcept;

constexpr Plan kNotChosen =
    one_kernel(choose_and_clear, ClearKernel::automatic, ClearKernel::automatic, {});
// While one thread chooses, what it and the others clear is cleared by memset: nobody waits, and
// a getenv() that somebody interposed may allocate and so come back here.
constexpr Plan kBeingChosen =
    one_kernel(clear_with_memset, ClearKernel::memset, ClearKernel::automatic, {});

constinit std::atomic<const Plan*> active_plan = &kNotChosen;

bool is_chosen(const Plan* plan) {
  return plan != &kNotChosen && plan != &kBeingChosen;
}

// Chooses if nobody has. May run in several threads at once: all come to the same result, and a
// kernel forced meanwhile stays.
const Plan* chosen_plan() {
  const Plan* plan = active_plan.load(std::memory_order_acquire);
  if (is_chosen(plan)) return plan;
  environment_text.set(::secure_getenv("PAGETIDE_CLEAR_KERNEL"));
  // Not cpu_features(): its guard would make a signal handler wait for the code it interrupted.
  const CpuFeatures cpu = decode_cpu_features(read_cpuid_leaves());
  const Plan* const choice = &plan_for(cpu, environment_text.get().data());
  while (!is_chosen(plan)) {
    if (active_plan.compare_exchange_weak(plan, choice, std::memory_order_acq_rel)) return choice;
  }
  return plan;
}

void choose_and_clear(void* block, std::size_t bytes) noexcept {
  const Plan* expected = &kNotChosen;
  if (active_plan.compare_exchange_strong(expected, &kBeingChosen)) chosen_plan();
  detail::clear_large(block, bytes);
}

// "auto, stores, rep_stosq, rep_stosb, avx2 or memset", as far as the CPU can.
std::string kernels_that_run(const CpuFeatures& cpu) {
  std::string list;
  for (const ClearKernel kernel : kAllKernels) {
    if (!can_run(kernel, cpu)) continue;
    if (!list.empty()) list += kernel == kAllKernels.back() ? " or " : ", ";
    list += clear_kernel_name(kernel);
  }
  return list;
}

std::string why_not(ClearKernel kernel) {
  if (clear_kernel_function(kernel) == nullptr) return "it needs an x86-64 CPU";
  return "the CPU has no AVX2, or the operating system does not save its registers";
}

std::string cpu_text(const CpuFeatures& cpu) {
  if (cpu.vendor == CpuVendor::unknown) return "an unknown CPU";
  return std::string(to_string(cpu.vendor)) + " family " + std::to_string(cpu.family) + " model " +
         std::to_string(cpu.model);
}

ClearDispatch describe(const Plan& plan, const CpuFeatures& cpu) {
  ClearDispatch dispatch;
  dispatch.kernel = plan.forced;
  dispatch.rows.push_back({0, kSmallClearBytes, "inline"});
  for (const Band& band : plan.bands) {
    const std::size_t first_bytes = dispatch.rows.back().last_bytes + 1;
    dispatch.rows.push_back({first_bytes, band.last_bytes, clear_kernel_name(band.kernel)});
    if (band.last_bytes == kNoLimit) break;
  }
  if (plan.forced == ClearKernel::automatic) {
    dispatch.reason = "Chosen for " + cpu_text(cpu) + ": " + std::string(plan.reason) + ".";
  }
  return dispatch;
}

// "" if the value was followed or there was none.
std::string ignored_environment(const CpuFeatures& cpu, std::string_view environment) {
  if (environment.empty()) return {};
  const std::optional<ClearKernel> wanted = kernel_named(environment);
  if (wanted && can_run(*wanted, cpu)) return {};
  return " PAGETIDE_CLEAR_KERNEL=" + std::string(environment) +
         " is ignored: " + (wanted ? why_not(*wanted) : "there is no such kernel") +
         ". Set it to " + kernels_that_run(cpu) + ".";
}

}  // namespace

namespace detail {

void clear_large(void* block, std::size_t bytes) noexcept {
  const Plan& plan = *active_plan.load(std::memory_order_acquire);
  const Band& band = bytes <= plan.bands[0].last_bytes ? plan.bands[0] : plan.bands[1];
  band.function(block, bytes);
}

}  // namespace detail

Result<void> check_clear_kernel(ClearKernel kernel, const CpuFeatures& features) {
  if (can_run(kernel, features)) return {};
  return failure(ErrorCode::unsupported,
                 "cannot clear memory with " + std::string(clear_kernel_name(kernel)) + ": " +
                     why_not(kernel) + ". Choose " + kernels_that_run(features) + ".");
}

Result<void> force_clear_kernel(ClearKernel kernel) {
  if (Result<void> possible = check_clear_kernel(kernel, cpu_features()); !possible) {
    return propagate(possible);
  }
  chosen_plan();  // so that the environment is read, for describe_clear_dispatch()
  active_plan.store(&plan_for(kernel, cpu_features()), std::memory_order_release);
  return {};
}

ClearDispatch describe_clear_dispatch(const CpuFeatures& features, const char* environment) {
  const std::string_view value = environment != nullptr ? environment : "";
  const Plan& plan = plan_for(features, value);
  ClearDispatch dispatch = describe(plan, features);
  if (plan.forced != ClearKernel::automatic) {
    dispatch.reason = "Forced by PAGETIDE_CLEAR_KERNEL=" + std::string(value) + ".";
  }
  dispatch.reason += ignored_environment(features, value);
  return dispatch;
}

ClearDispatch describe_clear_dispatch() {
  const Plan* const plan = chosen_plan();
  const EnvironmentText::Copy environment = environment_text.get();
  const CpuFeatures& cpu = cpu_features();
  if (plan == &plan_for(cpu, environment.data())) {
    return describe_clear_dispatch(cpu, environment.data());
  }
  ClearDispatch dispatch = describe(*plan, cpu);
  if (plan->forced != ClearKernel::automatic) dispatch.reason = "Forced by force_clear_kernel().";
  return dispatch;
}

}  // namespace pagetide
