#include "bench/heap/run_worker.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "pagetide/base/unique_fd.h"

namespace pagetide::bench {

namespace {

using Json = nlohmann::json;

constexpr std::chrono::minutes kPatience{2};

// Beginnings of variables by which a library's behaviour is set.
constexpr std::array<std::string_view, 7> kNotPassedOn = {
    "LD_PRELOAD=", "MALLOC_", "GLIBC_TUNABLES=", "MIMALLOC_", "TCMALLOC_", "PMEM", "JE_MALLOC_"};

std::vector<std::string> environment_of(const WorkerCall& call) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const bool passed_on =
        std::none_of(kNotPassedOn.begin(), kNotPassedOn.end(),
                     [&](std::string_view beginning) { return text.starts_with(beginning); });
    if (passed_on) all.emplace_back(text);
  }
  for (const auto& [name, value] : call.environment) all.push_back(name + "=" + value);
  if (!call.preload.empty()) all.push_back("LD_PRELOAD=" + call.preload);
  return all;
}

// As exec wants them.
std::vector<char*> pointers_to(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Standard output and standard error go to `output`.
Result<pid_t> start(const WorkerCall& call, int output) {
  std::vector<std::string> arguments = {PAGETIDE_HEAP_WORKER};
  arguments.insert(arguments.end(), call.arguments.begin(), call.arguments.end());
  std::vector<std::string> environment = environment_of(call);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, output, STDERR_FILENO);
  pid_t worker = 0;
  const int error = ::posix_spawn(&worker, arguments[0].c_str(), &actions, nullptr,
                                  pointers_to(arguments).data(), pointers_to(environment).data());
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return system_failure("start " + arguments[0], error, "Build bench_heap_worker.");
  return worker;
}

// All that comes until the end; ends the worker when it takes too long.
std::string read_all(int fd, pid_t worker) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point deadline = Clock::now() + kPatience;
  std::string text;
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    pollfd polled{fd, POLLIN, 0};
    if (left.count() <= 0 || ::poll(&polled, 1, static_cast<int>(left.count())) == 0) {
      ::kill(worker, SIGKILL);
      return text + "it took too long";
    }
    std::array<char, 4096> part;
    const ssize_t n = ::read(fd, part.data(), part.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return text;
    text.append(part.data(), static_cast<std::size_t>(n));
  }
}

std::string said(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.empty() ? "nothing" : text;
}

// The last line; a library or the dynamic linker may have said something before.
Json report_in(const std::string& text) {
  const std::string all = said(text);
  const std::size_t line_end = all.rfind('\n');
  const std::string last = line_end == std::string::npos ? all : all.substr(line_end + 1);
  return Json::parse(last, nullptr, /*allow_exceptions=*/false);
}

bool is_malloc_of(const std::string& preload, const std::string& used) {
  std::error_code ignored;
  return preload.empty() ? used.find("/libc.so") != std::string::npos
                         : std::filesystem::equivalent(used, preload, ignored);
}

Result<WorkerReport> parse(const std::string& text, const std::string& preload) {
  const Json json = report_in(text);
  try {
    if (const std::string used = json.at("malloc"); !is_malloc_of(preload, used)) {
      return failure(ErrorCode::damaged, fmt::format("malloc came from '{}'", used));
    }
    WorkerReport report;
    report.seconds = json.at("seconds");
    report.operations = json.at("operations");
    report.taken_pages = json.at("taken_pages");
    report.peak_rss_kib = json.at("peak_rss_kib");
    for (const Json& phase : json.at("dirty")) {
      report.dirty.push_back({phase.at("replaced"), phase.at("updated"), phase.at("seconds"),
                              phase.at("dirty_pages"), phase.at("dirty_ranges"),
                              phase.at("volatile_pages"), phase.at("memory_pages"),
                              phase.at("rss_kib")});
    }
    return report;
  } catch (const Json::exception&) {
    return failure(ErrorCode::damaged, "the worker reported no result but: " + said(text));
  }
}

}  // namespace

Result<WorkerReport> run_worker(const WorkerCall& call) {
  std::array<int, 2> ends{-1, -1};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return system_failure("make a pipe", errno);
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  const auto worker = start(call, write_end.get());
  if (!worker) return tl::unexpected<Error>(worker.error());
  write_end.reset();  // only the worker may hold it, or there would be no end
  const std::string text = read_all(read_end.get(), *worker);
  int status = 0;
  while (::waitpid(*worker, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status)) {
    return failure(ErrorCode::system_failure,
                   fmt::format("the worker was ended by signal {} and said: {}", WTERMSIG(status),
                               said(text)));
  }
  if (WEXITSTATUS(status) != 0) return failure(ErrorCode::system_failure, said(text));
  return parse(text, call.preload);
}

}  // namespace pagetide::bench
