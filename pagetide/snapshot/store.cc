#include "pagetide/snapshot/store.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <filesystem>

#include "pagetide/allocator/free_mask.h"
#include "pagetide/allocator/program_identity.h"
#include "pagetide/snapshot/store_impl.h"

namespace pagetide {

namespace {

// Page maps keep ids in 32 bits.
constexpr std::uint64_t kMaxSnapshots = UINT32_MAX;
constexpr std::size_t kReadBytes = std::size_t{8} << 20;

std::uint64_t realtime_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U +
         static_cast<std::uint64_t>(now.tv_nsec);
}

template <typename T>
Result<void> fill_random(T& value) {
  if (::getrandom(&value, sizeof(T), 0) != static_cast<ssize_t>(sizeof(T))) {
    return system_failure("get random bytes for a new store", errno);
  }
  return {};
}

Result<std::vector<std::byte>> read_all(const File& file) {
  auto size = file.size();
  if (!size) return propagate(size);
  std::vector<std::byte> bytes(*size);
  auto n = file.read_at(0, bytes.data(), bytes.size());
  if (!n) return propagate(n);
  bytes.resize(*n);
  return bytes;
}

bool is_own_name(const std::string& name) {
  return name == format::kRootName || name == format::kRootTemporaryName ||
         name == format::kLockName || format::id_in_name(name) != 0;
}

}  // namespace

SnapshotInfo info_of(const format::ManifestHeader& h) {
  SnapshotInfo info;
  info.id = {h.id};
  info.parent = {h.parent};
  info.created_ns = h.created_ns;
  info.arena = h.arena.data();
  info.page_bytes = h.page_size;
  info.region_base = h.region_base;
  info.reserve_bytes = h.reserve_bytes;
  info.image_pages = h.image_pages;
  info.reported_pages = h.reported_pages;
  info.changed_pages = h.changed_pages;
  info.zero_pages = h.zero_pages;
  info.bytes_written = h.bytes_written;
  info.stop_ns = h.stop_ns;
  info.heap_bytes = h.heap_bytes;
  info.heap_state_bytes = h.heap_delta_bytes;
  info.has_full_index = h.parent == 0 || h.heap_full_bytes != 0;
  info.holds_code_addresses = (h.flags & format::kHoldsCodeAddresses) != 0;
  info.free_bytes_are_zero = (h.flags & format::kFreeBytesAreZero) != 0;
  info.free_bytes_masked = (h.flags & format::kFreeBytesMasked) != 0;
  info.build_id = ProgramIdentity{h.build_id, h.load_address}.build_id_hex();
  info.load_address = h.load_address;
  return info;
}

Result<std::vector<std::byte>> Store::Impl::read_file(const std::string& name) const {
  auto opened = files.open_read(file(name));
  if (!opened) return propagate(opened);
  return read_all(**opened);
}

Result<std::unique_ptr<File>> Store::Impl::open_part(const std::string& name) const {
  return format::open_part(files, file(name));
}

Result<void> Store::Impl::read_root() {
  auto bytes = read_file(format::kRootName);
  if (!bytes) return propagate(bytes);
  auto record = format::decode_root(*bytes, file(format::kRootName));
  if (!record) return propagate(record);
  if (record->page_size != page_size()) {
    return failure(
        ErrorCode::unsupported,
        fmt::format("{} was written on a machine with pages of {} bytes; this one has {}. Use it "
                    "on a machine of the same kind.",
                    path, record->page_size, page_size()));
  }
  root = *record;
  return {};
}

Result<void> Store::Impl::replace_root(const format::RootRecord& record, bool* replaced) {
  *replaced = false;
  const std::string temporary = file(format::kRootTemporaryName);
  {
    auto written = files.create(temporary, WriteMode::buffered);
    if (!written) return propagate(written);
    if (auto r = (*written)->append(&record, sizeof(record)); !r) return r;
    if (auto r = (*written)->sync(); !r) return r;
  }
  *replaced = true;
  if (auto r = files.rename(temporary, file(format::kRootName)); !r) return r;
  return files.sync_directory(path);
}

// Writes the first root of a store. A crash in between leaves a directory without a root, which
// the next creating open takes as its own; so every step is repeated here, also when the
// directory is there already.
Result<void> Store::Impl::initialise() {
  format::RootRecord record{};
  record.magic = format::kRootMagic;
  record.version = format::kVersion;
  record.page_size = static_cast<std::uint32_t>(page_size());
  if (auto r = fill_random(record.uuid); !r) return r;
  if (auto r = fill_random(record.seed); !r) return r;
  record.created_ns = realtime_ns();
  record.next_id = 1;
  format::seal(record);
  bool replaced = false;
  if (auto r = replace_root(record, &replaced); !r) return r;
  if (auto r = files.sync_directory(parent_directory(path)); !r) return r;
  root = record;
  return {};
}

Result<void> Store::Impl::check_still_ours() const {
  auto bytes = read_file(format::kRootName);
  if (bytes) {
    auto found = format::decode_root(*bytes, file(format::kRootName));
    if (!found) return propagate(found);
    const bool same_state =
        found->next_id == root.next_id || (in_doubt && found->next_id + 1 == root.next_id);
    if (found->uuid == root.uuid && same_state) return {};
  } else if (bytes.error().code() != ErrorCode::not_found) {
    return propagate(bytes);
  }
  return failure(ErrorCode::identity_mismatch,
                 fmt::format("{} is no longer the store that was opened: its directory was moved, "
                             "removed or replaced. Nothing was written; open the store again.",
                             path));
}

// What a commit that never came to its end left behind. Harmless; frees the space.
void Store::Impl::remove_leftovers() {
  auto names = files.list(path);
  if (!names) return;
  for (const std::string& name : *names) {
    const bool uncommitted = format::id_in_name(name) >= root.next_id;
    if (uncommitted || name == format::kRootTemporaryName) (void)files.remove(file(name));
  }
}

Result<void> Store::Impl::check_committed(std::uint64_t id) {
  if (!writable() && id >= root.next_id) {
    // A writer may have committed since.
    if (auto r = read_root(); !r) return r;
  }
  if (id >= 1 && id < root.next_id) return {};
  return failure(ErrorCode::not_found,
                 root.next_id == 1
                     ? fmt::format("{} has no snapshot {}; it is empty.", path, id)
                     : fmt::format("{} has no snapshot {}; its snapshots are 1 to {}.", path, id,
                                   root.next_id - 1));
}

Result<format::ManifestHeader> Store::Impl::read_header(std::uint64_t id) const {
  const std::string name = format::manifest_name(id);
  auto opened = open_part(name);
  if (!opened) return propagate(opened);
  std::vector<std::byte> bytes(sizeof(format::ManifestHeader));
  auto n = (*opened)->read_at(0, bytes.data(), bytes.size());
  if (!n) return propagate(n);
  bytes.resize(*n);
  return format::decode_header(bytes, root.uuid, id, file(name));
}

Result<format::Manifest> Store::Impl::read_manifest(std::uint64_t id) const {
  const std::string name = format::manifest_name(id);
  auto opened = open_part(name);
  if (!opened) return propagate(opened);
  auto bytes = read_all(**opened);
  if (!bytes) return propagate(bytes);
  return format::decode_manifest(*bytes, root.uuid, id, root.seed, file(name));
}

Result<SnapshotImage> SnapshotImage::create(std::size_t reserve_bytes) {
  auto pages = PageMap::create(reserve_bytes / page_size());
  if (!pages) return propagate(pages);
  auto heap = HeapState::create(reserve_bytes);
  if (!heap) return propagate(heap);
  return SnapshotImage{std::move(*pages), std::move(*heap)};
}

void SnapshotImage::apply_delta(const format::Manifest& manifest) {
  pages.apply(manifest.delta, manifest.delta_hashes);
  heap.apply(manifest.heap_delta, format::HeapRecordKind::delta);
  free_bytes_masked = (manifest.header.flags & format::kFreeBytesMasked) != 0;
}

void SnapshotImage::apply_full(const format::Manifest& manifest) {
  pages.apply(manifest.full, manifest.full_hashes);
  heap.apply(manifest.heap_full, format::HeapRecordKind::full);
  free_bytes_masked = (manifest.header.flags & format::kFreeBytesMasked) != 0;
}

Result<SnapshotImage> Store::Impl::resolve(std::uint64_t id) const {
  std::vector<format::Manifest> chain;
  for (std::uint64_t at = id; at != 0;) {
    auto manifest = read_manifest(at);
    if (!manifest) {
      return tl::unexpected<Error>(std::move(manifest).error().with_context(
          at == id ? fmt::format("cannot read snapshot {}", id)
                   : fmt::format("cannot read snapshot {}, which snapshot {} builds on", at, id)));
    }
    if (!chain.empty() && (manifest->header.region_base != chain.front().header.region_base ||
                           manifest->header.reserve_bytes != chain.front().header.reserve_bytes)) {
      return failure(
          ErrorCode::damaged,
          fmt::format("snapshots {} and {} of {} belong together, but describe different "
                      "regions.",
                      id, at, path));
    }
    at = manifest->has_full_index() ? 0 : manifest->header.parent;
    chain.push_back(std::move(*manifest));
  }
  auto image = SnapshotImage::create(chain.front().header.reserve_bytes);
  if (!image) return propagate(image);
  for (auto manifest = chain.rbegin(); manifest != chain.rend(); ++manifest) {
    if (manifest->has_full_index()) {
      image->apply_full(*manifest);
    } else {
      image->apply_delta(*manifest);
    }
  }
  return image;
}

Result<void> Store::Impl::read_pages(const SnapshotImage& image, const ImageVisitor& visit,
                                     const Progress& progress) {
  const PageMap& map = image.pages;
  FreeMask mask(image.heap.metadata());
  const std::size_t page = page_size();
  auto buffer = VirtualArray<std::byte>::create(std::max(kReadBytes, page));
  if (!buffer) return propagate(buffer);
  SegmentReader reader = segments();
  Result<void> result;
  map.for_each_extent([&](const format::Extent& whole) {
    for (std::uint32_t done = 0; done < whole.page_count && result;) {
      format::Extent part = whole;
      part.first_page += done;
      part.segment_page += done;
      part.page_count = std::min<std::uint32_t>(whole.page_count - done,
                                                static_cast<std::uint32_t>(buffer->size() / page));
      result = reader.read(part, buffer->span().data(), [&](std::size_t i) -> const Hash128& {
        return map.hash(part.first_page + i);
      });
      for (std::uint32_t i = 0; i < part.page_count && image.free_bytes_masked && result; ++i) {
        mask.apply(part.first_page + i, buffer->span().data() + i * page);
      }
      if (result) {
        result =
            visit({part.first_page, part.page_count}, buffer->span().first(part.page_count * page));
      }
      done += part.page_count;
      if (progress && result) progress(part.first_page + part.page_count, map.end());
    }
  });
  return result;
}

Result<std::uint64_t> Store::Impl::commit(format::Manifest& manifest, SegmentWriter& segment) {
  const std::uint64_t id = root.next_id;
  if (id > kMaxSnapshots) {
    return failure(
        ErrorCode::unsupported,
        fmt::format("{} is full: it has had {} snapshots. Begin a new store.", path, id - 1));
  }
  const std::string manifest_path = file(format::manifest_name(id));
  const auto undo = [&](Result<void>& r) {
    segment.discard();
    (void)files.remove(manifest_path);
    return propagate(r);
  };
  format::ManifestHeader& h = manifest.header;
  h.magic = format::kManifestMagic;
  h.version = format::kVersion;
  h.page_size = static_cast<std::uint32_t>(page_size());
  h.uuid = root.uuid;
  h.id = id;
  h.created_ns = realtime_ns();
  h.bytes_written =
      segment.bytes() + sizeof(format::RootRecord) +
      format::manifest_bytes(manifest.delta.size() + manifest.full.size(),
                             manifest.delta_hashes.size() + manifest.full_hashes.size()) +
      manifest.heap_delta.size() + manifest.heap_full.size();
  const std::vector<std::byte> bytes = format::encode(manifest, root.seed);

  if (auto r = segment.sync(); !r) return undo(r);
  {
    auto written = files.create(manifest_path, WriteMode::buffered);
    Result<void> r;
    if (!written) r = propagate(written);
    if (r) r = (*written)->append(bytes.data(), bytes.size());
    if (r) r = (*written)->sync();
    if (!r) return undo(r);
  }
  if (auto r = check_still_ours(); !r) return undo(r);
  // The root must not become durable before the names of what it stands for.
  if (auto r = files.sync_directory(path); !r) return undo(r);

  format::RootRecord next = root;
  next.head = id;
  next.next_id = id + 1;
  format::seal(next);
  bool replaced = false;
  if (auto r = replace_root(next, &replaced); !r) {
    if (!replaced) return undo(r);
    // In doubt: the next open may find this snapshot committed. It is complete either way, so it
    // stays, and only its id is spent.
    root.next_id = id + 1;
    in_doubt = true;
    return propagate(r);
  }
  root = next;
  in_doubt = false;
  return id;
}

Store::Store(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Store::Store(Store&&) noexcept = default;
Store& Store::operator=(Store&&) noexcept = default;
Store::~Store() = default;

const std::string& Store::path() const {
  return impl_->path;
}

namespace {

tl::unexpected<Error> missing_store(const std::string& path) {
  return failure(
      ErrorCode::not_found,
      fmt::format("there is no store at {}. Check the path; a store is made by a program that "
                  "takes snapshots.",
                  path));
}

// Files are reached by path at each operation: a program that changes its directory, as daemons
// do, must not end up in another store.
std::string absolute(const std::string& path) {
  std::error_code error;
  const std::filesystem::path found = std::filesystem::absolute(path, error);
  return error ? path : found.string();
}

// Whether a directory without a root may become a store: nothing in it but what an interrupted
// creation leaves.
Result<void> check_empty(FileSystem& files, const std::string& path) {
  auto names = files.list(path);
  if (!names) return propagate(names);
  for (const std::string& name : *names) {
    if (format::id_in_name(name) != 0) {
      return failure(ErrorCode::damaged,
                     fmt::format("{} is damaged: its file 'root' is missing, which says which "
                                 "snapshots are committed. The snapshots are still there: restore "
                                 "'root' from a copy.",
                                 path));
    }
    if (!is_own_name(name) || format::id_in_name(name) != 0) {
      return failure(
          ErrorCode::not_a_store,
          fmt::format("{} is not a Pagetide store: it has no root and holds '{}'. Name an empty "
                      "or new directory to make one.",
                      path, name));
    }
  }
  return {};
}

}  // namespace

Result<Store> Store::open(const std::string& path, const StoreOptions& options) {
  FileSystem& files = options.files != nullptr ? *options.files : posix_file_system();
  auto impl =
      std::make_unique<Impl>(options.files == nullptr ? absolute(path) : path, files, options.mode);
  if (options.mode == StoreMode::create_or_write) {
    auto made = files.create_directory(path);
    if (!made && made.error().code() != ErrorCode::already_exists) return propagate(made);
  }
  auto names = files.list(path);
  if (!names && names.error().code() == ErrorCode::not_found) return missing_store(path);
  if (!names) return propagate(names);
  const bool has_root = std::find(names->begin(), names->end(), format::kRootName) != names->end();
  if (!has_root) {
    // Before the lock file is made: never write into a directory that is somebody else's.
    if (auto r = check_empty(files, path); !r) return propagate(r);
    if (options.mode != StoreMode::create_or_write) {
      return failure(ErrorCode::not_a_store,
                     fmt::format("{} is not a Pagetide store: it has no root. If its creation was "
                                 "interrupted, the program that makes it can simply start again.",
                                 path));
    }
  }
  if (impl->writable()) {
    auto lock = files.lock(impl->file(format::kLockName));
    if (!lock) return propagate(lock);
    impl->lock = std::move(*lock);
  }
  auto root = impl->read_root();
  if (!root && root.error().code() == ErrorCode::not_found &&
      options.mode == StoreMode::create_or_write) {
    root = impl->initialise();
  }
  if (!root) return propagate(root);
  if (impl->writable()) impl->remove_leftovers();
  return Store(std::move(impl));
}

Result<SnapshotId> Store::latest() {
  if (!impl_->writable()) {
    if (auto r = impl_->read_root(); !r) return propagate(r);
  }
  if (impl_->root.head != 0) return SnapshotId{impl_->root.head};
  return failure(ErrorCode::not_found,
                 fmt::format("{} is empty: no snapshot was committed yet.", path()));
}

SnapshotList Store::snapshots() {
  SnapshotList list;
  if (!impl_->writable()) {
    if (auto r = impl_->read_root(); !r) {
      list.problems.push_back(std::move(r).error());
      return list;
    }
  }
  for (std::uint64_t id = 1; id < impl_->root.next_id; ++id) {
    if (auto header = impl_->read_header(id)) {
      list.snapshots.push_back(info_of(*header));
    } else {
      list.problems.push_back(
          std::move(header).error().with_context(fmt::format("cannot read snapshot {}", id)));
    }
  }
  return list;
}

Result<SnapshotInfo> Store::info(SnapshotId id) {
  if (auto r = impl_->check_committed(id.value); !r) return propagate(r);
  auto header = impl_->read_header(id.value);
  if (!header) return propagate(header);
  return info_of(*header);
}

Result<std::vector<ChangedRun>> Store::changes(SnapshotId id) {
  if (auto r = impl_->check_committed(id.value); !r) return propagate(r);
  auto manifest = impl_->read_manifest(id.value);
  if (!manifest) return propagate(manifest);
  std::vector<ChangedRun> runs;
  for (const format::Extent& e : manifest->delta) {
    runs.push_back({e.first_page, e.page_count, e.kind == format::ExtentKind::zero});
  }
  return runs;
}

Result<void> Store::read_image(SnapshotId id, const ImageVisitor& visit, const Progress& progress) {
  if (auto r = impl_->check_committed(id.value); !r) return r;
  auto image = impl_->resolve(id.value);
  if (!image) return propagate(image);
  if (auto r = image->heap.for_each_page_run(visit); !r) return r;
  return impl_->read_pages(*image, visit, progress);
}

Result<void> Store::read_metadata(SnapshotId id, const ImageVisitor& visit) {
  if (auto r = impl_->check_committed(id.value); !r) return r;
  auto image = impl_->resolve(id.value);
  if (!image) return propagate(image);
  return image->heap.for_each_page_run(visit);
}

namespace {

Result<void> check_program(const format::ManifestHeader& h) {
  if ((h.flags & format::kHoldsCodeAddresses) == 0) return {};
  const ProgramIdentity writer{h.build_id, h.load_address};
  const ProgramIdentity& here = current_program();
  if (writer.build_id != here.build_id) {
    return failure(
        ErrorCode::identity_mismatch,
        fmt::format("snapshot {} holds code addresses (vtables or function pointers) of another "
                    "build of the program: build-id {}, this one is {}. Open it with the build "
                    "that wrote it.",
                    h.id, writer.build_id_hex(), here.build_id_hex()));
  }
  if (writer.load_address != here.load_address) {
    return failure(
        ErrorCode::identity_mismatch,
        fmt::format("snapshot {} holds code addresses (vtables or function pointers) of the "
                    "program loaded at {:#x}; it is now at {:#x}. Link it with -no-pie, or run "
                    "it under setarch -R.",
                    h.id, writer.load_address, here.load_address));
  }
  return {};
}

}  // namespace

Result<Arena> Store::open_arena(SnapshotId id, const OpenArenaOptions& options) {
  if (auto r = impl_->check_committed(id.value); !r) return propagate(r);
  auto header = impl_->read_header(id.value);
  if (!header) return propagate(header);
  if (!options.ignore_program_identity) {
    if (auto r = check_program(*header); !r) return propagate(r);
  }
  auto image = impl_->resolve(id.value);
  if (!image) return propagate(image);
  const PageMap& map = image->pages;

  ArenaOptions arena_options;
  arena_options.name = header->arena.data();
  arena_options.reserve_bytes = header->reserve_bytes;
  arena_options.base = header->region_base;
  arena_options.clear = options.clear;
  arena_options.prefill = options.prefill;
  arena_options.backend = options.backend;
  arena_options.hot_pages = options.hot_pages;
  arena_options.on_corruption = options.on_corruption;
  arena_options.slack_percent = options.slack_percent;
  // Pages that are not what the store has for them.
  std::vector<PageRange> masked;
  auto arena = Arena::from_image(arena_options, map.end() * page_size(), [&](ByteRange region) {
    image->heap.write_to(region.data());
    SegmentReader reader = impl_->segments();
    FreeMask mask(image->heap.metadata());
    Result<void> result;
    map.for_each_extent([&](const format::Extent& extent) {
      if (!result) return;
      const ByteRange target =
          PageRange{extent.first_page, extent.page_count}.bytes_from(region.begin);
      result = reader.read(extent, target.data(), [&](std::size_t i) -> const Hash128& {
        return map.hash(extent.first_page + i);
      });
      for (std::size_t i = 0; i < extent.page_count && image->free_bytes_masked && result; ++i) {
        const std::size_t page = extent.first_page + i;
        if (mask.apply(page, target.data() + i * page_size())) masked.push_back({page, 1});
      }
      if (options.progress && result)
        options.progress(extent.first_page + extent.page_count, map.end());
    });
    return result;
  });
  if (!arena) {
    return tl::unexpected<Error>(std::move(arena).error().with_context(
        fmt::format("cannot open snapshot {} of {}", id.value, path())));
  }
  // The memory is what the snapshot holds: arm it, and forget that it was written to get there.
  const UsedRanges used = arena->heap().used_ranges();
  auto armed = arena->tracker().collect(arena->region().watch(), used.span(), CollectMode::take);
  if (!armed) return propagate(armed);
  for (const PageRange& pages : masked) {
    arena->tracker().mark_dirty(pages.bytes_from(arena->range().begin));
  }
  arena->set_origin({impl_->root.uuid, id.value});
  arena->heap().inherit_free_bytes_are_zero((header->flags & format::kFreeBytesAreZero) != 0);
  return arena;
}

}  // namespace pagetide
