#include "examples/package_index/queries.h"

#include <algorithm>
#include <limits>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace package_index {

namespace {

bool is_needed(const Edge& edge) {
  return edge.kind != DependencyKind::recommends && edge.to->has_record;
}

// Tarjan's algorithm, with its own stack instead of recursion. It completes the components
// (packages that need each other) in the order "what is needed first", so that the longest chain
// from a component is known when the component is complete.
class ChainFinder {
 public:
  explicit ChainFinder(const PackageGraph& graph) {
    states_.reserve(graph.package_count());
    graph.for_each([this](const Package& package) {
      if (package.has_record && !states_.contains(&package)) walk_from(package);
    });
  }

  Chain longest() const {
    const auto deepest =
        std::max_element(components_.begin(), components_.end(),
                         [](const Component& a, const Component& b) { return a.depth < b.depth; });
    Chain chain;
    if (deepest == components_.end()) return chain;
    for (std::size_t at = static_cast<std::size_t>(deepest - components_.begin()); at != kNone;
         at = components_[at].next) {
      chain.emplace_back(components_[at].first->name);
    }
    return chain;
  }

 private:
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

  struct State {
    std::size_t order = 0;
    std::size_t lowest = 0;  // the earliest package on the path that can be reached again
    std::size_t component = kNone;
  };
  struct Component {
    const Package* first;
    std::size_t depth = 1;
    std::size_t next = kNone;  // the component that the longest chain goes on with
  };
  struct Step {
    const Package* package;
    State* state;
    std::pmr::list<Edge>::const_iterator edge;
  };

  void enter(const Package& package) {
    State& state = states_[&package];
    state.order = state.lowest = states_.size();
    path_.push_back({&package, &state, package.dependencies.begin()});
    open_.emplace_back(&package, &state);
  }

  void walk_from(const Package& start) {
    enter(start);
    while (!path_.empty()) {
      Step& step = path_.back();
      if (step.edge == step.package->dependencies.end()) {
        leave();
        continue;
      }
      const Edge& edge = *step.edge++;
      if (!is_needed(edge)) continue;
      const auto known = states_.find(edge.to);
      if (known == states_.end()) {
        enter(*edge.to);
      } else if (known->second.component == kNone) {
        step.state->lowest = std::min(step.state->lowest, known->second.order);
      }
    }
  }

  void leave() {
    const Step step = path_.back();
    path_.pop_back();
    if (!path_.empty()) {
      State& before = *path_.back().state;
      before.lowest = std::min(before.lowest, step.state->lowest);
    }
    if (step.state->lowest == step.state->order) complete(*step.package);
  }

  // Everything opened since `first` is one component.
  void complete(const Package& first) {
    const auto begin = std::find_if(open_.rbegin(), open_.rend(),
                                    [&](const auto& entry) { return entry.first == &first; })
                           .base() -
                       1;
    Component component{&first};
    for (auto member = begin; member != open_.end(); ++member) {
      member->second->component = components_.size();
    }
    for (auto member = begin; member != open_.end(); ++member) {
      for (const Edge& edge : member->first->dependencies) {
        if (!is_needed(edge)) continue;
        const std::size_t target = states_.find(edge.to)->second.component;
        if (target == components_.size() || components_[target].depth < component.depth) continue;
        component.depth = components_[target].depth + 1;
        component.next = target;
      }
    }
    open_.erase(begin, open_.end());
    components_.push_back(component);
  }

  std::unordered_map<const Package*, State> states_;  // references stay valid
  std::vector<Step> path_;
  std::vector<std::pair<const Package*, State*>> open_;  // met, component not complete
  std::vector<Component> components_;
};

std::size_t count_needed(const Package& package) {
  std::unordered_set<const Package*> seen = {&package};
  std::vector<const Package*> todo = {&package};
  while (!todo.empty()) {
    const Package* next = todo.back();
    todo.pop_back();
    for (const Edge& edge : next->dependencies) {
      if (is_needed(edge) && seen.insert(edge.to).second) todo.push_back(edge.to);
    }
  }
  return seen.size() - 1;
}

std::vector<std::string> dependents_of(const Package& package) {
  std::set<std::string> names;
  for (const Edge* edge : package.dependents) names.emplace(edge->from->name);
  return {names.begin(), names.end()};
}

}  // namespace

Chain longest_chain(const PackageGraph& graph) {
  return ChainFinder(graph).longest();
}

Answers answer(const PackageGraph& graph) {
  Answers answers;
  answers.packages = graph.package_count();
  answers.edges = graph.edge_count();
  answers.only_named = graph.name_count() - graph.package_count();
  graph.for_each([&](const Package& package) {
    if (package.dependents.size() <= answers.most_needed_count) return;
    answers.most_needed = package.name;
    answers.most_needed_count = package.dependents.size();
  });
  if (const Package* libc6 = graph.find_name("libc6")) {
    answers.libc6_dependents = dependents_of(*libc6).size();
  }
  answers.longest_chain = longest_chain(graph);
  return answers;
}

std::optional<PackageAnswer> answer(const PackageGraph& graph, std::string_view name) {
  const Package* package = graph.find(name);
  if (package == nullptr) return std::nullopt;
  PackageAnswer result;
  result.version = package->version;
  result.section = package->section;
  result.summary = package->summary;
  std::set<std::string> dependencies;
  for (const Edge& edge : package->dependencies) dependencies.emplace(edge.to->name);
  result.dependencies.assign(dependencies.begin(), dependencies.end());
  result.needed = count_needed(*package);
  result.dependents = dependents_of(*package);
  return result;
}

}  // namespace package_index
