#include <unistd.h>

#include "pagetide/base/page_range.h"
#include "pagetide/snapshot/file_system.h"
#include "tools/cli/image_sink.h"
#include "tools/cli/progress_line.h"
#include "tools/cli/verbs.h"

namespace pagetide::cli {

namespace {

ExitCode usage_error(std::string_view message) {
  report(message);
  return ExitCode::usage;
}

ExitCode report_sink_failure(const Error& error, const ExportOptions& options) {
  if (options.output == "-") return report_output_failure(error);
  report(error.message());
  return ExitCode::unreadable;
}

Result<std::unique_ptr<ImageSink>> open_sink(const ExportOptions& options) {
  if (options.output == "-") return image_stream(STDOUT_FILENO);
  return image_file(options.output, options.overwrite);
}

ExitCode copy_image(Store& store, const SnapshotInfo& info, const ExportOptions& options,
                    ImageSink& sink) {
  Result<void> written;
  ProgressLine progress("exporting", options.force_progress);
  const auto visit = [&](PageRange pages, std::span<const std::byte> content) -> Result<void> {
    if (pages.end() > info.image_pages) {
      return failure(ErrorCode::damaged,
                     fmt::format("snapshot {} stores page {}, but says that its image ends at {}.",
                                 info.id.value, pages.end() - 1, info.image_pages));
    }
    written = sink.write(pages.first * page_size(), content);
    // Only ends the reading; what went wrong is in `written`.
    return written ? written : failure(ErrorCode::system_failure, "not written");
  };
  const auto read = store.read_image(info.id, visit, progress.callback());
  progress.finish();
  if (!written) return report_sink_failure(written.error(), options);
  if (!read) {
    report(read.error().message());
    return exit_code_in_store(read.error());
  }
  written = sink.finish(info.image_pages * page_size());
  return written ? ExitCode::fine : report_sink_failure(written.error(), options);
}

// Whether a file of that name would lie among a store's own files.
bool is_inside_a_store(const std::string& output) {
  if (output == "-") return false;
  auto store = Store::open(parent_directory(output), {.mode = StoreMode::read});
  return store || (store.error().code() != ErrorCode::not_found &&
                   store.error().code() != ErrorCode::not_a_store);
}

}  // namespace

ExitCode run_export(const ExportOptions& options) {
  auto argument = read_store_and_id(options.positionals);
  if (!argument) return usage_error(argument.error().message());
  if (!argument->has_snapshot) {
    return usage_error("which snapshot? Name its number behind the store, or 'latest'.");
  }
  if (!options.raw) {
    return usage_error("in which form? --raw, the memory image page by page, is the only one.");
  }
  auto store = open_for_reading(*argument);
  if (!store) {
    report(store.error().message());
    return exit_code_of(store.error());
  }
  auto info = find_snapshot(*store, *argument);
  if (!info) {
    report(info.error().message());
    return exit_code_in_store(info.error());
  }
  if (is_inside_a_store(options.output)) {
    return usage_error(
        fmt::format("'{}' is inside a store, which an export must not write into; "
                    "name another place.",
                    options.output));
  }
  auto sink = open_sink(options);
  if (!sink) {
    report(sink.error().message());
    const bool exists = sink.error().code() == ErrorCode::already_exists;
    return exists ? ExitCode::usage : exit_code_of(sink.error());
  }
  return copy_image(*store, *info, options, **sink);
}

}  // namespace pagetide::cli
