#include "tools/cli/json.h"

#include "tools/cli/text.h"

namespace pagetide::cli {

Json to_json(const SnapshotInfo& info) {
  Json json = {{"id", info.id.value}, {"parent", nullptr}};
  if (info.parent.value != 0) json["parent"] = info.parent.value;
  json["created"] = iso_time(info.created_ns);
  json["arena"] = info.arena;
  json["page_bytes"] = info.page_bytes;
  json["region_base"] = hexadecimal(info.region_base);
  json["reserve_bytes"] = info.reserve_bytes;
  json["image_pages"] = info.image_pages;
  json["heap_bytes"] = info.heap_bytes;
  json["reported_pages"] = info.reported_pages;
  json["changed_pages"] = info.changed_pages;
  json["zero_pages"] = info.zero_pages;
  json["bytes_written"] = info.bytes_written;
  json["heap_state_bytes"] = info.heap_state_bytes;
  json["stop_ns"] = info.stop_ns;
  json["has_full_index"] = info.has_full_index;
  json["holds_code_addresses"] = info.holds_code_addresses;
  json["free_bytes_are_zero"] = info.free_bytes_are_zero;
  json["free_bytes_masked"] = info.free_bytes_masked;
  json["build_id"] = info.build_id;
  json["load_address"] = hexadecimal(info.load_address);
  return json;
}

void print_json(const Json& value, Output& out) {
  out.write(value.dump(2, ' ', false, Json::error_handler_t::replace));
  out.write("\n");
}

}  // namespace pagetide::cli
