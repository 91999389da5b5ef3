#include "pagetide/allocator/clear/clear.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <optional>

#include "pagetide/allocator/clear/clear_plan.h"
#include "pagetide/allocator/clear/kernel_functions.h"
#include "pagetide/base/lock_rank.h"
#include "pagetide/base/standard_error.h"

namespace pagetide {

namespace {

constexpr const char* kVariable = "PAGETIDE_CLEAR_KERNEL";

void choose_and_clear(void* block, std::size_t bytes) noexcept;
void choose_and_clear_slot(void* block, std::size_t bytes) noexcept;

}  // namespace

namespace detail {

constinit ClearTable cached_clear_table = {
    {kNoClearLimit, kNoClearLimit},
    {choose_and_clear, choose_and_clear, choose_and_clear},
};
constinit ClearTable uncached_clear_table = {
    {kNoClearLimit, kNoClearLimit},
    {choose_and_clear, choose_and_clear, choose_and_clear},
};

constinit std::atomic<ClearKernelFunction> clear_slot_function = choose_and_clear_slot;
constinit std::atomic<bool> clear_slots_by_avx2 = false;

void clear_large(const ClearTable& table, void* block, std::size_t bytes) noexcept {
  const bool beyond_second = bytes > table.last_bytes[1].load(std::memory_order_relaxed);
  table.functions[beyond_second ? 2 : 1].load(std::memory_order_relaxed)(block, bytes);
}

}  // namespace detail

namespace {

// Why a CPU with these features cannot run the kernel; empty if it can.
std::string_view missing_feature(ClearKernel kernel, const CpuFeatures& cpu) {
  if (kernel == ClearKernel::automatic) return {};
  if (clear_kernel_function(kernel) == nullptr) return "it needs an x86-64 CPU";
  if (kernel == ClearKernel::avx2 && !cpu.avx2) {
    return "the CPU has no AVX2, or the operating system does not save its registers";
  }
  if (kernel == ClearKernel::avx512 && !cpu.avx512) {
    return "the CPU has no AVX-512 (F and BW), or the operating system does not save its registers";
  }
  if (kernel == ClearKernel::clzero && !cpu.clzero) return "the CPU has no CLZERO";
  return {};
}

bool can_run(ClearKernel kernel, const CpuFeatures& cpu) {
  return missing_feature(kernel, cpu).empty();
}

// Calls visit(kernel) for automatic and all others that can run.
template <typename Visit>
void for_each_kernel_that_runs(const CpuFeatures& cpu, Visit visit) {
  visit(ClearKernel::automatic);
  for (const ClearKernel kernel : all_clear_kernels()) {
    if (can_run(kernel, cpu)) visit(kernel);
  }
}

// Text of bounded size, because it is also made where nothing may be allocated.
class ShortText {
 public:
  ShortText& operator<<(std::string_view text) {
    const std::size_t size = std::min(text.size(), text_.size() - size_);
    text.copy(text_.data() + size_, size);
    size_ += size;
    return *this;
  }
  std::string_view view() const { return {text_.data(), size_}; }

 private:
  std::array<char, 400> text_;
  std::size_t size_ = 0;
};

// "auto, original, rep_stosq or memset", as far as the CPU can. memset is the last one and always
// among them.
void list_kernels_that_run(const CpuFeatures& cpu, ShortText& text) {
  for_each_kernel_that_runs(cpu, [&](ClearKernel kernel) {
    if (kernel == ClearKernel::memset) {
      text << " or ";
    } else if (kernel != ClearKernel::automatic) {
      text << ", ";
    }
    text << clear_kernel_name(kernel);
  });
}

std::optional<ClearKernel> kernel_named(std::string_view name) {
  if (name == clear_kernel_name(ClearKernel::automatic)) return ClearKernel::automatic;
  for (const ClearKernel kernel : all_clear_kernels()) {
    if (clear_kernel_name(kernel) == name) return kernel;
  }
  return std::nullopt;
}

// An empty value counts as not set; one that cannot be followed is ignored.
ClearKernel kernel_wanted_by(std::string_view environment, const CpuFeatures& cpu) {
  const std::optional<ClearKernel> named = kernel_named(environment);
  return named && can_run(*named, cpu) ? *named : ClearKernel::automatic;
}

// Adds nothing if the value was followed or there was none.
void explain_ignored(std::string_view environment, const CpuFeatures& cpu, ShortText& text) {
  if (environment.empty()) return;
  const std::optional<ClearKernel> named = kernel_named(environment);
  if (named && can_run(*named, cpu)) return;
  text << kVariable << "=" << environment
       << " is ignored: " << (named ? missing_feature(*named, cpu) : "there is no such kernel")
       << ". Set it to ";
  list_kernels_that_run(cpu, text);
  text << ".";
}

ClearPlan plan_of(ClearKernel kernel, const CpuFeatures& cpu) {
  return kernel == ClearKernel::automatic ? clear_plan_for(cpu) : uniform_clear_plan(kernel, {});
}

// The value that the variable had when the choice was made, cut off at a length no kernel name
// has. Written once, by the thread that chooses.
class EnvironmentText {
 public:
  void set(const char* value) {
    if (value == nullptr) return;
    for (; value[size_] != '\0' && size_ < text_.size(); ++size_) text_[size_] = value[size_];
  }
  std::string_view view() const { return {text_.data(), size_}; }

 private:
  std::array<char, 31> text_{};
  std::size_t size_ = 0;
};

enum class ChoiceState : std::uint8_t { none, being_made, made };

struct Choice {
  std::atomic<ChoiceState> state = ChoiceState::none;
  // Below: written while being_made, later only under the mutex.
  EnvironmentText environment;
  ClearKernel kernel = ClearKernel::automatic;
  bool by_call = false;  // force_clear_kernel() was called last, not the environment
  RankedMutex mutex{LockRank::clear_choice, "clear choice"};
};
constinit Choice choice;

void install(const ClearBands& bands, detail::ClearTable& table) {
  for (std::size_t i = 0; i < bands.size(); ++i) {
    table.functions[i].store(clear_kernel_function(bands[i].kernel), std::memory_order_relaxed);
    if (i < table.last_bytes.size()) {
      table.last_bytes[i].store(bands[i].last_bytes, std::memory_order_relaxed);
    }
  }
}

void clear_any_slot(void* block, std::size_t bytes) noexcept {
  clear_memory(block, bytes);
}

// Where AVX2 is what clears small blocks, or its successor.
void install_slot_function(const ClearPlan& plan) {
  const ClearKernel small = plan.cached[0].kernel;
  const bool by_avx2 = small == ClearKernel::avx2 || small == ClearKernel::avx512;
  ClearKernelFunction function = clear_any_slot;
#if defined(__x86_64__)
  if (by_avx2) function = clear_kernels::avx2_slot;
#endif
  detail::clear_slot_function.store(function, std::memory_order_relaxed);
  detail::clear_slots_by_avx2.store(by_avx2, std::memory_order_relaxed);
}

void install(const ClearPlan& plan) {
  install_slot_function(plan);
  install(plan.cached, detail::cached_clear_table);
  install(plan.uncached, detail::uncached_clear_table);
}

// False where somebody has made the choice, or is at it.
bool choose() {
  ChoiceState expected = ChoiceState::none;
  if (!choice.state.compare_exchange_strong(expected, ChoiceState::being_made)) return false;
  const int kept_errno = errno;
  choice.environment.set(::secure_getenv(kVariable));
  // Not cpu_features(): its guard would make a signal handler wait for the code it interrupted.
  const CpuFeatures cpu = decode_cpu_features(read_cpuid_leaves());
  const std::string_view environment = choice.environment.view();
  choice.kernel = kernel_wanted_by(environment, cpu);
  install(plan_of(choice.kernel, cpu));
  ShortText ignored;
  explain_ignored(environment, cpu, ignored);
  if (!ignored.view().empty()) write_standard_error({ignored.view()});
  choice.state.store(ChoiceState::made, std::memory_order_release);
  errno = kept_errno;
  return true;
}

// While one thread chooses, what it and the others clear is cleared by memset: nobody waits, and
// a getenv() that somebody interposed may allocate and so come back here.
void choose_and_clear(void* block, std::size_t bytes) noexcept {
  if (choose()) return clear_memory(block, bytes);
  clear_kernels::memset(block, bytes);
}

void choose_and_clear_slot(void* block, std::size_t bytes) noexcept {
  if (choose()) return clear_slot(block, bytes);
  clear_kernels::memset(block, bytes);
}

// For those who may wait, which is as long as another thread executes a few CPUID instructions.
void ensure_chosen() {
  choose();
  while (choice.state.load(std::memory_order_acquire) != ChoiceState::made) ::sched_yield();
}

std::string cpu_text(const CpuFeatures& cpu) {
  if (cpu.vendor == CpuVendor::unknown) return "an unknown CPU";
  return std::string(to_string(cpu.vendor)) + " family " + std::to_string(cpu.family) + " model " +
         std::to_string(cpu.model);
}

std::vector<ClearDispatchRow> rows_of(const ClearBands& bands) {
  std::vector<ClearDispatchRow> rows = {{0, kSmallClearBytes, "inline"}};
  for (const ClearBand& band : bands) {
    const std::size_t first_bytes = rows.back().last_bytes + 1;
    rows.push_back({first_bytes, band.last_bytes, clear_kernel_name(band.kernel)});
    if (band.last_bytes == kNoClearLimit) break;
  }
  return rows;
}

ClearDispatch describe(ClearKernel kernel, const CpuFeatures& cpu) {
  const ClearPlan plan = plan_of(kernel, cpu);
  ClearDispatch dispatch{kernel, rows_of(plan.cached), rows_of(plan.uncached), {}};
  if (kernel == ClearKernel::automatic) {
    dispatch.reason = "Chosen for " + cpu_text(cpu) + ": " + std::string(plan.reason) + ".";
  }
  return dispatch;
}

}  // namespace

Result<void> check_clear_kernel(ClearKernel kernel, const CpuFeatures& features) {
  const std::string_view missing = missing_feature(kernel, features);
  if (missing.empty()) return {};
  ShortText text;
  text << "cannot clear memory with " << clear_kernel_name(kernel) << ": " << missing
       << ". Choose ";
  list_kernels_that_run(features, text);
  text << ".";
  return failure(ErrorCode::unsupported, std::string(text.view()));
}

Result<void> force_clear_kernel(ClearKernel kernel) {
  const CpuFeatures& cpu = cpu_features();
  if (Result<void> possible = check_clear_kernel(kernel, cpu); !possible) {
    return propagate(possible);
  }
  ensure_chosen();  // so that the environment is read, for describe_clear_dispatch()
  const RankedLock lock(choice.mutex);
  choice.kernel = kernel;
  choice.by_call = kernel != ClearKernel::automatic;
  install(plan_of(kernel, cpu));
  return {};
}

ClearDispatch describe_clear_dispatch(const CpuFeatures& features, const char* environment) {
  const std::string_view value = environment != nullptr ? environment : "";
  ClearDispatch dispatch = describe(kernel_wanted_by(value, features), features);
  if (dispatch.kernel != ClearKernel::automatic) {
    dispatch.reason = std::string("Forced by ") + kVariable + "=" + std::string(value) + ".";
  }
  ShortText ignored;
  explain_ignored(value, features, ignored);
  if (!ignored.view().empty()) dispatch.reason += " " + std::string(ignored.view());
  return dispatch;
}

ClearDispatch describe_clear_dispatch() {
  ensure_chosen();
  const RankedLock lock(choice.mutex);
  if (choice.by_call) {
    ClearDispatch dispatch = describe(choice.kernel, cpu_features());
    dispatch.reason = "Forced by force_clear_kernel().";
    return dispatch;
  }
  const bool by_environment =
      choice.kernel == kernel_wanted_by(choice.environment.view(), cpu_features());
  // After force_clear_kernel(automatic) the environment counts no more.
  if (!by_environment) return describe(choice.kernel, cpu_features());
  return describe_clear_dispatch(cpu_features(), std::string(choice.environment.view()).c_str());
}

}  // namespace pagetide
