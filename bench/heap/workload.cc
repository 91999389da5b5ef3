#include "bench/heap/workload.h"

namespace pagetide::bench {

namespace {

using Maker = std::unique_ptr<Workload> (*)(Scale);

// In the order of kWorkloads.
constexpr std::array<Maker, kWorkloads.size()> kMakers = {
    &make_small_churn, &make_two_churns,        &make_pareto,       &make_large,
    &make_server,      &make_producer_consumer, &make_thread_storm, &make_false_sharing,
    &make_growth,      &make_containers,        &make_parsing};

}  // namespace

std::unique_ptr<Workload> make_workload(std::string_view name, Scale scale) {
  for (std::size_t i = 0; i < kWorkloads.size(); ++i) {
    if (kWorkloads[i] == name) return kMakers[i](scale);
  }
  return nullptr;
}

}  // namespace pagetide::bench
