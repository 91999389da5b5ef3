#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "pagetide/snapshot/file_system.h"
#include "pagetide/snapshot/format.h"
#include "pagetide/snapshot/heap_state.h"
#include "pagetide/snapshot/page_map.h"
#include "pagetide/snapshot/segment.h"
#include "pagetide/snapshot/store.h"

namespace pagetide {

// A snapshot put together from its chain of manifests.
struct SnapshotImage {
  // Of a region without a byte.
  static Result<SnapshotImage> create(std::size_t reserve_bytes);

  PageMap pages;   // of the data
  HeapState heap;  // the metadata
  // Stored pages can hold bytes where the snapshot has zeros: those that are free by `heap`.
  bool free_bytes_masked = false;

  void apply_delta(const format::Manifest& manifest);
  void apply_full(const format::Manifest& manifest);
};

// The inside of a Store, shared by the parts of the snapshot layer. Not installed for users.
struct Store::Impl {
  Impl(std::string p, FileSystem& f, StoreMode m) : path(std::move(p)), files(f), mode(m) {}

  std::string path;
  FileSystem& files;
  StoreMode mode;
  std::unique_ptr<FileLock> lock;
  format::RootRecord root{};
  // The last commit failed so late that its root may be on the disk.
  bool in_doubt = false;

  std::string file(const std::string& name) const { return path + "/" + name; }
  bool writable() const { return mode != StoreMode::read; }

  Result<std::vector<std::byte>> read_file(const std::string& name) const;
  Result<std::unique_ptr<File>> open_part(const std::string& name) const;
  Result<void> read_root();
  // Writes a new root record and makes it the store's. *replaced tells, also in case of an error,
  // whether the new record may already be the one that the next open finds.
  Result<void> replace_root(const format::RootRecord& record, bool* replaced);
  Result<void> initialise();
  // Fails when another store, or another state of this one, has come to the path since it was
  // opened: writing on would destroy it.
  Result<void> check_still_ours() const;
  void remove_leftovers();

  Result<void> check_committed(std::uint64_t id);
  Result<format::ManifestHeader> read_header(std::uint64_t id) const;
  Result<format::Manifest> read_manifest(std::uint64_t id) const;
  // The image of a snapshot, resolved along the parent chain from the nearest full index.
  Result<SnapshotImage> resolve(std::uint64_t id) const;
  // The pages of data for read_image().
  Result<void> read_pages(const SnapshotImage& image, const ImageVisitor& visit,
                          const Progress& progress);

  SegmentReader segments() const { return {files, path, root.uuid, root.seed}; }
  SegmentWriter new_segment() const {
    return {files, file(format::segment_name(root.next_id)), root.uuid, root.next_id};
  }
  // Makes the snapshot root.next_id durable: segment, manifest, directory, root. On failure the
  // store is as before and nothing of the snapshot is left, with one exception: when the last
  // steps fail, the snapshot may turn out to be committed; its id is then never used again.
  Result<std::uint64_t> commit(format::Manifest& manifest, SegmentWriter& segment);
};

SnapshotInfo info_of(const format::ManifestHeader& header);

}  // namespace pagetide
