#include "tests/support/crash_disk.h"

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <utility>

#include "pagetide/base/bytes.h"
#include "pagetide/base/page_range.h"

namespace pagetide {

namespace {

using Random = std::mt19937_64;

// Draws before draw_entries() settles for "everything was kept", which is always possible.
constexpr int kMaxDraws = 64;

std::vector<std::string> split(std::string_view path) {
  std::vector<std::string> parts;
  while (!path.empty()) {
    const std::string_view part = path.substr(0, path.find('/'));
    path.remove_prefix(std::min(path.size(), part.size() + 1));
    if (part.empty() || part == ".") continue;
    if (part != "..") {
      parts.emplace_back(part);
    } else if (!parts.empty()) {
      parts.pop_back();
    }
  }
  return parts;
}

// Calls visit(path, inode) for every name below the directory, parents first. entries_of tells
// which of a directory's sets of entries counts.
template <typename EntriesOf, typename Visit>
void walk(const CrashInode& directory, const EntriesOf& entries_of, const Visit& visit,
          const std::string& prefix = {}) {
  for (const auto& [name, inode] : entries_of(directory)) {
    visit(prefix + name, inode);
    if (inode->is_directory) walk(*inode, entries_of, visit, prefix + name + "/");
  }
}

const CrashEntries& current_entries(const CrashInode& directory) {
  return directory.entries;
}
const CrashEntries& durable_entries(const CrashInode& directory) {
  return directory.durable_entries;
}

// How many names lead to each inode.
template <typename EntriesOf>
std::map<const CrashInode*, int> count_names(const CrashInode& root, const EntriesOf& entries_of) {
  std::map<const CrashInode*, int> names;
  walk(root, entries_of,
       [&](const std::string&, const CrashInodePtr& inode) { ++names[inode.get()]; });
  return names;
}

using Copies = std::map<const CrashInode*, CrashInodePtr>;

CrashInodePtr copy(const CrashInodePtr& inode, Copies& copies) {
  if (inode == nullptr) return nullptr;
  const auto [place, is_new] = copies.try_emplace(inode.get());
  if (!is_new) return place->second;
  const auto result = std::make_shared<CrashInode>(*inode);
  place->second = result;
  result->is_locked = false;  // locks belong to programs, not to the disk
  for (CrashEntries* entries : {&result->entries, &result->durable_entries}) {
    for (auto& [name, child] : *entries) child = copy(child, copies);
  }
  return result;
}

// True in `eighths` of eight cases.
bool draw(Random& random, std::uint64_t eighths) {
  return random() % 8 < eighths;
}

// The length that a file has after a power failure. Metadata and data go to the disk on their
// own, so it says nothing about the content.
std::size_t draw_length(const CrashInode& file, Random& random) {
  if (draw(random, 6)) return file.content.size();
  const std::size_t first_page = file.durable_bytes / page_size();
  const std::size_t pages = divide_up(file.content.size(), page_size()) - first_page;
  return std::max(file.durable_bytes, (first_page + random() % pages) * page_size());
}

// A page that did not get to the disk reads as zeros, or as what the block held before.
void lose_page(std::byte* begin, std::byte* end, Random& random) {
  const bool zeros = draw(random, 4);
  std::generate(begin, end, [&] { return zeros ? std::byte{0} : std::byte(random() & 0xffU); });
}

void keep_some_unsynced_content(CrashInode& file, Random& random) {
  if (file.durable_before_truncation && draw(random, 4)) {
    file.content = *file.durable_before_truncation;
    return;
  }
  if (file.durable_bytes == file.content.size()) return;
  file.content.resize(draw_length(file, random));
  const std::uint64_t kept_eighths = random() % 9;  // now and then all of it, or nothing
  std::size_t begin = file.durable_bytes;
  while (begin < file.content.size()) {
    const std::size_t end =
        std::min(file.content.size(), round_down(begin, page_size()) + page_size());
    std::byte* data = file.content.data();
    if (!draw(random, kept_eighths)) lose_page(data + begin, data + end, random);
    begin = end;
  }
}

void empty_file(CrashInode& file) {
  if (!file.durable_before_truncation) {
    file.content.resize(file.durable_bytes);
    file.durable_before_truncation = std::move(file.content);
  }
  file.content.clear();
  file.durable_bytes = 0;
}

void drop_unsynced_content(CrashInode& file) {
  if (file.durable_before_truncation) {
    file.content = *file.durable_before_truncation;
  } else {
    file.content.resize(file.durable_bytes);
  }
}

}  // namespace

CrashDisk::CrashDisk() : root_(std::make_shared<CrashInode>()) {
  root_->is_directory = true;
}

CrashDisk CrashDisk::clone() const {
  Copies copies;
  CrashDisk result;
  result.root_ = copy(root_, copies);
  result.unsynced_changes_ = unsynced_changes_;
  for (EntryChange& change : result.unsynced_changes_) {
    for (CrashInodePtr* inode :
         {&change.directory, &change.value, &change.moved, &change.moved_to_directory}) {
      *inode = copy(*inode, copies);
    }
  }
  return result;
}

OrErrno<CrashInodePtr> CrashDisk::find(const std::string& path) const {
  CrashInodePtr inode = root_;
  for (const std::string& part : split(path)) {
    if (!inode->is_directory) return tl::unexpected<int>(ENOTDIR);
    const auto entry = inode->entries.find(part);
    if (entry == inode->entries.end()) return tl::unexpected<int>(ENOENT);
    inode = entry->second;
  }
  return inode;
}

OrErrno<CrashDisk::Place> CrashDisk::locate(const std::string& path) const {
  std::vector<std::string> parts = split(path);
  if (parts.empty()) return Place{root_, {}};
  Place place{root_, std::move(parts.back())};
  parts.pop_back();
  for (const std::string& part : parts) {
    const auto entry = place.directory->entries.find(part);
    if (entry == place.directory->entries.end()) return tl::unexpected<int>(ENOENT);
    place.directory = entry->second;
    if (!place.directory->is_directory) return tl::unexpected<int>(ENOTDIR);
  }
  return place;
}

void CrashDisk::apply(EntryChange change) {
  if (change.value != nullptr) {
    change.directory->entries[change.name] = change.value;
  } else {
    change.directory->entries.erase(change.name);
  }
  unsynced_changes_.push_back(std::move(change));
}

OrErrno<void> CrashDisk::create_directory(const std::string& path) {
  if (find(path)) return tl::unexpected<int>(EEXIST);
  auto place = locate(path);
  if (!place) return tl::unexpected<int>(place.error());
  auto inode = std::make_shared<CrashInode>();
  inode->is_directory = true;
  apply({place->directory, place->name, inode, {}, {}, {}});
  return {};
}

OrErrno<CrashInodePtr> CrashDisk::open_or_create(const std::string& path) {
  if (auto existing = find(path)) {
    if ((*existing)->is_directory) return tl::unexpected<int>(EISDIR);
    return existing;
  }
  auto place = locate(path);
  if (!place) return tl::unexpected<int>(place.error());
  auto inode = std::make_shared<CrashInode>();
  apply({place->directory, place->name, inode, {}, {}, {}});
  return inode;
}

OrErrno<CrashInodePtr> CrashDisk::create_file(const std::string& path) {
  const bool existed = find(path).has_value();
  auto file = open_or_create(path);
  if (file && existed) empty_file(**file);
  return file;
}

OrErrno<void> CrashDisk::rename(const std::string& from, const std::string& to) {
  auto moved = find(from);
  if (!moved) return tl::unexpected<int>(moved.error());
  auto source = locate(from);
  auto target = locate(to);
  if (!target) return tl::unexpected<int>(target.error());
  if (source->name.empty() || target->name.empty()) return tl::unexpected<int>(EBUSY);
  if (const auto replaced = find(to)) {
    if (*replaced == *moved) return {};
    if ((*replaced)->is_directory && !(*moved)->is_directory) return tl::unexpected<int>(EISDIR);
    if (!(*replaced)->is_directory && (*moved)->is_directory) return tl::unexpected<int>(ENOTDIR);
    if (!(*replaced)->entries.empty()) return tl::unexpected<int>(ENOTEMPTY);
  }
  if ((*moved)->is_directory && source->directory != target->directory) {
    return tl::unexpected<int>(EXDEV);
  }
  apply({target->directory, target->name, *moved, {}, {}, {}});
  apply({source->directory, source->name, nullptr, *moved, target->directory, target->name});
  return {};
}

OrErrno<void> CrashDisk::remove(const std::string& path) {
  auto inode = find(path);
  if (!inode) return tl::unexpected<int>(inode.error());
  if (!(*inode)->entries.empty()) return tl::unexpected<int>(ENOTEMPTY);
  auto place = locate(path);
  if (place->name.empty()) return tl::unexpected<int>(EBUSY);
  apply({place->directory, place->name, nullptr, {}, {}, {}});
  return {};
}

void CrashDisk::make_durable(const CrashInodePtr& directory, const std::string& name,
                             const CrashInodePtr& value) {
  const auto is_this_name = [&](const EntryChange& change) {
    return change.directory == directory && change.name == name;
  };
  const auto last = std::find_if(
      unsynced_changes_.rbegin(), unsynced_changes_.rend(),
      [&](const EntryChange& change) { return is_this_name(change) && change.value == value; });
  if (last == unsynced_changes_.rend()) return;  // already is
  directory->durable_entries[name] = value;
  unsynced_changes_.erase(std::remove_if(unsynced_changes_.begin(), last.base(), is_this_name),
                          last.base());
}

OrErrno<void> CrashDisk::sync_directory(const std::string& path) {
  auto directory = find(path);
  if (!directory) return tl::unexpected<int>(directory.error());
  if (!(*directory)->is_directory) return tl::unexpected<int>(ENOTDIR);
  // rename() is atomic: that a file left this directory is not durable before its new name in
  // another one is.
  const std::vector<EntryChange> changes = unsynced_changes_;
  for (const EntryChange& change : changes) {
    if (change.directory == *directory && change.moved != nullptr &&
        change.moved_to_directory != *directory) {
      make_durable(change.moved_to_directory, change.moved_to_name, change.moved);
    }
  }
  (*directory)->durable_entries = (*directory)->entries;
  std::erase_if(unsynced_changes_,
                [&](const EntryChange& change) { return change.directory == *directory; });
  return {};
}

void CrashDisk::append(CrashInode& file, const std::byte* data, std::size_t size_bytes) {
  file.content.insert(file.content.end(), data, data + size_bytes);
}

void CrashDisk::sync(CrashInode& file) {
  file.durable_bytes = file.content.size();
  file.durable_before_truncation.reset();
}

void CrashDisk::lose_unsynced(CrashInode& file) {
  std::fill(file.content.data() + file.durable_bytes, file.content.data() + file.content.size(),
            std::byte{0});
}

std::map<std::string, CrashInodePtr> CrashDisk::files() const {
  std::map<std::string, CrashInodePtr> result;
  walk(*root_, current_entries, [&](const std::string& path, const CrashInodePtr& inode) {
    if (!inode->is_directory) result.emplace(path, inode);
  });
  return result;
}

std::size_t CrashDisk::used_bytes() const {
  std::size_t bytes = 0;
  for (const auto& [inode, names] : count_names(*root_, current_entries)) {
    bytes += inode->content.size();
  }
  return bytes;
}

// A subset of the unsynced changes, each kept or undone on its own.
CrashDisk::Draft CrashDisk::draw_entries(Random& random) const {
  Draft draft;
  for (int attempt = 0; attempt < kMaxDraws; ++attempt) {
    const std::uint64_t kept_eighths = random() % 9;  // now and then all of them, or none
    draft.clear();
    for (const EntryChange& change : unsynced_changes_) {
      const auto entries =
          draft.try_emplace(change.directory.get(), change.directory->durable_entries).first;
      if (!draw(random, kept_eighths)) continue;
      if (change.value != nullptr) {
        entries->second[change.name] = change.value;
      } else {
        entries->second.erase(change.name);
      }
    }
    if (is_possible(draft)) return draft;
  }
  for (auto& [directory, entries] : draft) entries = directory->entries;
  return draft;
}

// rename() is atomic, so a file that was durable under one name and was not removed has a name
// still. And no directory has two.
bool CrashDisk::is_possible(const Draft& draft) const {
  const auto drafted_entries = [&](const CrashInode& directory) -> const CrashEntries& {
    const auto drafted = draft.find(&directory);
    return drafted != draft.end() ? drafted->second : directory.durable_entries;
  };
  const auto names = count_names(*root_, drafted_entries);
  const auto live = count_names(*root_, current_entries);
  for (const auto& [inode, count] : count_names(*root_, durable_entries)) {
    if (live.contains(inode) && !names.contains(inode)) return false;
  }
  return std::all_of(names.begin(), names.end(), [](const auto& name) {
    return !name.first->is_directory || name.second == 1;
  });
}

CrashDisk CrashDisk::after_power_loss(const LossPolicy& policy) const {
  CrashDisk result = clone();
  if (!policy.seed()) {
    result.settle({}, nullptr);
    return result;
  }
  Random random(*policy.seed());
  result.settle(result.draw_entries(random), &random);
  return result;
}

// Makes the drafted entries (elsewhere the durable ones) and what is left of each file all there
// is. random is null when nothing unsynced is kept.
void CrashDisk::settle(const Draft& draft, Random* random) {
  for (const auto& [directory, entries] : draft) directory->durable_entries = entries;
  unsynced_changes_.clear();
  root_->entries = root_->durable_entries;
  walk(*root_, durable_entries, [&](const std::string&, const CrashInodePtr& inode) {
    inode->entries = inode->durable_entries;
    if (random != nullptr) {
      keep_some_unsynced_content(*inode, *random);
    } else {
      drop_unsynced_content(*inode);
    }
    sync(*inode);
  });
}

}  // namespace pagetide
